"""Unexpected errors, in real processes with a part replaced by one that fails, and pipes that are closed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedcom
from tests.processes import PATIENCE, Result, finished

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


@pytest.mark.parametrize(
    "arguments", [("list", "codecs"), pytest.param(("list", "codecs", "--json"), marks=pytest.mark.thorough)]
)
def test_a_reader_that_closes_the_pipe_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "fedcom", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    running.stdout.close()  # before anything is printed, as head would after a line
    _, err = running.communicate(timeout=PATIENCE)
    assert err == ""
    assert running.returncode in (0, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_first_line_of_many(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedcom list codecs | head -1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.startswith("identity")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
