"""How runs stand, told from their folders alone: what `fedcom status` prints."""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.errors import ConfigError
from fedcom.formats import NOTHING, duration, is_number, percent, significant
from fedcom.runs.clients import Clients, clients_of, words
from fedcom.runs.curve import ENDED
from fedcom.runs.files import json_lines, read_json, read_rows
from fedcom.runs.folder import holder

if TYPE_CHECKING:
    from rich.table import Table

RESULTS = "results.jsonl"  # of a sweep or a study: one line per trial that is done
TRIALS = "trials.json"  # says how many trials a sweep or a study has
_RECENT = 10  # the last so many rows tell the rate


@dataclass(frozen=True)
class Status:
    """How a run stands, or a sweep or study, which has trials instead of rounds.

    Args:
        kind: "run" or "trials".
        state: see `state`; "unfinished" for trials that nobody is working on.
        done: rounds or trials.
        total: rounds or trials; None if the folder does not say.
        rate: rounds per second, lately.
        left: seconds until a run that is going on is done.
        reason: why it ended early.
        void: rounds in which too few real clients replied; None where clients are simulated.
        clients: how real clients stand; None where they are simulated.
    """

    folder: str
    kind: str
    state: str
    done: int
    total: int | None = None
    rate: float | None = None
    left: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    reason: str | None = None
    void: int | None = None
    clients: Clients | None = None


def state(out: Path, summary: Mapping[str, Any]) -> str:
    """The state of the run in a folder: "running", how it ended, or "dead".

    A run is dead if no process works on it and its summary does not say how it ended.

    Args:
        summary: the content of its summary.json; empty if there is none.
    """
    if holder(out) is not None:
        return "running"
    told = summary.get("status")
    return told if told in ENDED else "dead"


def statuses(folders: Sequence[Path]) -> list[Status]:
    """How all runs, sweeps and studies in and below some folders stand, in order of their names."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no folder {folder}; name folders that fedcom has written, or none for runs/")
    found = dict.fromkeys(place for folder in folders for place in _places(folder))
    return [_trials(place) if (place / RESULTS).is_file() else _run(place) for place in found]


def _places(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if {"config.toml", RESULTS} & set(files):
            yield Path(place)


def _run(out: Path) -> Status:
    summary, rows = read_json(out / "summary.json"), _rows(out)
    now, last = state(out, summary), rows[-1] if rows else {}
    told = None if now in ("running", "dead") else summary.get("rounds_done")
    done, total = told if isinstance(told, int) else last.get("round", 0), _rounds(out)
    rate, reason = pace(rows), summary.get("reason")
    left = (total - done) / rate if now == "running" and rate and total is not None else None
    reason = reason if isinstance(reason, str) and now != "running" else None
    loss, accuracy = last.get("train_loss"), last.get("test_accuracy")
    real = last.get("void"), clients_of(out)
    return Status(str(out), "run", now, done, total, rate, left, loss, accuracy, reason, *real)


def _rows(out: Path) -> list[dict[str, Any]]:
    with suppress(OSError):
        return read_rows(out)
    return []


def _rounds(out: Path) -> int | None:
    """How many rounds a run is to have."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return int(tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))["run"]["rounds"])
    return None


def pace(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The rounds per second of a run's last rows; None if they do not tell."""
    timed = [row for row in rows[-_RECENT - 1 :] if is_number(row.get("seconds"))]
    if len(timed) < 2 or timed[-1]["seconds"] <= timed[0]["seconds"]:
        return None
    return float((timed[-1]["round"] - timed[0]["round"]) / (timed[-1]["seconds"] - timed[0]["seconds"]))


def _trials(out: Path) -> Status:
    total = read_json(out / TRIALS).get("trials")
    total = total if isinstance(total, int) else None
    done, diverged = _done(out)
    idle = "done" if total is None or done >= total else "unfinished"
    now = idle if holder(out) is None else "running"
    return Status(str(out), "trials", now, done, total, reason=f"{diverged} diverged" if diverged else None)


def _done(out: Path) -> tuple[int, int]:
    """How many trials are done, and how many of them diverged."""
    ends: dict[str, str] = {}
    with suppress(OSError):
        for record in json_lines(out / RESULTS):
            with suppress(LookupError, TypeError):
                ends[record["key"]] = record["status"]
    return len(ends), list(ends.values()).count("diverged")


def remarks(one: Status) -> list[str]:
    """What is to be said of a run beside its line of the table."""
    return ([one.reason] if one.reason else []) + ([] if one.clients is None else words(one.clients))


def render(found: Iterable[Status]) -> "Table":
    """A table for a terminal; in a narrow one long names are broken, and numbers are not."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("folder", overflow="fold")
    for heading in ("state", "round", "per s", "left", "loss", "acc %"):
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True)
    for one in found:
        rounds = f"{one.done}/{one.total}" if one.total is not None else str(one.done)
        cells = (
            one.folder,
            f"{one.state}, {one.void} void" if one.void else one.state,
            rounds if one.kind == "run" else f"{rounds} trials",
            significant(one.rate, 2),
            duration(one.left),
            significant(one.loss, 3),
            percent(one.accuracy),
        )
        table.add_row(*(Text("" if cell == NOTHING else cell) for cell in cells))
    return table
