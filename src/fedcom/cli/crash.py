"""Unexpected errors: write a file with all that a bug report needs, and say in one line where it is."""

import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fedcom.imports import in_brackets, place_in_own_code
from fedcom.redaction import own_command, redacted
from fedcom.version import VERSION

OWN_CODE = 8  # an error in code that is not fedcom's
EXIT_CODE = 70  # "internal software error" by the convention of sysexits.h
_results: Path | None = None


def results_go_to(folder: Path) -> None:
    """Remember the folder of the command's results; the file about an error goes there."""
    global _results
    _results = folder


def report(error: Exception) -> tuple[str, int]:
    """Write a file about an error; return one line on it and what to do, and the exit code.

    An error in the user's own code names the line there, and its file is written only beside the results.
    """
    what = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
    if place := place_in_own_code(error):
        file = _write(_details(error), [_results])
        rest = "FEDCOM_DEBUG=1 shows the traceback" if file is None else f"the traceback is in {file}"
        who = "a call from your code" if place.called_fedcom else "your code"
        return f"{who} raised {what}{in_brackets(place)}; {rest}", OWN_CODE
    file = _write(_details(error), [_results, Path(), _temporary()])
    rest = "what FEDCOM_DEBUG=1 prints" if file is None else f"it with the file {file}"
    return f"{what}; this is a bug in fedcom: please report {rest}", EXIT_CODE


def _details(error: Exception) -> str:
    """What is needed to find the bug: versions, the command and the traceback."""
    import torch

    facts = {
        "fedcom": VERSION,
        "command": shlex.join(own_command() or sys.argv[:1]),
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "torch": torch.__version__,
    }
    head = "".join(f"{name}: {fact}\n" for name, fact in facts.items())
    return f"{head}\n{redacted(''.join(traceback.format_exception(error)))}"


def _write(text: str, folders: Sequence[Path | None]) -> Path | None:
    """Write a text into the first folder that takes it; None if none does."""
    name = f"fedcom-error-{datetime.now():%Y%m%d-%H%M%S}.txt"
    for folder in folders:
        if folder is not None:
            with suppress(OSError):
                file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(file, "w", encoding="utf-8", errors="replace") as opened:
                    opened.write(text)
                return folder / name
    return None


def _temporary() -> Path | None:
    with suppress(OSError):
        return Path(tempfile.gettempdir())
    return None
