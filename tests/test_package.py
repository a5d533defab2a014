"""What is shipped: the wheel and the source it is made of, and the configs."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import fedcom
from fedcom.config import read
from fedcom.config.methods import variant
from fedcom.runs.prepare import prepare
from fedcom.studies.compare import labels
from fedcom.tasks.llama import LlamaModule, Shape
from tests.conftest import CHAOS
from tests.processes import PATIENCE

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(p for p in (ROOT / "experiments").rglob("*.toml") if p.parent.name != "rates")


def build_wheel(source: Path, out: Path) -> Path:
    """The wheel of a source tree, made by the hatchling that is installed."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(out), str(source)], check=True, timeout=PATIENCE)
    (wheel,) = out.glob("fedcom-*.whl")
    return wheel


def contents(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


def files(folder: Path) -> set[str]:
    """What a folder holds but for caches, by its path from there."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_and_its_experiments_and_nothing_else(wheel: Path) -> None:
    package = {f"fedcom/{name}" for name in files(ROOT / "src" / "fedcom")}
    experiments = {f"fedcom/experiments/{name}" for name in files(ROOT / "experiments")}
    about = f"fedcom-{fedcom.__version__}.dist-info/"
    assert {name for name in contents(wheel) if not name.startswith(about)} == package | experiments
    assert {"fedcom/py.typed", "fedcom/runs/run.py", "fedcom/reports/page/page.html"} <= package
    assert {"fedcom/reproduce/studies.toml", "fedcom/reproduce/tables/tables.toml"} <= package
    assert "fedcom/experiments/fig4/mnist.toml" in experiments


@pytest.mark.thorough
def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True, timeout=PATIENCE)
    (archive,) = tmp_path.glob("fedcom-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    assert contents(build_wheel(tmp_path / f"fedcom-{fedcom.__version__}", tmp_path)) == contents(wheel)


def install(wheel: Path, folder: Path) -> Path:
    """The programs of a fresh environment that has the wheel; its dependencies are those of this one."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=PATIENCE)
    # They come after the wheel on the path; the file beside them that makes src/ importable here is not read.
    parents = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "parents.pth").write_text("".join(f"{path}\n" for path in sorted(parents)))
    return folder / "bin"


LOADED = """
import sys
print(*(module.__file__ for name, module in [*sys.modules.items()] if name.startswith("fedcom")))
"""
ALL = f"""
import sys
import fedcom.cli, fedcom.reproduce
for arguments in {{words}}:
    sys.argv = ["fedcom", *arguments]
    try:
        fedcom.cli.main()
    except SystemExit as ended:
        if ended.code:
            raise
    print(end="\\0")
{LOADED}"""


def test_the_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "venv")
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def call(program: str, *arguments: str) -> str:
        command = [str(programs / program), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=outside, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert call("fedcom", "--version") == f"fedcom {fedcom.__version__}\n"
    small = ["data.name=digits", "data.clients=10", "--dry-run", "--device", "cpu"]
    words = [
        ["list", "codecs"],
        *(["run", name, *small] for name in ("mnist", "fig4/mnist", "paper")),  # by name, wherever one is
        ["run", "run.rounds=2", "model.hidden=8", "--device", "cpu", "--out", "a"],
        ["report", "a"],
    ]
    if CHAOS:
        outs = [call("fedcom", *each) for each in words]
        places = call("python", "-c", f"import fedcom.cli, fedcom.reproduce\n{LOADED}").split()
    else:  # one process for all, as what starts takes longer than what it does
        *outs, loaded = call("python", "-c", ALL.format(words=words)).split("\0")
        places = loaded.split()
    assert len(places) > 50
    assert {Path(place).is_relative_to(tmp_path / "venv") for place in places} == {True}
    listed, *dry, run, report = outs
    assert [line.split()[0] for line in listed.splitlines()] == list(fedcom.CODECS)
    assert [tomllib.loads(one)["algorithm"]["name"] for one in dry] == ["fedcomgate"] * 3
    assert (run, report) == ("results in a\n", "report in a/report.html\n")
    assert "fedcom, int 8-bit" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")


def test_the_readme_works_on_a_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCOM_URL", "git@example.org:me/fedcom.git")
    wheel = build_wheel(ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"fedcom-{fedcom.__version__}.dist-info/METADATA").decode()
    assert "Project-URL: Repository, https://example.org/me/fedcom\n" in text
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 5
    assert all(target.startswith("https://") for target in targets)
    images = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert "https://example.org/me/fedcom/raw/main/docs/figures/headline-light.png" in images
    assert all(image.startswith("https://") for image in images)
    for target in targets:
        path = target.partition("/main/")[2].partition("#")[0]
        assert not target.startswith("https://example.org") or (ROOT / path).exists(), target


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_shipped_config_runs_a_round(path: Path, tmp_path: Path) -> None:
    """On digits or a little text, since the real sets may not be here; their own keys are all checked."""
    table = read(path, ["data.name=digits", "data.clients=10", "run.rounds=1"])
    if table.get("model", {}).get("name", "mlp") in ("mlp", "lenet"):  # lenet needs larger images
        table["model"] = {"name": "mlp", "hidden": [64]}
    elif table["model"]["name"] in ("gru", "transformer", "llama"):
        for writer in ("anna", "bert"):
            (tmp_path / f"{writer}.txt").write_text(f"yours,\n{writer}\n" * 9)
        table["data"] = {"name": "text", "path": str(tmp_path), "length": 10, "partition": "natural"}
        if table["model"]["name"] == "gru":
            table["model"] |= {"hidden": 8}
        elif table["model"]["name"] == "transformer":
            table["model"] |= {"width": 12, "layers": 1}
            table["algorithm"] |= {"tau": 2}
        else:
            shape = Shape(20, 8, 8, 1, 2, 1, 4)
            table["model"] |= {"path": str(fedcom.save_merged(LlamaModule(shape), tmp_path / ".model"))}
    else:  # a linear one, which may be for two classes only
        table["model"]["name"] = "logistic"
    if "epochs" in table.get("algorithm", {}):
        table["algorithm"]["epochs"] = 1
    if table["data"].get("partition") == "natural" and "path" not in table["data"]:  # digits have no authors
        table["data"]["partition"] = "iid"
    table["run"]["participation"] = 1.0
    for label in labels(table)[0 if CHAOS else -1 :]:  # the last is its own, if it names any
        simulation, _ = prepare(variant(table, label), "cpu")
        first, last = simulation.run()
        assert first["round"] == 0
        assert last["round"] == 1


def test_there_are_shipped_configs() -> None:
    assert len(CONFIGS) >= 4
