"""Run a study, but not the runs that are already done, and write its figure, points, verdicts and page."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from fedcom.config import RunConfig
from fedcom.engines.simulation import Row, pick_device
from fedcom.errors import ConfigError, WireError
from fedcom.reports.comparison import write_csv
from fedcom.reproduce import study_page
from fedcom.reproduce.panels import Scale, StudyRun
from fedcom.reproduce.results import Results, Verdict
from fedcom.reproduce.study import Study
from fedcom.runs.folder import make_folder, write_json
from fedcom.runs.run import device_name
from fedcom.studies import sweep
from fedcom.tasks.task import Task

Ended = tuple[sweep.Trial, str, list[Row]]  # a run, its status and its rows
REFUSED = "refused"
END = ("device", "simulated", "status", "rows")  # the keys of a record that say how its run ended


def reproduce(
    study: Study, scale: Scale, out: Path, device: str = "auto", quiet: bool = False
) -> list[Verdict]:
    """Run what is not yet in the folder's results.jsonl, then draw, judge and write the study.

    Args:
        out: the folder of the study. Runs of other studies in folders beside it are used again.
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
    """
    where = device_name(pick_device(device))  # an unknown device is an error here, before any run
    panels = study.plan(scale)
    make_folder(out, ())
    runs = [run for panel in panels for run in panel.runs(scale.seeds)]
    results = Results(panels, _records(study, runs, out / "results.jsonl", where, device, quiet), scale)
    images = study.draw(results, out)
    verdicts = study.judge(results)
    write_csv(_points(results.records), out / "points.csv")
    if study.table is not None:
        lines = [{"panel": p.name, **line} for p in panels for line in study.table(results, p.name)]
        write_csv(lines, out / "table.csv")
    write_json(out / "verdicts.json", [verdict.table() for verdict in verdicts])
    (out / "README.md").write_text(study_page.study_page(study, results, verdicts, images), encoding="utf-8")
    return verdicts


def _records(
    study: Study, runs: Sequence[StudyRun], path: Path, where: str, device: str, quiet: bool
) -> list[sweep.Record]:
    """The records of all runs; new ones are appended to the file as each run ends."""
    known = sweep.records_of(path, runs)
    pending = [run for run in runs if run.key not in known]
    twins = {} if study.measure else _elsewhere(path)
    shared = [(run, twins[run.digest]) for run in pending if run.digest in twins]
    pending = [run for run in pending if run.digest not in twins]
    ends = (
        (run, {"device": where, "simulated": not study.measure, "status": status, "rows": rows})
        for run, status, rows in _run_all(study, pending, device, quiet)
    )
    with path.open("a") as log:
        log.write("\n" if path.read_text()[-1:] not in ("", "\n") else "")  # after a line cut short
        for run, end in chain(shared, ends):
            known[run.key] = {**run.facts, **end}
            if end["status"] != REFUSED:  # so that it is tried again the next time
                log.write(json.dumps(known[run.key], allow_nan=False) + "\n")
                log.flush()
    return [known[run.key] for run in runs]


def _elsewhere(path: Path) -> dict[str, dict[str, Any]]:
    """How runs of the studies in folders beside this one ended, by the hash of their config."""
    found = {}
    for other in sorted({*path.parent.parent.glob("*/results.jsonl")} - {path}):
        for line in other.read_text().splitlines():
            with suppress(json.JSONDecodeError):  # a line cut short by an interruption
                record = json.loads(line)
                if record.get("simulated") and all(key in record for key in END):
                    found[record["config"]] = {key: record[key] for key in END}
    return found


def _run_all(study: Study, runs: Sequence[StudyRun], device: str, quiet: bool) -> Iterator[Ended]:
    """Run panel by panel, stack by stack; a stack that raises an error is reported and marked refused."""
    tasks: dict[str, Task] = {}
    for panel in dict.fromkeys(run.panel for run in runs):
        own = [run for run in runs if run.panel == panel]
        for stack in sweep.stacks(own) if study.measure is None else [[run] for run in own]:
            try:
                if study.measure is None:
                    yield from sweep.run_stack(stack, evaluated, device, quiet, tasks)
                else:
                    yield stack[0], *study.measure(stack[0], device, quiet)
            except (ConfigError, WireError) as error:
                print(f"fedcom: {stack[0].title}: {error}", file=sys.stderr)
                yield from ((run, REFUSED, []) for run in stack)


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
