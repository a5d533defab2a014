"""What `fedcom sweep` does: run methods over a grid of settings, and resume where it was interrupted."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedcom.config import RunConfig, Table
from fedcom.engines.results import Row
from fedcom.errors import ConfigError, flag
from fedcom.runs.files import CHECKPOINTS, append, json_lines, open_log
from fedcom.runs.folder import claim, clear
from fedcom.runs.status import TRIALS
from fedcom.saving.whole import write_json, write_text
from fedcom.studies.trial_runs import FAILED, run_stack, spread_trials
from fedcom.studies.trials import Trial, points, stacks, trials_of
from fedcom.tasks.scores import SCORES
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
Record = Mapping[str, Any]  # one line of results.jsonl: which trial it was, and how it ended


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
    with open_log(path) as log:
        for group in stacks(pending):
            place = len(known), len(trials)
            for trial, status, rows in run_stack(group, due, device, quiet, tasks, saves, place):
                record = {**trial.facts, "status": status, **_mean(rows)}
                known[record["key"]] = record
                if record["status"] != FAILED:  # so that it is tried again the next time
                    append(log, record)
    return [known[trial.key] for trial in trials]


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
    keys = {trial.key for trial in trials}
    return {record["key"]: record for record in json_lines(path) if record.get("key") in keys}


def _last_rounds(last: int, run: RunConfig) -> set[int]:
    """The rounds to evaluate so that a record can average the last evaluations."""
    return {run.rounds - i * run.eval_every for i in range(last) if i * run.eval_every < run.rounds}


def _mean(rows: Sequence[Row]) -> dict[str, Any]:
    """The last row, with its scores replaced by their means over all rows."""
    if not rows:
        return {}
    known = [key for key in SCORES if all(row.get(key) is not None for row in rows)]
    means = {key: statistics.fmean(row[key] for row in rows) for key in known}
    return {**rows[-1], **means}
