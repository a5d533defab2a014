"""What `fedcom sweep` does: run methods over a grid of settings, and resume where it was interrupted.

Runs that differ only in eta, gamma and seed have one shape; on a GPU they are computed as one stack.
"""

import hashlib
import itertools
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedcom.config import Config, RunConfig, Table
from fedcom.engines.simulation import Row, Simulation, pick_device, runs_that_fit, stack_runs
from fedcom.errors import (
    ConfigError,
    DataError,
    Diverged,
    OutOfMemory,
    Stopped,
    WireError,
    nearest,
    unknown,
)
from fedcom.runs import stops
from fedcom.runs.display import Display, progress
from fedcom.runs.folder import claim, clear
from fedcom.runs.prepare import build_task, simulation_of
from fedcom.runs.record import CHECKPOINTS, append, mend_end, open_log, out_of_memory
from fedcom.runs.status import TRIALS
from fedcom.saving.series import Series
from fedcom.saving.whole import write_json, write_whole
from fedcom.studies.compare import method_keys, variant
from fedcom.tasks.task import Task

FILES = (
    "results.jsonl",
    "sweep.json",
    TRIALS,
    "table.json",
    "table.csv",
    "table.md",
    "sweep.png",
    "tuned.toml",
    "tuned.json",
)
FAILED = "failed"  # the status of a trial that could not be run
_SECTIONS = ("algorithm", "uplink", "downlink", "data", "model", "run", "network")
T = TypeVar("T", bound="Trial")
Record = Mapping[str, Any]  # one line of results.jsonl: which trial it was, and how it ended
_STACKED = {"algorithm": ("eta", "gamma"), "run": ("seed",)}  # settings that may differ in one stack


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a method at one point of the grid, with one seed.

    Args:
        method: the name of a method, or a label under [methods].
        point: pairs of a key of the grid and its value, such as ("eta", 0.05).
        config: the settings of this run.
    """

    method: str
    point: tuple[tuple[str, Any], ...]
    seed: int
    config: Config

    @property
    def key(self) -> str:
        """The text that identifies this trial in results.jsonl."""
        return json.dumps([self.method, self.point, self.seed])

    @property
    def digest(self) -> str:
        """A hash of all its settings; trials with the same hash have the same rows."""
        return hashlib.sha256(json.dumps(self.config.table(), default=str).encode()).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        """The part of its record that says which trial it is."""
        return {"key": self.key, "method": self.method, "point": dict(self.point), "seed": self.seed}

    @property
    def title(self) -> str:
        """Its name in the progress display."""
        return self.method

    @property
    def shape(self) -> str:
        """All settings that runs of one stack must share, as text."""
        table = self.config.table()
        for section, keys in _STACKED.items():
            table[section] = {k: v for k, v in table[section].items() if k not in keys}
        return json.dumps([self.method, table], default=str)


def sweep(
    table: Table,
    grid: Table,
    methods: Sequence[str],
    out: Path,
    *,
    seeds: int = 1,
    last: int = 1,
    force: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Run every method at every point of the grid with every seed; return all records, old and new.

    Args:
        table: the settings of a config file, by section.
        grid: lists of values by key, or by section and key; see `points`.
        methods: names of methods, or labels under [methods].
        out: the folder of the sweep; one that holds part of the same sweep is completed.
        seeds: how many seeds per point, from run.seed on.
        last: how many of the last evaluations, run.eval_every rounds apart, a record averages.
        force: replace another sweep in the folder.
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
    """
    trials = list(trials_of(table, points(grid), methods, seeds))
    with claim(out, used=True):
        take_over(out, {"config": table, "grid": grid, "seeds": seeds, "last": last}, force)
        write_json(out / TRIALS, {"trials": len(trials)})
        return run_missing(trials, out / "results.jsonl", last, device, quiet)


def run_missing(
    trials: Sequence[Trial],
    path: Path,
    last: int,
    device: str,
    quiet: bool,
    tasks: dict[str, Task] | None = None,
) -> list[dict[str, Any]]:
    """Run the trials that have no record yet and append theirs to the file; return the records of all trials.

    Args:
        path: the file of records, one JSON object per line.
        last: how many of the last evaluations a record averages.
        tasks: a cache of tasks; see `run_stack`.
    """
    known = records_of(path, trials)
    mend_end(path)
    with open_log(path) as log:
        for group in stacks(trial for trial in trials if trial.key not in known):
            for record in _stack_records(group, last, device, quiet, tasks, path.parent / CHECKPOINTS):
                known[record["key"]] = record
                if record["status"] != FAILED:  # so that it is tried again the next time
                    append(log, json.dumps(record, allow_nan=False) + "\n")
    return [known[trial.key] for trial in trials]


def stacks(trials: Iterable[T]) -> list[list[T]]:
    """The trials grouped by shape; each group can be computed as one stack."""
    ordered = sorted(trials, key=lambda t: t.shape)
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda t: t.shape)]


