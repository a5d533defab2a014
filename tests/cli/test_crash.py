"""Unexpected errors, in real processes with a part replaced by one that fails, and pipes that are closed."""

import json
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import fedcom
from tests.cli.test_cli import Command, command
from tests.conftest import mlp_task
from tests.processes import PATIENCE, Result, finished

__all__ = ["command"]  # a fixture

SMALL = ("run", "model.hidden=8", "algorithm.tau=1", "run.rounds=1", "-q", "--device", "cpu")
BROKEN = """
from fedcom.runs import record as running, run

def broken(*_, **__):
    raise ZeroDivisionError("one line\\nand another")

"""
PROC = Path("/proc")
EARLY, LATE = "run.execute = broken", "running._Recorder._write_results = broken"


def crashed(folder: Path, breaks: str, *arguments: str, **environment: str) -> Result:
    """Run a command with a part replaced by one that fails.

    Args:
        breaks: Python code that replaces the part, such as EARLY or LATE.
    """
    return finished(folder, *arguments, environment=environment, prelude=BROKEN + breaks)


def errors(folder: Path) -> list[Path]:
    return sorted(folder.glob("fedcom-error-*.txt"))


def test_an_unexpected_error_is_one_line_and_a_file_in_the_run_folder(tmp_path: Path) -> None:
    code, out, err = crashed(tmp_path, LATE, *SMALL, "--out", "a")
    (file,) = errors(tmp_path / "a")
    what = "fedcom: ZeroDivisionError: one line; this is a bug in fedcom: please report it with the file"
    assert (code, out, err) == (70, "", f"{what} {file.relative_to(tmp_path)}\n")
    text = file.read_text()
    assert f"fedcom: {fedcom.__version__}\n" in text
    assert f"command: fedcom {' '.join(SMALL)} --out a\n" in text
    assert f"torch: {torch.__version__}\n" in text
    assert "platform: " in text
    assert "Traceback (most recent call last):" in text
    assert "in execute\n" in text
    assert text.endswith("ZeroDivisionError: one line\nand another\n")


def test_the_file_is_in_the_current_folder_if_there_is_no_run_folder_yet(tmp_path: Path) -> None:
    code, _, err = crashed(tmp_path, EARLY, *SMALL)
    (file,) = errors(tmp_path)
    assert code == 70
    assert err.endswith(f" the file {file.name}\n")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not PROC.is_dir(), reason="needs a folder that takes no files from anyone")
def test_the_file_is_in_the_temporary_folder_if_the_current_one_takes_none(tmp_path: Path) -> None:
    code, _, err = crashed(PROC, EARLY, *SMALL, "--out", "a", TMPDIR=str(tmp_path))
    (file,) = errors(tmp_path)
    assert code == 70
    assert err.endswith(f" the file {file}\n")


@pytest.mark.parametrize(("value", "code"), [("1", 1), ("0", 70)])
def test_fedcom_debug_raises_the_error_instead(tmp_path: Path, value: str, code: int) -> None:
    done = crashed(tmp_path, EARLY, *SMALL, FEDCOM_DEBUG=value)
    assert done.code == code
    assert ("Traceback (most recent call last):" in done.err) == (code == 1)
    assert bool(errors(tmp_path)) == (code == 70)


def test_what_a_user_can_fix_leaves_no_file(tmp_path: Path) -> None:
    code, _, err = crashed(tmp_path, "", "run", "run.rounds=many")
    assert (code, err) == (2, "fedcom: run.rounds must be a whole number; got 'many'\n")
    assert list(tmp_path.iterdir()) == []


UNREAD = """
import os
reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(writer)
os.close(reader)  # before anything is printed, as head would after a line
"""
PRINTING = [
    ["list", "codecs"],  # a table of rich's
    ["run", *SMALL[1:], "--out", "a"],
    ["--version"],
]
OTHERS = [
    ["list", "codecs", "--json"],
    ["--help"],
    ["run", "--help"],
    ["run", *SMALL[1:], "--dry-run"],
    ["status", "."],
]


@pytest.mark.parametrize(
    "arguments", [*PRINTING, *(pytest.param(x, marks=pytest.mark.thorough) for x in OTHERS)], ids=" ".join
)
def test_a_reader_that_closes_the_pipe_is_told_by_141(tmp_path: Path, arguments: list[str]) -> None:
    code, _, err = finished(tmp_path, *arguments, prelude=UNREAD)
    assert (code, err) == (141, "")
    assert not errors(tmp_path)
    if "a" in arguments:  # the run itself is done
        assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "done"


def test_a_full_disk_under_standard_output_is_told(tmp_path: Path) -> None:
    full = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)"
    done = finished(tmp_path, "list", "codecs", prelude=full)
    told = "fedcom: standard output cannot be written to: No space left on device\n"
    assert (done.code, done.err) == (5, told)
    assert list(tmp_path.iterdir()) == []


