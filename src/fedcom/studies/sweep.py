"""What `fedcom sweep` does: run methods over a grid of settings, and resume where it was interrupted.

Runs that differ only in eta, gamma and seed have one shape; on a GPU they are computed as one stack.
"""

import itertools
import json
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedcom.config import Config, RunConfig, Table
from fedcom.engines.simulation import Row, Simulation, pick_device, runs_that_fit, stack_runs
from fedcom.errors import ConfigError, Diverged, nearest, unknown
from fedcom.runs.display import progress
from fedcom.runs.folder import make_folder
from fedcom.runs.prepare import build_task, simulation_of
from fedcom.studies.compare import method_keys, variant
from fedcom.tasks.task import Task

FILES = ("results.jsonl", "sweep.json", "table.json", "table.csv", "table.md", "sweep.png")
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
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
    """
    trials = list(trials_of(table, points(grid), methods, seeds))
    _claim(out, {"config": table, "grid": grid, "seeds": seeds, "last": last})
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
    with path.open("a") as log:
        for group in stacks(trial for trial in trials if trial.key not in known):
            for record in _stack_records(group, last, device, quiet, tasks):
                log.write(json.dumps(record, allow_nan=False) + "\n")
                log.flush()
                known[record["key"]] = record
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
    flat = {
        f"{name}.{key}" if isinstance(values, dict) else name: inner
        for name, values in grid.items()
        for key, inner in (values.items() if isinstance(values, dict) else [("", values)])
    }
    for name, values in grid.items():
        if isinstance(values, dict) and name not in _SECTIONS:
            raise unknown("section of the grid", name, _SECTIONS)
    if not flat:
        raise ConfigError("a sweep needs a grid, as in grid.eta=0.02,0.05,0.1 or grid.uplink.bits=1,2")
    lists = {key: values if isinstance(values, list) else [values] for key, values in flat.items()}
    return [tuple(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


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


def _claim(out: Path, plan: Table) -> None:
    """Write the plan into the folder; raise ConfigError if it holds a sweep with another plan."""
    kept = out / "sweep.json"
    text = json.dumps(plan, indent=2, default=str) + "\n"
    if kept.exists() and kept.read_text() != text:
        raise ConfigError(f"{out} holds another sweep; choose another --out, or --force to begin anew")
    if not kept.exists():
        make_folder(out, FILES)
        kept.write_text(text)


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
    trials: Sequence[Trial], last: int, device: str, quiet: bool, tasks: dict[str, Task] | None
) -> Iterator[dict[str, Any]]:
    """Run trials of one shape; the record of each, with the means over its last rows."""

    def due(run: RunConfig) -> set[int]:
        return {run.rounds - i * run.eval_every for i in range(last) if i * run.eval_every < run.rounds}

    for trial, status, rows in run_stack(trials, due, device, quiet, tasks):
        yield {**trial.facts, "status": status, **_mean(rows)}


def run_stack(
    trials: Sequence[Trial],
    due: Callable[[RunConfig], Collection[int]],
    device: str,
    quiet: bool,
    tasks: dict[str, Task] | None = None,
) -> Iterator[tuple[Trial, str, list[Row]]]:
    """Run trials of one shape, as many at once as fit; yield each with its status and its rows.

    Args:
        trials: of one shape; see `stacks`.
        due: the rounds to evaluate in a run with these settings.
        tasks: a cache of tasks from earlier calls; tasks on other data are dropped from it.
    """
    tasks = {} if tasks is None else tasks
    size = runs_that_fit(_simulation(trials[0], device, tasks))
    for start in range(0, len(trials), size):
        some = trials[start : start + size]
        simulations = [_simulation(trial, device, tasks) for trial in some]
        title = f"{some[0].title}: {start + 1} to {start + len(some)} of {len(trials)}"
        found = _rows(simulations, due(some[0].config.run), title, quiet)
        for trial, (status, rows) in zip(some, found, strict=True):
            yield trial, status, rows


def _simulation(trial: Trial, device: str, tasks: dict[str, Task]) -> Simulation:
    """The trial's simulation; trials with the same data, partition and seed share one task."""
    config = trial.config
    kind = json.dumps([config.table()[section] for section in ("data", "model")] + [config.run.dtype])
    name = json.dumps([kind, config.run.seed, config.run.init])
    if name not in tasks:
        for other in [other for other in tasks if json.loads(other)[0] != kind]:
            del tasks[other]
        tasks[name] = build_task(config)[0].to(pick_device(device))
    return simulation_of(tasks[name], config, device)


def _rows(
    simulations: Sequence[Simulation], due: Collection[int], title: str, quiet: bool
) -> list[tuple[str, list[Row]]]:
    """The status of each run, and its rows at the rounds in `due`."""
    first, step = simulations[0], stack_runs(simulations).step
    rows: list[list[Row]] = [[] for _ in simulations]
    alive = dict(enumerate(simulations))
    with progress(first.rounds, title, quiet) as show:
        for turn in range(first.rounds + 1):
            if turn:
                step()
                show.advance(turn)
            for i in list(alive) if turn in due else []:
                try:
                    rows[i].append(alive[i].row())
                    show.update(rows[i][-1])
                except Diverged:
                    del alive[i]
            if not alive:
                break
    return [("done" if i in alive else "diverged", own) for i, own in enumerate(rows)]


def _mean(rows: Sequence[Row]) -> dict[str, Any]:
    """The last row, with its scores replaced by their means over all rows."""
    if not rows:
        return {}
    scores = ("train_loss", "test_accuracy", "worst_client_accuracy")
    means = {key: statistics.fmean(row[key] for row in rows) for key in scores if rows[-1][key] is not None}
    return {**rows[-1], **means}