def points(grid: Table) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of a grid's values, each as pairs of key and value.

    Args:
        grid: values or lists of values: {"eta": [0.1, 0.2], "uplink": {"bits": [2, 4]}}. A key without a
            section is a hyper-parameter of the algorithm.
    """
    values = lists(grid)
    if not values:
        raise ConfigError("a sweep needs a grid, as in grid.eta=0.02,0.05,0.1 or grid.uplink.bits=1,2")
    return [tuple(zip(values, some, strict=True)) for some in itertools.product(*values.values())]


def lists(grid: Table) -> dict[str, list[Any]]:
    """The values of each key of a grid; see `points`."""
    flat = {
        f"{name}.{key}" if isinstance(values, dict) else name: inner
        for name, values in grid.items()
        for key, inner in (values.items() if isinstance(values, dict) else [("", values)])
    }
    for name, values in grid.items():
        if isinstance(values, dict) and name not in _SECTIONS:
            raise unknown("section of the grid", name, _SECTIONS)
    return {key: values if isinstance(values, list) else [values] for key, values in flat.items()}


def trials_of(
    table: Table, tried: Sequence[tuple[tuple[str, Any], ...]], methods: Sequence[str], seeds: int
) -> Iterator[Trial]:
    """Every method at every point with every seed; keys that a method does not have are dropped for it.

    Args:
        table: the settings of a config file, by section.
        tried: the points of a grid; see `points`.
        methods: names of methods, or labels under [methods].
        seeds: how many seeds per point, from run.seed on.
    """
    first = Config.of({"run": table.get("run", {})}).run.seed
    known = {method: method_keys(table, method) for method in methods}
    every = set().union(*known.values())
    for key, _ in tried[0]:
        if "." not in key and key not in every:
            raise ConfigError(f"none of the methods has a key {key!r} to sweep; {nearest(key, every)}")
    for method in methods:
        own = {tuple((k, v) for k, v in point if "." in k or k in known[method]): None for point in tried}
        for point, seed in itertools.product(own, range(first, first + seeds)):
            yield Trial(method, point, seed, variant(_at(table, method, point, seed), method))


def _at(table: Table, method: str, point: Sequence[tuple[str, Any]], seed: int) -> Table:
    """The settings of one trial: those of the config with the values of the point put in."""
    own: Table = dict(table.get("methods", {}).get(method, {}))
    run: Table = {**table.get("run", {}), "seed": seed}
    rest = dict(table)
    for name, value in point:
        section, _, key = name.rpartition(".")
        if section in ("uplink", "downlink"):
            own[section] = {**own.get(section, {}), key: value}
        elif section in ("", "algorithm"):
            own[key] = value
        elif section == "run":
            run[key] = value
        else:
            rest[section] = {**rest.get(section, {}), key: value}
    return {**rest, "run": run, "methods": {**table.get("methods", {}), method: own}}


def take_over(out: Path, plan: Table, force: bool) -> None:
    """Write the plan into the folder; raise ConfigError if it holds another sweep, unless forced."""
    kept = out / "sweep.json"
    text = json.dumps(plan, indent=2, default=str) + "\n"
    if kept.exists() and kept.read_text() != text and not force:
        raise ConfigError(f"{out} holds another sweep; choose another --out, or --force to begin anew")
    if force or not kept.exists():
        clear(out, (*FILES, CHECKPOINTS))
        write_whole(kept, lambda path: path.write_text(text))


def records_of(path: Path, trials: Iterable[Trial]) -> dict[str, dict[str, Any]]:
    """The records that a file has of these trials, by key."""
    keys, found = {trial.key for trial in trials}, {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # a line cut short by an interruption
            continue
        found.update({record["key"]: record} if record.get("key") in keys else {})
    return found


def _stack_records(
    trials: Sequence[Trial],
    last: int,
    device: str,
    quiet: bool,
    tasks: dict[str, Task] | None,
    saves: Path,
) -> Iterator[dict[str, Any]]:
    """Run trials of one shape; the record of each, with the means over its last rows."""

    def due(run: RunConfig) -> set[int]:
        return {run.rounds - i * run.eval_every for i in range(last) if i * run.eval_every < run.rounds}

    for trial, status, rows in run_stack(trials, due, device, quiet, tasks, saves):
        yield {**trial.facts, "status": status, **_mean(rows)}


def run_stack(
    trials: Sequence[Trial],
    due: Callable[[RunConfig], Collection[int]],
    device: str,
    quiet: bool,
    tasks: dict[str, Task] | None = None,
    saves: Path | None = None,
) -> Iterator[tuple[Trial, str, list[Row]]]:
    """Run trials of one shape, as many at once as fit; yield each with its status and its rows.

    Trials that cannot be run are told on standard error and end as "failed".

    Args:
        trials: of one shape; see `stacks`.
        due: the rounds to evaluate in a run with these settings.
        tasks: a cache of tasks from earlier calls; tasks on other data are dropped from it.
        saves: a folder for checkpoints of what is being run, which are deleted when it is done.
    """
    tasks = {} if tasks is None else tasks
    start = 0
    while start < len(trials):
        some, found = trials[start:], list[tuple[str, list[Row]]]()
        try:
            some = some[: runs_that_fit(_simulation(some[0], device, tasks))]
            title = f"{some[0].title}: {start + 1} to {start + len(some)} of {len(trials)}"
            simulations = [_simulation(trial, device, tasks) for trial in some]
            folder = saves and saves / _name(some)
            found = _Stack(simulations, some[0].config.run, folder).play(
                due(some[0].config.run), title, quiet
            )
        except Exception as error:
            known = out_of_memory(error) or error
            if not isinstance(known, ConfigError | DataError | OutOfMemory):
                raise
            print(f"fedcom: {some[0].title}: {known}", file=sys.stderr)
            found = [(FAILED, []) for _ in some]
        for trial, (status, rows) in zip(some, found, strict=True):
            yield trial, status, rows
        start += len(some)


def _name(trials: Sequence[Trial]) -> str:
    """A folder's name for the checkpoints of some trials, which no others with other settings share."""
    of = json.dumps([[trial.key, trial.config.table()] for trial in trials], default=str)
    return hashlib.sha256(of.encode()).hexdigest()[:16]


