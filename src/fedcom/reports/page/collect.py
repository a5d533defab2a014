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
from fedcom.formats import NOTHING, printable
from fedcom.reports.comparison import SCORES, grouped
from fedcom.runs.curve import Curve
from fedcom.runs.folder import holder
from fedcom.runs.status import state
from fedcom.tasks.scores import WORST

JsonObject = dict[str, Any]  # from a JSON or TOML file
Notice = tuple[str, str]  # what was wrong, where
T = TypeVar("T")
LINK = ("budgets", "bandwidths", "memory", "clip", "correlated", "first")  # keys of a link, not of its codec
_NAME = 40  # characters of a client's name that the page shows
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
        accuracy: of the model at the end, by client and by class.
        samples: of a language model, a prompt and how it goes on with it before and after the run.
    """

    folder: Path
    label: str
    seed: int
    status: str
    rows: list[JsonObject]
    config: JsonObject
    summary: JsonObject
    ledger: JsonObject
    accuracy: JsonObject
    partition: JsonObject
    similarity: JsonObject
    environment: JsonObject
    samples: JsonObject = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The name of its algorithm; its label if the config does not tell."""
        return str(self.config.get("algorithm", {}).get("name") or self.label)

    @property
    def description(self) -> str:
        """Its method and codecs in words."""
        return _clean(_described(self.config)) or self.label

    @property
    def curve(self) -> Curve:
        """The run in the form that tables and figures use."""
        return Curve(self.label, self.seed, self.rows, self.status)


@dataclass(frozen=True)
class SavedSweep:
    """A sweep's folder.

    Args:
        records: those lines of results.jsonl that tell a method, a point of the grid and a status.
        trials: how many there will be.
    """

    folder: Path
    records: list[JsonObject]
    trials: int


@dataclass
class CollectedRuns:
    """All runs and sweeps found, in natural order of their folders, and notices of what was skipped."""

    runs: list[SavedRun] = field(default_factory=list)
    sweeps: list[SavedSweep] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


def collect(folders: Sequence[Path]) -> CollectedRuns:
    """Every run and sweep in or below some folders; ConfigError if there is none. Files are passed over."""
    found = find(folders)
    if not found.runs and not found.sweeps:
        named = ", ".join(map(str, folders)) or "nothing"
        raise ConfigError(f"no run in {named}; a run's folder holds config.toml and metrics.jsonl")
    return found


def find(folders: Sequence[Path]) -> CollectedRuns:
    """Every run and sweep in or below some folders; there may be none yet."""
    found = CollectedRuns()
    folders = [path for path in folders if not path.is_file()] or folders
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no folder {folder}; name folders that `fedcom run` or `compare` has written")
    for folder in dict.fromkeys(path for root in folders for path in _walk(root, found.notices)):
        if (folder / "sweep.json").is_file():
            found.sweeps.append(_sweep(folder, found.notices))
        else:
            found.runs.append(_run(folder, found.notices))
    found.runs = named(found.runs)
    return found


def _walk(root: Path, notices: list[Notice]) -> Iterable[Path]:
    """The folders of runs and sweeps in or below a folder, in natural order of their names."""

    def note(error: OSError) -> None:
        notices.append((error.strerror or "unreadable", str(error.filename)))

    for place, folders, files in os.walk(root, onerror=note):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural)
        if {"config.toml", "metrics.jsonl", "sweep.json"} & {*files, *folders}:
            yield Path(place)


def natural(name: str) -> list[tuple[float, str]]:
    """A key that sorts names by the numbers in them: run-2 before run-10, and 0.25 before 1."""
    words = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(word), "") if i % 2 else (-1.0, word.lower()) for i, word in enumerate(words)]


def _sweep(folder: Path, notices: list[Notice]) -> SavedSweep:
    records, broken = _read(folder, "results.jsonl", _records, notices) or ([], [])
    notices += [(f"results.jsonl: line {number} is not a record", str(folder)) for number in broken]
    trials = _read(folder, "trials.json", lambda text: _whole(_json_object(text).get("trials", 0)), notices)
    return SavedSweep(folder, records, max(len(records), trials or 0))


