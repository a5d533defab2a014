"""Many runs over a grid of settings: those of one shape are one stack, and what is done is not done again."""

import itertools
import json
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedcom.config import Config, RunConfig, Table
from fedcom.engines.simulation import Row, Simulation, pick_device, runs_that_fit, stack_runs
from fedcom.errors import ConfigError, Diverged, nearest, unknown
from fedcom.runs.display import progress
from fedcom.runs.folder import clear
from fedcom.runs.prepare import build_task, simulation_of
from fedcom.studies.compare import method_keys, variant
from fedcom.tasks.task import Task

FILES = ("results.jsonl", "sweep.json", "table.json", "table.csv", "table.md", "sweep.png")
_SECTIONS = ("algorithm", "uplink", "downlink", "data", "model", "run", "network")
T = TypeVar("T", bound="Trial")
_STACKED = {"algorithm": ("eta", "gamma"), "run": ("seed",)}  # settings in which runs of a stack may differ


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a method at one point of the grid, with one seed."""

    method: str
    point: tuple[tuple[str, Any], ...]  # the grid's keys and values, such as eta and 0.05
    seed: int
    config: Config

    @property
    def key(self) -> str:
        """What tells it from others, in results.jsonl."""
        return json.dumps([self.method, self.point, self.seed])

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of it, besides its results."""
        return {"key": self.key, "method": self.method, "point": dict(self.point), "seed": self.seed}

    @property
    def title(self) -> str:
        """What a display calls it."""
        return self.method

    @property
    def shape(self) -> str:
        """What runs of one stack have in common."""
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
    """Run every method at every point of the grid with every seed; the records of all, old and new.

    last: how many of the last evaluations, run.eval_every rounds apart, a record averages.
    """
    trials = list(trials_of(table, points(grid), methods, seeds))
    _claim(out, {"config": table, "grid": grid, "seeds": seeds, "last": last})
    return fill(trials, out / "results.jsonl", last, device, quiet)


def fill(trials: Sequence[Trial], path: Path, last: int, device: str, quiet: bool) -> list[dict[str, Any]]:
    """Run the trials a file has no record of, and write theirs into it; the records of all."""
    known = records_of(path, trials)
    with path.open("a") as log:
        for group in stacks(trial for trial in trials if trial.key not in known):
            for record in _play(group, last, device, quiet):
                log.write(json.dumps(record, allow_nan=False) + "\n")
                log.flush()
                known[record["key"]] = record
    return [known[trial.key] for trial in trials]


def stacks(trials: Iterable[T]) -> list[list[T]]:
    """Trials by shape: those of each can be one stack."""
    ordered = sorted(trials, key=lambda t: t.shape)
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda t: t.shape)]


def points(grid: Table) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of a grid's values; a key without a section is the algorithm's."""
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
    table: Table, grid: Sequence[tuple[tuple[str, Any], ...]], methods: Sequence[str], seeds: int
) -> Iterator[Trial]:
    """Every method at every point of a grid with every seed; a method leaves out keys it does not have."""
    first = Config.of({"run": table.get("run", {})}).run.seed
    known = {method: method_keys(table, method) for method in methods}
    every = set().union(*known.values())
    for key, _ in grid[0]:
        if "." not in key and key not in every:
            raise ConfigError(f"none of the methods has a key {key!r} to sweep; {nearest(key, every)}")
    for method in methods:
        own = {tuple((k, v) for k, v in point if "." in k or k in known[method]): None for point in grid}
        for point, seed in itertools.product(own, range(first, first + seeds)):
            yield Trial(method, point, seed, variant(_at(table, method, point, seed), method))


def _at(table: Table, method: str, point: Sequence[tuple[str, Any]], seed: int) -> Table:
    """The table of one trial: the point's values are the method's own settings."""
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
    """Make a folder this sweep's; refuse that of another plan."""
    kept = out / "sweep.json"
    text = json.dumps(plan, indent=2, default=str) + "\n"
    if kept.exists() and kept.read_text() != text:
        raise ConfigError(f"{out} holds another sweep; choose another --out, or --force to begin anew")
    if not kept.exists():
        clear(out, FILES)
        kept.write_text(text)


def records_of(path: Path, trials: Iterable[Trial]) -> dict[str, dict[str, Any]]:
    """The records of some trials, by key, that a file has."""
    keys, found = {trial.key for trial in trials}, {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # the line an interruption cut
            continue
        found.update({record["key"]: record} if record.get("key") in keys else {})
    return found


def _play(trials: Sequence[Trial], last: int, device: str, quiet: bool) -> Iterator[dict[str, Any]]:
    """Trials of one shape, each with the mean of its last rows."""

    def due(run: RunConfig) -> set[int]:
        return {run.rounds - i * run.eval_every for i in range(last) if i * run.eval_every < run.rounds}

    for trial, status, rows in play(trials, due, device, quiet):
        yield {**trial.facts, "status": status, **_mean(rows)}


def play(
    trials: Sequence[Trial],
    due: Callable[[RunConfig], Collection[int]],
    device: str,
    quiet: bool,
    tasks: dict[str, Task] | None = None,
) -> Iterator[tuple[Trial, str, list[Row]]]:
    """Trials of one shape, as many at once as fit: how each ended, and its rows of the rounds that are due.

    tasks: those built before, to be used again; trials on other data take their place.
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
    """The trial's simulation; trials on the same data, dealt alike, share their task."""
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
    """How each run ended, and its rows of the rounds that are due."""
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
    """The last row, with scores averaged over all of them."""
    if not rows:
        return {}
    scores = ("train_loss", "test_accuracy", "worst_client_accuracy")
    means = {key: statistics.fmean(row[key] for row in rows) for key in scores if rows[-1][key] is not None}
    return {**rows[-1], **means}
