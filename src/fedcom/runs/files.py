"""The files of a run's folder: their names, and JSON that is read and appended line by line."""

import json
import os
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from fedcom.engines.results import Row
from fedcom.saving.whole import disk_errors

FILES = (
    "config.toml",
    "metrics.jsonl",
    "summary.json",
    "ledger.json",
    "accuracy.json",
    "partition.json",
    "similarity.json",
    "environment.json",
    "model.safetensors",
    "best.safetensors",
)
DATA_CHECKSUM = "data_checksum"  # in partition.json: of all samples and who has which
LOGS = ("metrics.csv", "tensorboard", "wandb")  # what run.log may leave besides
FAULTS = "faults.jsonl"  # refused replies and missing clients; only where clients are real, as AUDIT is
BASE = "base.json"  # checksums of what is frozen; only of models that have something frozen
SAMPLES = "samples.json"  # text from the model before and after; only of runs on text
CHARACTERS = "characters"  # beside the tensors of a model: its vocabulary, if its tokens are characters
LEGEND = "legend"  # the same: the names of the columns and of the classes of a table
CHECKPOINTS = "checkpoints"  # a folder; runs that are short have none
LONGER = ".longer"  # a folder; a finished run that has no checkpoint is played anew in it, with more rounds


def read_rows(out: Path) -> list[Row]:
    """The rows in a run's folder."""
    return [row for row in json_lines(out / "metrics.jsonl") if isinstance(row.get("round"), int)]


def status_of(out: Path) -> str:
    """How the run in a folder ended, by its summary; empty if there is none."""
    return str(read_json(out / "summary.json").get("status", ""))


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The object in each line of a file, if there is one; a line that was cut off is left out."""
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                if isinstance(found := json.loads(line), dict):
                    yield found


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing or holds something else."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    return {}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; empty if it is missing or cannot be read."""
    with suppress(OSError, ValueError):
        return tomllib.loads(path.read_text(encoding="utf-8"))
    return {}


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as JSON, one line each."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def checksum(rows: Iterable[Row], before: int = 0) -> int:
    """The CRC-32 of rows as lines.

    Args:
        before: that of the rows before them.
    """
    return zlib.crc32(lines(rows).encode(), before)


def overwrite(path: Path, text: str) -> None:
    """Write a text over a file that exists, in place."""
    with path.open("r+") as file:
        file.write(text.ljust(path.stat().st_size))
        file.truncate()


def open_log(path: Path) -> FileIO:
    """Open a file for `append`, and delete an unfinished last line, which a kill or a full disk has left.

    The file has no buffer: closing it would try again to write what could not be written.
    """
    log = path.open("ab", buffering=0)
    log.truncate(path.read_bytes().rfind(b"\n") + 1)
    return log


def append(log: FileIO, row: Mapping[str, Any]) -> None:
    """Write a row as a line at the end of a file: all of it, or nothing if the disk is full."""
    end, rest = log.seek(0, os.SEEK_END), lines([row]).encode()
    with disk_errors(Path(log.name).parent):
        try:
            while rest:
                rest = rest[log.write(rest) :]
        except OSError:
            with suppress(OSError):
                log.truncate(end)
            raise
