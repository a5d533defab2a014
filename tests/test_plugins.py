"""Packages of others, built and installed by pip outside the repository, and used from the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins import PARTS
from tests.processes import PATIENCE, program
from tests.test_docs import ROOT, blocks

PAGES = ("docs/new-algorithm.md", "docs/new-codec.md", "docs/data.md")
SMALL = ("run.rounds=2", "model.hidden=8", "algorithm.tau=2", "-q")
EXTRAS = """
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "fedcom-extras"
version = "1.2"
dependencies = ["fedcom"]

[tool.hatch.build.targets.wheel]
packages = ["src/fedcom_extras"]

[project.entry-points."fedcom.algorithms"]
fast = "fedcom_extras.parts:Fast"

[project.entry-points."fedcom.codecs"]
half = "fedcom_extras.parts:Half"
lost = "fedcom_extras.lost:Lost"

[project.entry-points."fedcom.datasets"]
clouds = "fedcom_extras.parts:clouds"
"""


def lay_out(page: str, place: Path) -> Path:
    """The files of the package that a page prints, in the folder it names."""
    (tree,) = blocks(page, "text")
    name, module, project = re.findall(r"[\w.-]+", re.sub("  the .*", "", tree))
    assert project == "pyproject.toml"
    (place / name).mkdir()
    (place / name / module).write_text(blocks(page)[0])
    (place / name / project).write_text(blocks(page, "toml")[0])
    return place / name


def words(page: str, block: int) -> list[str]:
    """What a page's last command of a block tells fedcom, of those blocks that use the page's own code."""
    *_, last = [block for block in blocks(page, "sh") if "data.path" not in block][block].splitlines()
    program, *rest = last.split()
    assert program == "fedcom"
    return rest


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the docs, and one more, installed in it."""
    place = tmp_path_factory.mktemp("packages")
    extras = place / "extras" / "src" / "fedcom_extras"
    extras.mkdir(parents=True)
    (place / "extras" / "pyproject.toml").write_text(EXTRAS)
    (extras / "__init__.py").write_text("")
    (extras / "parts.py").write_text(PARTS)
    (extras / "lost.py").write_text("import a_module_that_nobody_has\n")
    folders = [place / "extras", *(lay_out(page, place) for page in PAGES)]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(place / "site"), *map(str, folders)], check=True)
    return place / "site"


PLAY = """
import sys, warnings
warnings.simplefilter("error")
sys.path[:] = [path for path in sys.path if path]  # the console script does not search the current folder
from fedcom.cli import main
for arguments in commands:
    sys.argv = ["fedcom", *arguments]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
START = f"import json, sys\ncommands = json.loads(sys.argv[1])\n{PLAY}"


def surroundings(installed: Path | None) -> dict[str, str]:
    """The environment of a process that finds this fedcom and what is installed in a folder."""
    paths = [str(ROOT / "src"), *([str(installed)] if installed else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def fedcom(where: Path, *commands: list[str], installed: Path | None = None) -> tuple[int, str, str]:
    """Commands in a folder, one after the other until one fails, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START, json.dumps(commands)],
        cwd=where, env=surroundings(installed), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_package_adds_a_method_a_codec_and_a_data_set(site: Path, tmp_path: Path) -> None:
    names = ["algorithm.name=fast", "algorithm.boost=1.5", "uplink.name=half", "data.name=clouds"]
    command = [sys.executable, "-m", "fedcom", "run", *names, "data.clients=5", *SMALL]
    done = subprocess.run(command, cwd=tmp_path, env=surroundings(site), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "results in runs/fast-clouds-001\n"
    folder = tmp_path / "runs" / "fast-clouds-001"
    text = (folder / "config.toml").read_text()
    assert all(f'\nname = "{name}"\n' in text for name in ("fast", "half", "clouds"))
    assert json.loads((folder / "summary.json").read_text())["algorithm"] == "fast"


@pytest.mark.thorough
def test_the_list_shows_the_package_and_what_is_broken_in_it(site: Path, tmp_path: Path) -> None:
    commands = ["list", "codecs"], ["list", "codecs", "--json"], ["run", "uplink.name=lost"]
    code, out, err = fedcom(tmp_path, *commands, installed=site)
    assert code == 2
    table, _, rest = out.partition("{\n")
    (half,) = [line for line in table.splitlines() if line.startswith("half ")]
    assert half.endswith("package fedcom-extras 1.2")
    told = json.loads("{" + rest)
    assert told["my-sign"]["source"] == "package my-sign 1.0"
    assert (told["lost"]["source"], told["lost"]["description"]) == ("package fedcom-extras 1.2", "")
    assert err == f"fedcom: {told['lost']['error']}\n"
    assert err.startswith("fedcom: codec 'lost' (package fedcom-extras 1.2) cannot be used: importing fedcom")
    assert "No module named 'a_module_that_nobody_has'" in err


@pytest.mark.thorough
def test_the_packages_that_pages_print_work_as_they_say(site: Path, tmp_path: Path) -> None:
    for page in PAGES:
        commands = blocks(page, "sh")[-1].splitlines()
        assert commands[0] == "pip install ."
        assert commands[1].startswith("fedcom list ")
    code, out, err = fedcom(tmp_path, *([*words(page, -1), *SMALL] for page in PAGES), installed=site)
    assert (code, err) == (0, "")
    assert out.split()[2::3] == [
        f"runs/{name}-001" for name in ("fedprox-digits", "fedcomgate-digits", "fedcomgate-blobs")
    ]


def test_the_files_that_pages_print_work_where_they_lie(tmp_path: Path) -> None:
    for page in PAGES:
        folder = lay_out(page, tmp_path)
        for path in folder.glob("*.py"):
            path.rename(tmp_path / path.name)
    commands = [[*words(page, 0), *SMALL] for page in PAGES]
    code, out, err = program(tmp_path, f"commands = {commands!r}\n{PLAY}")
    assert (code, err) == (0, "")
    for page, folder in zip(PAGES, out.split()[2::3], strict=True):
        name = next(word for word in words(page, 0) if ":" in word).split("=")[1]
        assert f'name = "{name}"' in (tmp_path / folder / "config.toml").read_text()
        assert ":" not in folder


def test_starting_imports_no_package_and_reads_no_entry_points(site: Path, tmp_path: Path) -> None:
    program = """
import importlib.metadata, sys
import torch  # which reads those of its own
def refuse(**_): raise AssertionError("entry points were read")
importlib.metadata.entry_points = refuse
import fedcom, fedcom.cli
from fedcom.config import Config
Config.of({"algorithm": {"name": "fedpaq"}, "uplink": {"name": "topk"}, "model": {"name": "cnn"}})
assert not {"fedprox", "my_sign", "blobs", "fedcom_extras"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=surroundings(site))