def _run(folder: Path, notices: list[Notice]) -> SavedRun:
    """Read one folder; a broken file does not keep the others from being read."""
    config = _read(folder, "config.toml", _config, notices) or {}
    rows, broken = _read(folder, "metrics.jsonl", _rows, notices) or ([], [])
    notices += [(f"metrics.jsonl: line {number} is not a row", str(folder)) for number in broken]
    going = holder(folder) is not None
    summary = _read(folder, "summary.json", _json_object, notices, needed=not going) or {}
    # of a run that goes on nothing is missing yet; of one that was cut off, one notice is enough
    cut = not summary and not (folder / "ledger.json").exists()
    return SavedRun(
        folder,
        _clean(_label(folder, config)),
        _seed(config, folder),
        "running" if going else state(folder, summary),
        rows,
        config,
        summary,
        {} if cut else _read(folder, "ledger.json", _ledger, notices, needed=not going) or {},
        _read(folder, "accuracy.json", _accuracy, notices, needed=False) or {},
        _read(folder, "partition.json", _partition, notices, needed=not going) or {},
        _read(folder, "similarity.json", _similarity, notices, needed=not going) or {},
        _read(folder, "environment.json", _json_object, notices, needed=not going) or {},
        _read(folder, "samples.json", _samples, notices, needed=False) or {},
    )


def unsaved(curve: Curve, name: str) -> SavedRun:
    """A run that has only its rows.

    Args:
        name: in place of its folder's.
    """
    empty: list[JsonObject] = [{} for _ in range(7)]
    rows = [dict(row) for row in curve.rows]
    return SavedRun(Path(name), curve.method or name, curve.seed, curve.status, rows, *empty)


def _read(
    folder: Path, name: str, parse: Callable[[str], T], notices: list[Notice], *, needed: bool = True
) -> T | None:
    """The content of a file; None if it is missing or broken, with a notice unless it was not needed."""
    try:
        return parse((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return None
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


def named(runs: list[SavedRun]) -> list[SavedRun]:
    """Rename runs that have the same label and differ in more than their seed.

    Those with a label of their own, in a folder `label/seed-N`, are named by their path; others by the
    settings that differ, and by their path if that is not enough.
    """
    homes = {run.folder: (run.folder.parent if _labelled(run) else run.folder).resolve() for run in runs}
    shared = os.path.commonpath([home.parent for home in homes.values()]) if runs else ""

    def by_path(run: SavedRun, _: Sequence[SavedRun]) -> str:
        return _clean(os.path.relpath(homes[run.folder], shared))

    for rename in (_by_settings, by_path):
        groups = {label: group for label, group in by_label(runs).items() if _mixed(group)}
        runs = [
            replace(run, label=rename(run, groups[run.label])) if run.label in groups else run for run in runs
        ]
    return runs


def by_label(runs: Iterable[SavedRun]) -> dict[str, list[SavedRun]]:
    """The runs of each label."""
    return grouped(runs, lambda run: run.label)


def _labelled(run: SavedRun) -> bool:
    return _SEED.fullmatch(run.folder.name) is not None


def called(runs: Sequence[SavedRun]) -> str:
    """What the labels are: "method", or "run" where folders have no labels and one method has several."""
    own = {run.method for run in runs}
    compared = all(_labelled(run) or not run.config for run in runs)
    return "method" if compared or len(own) == len({run.label for run in runs}) else "run"


def _mixed(group: Sequence[SavedRun]) -> bool:
    """Whether some runs differ in more than their seed, or two have the same seed."""
    return len({_apart_from_seed(run) for run in group}) > 1 or len({run.seed for run in group}) < len(group)


def _by_settings(run: SavedRun, group: Sequence[SavedRun]) -> str:
    """The label and up to three of the settings in which a group of runs differ."""
    if _labelled(run):
        return run.label
    flat = [flattened(one.config) for one in group]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if key != "run.seed"]
    differ = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in flat}) > 1]
    own = flattened(run.config)
    words = [f"{key.split('.', 1)[1]} {own.get(key, NOTHING)}" for key in differ[:3]]
    return _clean(", ".join([run.label, *words]))


def flattened(config: JsonObject) -> dict[str, Any]:
    """The settings by section.key."""
    return {f"{section}.{key}": value for section, keys in config.items() for key, value in keys.items()}


def codec_name(section: JsonObject) -> str:
    """A codec in words, such as "int 4-bit" or "topk ratio 0.05, with memory"; empty if it loses nothing."""
    name = section.get("name", "identity")
    if name == "identity":
        return ""
    bits = [f"{section['bits']}-bit"] if "bits" in section else []
    words = [str(name), *bits, *(f"{key} {section[key]}" for key in ("ratio", "levels") if key in section)]
    memory = ", with memory" if section.get("memory", "none") != "none" else ""
    return " ".join(words) + memory


def _label(folder: Path, config: JsonObject) -> str:
    """The folder above `seed-N`; else the method and its codecs; else the folder's own name."""
    if _SEED.fullmatch(folder.name) and folder.parent.name:
        return folder.parent.name
    return _described(config) or folder.name or folder.resolve().name


