"""Folders of results: finding a free one, refusing one that is taken, and writing into it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedcom.errors import ConfigError


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """A folder that does not exist yet."""
    number = 1
    while (out := root / f"{name}-{number:03d}").exists():
        number += 1
    return out


def claim(out: Path, force: bool) -> None:
    """Refuse a folder that holds something, unless forced; nothing is touched yet."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ConfigError(f"{out} is not empty; choose another --out, or --force to overwrite the run there")


def clear(out: Path, leftovers: Iterable[str]) -> None:
    """Make a folder, or rid it of a former run's files; others stay."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in leftovers:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {out}: {error.strerror}; choose another --out") from None


def write_json(path: Path, content: Any) -> None:
    """Readable JSON; a number that JSON cannot hold is an error, not a NaN."""
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
