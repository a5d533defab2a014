"""Run a study, but not the runs that are already done, and write its figure, points, verdicts and page."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from fedcom.config import RunConfig
from fedcom.engines.arguments import pick_device
from fedcom.engines.results import Row
from fedcom.errors import ConfigError, DataError
from fedcom.reports.comparison import write_csv
from fedcom.reproduce.panels import Panel, Scale, StudyRun
from fedcom.reproduce.results import NOT_RUN, StudyResults, Verdict
from fedcom.reproduce.study import Study
from fedcom.reproduce.study_page import study_page, write_study
from fedcom.runs.facts import device_name
from fedcom.runs.files import CHECKPOINTS, append, json_lines, open_log
from fedcom.runs.folder import claim
from fedcom.runs.status import TRIALS
from fedcom.saving.whole import write_json
from fedcom.studies import sweep
from fedcom.studies.trial_runs import FAILED, run_stack, spread_trials, task_of
from fedcom.studies.trials import Trial, stacks, undealt
from fedcom.tasks.task import Task

Ended = tuple[Trial, str, list[Row]]  # a run, its status and its rows
END = ("device", "simulated", "status", "rows")  # the keys of a record that say how its run ended


def reproduce(
    study: Study, scale: Scale, out: Path, device: str = "auto", quiet: bool = False
) -> list[Verdict]:
    """Run what is not yet in the folder's results.jsonl, then draw, judge and write the study.

    Panels whose data is missing have the verdict "not run"; DataError is raised if all panels are such. If
    some points alone are asked for, a study that can be judged in part is written with all that are there;
    others are not.

    Args:
        out: the folder of the study. Runs of other studies in folders beside it are used again.
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
    """
    where = device_name(pick_device(device))  # an unknown device is an error here, before any run
    panels = study.panels(scale)
    runs = [run for panel in panels for run in panel.runs(scale.seeds)]
    with claim(out, used=True):
        write_json(out / TRIALS, {"trials": len(runs)})
        missing: dict[str, DataError] = {}
        records = _records(study, runs, out / "results.jsonl", where, device, quiet, missing)
        if scale.only and not study.in_part:
            return []
        if scale.only:
            panels, records = _there(study.plan(scale), out / "results.jsonl", scale)
        if not (records or missing):
            raise ConfigError(f"{study.name}: no point could be run; the messages above say why")
        results = results_of(panels, records, scale, missing)
        write_csv(_points(results.records), out / "points.csv")
        lost = [_not_run(results, name, missing[name]) for name in missing]
        return publish(study, results, lost, out)


def _there(panels: Sequence[Panel], path: Path, scale: Scale) -> tuple[list[Panel], list[sweep.Record]]:
    """The panels with the points whose runs a file has all of, and the records of these."""
    known = sweep.records_of(path, [run for panel in panels for run in panel.runs(scale.seeds)])
    lacking = {(run.panel, run.method) for p in panels for run in p.runs(scale.seeds) if run.key not in known}
    parts = [p.part([label for label in p.methods if (p.name, label) not in lacking]) for p in panels]
    return parts, [known[run.key] for p in parts for run in p.runs(scale.seeds)]


def publish(study: Study, results: StudyResults, lost: Sequence[Verdict], out: Path) -> list[Verdict]:
    """Draw and judge a study's results; write its images, table, verdicts and page; return all verdicts.

    Args:
        lost: the verdicts on panels that were not run.
    """
    images = study.draw(results, out)
    if study.table is not None:
        lines = [{"panel": p.name, **line} for p in results.panels for line in study.table(results, p.name)]
        write_csv(lines, out / "table.csv")
    verdicts = [*study.judge(results), *lost]
    write_study(out, verdicts, study_page(study, results, verdicts, images))
    return verdicts


def results_of(
    panels: Sequence[Panel], records: Sequence[sweep.Record], scale: Scale, missing: Mapping[str, DataError]
) -> StudyResults:
    """The results without the panels that have no run, for want of data or because nobody asked for one."""
    known = {r["panel"] for r in records if r["panel"] not in missing or r["status"] != FAILED}
    if not known:
        raise next(iter(missing.values()))
    kept, lost = ([p for p in panels if (p.name in known) == has_runs] for has_runs in (True, False))
    return StudyResults(kept, [r for r in records if r["panel"] in known], scale, lost)


def _not_run(results: StudyResults, name: str, error: DataError) -> Verdict:
    runs = "Some of its runs are" if results.has(name) else "It is"
    numbers = f"{runs} missing for want of data: {error}."
    return Verdict(f"What is claimed of the panel {name}.", NOT_RUN, numbers, results.setting(name))


def _records(
    study: Study,
    runs: Sequence[StudyRun],
    path: Path,
    where: str,
    device: str,
    quiet: bool,
    missing: dict[str, DataError],
) -> list[sweep.Record]:
    """The records of all runs; new ones are appended to the file as each run ends.

    Args:
        missing: is given the error of each panel whose data is missing.
    """
    known = sweep.records_of(path, runs)
    pending = [run for run in runs if run.key not in known]
    twins = {} if study.measure else _elsewhere(path)
    shared = [(run, twins[run.digest]) for run in pending if run.digest in twins]
    pending = [run for run in pending if run.digest not in twins]
    ends = (
        (run, {"device": where, "simulated": not study.measure, "status": status, "rows": rows})
        for run, status, rows in _run_all(study, pending, device, quiet, path.parent / CHECKPOINTS, missing)
    )
    with open_log(path) as log:
        for run, end in chain(shared, ends):
            known[run.key] = {**run.facts, **end}
            if end["status"] != FAILED:  # so that it is tried again the next time
                append(log, known[run.key])
    return [known[run.key] for run in runs]


def _elsewhere(path: Path) -> dict[str, dict[str, Any]]:
    """How runs of the studies in folders beside this one ended, by the hash of their config."""
    found = {}
    for other in sorted({*path.parent.parent.glob("*/results.jsonl")} - {path}):
        for record in json_lines(other):
            if record.get("simulated") and all(key in record for key in END):
                found[record["config"]] = {key: record[key] for key in END}
    return found


def _run_all(
    study: Study,
    runs: Sequence[StudyRun],
    device: str,
    quiet: bool,
    saves: Path,
    missing: dict[str, DataError],
) -> Iterator[Ended]:
    """Run panel by panel, those that only deal the same data otherwise together.

    Runs that cannot be run end as failed, all of a panel if its data is missing.
    """
    tasks: dict[str, Task] = {}
    done = 0
    panels = [[run for run in runs if run.panel == name] for name in dict.fromkeys(r.panel for r in runs)]
    for _, some in groupby(panels, key=lambda of: undealt(of[0].config.table()["data"])):
        own = list[StudyRun]()
        for panel in some:
            try:
                task_of(panel[0], device, tasks)
                own += panel
            except DataError as error:
                name = panel[0].panel
                print(f"fedcom: {study.name} needs data for {name}: {error}", file=sys.stderr)
                missing[name] = error
                yield from ((run, FAILED, []) for run in panel)
        if study.measure is None:
            spread_trials(own, evaluated, device, quiet, saves)
            for stack in stacks(own):
                yield from run_stack(stack, evaluated, device, quiet, tasks, saves, (done, len(runs)))
                done += len(stack)
            continue
        for run in own:
            try:
                yield run, *study.measure(run, device, quiet)
            except (ConfigError, DataError) as error:
                print(f"fedcom: {run.title}: {error}", file=sys.stderr)
                yield run, FAILED, []


def evaluated(run: RunConfig) -> set[int]:
    """The rounds to evaluate: round 0, every run.eval_every rounds, and the last."""
    return {*range(0, run.rounds, run.eval_every), run.rounds}


def _points(records: Sequence[sweep.Record]) -> list[dict[str, Any]]:
    """Every row of every run as one flat row, for points.csv."""
    flat = [
        {
            "panel": r["panel"],
            "method": r["method"],
            **r["point"],
            "seed": r["seed"],
            "status": r["status"],
            **{key: value for key, value in row.items() if key != "seconds"},
        }
        for r in records
        for row in r["rows"] or [{}]
    ]
    keys = dict.fromkeys(key for row in flat for key in row)
    return [{key: row.get(key) for key in keys} for row in flat]
