"""Folders of results: find a free name, refuse a folder in use, make it and write JSON into it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedcom.errors import ConfigError


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """The first of name-001, name-002, ... that does not exist under `root`."""
    number = 1
    while (out := root / f"{name}-{number:03d}").exists():
        number += 1
    return out


def check_free(out: Path, force: bool) -> None:
    """Raise ConfigError if a folder is not empty, unless forced; nothing is written or deleted."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ConfigError(f"{out} is not empty; choose another --out, or --force to overwrite the run there")


def make_folder(out: Path, leftovers: Iterable[str]) -> None:
    """Make a folder; if it exists, delete an earlier run's files in it and keep all others.

    Args:
        leftovers: names of the files to delete.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in leftovers:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error.strerror}; choose another --out") from None


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON; NaN and infinity, which JSON does not have, raise ValueError."""
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
