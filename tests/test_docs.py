"""The docs are true: examples run, the command-line reference is what --help prints, links work."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

import fedcom
from fedcom.cli import app
from fedcom.draws import Draw
from fedcom.reports.comparison import write_csv
from tests.deployment import federation
from tests.processes import finished, program

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = [str(page.relative_to(ROOT)) for page in PAGES if "```python\n" in page.read_text()]
# What the examples of some pages take for granted.
BEFORE = """
import torch
import fedcom

x, y = torch.randn(80, 3), torch.randint(0, 2, (80,))
task = fedcom.Task.from_arrays(torch.nn.Linear(3, 2), x, y, clients=4)
algorithm = fedcom.FedAvg(tau=1)
simulation = fedcom.Simulation(task, algorithm, rounds=3)
"""
LIMITS = {"docs/new-algorithm.md": 30, "docs/new-codec.md": 40}
USE = {
    "docs/new-algorithm.md": "algorithm.name=fedprox algorithm.mu=0.1",
    "docs/new-codec.md": "uplink.name=my-sign",
    "docs/data.md": "data.name=blobs",
}


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run_as_printed(page: str, tmp_path: Path) -> None:
    code = "\n".join([BEFORE * (page in ("docs/cluster.md", "docs/resume.md")), *blocks(page)])
    if page in USE:  # what the page adds can be used from a config
        code += f"""
from fedcom.config import Config, read
from fedcom.runs.prepare import prepare
table = read(None, {USE[page].split()!r} + ["run.rounds=2", "model.hidden=8"])
*_, row = prepare(Config.of(table), "cpu")[0].run()
assert row["round"] == 2
"""
    if page != "docs/deployment.md":
        done = program(tmp_path, f"import warnings\nwarnings.simplefilter('error')\n{code}")
        assert done.code == 0, done.err
    elif federation.MISSING:
        pytest.skip(federation.MISSING)
    else:  # Flower warns of matters of its own
        subprocess.run([str(federation.BIN / "python"), "-c", code], check=True, cwd=tmp_path)


def commands() -> list[str]:
    """Every command of fedcom in the blocks of all pages, without what starts it and without comments."""
    found = []
    for page in PAGES:
        for block in blocks(str(page.relative_to(ROOT)), "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.search(r"(?:^|-m |\s)fedcom ([a-z].*?)(?:\s+#.*)?$", line)
                if match and "..." not in match[1]:
                    found.append(match[1])
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has what the commands of the docs need: code, data, and runs."""
    desk = tmp_path_factory.mktemp("desk")
    for page, name in (("new-algorithm", "fedprox"), ("new-codec", "my_sign"), ("data", "blobs")):
        (desk / f"{name}.py").write_text(blocks(f"docs/{page}.md")[0])
    (desk / "nets.py").write_text("from torch import nn\n\nclass Net(nn.Linear):\n    pass\n")
    rows = "".join(f"{i},{i % 7},{'cat' if i % 2 else 'dog'},{i % 5}\n" for i in range(60))
    (desk / "animals.csv").write_text(f"a,b,kind,owner\n{rows}")
    rows = "".join(f"{i},{i % 7},{i % 3},{1 + i % 50},{i % 2}\n" for i in range(60))
    (desk / "patients.csv").write_text(f"age,dose,site,days,died\n{rows}")
    (desk / "letters").mkdir()
    for writer in ("anna", "bert"):
        (desk / "letters" / f"{writer}.txt").write_text(f"yours,\n{writer}\n" * 9)
    (desk / "experiments").symlink_to(ROOT / "experiments")
    small = ("run.rounds=1", "model.hidden=8", "-q", "--device", "cpu", "--out", "runs/a")
    assert finished(desk, "run", *small).code == 0
    for name in ("b", "demo", "fedcom-digits-001"):
        shutil.copytree(desk / "runs" / "a", desk / "runs" / name)
    return desk


