"""Folders are claimed by one process at a time, and nothing in them is lost to another."""

import multiprocessing
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedcom.errors import ConfigError
from fedcom.runs.folder import LOCK, claim, clear, fresh_folder, holder
from tests.processes import program


def test_fresh_folders_made_at_once_are_all_different(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: fresh_folder("fedavg-digits", tmp_path), range(40)))
    assert sorted(path.name for path in made) == [f"fedavg-digits-{i:03d}" for i in range(1, 41)]
    assert all(path.is_dir() for path in made)


def test_a_folder_that_holds_something_is_refused_unless_it_may(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with (
        pytest.raises(ConfigError, match='is not empty; choose another out, or start="over"'),
        claim(tmp_path),
    ):
        pass
    with claim(tmp_path, used=True):
        assert (tmp_path / LOCK).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match=r"mine\.txt is a file, not a folder"), claim(tmp_path / "mine.txt"):
        pass
    below = tmp_path / "mine.txt" / "below"
    with pytest.raises(ConfigError, match=r"cannot write to .*; choose another out"), claim(below):
        pass


def test_a_run_that_was_killed_is_offered_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"status": "running"}')
    with pytest.raises(ConfigError, match='not done; go on with it by start="resume"'), claim(tmp_path):
        pass
    (tmp_path / "summary.json").write_text('{"status": "done"}')
    with pytest.raises(ConfigError, match="is not empty"), claim(tmp_path):
        pass


def test_a_folder_that_stays_empty_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), claim(tmp_path / "new"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with claim(tmp_path / "a"):
        who = holder(tmp_path / "a")
        assert who is not None
        assert (who["pid"], who["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on "), claim(tmp_path / "a"):
            pass
        assert holder(tmp_path / "a") == who  # the second one's failure changed nothing
        (tmp_path / "a" / "kept").touch()
    assert holder(tmp_path / "a") is None


def _take_and_die(path: Path) -> None:
    with claim(path):
        os._exit(0)


def test_a_lock_that_a_dead_process_left_is_no_obstacle(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_take_and_die, args=(tmp_path / "a",))
    process.start()
    process.join()
    assert (tmp_path / "a" / LOCK).exists()
    assert holder(tmp_path / "a") is None
    with claim(tmp_path / "a"):
        pass


def test_only_what_is_named_is_cleared(tmp_path: Path) -> None:
    for name in ("summary.json", "summary.json.part", "mine"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "00000001.json").touch()
    clear(tmp_path, ("summary.json", "checkpoints", "absent"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


FULL = """
import resource
from pathlib import Path
from fedcom.errors import ConfigError
from fedcom.runs.folder import claim
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))  # no file may grow beyond 10 bytes
try:
    with claim(Path("a")):
        told = "claimed"
except ConfigError as error:
    told = str(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(told, Path("a/.lock").exists())
"""


def test_no_lock_stays_behind_on_a_disk_that_cannot_hold_it(tmp_path: Path) -> None:
    done = program(tmp_path, FULL)
    assert done.out == "cannot write to a: File too large; choose another out False\n", done


ELSEWHERE = """
import sys
sys.modules["fcntl"] = None  # as on systems that have no such module
import fedcom.runs.folder
import fedcom.engines.remote.stored
import fedcom.engines.remote.participant
print("imported")
"""


def test_locks_can_be_imported_where_there_is_no_fcntl(tmp_path: Path) -> None:
    assert program(tmp_path, ELSEWHERE).out == "imported\n"
