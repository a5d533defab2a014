"""Unexpected errors: write a file with all that a bug report needs, and say in one line where it is."""

import platform
import shlex
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fedcom.version import VERSION

EXIT_CODE = 70  # "internal software error" by the convention of sysexits.h
_results: Path | None = None


def results_go_to(folder: Path) -> None:
    """Remember the folder of the command's results; the file about an error goes there."""
    global _results
    _results = folder


def report(error: Exception) -> str:
    """Write a file about an error; return one line with the error, the file and what to do with it."""
    what = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    place = _write(_details(error))
    if place is None:
        return f"{what}; this is a bug in fedcom: please report what FEDCOM_DEBUG=1 prints"
    return f"{what}; this is a bug in fedcom: please report it with the file {place}"


def _details(error: Exception) -> str:
    """What is needed to find the bug: versions, the command and the traceback."""
    import torch

    facts = {
        "fedcom": VERSION,
        "command": shlex.join(sys.argv),
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "torch": torch.__version__,
    }
    head = "".join(f"{name}: {fact}\n" for name, fact in facts.items())
    return f"{head}\n{''.join(traceback.format_exception(error))}"


def _write(text: str) -> Path | None:
    """Write a text into the first writable folder: of the results, the current one, the temporary one."""
    name = f"fedcom-error-{datetime.now():%Y%m%d-%H%M%S}.txt"
    for folder in (_results, Path(), _temporary()):
        if folder is not None:
            with suppress(OSError), (folder / name).open("x", encoding="utf-8", errors="replace") as file:
                file.write(text)
                return folder / name
    return None


def _temporary() -> Path | None:
    with suppress(OSError):
        return Path(tempfile.gettempdir())
    return None