def _simulation(trial: Trial, device: str, tasks: dict[str, Task]) -> Simulation:
    return simulation_of(task_of(trial, device, tasks), trial.config, device)


def task_of(trial: Trial, device: str, tasks: dict[str, Task]) -> Task:
    """The trial's task; trials with the same data, partition and seed share one.

    Args:
        tasks: a cache of tasks from earlier calls; tasks on other data are dropped from it.
    """
    config = trial.config
    kind = json.dumps([config.table()[section] for section in ("data", "model")] + [config.run.dtype])
    name = json.dumps([kind, config.run.seed, config.run.init])
    if name not in tasks:
        for other in [other for other in tasks if json.loads(other)[0] != kind]:
            del tasks[other]
        tasks[name] = build_task(config)[0].to(pick_device(device))
    return tasks[name]


class _Stack:
    """Runs that are played in step, with checkpoints.

    Args:
        run: their settings under [run].
        folder: of their checkpoints; None: none are made.
    """

    def __init__(self, simulations: Sequence[Simulation], run: RunConfig, folder: Path | None) -> None:
        self.engine, self.run, self.folder = stack_runs(simulations), run, folder
        self.rows: list[list[Row]] = [[] for _ in simulations]
        self.alive = dict(enumerate(simulations))
        self.series = None if folder is None else Series(folder)
        self._saved_at = time.monotonic()

    def play(self, due: Collection[int], title: str, quiet: bool) -> list[tuple[str, list[Row]]]:
        """The status of each run, and its rows at the rounds in `due`."""
        self._restore()
        with stops.deferred(), progress(self.run.rounds, title, quiet) as show:
            try:
                self._play(due, show)
            except Stopped as stopped:
                if stopped.between_rounds and self.series is not None:
                    self._save()
                    self.series.wait()
                raise
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # others may have theirs there
                self.folder.parent.rmdir()
        return [("done" if i in self.alive else "diverged", own) for i, own in enumerate(self.rows)]

    def _play(self, due: Collection[int], show: Display) -> None:
        self._measure(due, show)
        while self.alive and self.engine.round < self.run.rounds:
            try:
                self.engine.step()
            except WireError:  # a message is refused if its vector was not finite
                self.alive.clear()
                break
            show.advance(self.engine.round)
            stops.check()
            self._save_if_due()
            self._measure(due, show)

    def _measure(self, due: Collection[int], show: Display) -> None:
        for i in list(self.alive) if self.engine.round in due else []:
            try:
                self.rows[i].append(self.alive[i].row())
                show.update(self.rows[i][-1])
            except Diverged:
                del self.alive[i]

    def _save_if_due(self) -> None:
        minutes, rounds = self.run.checkpoint_minutes, self.run.checkpoint_rounds
        late = minutes and time.monotonic() - self._saved_at >= 60 * minutes
        if late or (rounds and self.engine.round % rounds == 0):
            self._save()

    def _save(self) -> None:
        if self.series is not None:
            self.engine.save(self.series, {"rows": self.rows, "alive": list(self.alive)})
        self._saved_at = time.monotonic()

    def _restore(self) -> None:
        saved = self.series and self.series.latest()
        if saved:
            self.engine.restore(saved)
            self.alive = {i: self.alive[i] for i in saved.facts["alive"]}
            # A row of this very round, which was saved after it was measured, is measured again.
            self.rows = [[r for r in own if r["round"] < self.engine.round] for own in saved.facts["rows"]]


def _mean(rows: Sequence[Row]) -> dict[str, Any]:
    """The last row, with its scores replaced by their means over all rows."""
    if not rows:
        return {}
    scores = ("train_loss", "test_accuracy", "worst_client_accuracy")
    means = {key: statistics.fmean(row[key] for row in rows) for key in scores if rows[-1][key] is not None}
    return {**rows[-1], **means}