def test_there_are_commands_in_the_docs() -> None:
    assert len(commands()) > 25


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_docs_is_one(line: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are dry, of small models, on digits if real data may lack; what takes long is only parsed."""
    monkeypatch.chdir(desk)
    for registry in (fedcom.ALGORITHMS, fedcom.CODECS, fedcom.DATASETS):
        monkeypatch.setattr(registry, "_known", {**registry._known})  # what is added here ends with the test
    for registry, key in ((fedcom.ALGORITHMS, "fedprox:FedProx"), (fedcom.CODECS, "my_sign:Sign")):
        thing = registry[key]  # as if their packages were installed
        registry.add(thing)  # type: ignore[arg-type]
    fedcom.DATASETS.add(fedcom.DATASETS["blobs:blobs"], name="blobs")
    line = line.replace("runs/*", "runs/a runs/b").replace("--open", "").replace("=1000000", "=100000")
    name, *words = shlex.split(line)
    if name in ("run", "compare", "sweep"):
        if all("=" in word for word in words) and not re.search(r"model\.name|bits=0\.01", line):
            words.append("model.hidden=8")  # not for the model of a file or of one's own, or so few bits
        if "model.name=gru" in line:
            words += ["model.hidden=8", "data.length=8"]
        real = any("mnist" in word or "cifar" in word for word in words)
        words += ["--dry-run", "--device", "cpu", *(["data.name=digits", "data.clients=10"] if real else [])]
    if name in ("reproduce", "probe", "tune", "plan", "flower") or {"--measure", "--live"} & {*words}:
        get_command(app).commands[name].make_context(name, words)  # type: ignore[attr-defined]
        return
    done = CliRunner().invoke(app, [name, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("page", "limit"), LIMITS.items())
def test_examples_are_as_short_as_promised(page: str, limit: int) -> None:
    assert len(blocks(page)[0].splitlines()) < limit


def test_the_first_screen_of_the_readme_names_both_commands() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:20]
    assert any("make demo" in line for line in first)
    assert any("make test" in line for line in first)


def test_the_readme_shows_the_frontier_as_it_was_measured(tmp_path: Path) -> None:
    readme = runpy.run_path(str(ROOT / "docs" / "make_results.py"))["readme"]
    line = {"panel": "mnist", "point": "scaffold", "accuracy": "97.054", "spread": "0.031", "up_MB": "159.37"}
    line |= {"up_times_fewer": "", "total_MB": "319.5", "total_times_fewer": "182.6"}
    both = {**line, "point": "fedcom peaks 0.03, down rotated 0.35", "accuracy": "96"}
    write_csv([line, both, {**line, "panel": "mnist-1-class", "accuracy": "1"}], tmp_path / "table.csv")
    (tmp_path / "verdicts.json").write_text('[{"setting": "two clients"}]')
    text = (ROOT / "README.md").read_text()
    made = readme(text, tmp_path)
    assert "two clients. Every point" in made
    assert "| SCAFFOLD | 97.05 ± 0.03 | 159 | — |\n\n" in made
    assert "sends 183 times fewer bytes than SCAFFOLD, at 96.00 ± 0.03 %.\n<!-- end -->" in made
    assert made.startswith(text.split("<!-- frontier")[0])
    assert made.endswith(text.split("<!-- end -->")[1])
    if (ROOT / "docs" / "results" / "frontier-mnist" / "table.csv").is_file():
        assert readme(text, ROOT / "docs" / "results" / "frontier-mnist") == text


def test_the_command_line_reference_is_what_help_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    out = subprocess.run(
        [sys.executable, "-c", "import make_cli_reference as m; print(m.reference(), end='')"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT / "docs",
    ).stdout
    assert out == (ROOT / "docs" / "cli.md").read_text(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_work(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_example_of_a_method_is_fedavg_bit_for_bit(dtype: str) -> None:
    names: dict[str, Any] = {}
    exec(blocks("docs/new-algorithm.md")[0], names)
    x, y = Draw.seeded(1).normal(600).reshape(100, 6), Draw.seeded(2).integers(3, 100)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    for module in (net, nn.Linear(6, 3)):
        task = fedcom.Task.from_arrays(module, x, y, clients=7, dtype=dtype)
        trained = []
        for method in (names["FedProx"](mu=0.0, batch=8), fedcom.FedAvg(batch=8)):
            simulation = fedcom.Simulation(task, method, rounds=4, participation=0.6, device="cpu")
            simulation.run()
            trained.append(simulation.server.w)
        assert torch.equal(*trained)
