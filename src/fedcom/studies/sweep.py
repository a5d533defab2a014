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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedcom.config import Config, RunConfig, Table
from fedcom.config.methods import check_once, check_shared, method_keys, variant
from fedcom.config.values import parse
from fedcom.engines.ranks.ranks import here, job
from fedcom.engines.simulation import Row, Simulation, pick_device, runs_that_fit, stack_runs
from fedcom.errors import (
    ConfigError,
    DataError,
    Diverged,
    NotFinite,
    OutOfMemory,
    Stopped,
    flag,
    nearest,
    unknown,
)
from fedcom.runs import stops
from fedcom.runs.display import Display, progress
from fedcom.runs.folder import claim, clear
from fedcom.runs.given import Given
from fedcom.runs.prepare import build_task, simulation_of
from fedcom.runs.record import CHECKPOINTS, append, mend_end, open_log, out_of_memory, read_json
from fedcom.runs.spread import Unit, spread, worth_spreading
from fedcom.runs.status import TRIALS
from fedcom.saving.series import Series
from fedcom.saving.whole import write_json, write_text
from fedcom.tasks.task import Task

FILES = (
    "results.jsonl",
    "sweep.json",
    TRIALS,
    "table.json",
    "table.csv",
    "table.md",
    "sweep.png",
    "report.html",
    "tuned.toml",
    "tuned.json",
)
FAILED = "failed"  # the status of a trial that could not be run
_SECTIONS = ("algorithm", "uplink", "downlink", "data", "model", "run", "network")
T = TypeVar("T", bound="Trial")
Due = Callable[[RunConfig], Collection[int]]  # the rounds to evaluate in a run with these settings
TRIAL_DUTY = "trials"  # see `run_unit`
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
    config: Config | Given

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
    def words(self) -> str:
        """Its point of the grid, in words."""
        return ", ".join(f"{key} {value}" for key, value in self.point) or "no point"

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
    plan = {"config": table, "grid": grid, "seeds": seeds, "last": last}
    return play(trials, out, plan, last, force, device, quiet)


def play(
    trials: Sequence[Trial], out: Path, plan: Table, last: int, force: bool, device: str, quiet: bool
) -> list[dict[str, Any]]:
    """Run the trials that are not done yet; return all records.

    Args:
        plan: what the sweep is of, as plain data; a folder that holds another one is refused.
    """
    with claim(out, used=True):
        take_over(out, plan, force)
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
    known, saves, due = records_of(path, trials), path.parent / CHECKPOINTS, partial(_last_rounds, last)
    pending = [trial for trial in trials if trial.key not in known]
    spread_trials(pending, due, device, quiet, saves)
    mend_end(path)
    with open_log(path) as log:
        for group in stacks(pending):
            place = len(known), len(trials)
            for trial, status, rows in run_stack(group, due, device, quiet, tasks, saves, place):
                record = {**trial.facts, "status": status, **_mean(rows)}
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
    found = {key: _values(own) for key, own in flat.items()}
    for key, own in found.items():
        if any(own.count(value) > 1 for value in own):
            raise ConfigError(f"grid.{key} has a value twice: {own}; leave one out")
    return found


def _values(own: Any) -> list[Any]:
    """A grid's values of one key; words may be among them, as in auto,0.1 or int,rotated."""
    if isinstance(own, str) and "," in own:
        return [parse(word.strip()) for word in own.split(",") if word.strip()]
    return list(own) if isinstance(own, list | tuple) else [own]


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
    check_once(methods)
    known = {method: method_keys(table, method) for method in methods}
    check_shared(table, methods)
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
        anew = f"choose another {flag('out')}, or {flag('force', 'force=True')} to begin anew"
        raise ConfigError(f"{out} holds another sweep; {anew}")
    if force or not kept.exists():
        clear(out, (*FILES, CHECKPOINTS))
        write_text(kept, text)


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


def _last_rounds(last: int, run: RunConfig) -> set[int]:
    """The rounds to evaluate so that a record can average the last evaluations."""
    return {run.rounds - i * run.eval_every for i in range(last) if i * run.eval_every < run.rounds}


