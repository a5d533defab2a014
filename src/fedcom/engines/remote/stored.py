"""The jobs whose state is on a client's disk, which outlives them until it is deleted here."""

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from fedcom.saving.whole import disk_errors

_JOB = re.compile("[0-9a-f]{16}")
_FILE = re.compile(r"client-(\d+)\.(state|lock|state\.part)")
_DAY = 86400.0


class Stored(NamedTuple):
    """What a job keeps in a folder of clients' state."""

    job: str
    clients: tuple[int, ...]
    nbytes: int
    days: float  # since a client last answered a call
    files: tuple[Path, ...]


def usual_folder() -> Path:
    """Where clients' state is kept unless a node says otherwise: FEDCOM_STATE, or ~/.fedcom/state."""
    return Path(os.environ.get("FEDCOM_STATE") or "~/.fedcom/state").expanduser()


def stored(folder: Path) -> list[Stored]:
    """The jobs that have state in a folder, those first that were used last; other files are left out."""
    with disk_errors(folder):
        jobs = [path for path in folder.iterdir() if _JOB.fullmatch(path.name) and path.is_dir()]
        found = [job for path in jobs if (job := _stored(path)) is not None]
    return sorted(found, key=lambda one: one.days)


def _stored(path: Path) -> Stored | None:
    files = {one: found for one in path.iterdir() if (found := _FILE.fullmatch(one.name))}
    if not files:
        return None
    facts = [one.stat() for one in files]
    clients = sorted({int(found[1]) for found in files.values()})
    days = (time.time() - max(fact.st_mtime for fact in facts)) / _DAY
    return Stored(path.name, tuple(clients), sum(fact.st_size for fact in facts), days, tuple(files))


def delete(job: Stored) -> bool:
    """Delete what a job keeps; False, and nothing is deleted, if a client is answering a call of it."""
    from filelock import lock_descriptor

    held = []
    try:
        for path in job.files:
            if path.suffix == ".lock":
                held.append(os.open(path, os.O_RDWR))
                if not lock_descriptor(held[-1], blocking=False):
                    return False
        with disk_errors(job.files[0].parent):
            for path in job.files:
                path.unlink(missing_ok=True)
            if not any(job.files[0].parent.iterdir()):
                job.files[0].parent.rmdir()
    finally:
        for descriptor in held:
            os.close(descriptor)
    return True
