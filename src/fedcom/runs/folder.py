"""Folders of results: found, claimed for one process at a time, and cleared of what an earlier run left."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from fedcom.errors import ConfigError, flag
from fedcom.runs.files import read_json
from fedcom.saving.whole import ASIDE

LOCK = ".lock"  # exists and is locked while a process writes into the folder
_PATIENCE = 1.0  # seconds to wait for a lock: `holder` takes it for a moment
_MOMENT = 0.005  # seconds


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """Make the first of name-001, name-002, ... that does not exist under `root`."""
    number = 1
    while True:
        out = root / f"{name}-{number:03d}"
        try:
            out.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _unusable(out, error) from None
        else:
            return out


@contextmanager
def given_or_fresh(out: Path | None, name: str) -> Iterator[Path]:
    """The folder that is given, or else a fresh one, which is removed if it stays empty."""
    folder = out or fresh_folder(name)
    try:
        yield folder
    finally:
        if out is None:
            with suppress(OSError):
                folder.rmdir()
            with suppress(OSError):
                folder.parent.rmdir()


@contextmanager
def claim(out: Path, *, used: bool = False) -> Iterator[None]:
    """Hold a folder for this process; it is made if it does not exist, and removed if it stays empty.

    Args:
        used: the folder may hold files already; else ConfigError is raised.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder; choose another {flag('out')}")
    try:
        lock = _lock(out)
    except OSError as error:
        raise _unusable(out, error) from None
    try:
        if not used and any(path.name != LOCK for path in out.iterdir()):
            raise ConfigError(_not_empty(out))
        yield
    finally:
        (out / LOCK).unlink(missing_ok=True)
        lock.close()
        with suppress(OSError):
            out.rmdir()


def _not_empty(out: Path) -> str:
    """What may be done about a folder that holds something."""
    over, other = flag("force", 'start="over"'), f"choose another {flag('out')}"
    if read_json(out / "summary.json").get("status", "done") == "done":
        return f"{out} is not empty; {other}, or {over} to overwrite the results there"
    on = flag(f"resume {out}", 'start="resume"')
    return f"{out} holds a run that is not done; go on with it by {on}, {other}, or {over} to overwrite it"


def holder(out: Path) -> dict[str, Any] | None:
    """Who holds a folder: pid, host and since when; None if nobody does."""
    from filelock import lock_descriptor

    writable = os.access(out / LOCK, os.W_OK)  # NFS locks only what could be written
    try:
        with (out / LOCK).open("r+" if writable else "r") as file:
            for _ in range(2):  # another process may be asking the same at this moment
                if lock_descriptor(file.fileno(), blocking=False):
                    return None
                time.sleep(_MOMENT)
    except OSError:
        return None
    return read_json(out / LOCK)


def clear(out: Path, names: Iterable[str]) -> None:
    """Delete an earlier run's files and folders from a folder; keep all others.

    Args:
        names: those to delete.
    """
    try:
        for name in names:
            for path in (out / name, out / f"{name}{ASIDE}"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(out, error) from None


def _lock(out: Path) -> IO[str]:
    """Open and lock a folder's lock file, or raise ConfigError that says who holds it."""
    until = time.monotonic() + _PATIENCE
    while (file := _try_lock(out)) is None:
        if time.monotonic() > until:
            who = read_json(out / LOCK)
            raise ConfigError(
                f"{out} is in use by process {who.get('pid', '?')} on {who.get('host', '?')} since "
                f"{who.get('since', '?')}; choose another {flag('out')}, or wait for it"
            )
        time.sleep(0.02)
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    try:
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n")
        file.flush()
    except OSError:  # a full disk: no lock stays behind
        (out / LOCK).unlink(missing_ok=True)
        with suppress(OSError):
            file.close()
        raise
    return file


def _try_lock(out: Path) -> IO[str] | None:
    """The locked lock file of a folder, or None if another process has it."""
    from filelock import lock_descriptor

    out.mkdir(parents=True, exist_ok=True)
    try:
        file = (out / LOCK).open("a+")
    except FileNotFoundError:  # another process has just removed the folder, which was empty
        return None
    with suppress(FileNotFoundError):
        locked = lock_descriptor(file.fileno(), blocking=False)
        if locked and os.path.samestat(os.fstat(file.fileno()), (out / LOCK).stat()):
            return file  # and not one that its last holder has deleted
    file.close()
    return None


def _unusable(out: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to {out}: {error.strerror}; choose another {flag('out')}")