def spread_trials(trials: Sequence[Trial], due: Due, device: str, quiet: bool, saves: Path) -> None:
    """On several ranks and if there are enough trials, let each rank run whole ones; `run_stack` finds them.

    Args:
        trials: see `run_stack`, also for the other arguments; they may be of several shapes.
    """
    pending = [t for t in trials if isinstance(t.config, Config) and not _end_of(t, saves).exists()]
    if not worth_spreading(len(pending)):
        return
    saves.mkdir(parents=True, exist_ok=True)
    on_gpu, units = pick_device(device).type == "cuda", dict[str, dict[str, Any]]()
    for group in stacks(pending):
        at_once = -(-len(group) // here().size) if on_gpu else 1  # a GPU computes them as one stack
        for some in (group[i : i + at_once] for i in range(0, len(group), at_once)):
            units[_name(some)] = {
                "trials": [[trial.title, trial.config.table()] for trial in some],
                "due": sorted(due(some[0].config.run)),
                "device": "cuda" if on_gpu else "cpu",
                "quiet": quiet,
                "saves": str(saves.absolute()),
            }
    for i, unit in enumerate(units.values()):
        unit["which"] = f"{i + 1} of {len(units)} on {here().size} ranks"
    spread(TRIAL_DUTY, run_unit, units)


def run_unit(unit: Unit) -> None:
    """Run some trials of one shape on this rank, and write down how each ended."""
    trials = [Trial(f"{title}: {unit['which']}", (), 0, Config.of(table)) for title, table in unit["trials"]]
    saves, due = Path(unit["saves"]), set(unit["due"])
    quiet = unit["quiet"] or job().rank > 0
    for trial, status, rows in run_stack(trials, lambda run: due, unit["device"], quiet, saves=saves):
        write_json(_end_of(trial, saves), {"status": status, "rows": rows})


def _end_of(trial: Trial, saves: Path) -> Path:
    """The file that says how a trial ended which a rank ran by itself."""
    return saves / f"{_name([trial])}.json"


def run_stack(
    trials: Sequence[Trial],
    due: Due,
    device: str,
    quiet: bool,
    tasks: dict[str, Task] | None = None,
    saves: Path | None = None,
    place: tuple[int, int] = (0, 0),
) -> Iterator[tuple[Trial, str, list[Row]]]:
    """Run trials of one shape, as many at once as fit; yield each with its status and its rows.

    Trials that cannot be run are told on standard error and end as "failed". Those that a rank ran by itself
    are not run again.

    Args:
        trials: of one shape; see `stacks`.
        tasks: a cache of tasks from earlier calls; tasks on other data are dropped from it.
        saves: a folder for checkpoints of what is being run, which are deleted when it is done.
        place: how many trials are done before these, and how many there are in all, for the progress.
    """
    before, total = place[0], max(place[1], len(trials))
    tasks = {} if tasks is None else tasks
    files = [] if saves is None else [_end_of(trial, saves) for trial in trials]
    ended = {i: file for i, file in enumerate(files) if file.exists()}
    start = 0
    while start < len(trials):
        if file := ended.get(start):
            end = read_json(file)
            yield trials[start], end["status"], end["rows"]
            file.unlink()
            _remove_if_empty(file.parent)
            start += 1
            continue
        stop = min((i for i in ended if i > start), default=len(trials))
        some, found = trials[start:stop], list[tuple[str, list[Row]]]()
        try:
            some = some[: runs_that_fit(_simulation(some[0], device, tasks))]
            number = before + start + 1
            which = f"{number}" if len(some) == 1 else f"{number} to {number + len(some) - 1}"
            title = f"{some[0].title}: run {which} of {total}"
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
    """A name for what is kept of some trials, which no others with other settings share."""
    of = json.dumps([trial.config.table() for trial in trials], default=str)
    return hashlib.sha256(of.encode()).hexdigest()[:16]


def _simulation(trial: Trial, device: str, tasks: dict[str, Task]) -> Simulation:
    return simulation_of(task_of(trial, device, tasks), trial.config, device)


def task_of(trial: Trial, device: str, tasks: dict[str, Task]) -> Task:
    """The trial's task; trials with the same data, partition and seed share one.

    Args:
        tasks: a cache of tasks from earlier calls; tasks on other data are dropped from it.
    """
    config = trial.config
    if isinstance(config, Given):
        return config.task
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
        if self.folder is not None and self.series is not None:
            self.series.wait()  # else what is still being written would stay
            shutil.rmtree(self.folder, ignore_errors=True)
            _remove_if_empty(self.folder.parent)
        return [("done" if i in self.alive else "diverged", own) for i, own in enumerate(self.rows)]

    def _play(self, due: Collection[int], show: Display) -> None:
        self._measure(due, show)
        while self.alive and self.engine.round < self.run.rounds:
            try:
                self.engine.step()
            except NotFinite:
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


def _remove_if_empty(folder: Path) -> None:
    if here() == job():  # else other ranks are about to use it
        with suppress(OSError):  # others may have theirs there
            folder.rmdir()


def _mean(rows: Sequence[Row]) -> dict[str, Any]:
    """The last row, with its scores replaced by their means over all rows."""
    if not rows:
        return {}
    scores = ("train_loss", "test_loss", "test_accuracy", "worst_client_accuracy", "test_r2", "test_rmse")
    known = [key for key in scores if all(row.get(key) is not None for row in rows)]
    means = {key: statistics.fmean(row[key] for row in rows) for key in known}
    return {**rows[-1], **means}
