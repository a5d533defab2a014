"""Play trials: as many at once as fit, shared out among ranks, going on where they were interrupted.

Runs that differ only in rates, local.mu, seed and how data is dealt have one shape; on a GPU they are one
stack.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedcom.config import Config, RunConfig
from fedcom.engines.arguments import pick_device
from fedcom.engines.ranks.ranks import here, job
from fedcom.engines.results import Row
from fedcom.engines.simulation import Simulation, in_step
from fedcom.engines.stacks import runs_that_fit, stack_runs
from fedcom.errors import ConfigError, DataError, Diverged, OutOfMemory, Stopped
from fedcom.runs import stops
from fedcom.runs.display import Display, progress
from fedcom.runs.files import read_json
from fedcom.runs.given import Given
from fedcom.runs.prepare import build_task, simulation_of
from fedcom.runs.record import out_of_memory
from fedcom.runs.spread import WorkItem, spread, worth_spreading
from fedcom.saving.series import Series
from fedcom.saving.timer import SaveTimer
from fedcom.saving.whole import write_json
from fedcom.studies.trials import Trial, stacks, undealt
from fedcom.tasks.task import Task

Due = Callable[[RunConfig], Collection[int]]  # the rounds to evaluate in a run with these settings
FAILED = "failed"  # the status of a trial that could not be run
TRIAL_DUTY = "trials"  # see `play_item`


def spread_trials(trials: Sequence[Trial], due: Due, device: str, quiet: bool, saves: Path) -> None:
    """On several ranks and if there are enough trials, let each rank run whole ones; `run_stack` finds them.

    Args:
        trials: see `run_stack`, also for the other arguments; they may be of several shapes.
    """
    pending = [t for t in trials if isinstance(t.config, Config) and not _end_of(t, saves).exists()]
    if not worth_spreading(len(pending)):
        return
    saves.mkdir(parents=True, exist_ok=True)
    on_gpu, items = pick_device(device).type == "cuda", dict[str, dict[str, Any]]()
    for group in stacks(pending):
        at_once = -(-len(group) // here().size) if on_gpu else 1  # a GPU computes them as one stack
        for some in (group[i : i + at_once] for i in range(0, len(group), at_once)):
            items[_name(some)] = {
                "trials": [[trial.title, trial.config.table()] for trial in some],
                "due": sorted(due(some[0].config.run)),
                "device": "cuda" if on_gpu else "cpu",
                "quiet": quiet,
                "saves": str(saves.absolute()),
            }
    for i, item in enumerate(items.values()):
        item["which"] = f"{i + 1} of {len(items)} on {here().size} ranks"
    spread(TRIAL_DUTY, play_item, items)


def play_item(item: WorkItem) -> None:
    """Run some trials of one shape on this rank, and write down how each ended."""
    trials = [Trial(f"{title}: {item['which']}", (), 0, Config.of(table)) for title, table in item["trials"]]
    saves, due = Path(item["saves"]), set(item["due"])
    quiet = item["quiet"] or job().rank > 0
    for trial, status, rows in run_stack(trials, lambda run: due, item["device"], quiet, saves=saves):
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

    Trials that cannot be run are told on standard error and end as "failed"; if memory was short, half as
    many at once are tried first. Those that a rank ran by itself are not run again.

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
    start, most = 0, len(trials)
    while start < len(trials):
        if file := ended.get(start):
            end = read_json(file)
            yield trials[start], end["status"], end["rows"]
            file.unlink()
            _remove_if_empty(file.parent)
            start += 1
            continue
        stop = min((i for i in ended if i > start), default=len(trials))
        some, found = trials[start:stop][:most], list[tuple[str, list[Row]]]()
        simulations = list[Simulation]()
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
            if isinstance(known, OutOfMemory) and len(some) > 1:
                most = len(some) // 2
                told = f"too little memory for {len(some)} runs at once; going on with {most}"
                print(f"fedcom: {some[0].title}: {told}", file=sys.stderr)
                if saves is not None:
                    shutil.rmtree(saves / _name(some), ignore_errors=True)
                continue
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
    assert isinstance(config, Config)
    table, on = config.table(), pick_device(device)
    data = undealt(table["data"]) if on.type == "cuda" else table["data"]  # there runs may share a stack
    kind = json.dumps([data, table["model"], table.get("adapter"), config.run.dtype])
    name = json.dumps([kind, table["data"], config.run.seed, config.run.init, config.run.microbatch])
    if name not in tasks:
        for other in [other for other in tasks if json.loads(other)[0] != kind]:
            del tasks[other]
        tasks[name] = build_task(config)[0].to(on)
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
        self._timer = SaveTimer(run.checkpoint_minutes, run.checkpoint_rounds)

    def play(self, due: Collection[int], title: str, quiet: bool) -> list[tuple[str, list[Row]]]:
        """The status of each run, and its rows at the rounds in `due`."""
        self._restore()
        with stops.deferred(), progress(self.run.rounds, title, quiet) as show:
            try:
                for i, row in in_step(self.alive, due.__contains__, partial(self._after_round, show)):
                    if isinstance(row, Diverged):
                        del self.alive[i]
                    else:
                        self.rows[i].append(row)
                        show.update(row)
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

    def _after_round(self, show: Display, done: int) -> None:
        show.advance(done)
        stops.check()
        if self._timer.due(done):
            self._save()

    def _save(self) -> None:
        if self.series is not None:
            self.engine.save(self.series, {"rows": self.rows, "alive": list(self.alive)})
        self._timer.restart(self.engine.round)

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