# The user's own code

OWN = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

import fedcom


@dataclass(frozen=True, kw_only=True)
class Method(fedcom.FedCOM):
    name: ClassVar[str] = "{module}-method"

    def upload(self, client, down, w, rnd):
        return {{"D": helper(w)}}


def helper(w):
    return w / (1 // 0)  # method


@dataclass(frozen=True)
class Codec(fedcom.Int):
    name: ClassVar[str] = "{module}-codec"
    id: ClassVar[int] = {id}

    def transmit(self, x, layout, draw):
        return {{}}["scale"]  # codec


@dataclass(frozen=True, kw_only=True)
class Calling(fedcom.FedCOM):
    name: ClassVar[str] = "{module}-calling"

    def local_step(self, w, client, down, oracle, rnd):
        return w - rnd.eta * oracle.batch(w[:, :3])  # calling


class Late(nn.Module):
    def __init__(self, in_features: int = 64, classes: int = 10):
        super().__init__()
        self.inner = nn.Linear(in_features, classes)

    def forward(self, x):
        if len(x) > 1:
            raise RuntimeError("a random failure of mine, out of place")  # late
        return self.inner(x.flatten(1))


class Early(Late):
    def forward(self, x):
        return self.outer(x)  # early


def data():
    raise OSError("no such table")  # data


def partition(request):
    return request.lables  # partition
"""


@pytest.mark.parametrize(
    ("setting", "what", "where"),
    [
        ("algorithm.name={}:Method", "ZeroDivisionError: integer division or modulo by zero", "method"),
        ("uplink.name={}:Codec", "KeyError: 'scale'", "codec"),
        ("model.name={}:Late", "RuntimeError: a random failure of mine, out of place", "late"),
        ("model.name={}:Early", "AttributeError: 'Early' object has no attribute 'outer'", "early"),
        ("data.name={}:data", "OSError: no such table", "data"),
        ("data.partition={}:partition", "AttributeError: 'SplitRequest' object has no attr", "partition"),
        ("algorithm.name={}:Calling", "", "calling"),
    ],
)
def test_an_error_in_the_users_code_names_their_line(
    command: Command, tmp_path: Path, setting: str, what: str, where: str
) -> None:
    module = f"own_{where}"
    text = OWN.format(module=module, id=140 + len(where))
    (tmp_path / f"{module}.py").write_text(text)
    line = next(i for i, words in enumerate(text.splitlines(), 1) if words.endswith(f"# {where}"))
    small = [word for word in SMALL if not ("model" in setting and word.startswith("model"))]
    got = command(*small, setting.format(module))
    who = "a call from your code" if where == "calling" else "your code"
    assert got.err.startswith(f"fedcom: {who} raised {what}")
    assert re.search(rf" \({module}\.py, line {line}, in \w+\); ", got.err)
    assert (got.code, got.out, got.err.count("\n")) == (8, "", 1)
    assert "bug in fedcom" not in got.err
    for file in tmp_path.rglob("fedcom-error-*.txt"):
        assert str(file.relative_to(tmp_path)) in got.err
        assert "Traceback" in file.read_text()


def test_an_error_of_an_installed_package_is_not_fedcoms(command: Command, tmp_path: Path) -> None:
    """A part that a package offers, and that calls other packages, which raise."""
    place = tmp_path / "site-packages"
    (place / "offered").mkdir(parents=True)
    text = "import lib\n\ndef partition(request):\n    return lib.work()\n"
    (place / "offered" / "__init__.py").write_text(text)
    (place / "lib.py").write_text("def work():\n    raise ValueError('deep')\n")
    sys.path.insert(0, str(place))
    try:
        got = command(*SMALL, "data.partition=offered:partition")
    finally:
        sys.path.remove(str(place))
    assert got.code == 8
    where = Path("site-packages/offered/__init__.py")
    assert got.err.startswith(f"fedcom: your code raised ValueError: deep ({where}, line 4, in partition); ")


def test_in_python_the_error_comes_through_as_it_is(tmp_path: Path) -> None:
    cause, mine = ValueError("why"), KeyError("mine")

    def callback(row: Any) -> None:
        raise mine from cause

    for play in (
        lambda simulation: simulation.run(callback),
        lambda simulation: fedcom.record(simulation, tmp_path / "a", quiet=True, callbacks=callback),
    ):
        with pytest.raises(KeyError) as caught:
            play(fedcom.Simulation(mlp_task(), "fedavg", rounds=1, device="cpu"))
        assert caught.value is mine
        assert mine.__cause__ is cause
        assert traceback.extract_tb(mine.__traceback__)[-1].name == "callback"


@pytest.mark.thorough  # the same command is among those whose reader closes the pipe
def test_the_first_line_of_many(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedcom list codecs | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.startswith("identity")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