def _described(config: JsonObject) -> str:
    """The method and its codecs in words; empty if the config names no method."""
    method = config.get("algorithm", {}).get("name")
    up, down = (codec_name(config.get(way, {})) for way in ("uplink", "downlink"))
    return ", ".join([str(method), *[up] * bool(up), *[f"down {down}"] * bool(down)]) if method else ""


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

    def parse(line: str) -> JsonObject:
        told = _json_object(line)
        row: JsonObject = {k: v for k, v in told.items() if v is None or is_usable(v)}
        row |= {WORST: _clean(told[WORST])} if isinstance(told.get(WORST), str) else {}
        up, down = row.get("uplink_bytes"), row.get("downlink_bytes")
        total = {} if up is None or down is None else {"total_bytes": up + down}
        return {**row, **total, "round": _whole(row["round"])}

    rows, broken = _each_line(text, parse)
    return sorted(rows, key=lambda row: row["round"]), broken


def _records(text: str) -> tuple[list[JsonObject], list[int]]:
    """The records of a sweep, the last one of each trial, and the numbers of the lines that are none."""

    def parse(line: str) -> tuple[str, JsonObject]:
        record = _json_object(line)
        point = {str(key): value for key, value in record["point"].items()}
        scores = {key: record[key] for key in SCORES if is_usable(record.get(key))}
        told = {"method": str(record["method"]), "status": str(record["status"])}
        return str(record["key"]), {**told, "point": point, **scores}

    records, broken = _each_line(text, parse)
    return list(dict(records).values()), broken


def _each_line(text: str, parse: Callable[[str], T]) -> tuple[list[T], list[int]]:
    """What each line holds, and the numbers of the lines that cannot be read."""
    found, broken = [], []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(parse(line))
        except _BROKEN:
            broken.append(number)
    return found, broken


def is_usable(value: Any) -> TypeGuard[float]:
    """Whether a value is a number that can be drawn and added up."""
    return isinstance(value, int | float) and abs(value) < 1e300


def _whole(value: Any) -> int:
    if not is_usable(value) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return math.floor(value)


def _ledger(text: str) -> JsonObject:
    """Bytes by direction, vector and part, numbers carried, clients, and whether all bytes are exact."""
    ledger = _json_object(text)
    items = {
        way: {
            str(vector): {str(part): _whole(size) for part, size in parts.items()}
            for vector, parts in ledger[way]["vectors"].items()
        }
        for way in ("uplink", "downlink")
    }
    told = {way: ledger[way].get("numbers", {}).items() for way in items}  # earlier versions did not say
    numbers = {way: {str(vector): _whole(n) for vector, n in found} for way, found in told.items()}
    facts = {"clients": max(1, _whole(ledger["clients"])), "exact": ledger.get("exact") is not False}
    return {**facts, "numbers": numbers, **items}


def _accuracy(text: str) -> JsonObject:
    """The accuracy on each client, and test samples by class and by the class they were taken for."""
    table = _json_object(text)
    names = _names(table, len(table["clients"])) or [""] * len(table["clients"])
    usable = [(a, name) for a, name in zip(table["clients"], names, strict=True) if is_usable(a)]
    clients = [min(1.0, max(0.0, float(accuracy))) for accuracy, _ in usable]
    confusion = [[_whole(count) for count in row] for row in table["confusion"]]
    if {len(row) for row in confusion} - {len(confusion)}:
        raise ValueError("not square")
    return {"clients": clients, "names": [name for _, name in usable], "confusion": confusion}


def _names(table: JsonObject, clients: int) -> list[str] | None:
    """The names of the clients in a table, with what is long cut; None if it has no name for each."""
    names = table.get("names")
    if not isinstance(names, list) or len(names) != clients:
        return None
    return [printable(_clean(str(name)), _NAME) for name in names]


def _samples(text: str) -> JsonObject:
    table = _json_object(text)
    return {key: _clean(str(table[key])) for key in ("prompt", "before", "after")}


def _partition(text: str) -> JsonObject:
    table = _json_object(text)
    counts = table.get("label_counts")
    rows = None if counts is None else [[_whole(count) for count in row] for row in counts]
    if rows and len({len(row) for row in rows}) > 1:
        raise ValueError("clients with different numbers of classes")
    shown = [_whole(client) for client in table.get("shown") or range(len(rows or ()))]
    names = _names(table, len(shown))
    return {"clients": _whole(table["clients"]), "shown": shown, "names": names, "label_counts": rows}


def _similarity(text: str) -> JsonObject:
    table = _json_object(text)
    clients, cosine = [_whole(client) for client in table["clients"]], table["cosine"]
    if {len(clients)} != {len(cosine), *map(len, cosine)}:
        raise ValueError("not square")
    return {
        "clients": clients,
        "names": _names(table, len(clients)),
        "cosine": [[c if is_usable(c) else None for c in row] for row in cosine],
    }
