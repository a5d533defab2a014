"""Read run folders, complete or not; what is missing or broken is noted and left empty."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from fedcom.errors import ConfigError
from fedcom.runs.curve import Curve
from fedcom.runs.status import state

JsonObject = dict[str, Any]  # from a JSON or TOML file
Notice = tuple[str, str]  # what was wrong, where
T = TypeVar("T")
_SEED = re.compile(r"seed-\d+")
_BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class SavedRun:
    """What a run's folder holds; of a file that is missing or broken, an empty table.

    Args:
        label: the run's method, by which runs are grouped in the page.
        status: see `fedcom.runs.status.state`.
        rows: of metrics.jsonl.
        config: the sections of config.toml; the other fields are the JSON files of their names.
        ledger: the bytes as {"clients": ..., "uplink": {vector: {part: bytes}}, "downlink": ...}.
    """

    folder: Path
    label: str
    seed: int
    status: str
    rows: list[JsonObject]
    config: JsonObject
    summary: JsonObject
    ledger: JsonObject
    partition: JsonObject
    similarity: JsonObject
    environment: JsonObject

    @property
    def curve(self) -> Curve:
        """The run in the form that tables and figures use."""
        return Curve(self.label, self.seed, self.rows, self.status)


@dataclass
class CollectedRuns:
    """All runs found, in order, and notices of what was skipped."""

    runs: list[SavedRun] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


def collect(folders: Sequence[Path]) -> CollectedRuns:
    """Every run in or below some folders; ConfigError if there is none. Files among them are passed over."""
    found = CollectedRuns()
    folders = [path for path in folders if not path.is_file()] or folders
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no folder {folder}; name folders that `fedcom run` or `compare` has written")
    for folder in dict.fromkeys(path for root in folders for path in _walk(root, found.notices)):
        found.runs.append(_run(folder, found.notices))
    if not found.runs:
        named = ", ".join(map(str, folders)) or "nothing"
        raise ConfigError(f"no run in {named}; a run's folder holds config.toml and metrics.jsonl")
    found.runs = _relabelled(found.runs)
    return found


def _walk(root: Path, notices: list[Notice]) -> Iterable[Path]:
    """The run folders in or below a folder, in order of name."""

    def note(error: OSError) -> None:
        notices.append((error.strerror or "unreadable", str(error.filename)))

    for place, folders, files in os.walk(root, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if {"config.toml", "metrics.jsonl"} & {*files, *folders}:
            yield Path(place)


def _run(folder: Path, notices: list[Notice]) -> SavedRun:
    """Read one folder; a broken file does not keep the others from being read."""
    config = _read(folder, "config.toml", _config, notices) or {}
    rows, broken = _read(folder, "metrics.jsonl", _rows, notices) or ([], [])
    notices += [(f"metrics.jsonl: line {number} is not a row", str(folder)) for number in broken]
    summary = _read(folder, "summary.json", _json_object, notices) or {}
    label = folder.parent.name if _SEED.fullmatch(folder.name) else config.get("algorithm", {}).get("name")
    cut = not summary and not (folder / "ledger.json").exists()  # a run cut off: one notice is enough
    return SavedRun(
        folder,
        _clean(str(label or folder.name or folder.resolve().name)),
        _seed(config, folder),
        state(folder, summary),
        rows,
        config,
        summary,
        {} if cut else _read(folder, "ledger.json", _ledger, notices) or {},
        _read(folder, "partition.json", _partition, notices) or {},
        _read(folder, "similarity.json", _similarity, notices) or {},
        _read(folder, "environment.json", _json_object, notices) or {},
    )


def _read(folder: Path, name: str, parse: Callable[[str], T], notices: list[Notice]) -> T | None:
    """The content of a file; None, with a notice, if it is missing or broken."""
    try:
        return parse((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = "missing"
    except OSError as error:
        reason = error.strerror or "unreadable"
    except _BROKEN as error:
        reason = f"not what it should be ({type(error).__name__}: {error})"
    notices.append((f"{name}: {reason}", str(folder)))
    return None


def _clean(name: str) -> str:
    """A name as valid text: the name of a folder may hold any bytes."""
    return name.encode("utf-8", "replace").decode()


def _seed(config: JsonObject, folder: Path) -> int:
    seed = config.get("run", {}).get("seed")
    named = re.search(r"\d+", folder.name) if _SEED.fullmatch(folder.name) else None
    return seed if isinstance(seed, int) else int(named.group()) if named else 0


def _relabelled(runs: list[SavedRun]) -> list[SavedRun]:
    """Make runs of one label differ only in their seed: those that do not are labelled by their folders."""
    groups: dict[str, list[SavedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    mixed = {
        label
        for label, group in groups.items()
        if len({_apart_from_seed(run) for run in group}) > 1 or len({run.seed for run in group}) < len(group)
    }
    homes = {
        run.folder: run.folder.parent if _SEED.fullmatch(run.folder.name) else run.folder for run in runs
    }
    shared = os.path.commonpath([home.resolve().parent for home in homes.values()])
    return [
        replace(run, label=_clean(os.path.relpath(homes[run.folder].resolve(), shared)))
        if run.label in mixed
        else run
        for run in runs
    ]


def _apart_from_seed(run: SavedRun) -> str:
    sections = {**run.config, "run": {**run.config.get("run", {}), "seed": None}}
    return json.dumps(sections, sort_keys=True, default=str)


def _json_object(text: str) -> JsonObject:
    table = json.loads(text, parse_constant=lambda _: None)
    if not isinstance(table, dict):
        raise TypeError("not a JSON object")
    return table


def _config(text: str) -> JsonObject:
    """The sections of a config; anything outside a section is ignored."""
    return {name: section for name, section in tomllib.loads(text).items() if isinstance(section, dict)}


def _rows(text: str) -> tuple[list[JsonObject], list[int]]:
    """The readable rows, in order of rounds, and the numbers of the lines that are not."""
    rows, broken = [], []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = _json_object(line)
            rows.append(
                {"round": _whole(row["round"]), **{k: v for k, v in row.items() if v is None or is_usable(v)}}
            )
        except _BROKEN:
            broken.append(number)
    return sorted(rows, key=lambda row: row["round"]), broken


def is_usable(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that can be drawn and added up."""
    return isinstance(value, int | float) and abs(value) < 1e300


def _whole(value: Any) -> int:
    if not is_usable(value) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return math.floor(value)


def _ledger(text: str) -> JsonObject:
    """Bytes by direction, vector and part, and the number of clients."""
    ledger = _json_object(text)
    items = {
        way: {
            str(vector): {str(part): _whole(size) for part, size in parts.items()}
            for vector, parts in ledger[way]["vectors"].items()
        }
        for way in ("uplink", "downlink")
    }
    return {"clients": max(1, _whole(ledger["clients"])), **items}


def _partition(text: str) -> JsonObject:
    table = _json_object(text)
    counts = table.get("label_counts")
    rows = None if counts is None else [[_whole(count) for count in row] for row in counts]
    if rows and len({len(row) for row in rows}) > 1:
        raise ValueError("clients with different numbers of classes")
    shown = [_whole(client) for client in table.get("shown") or range(len(rows or ()))]
    return {"clients": _whole(table["clients"]), "shown": shown, "label_counts": rows}


def _similarity(text: str) -> JsonObject:
    table = _json_object(text)
    clients, cosine = [_whole(client) for client in table["clients"]], table["cosine"]
    if {len(clients)} != {len(cosine), *map(len, cosine)}:
        raise ValueError("not square")
    return {
        "clients": clients,
        "cosine": [[c if is_usable(c) else None for c in row] for row in cosine],
    }
