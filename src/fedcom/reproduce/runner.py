"""A study is played, what was played before is kept, and all of it becomes a folder."""

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
from fedcom.reproduce.results import Record, Results, Verdict
from fedcom.reproduce.study import Study
from fedcom.runs.folder import clear, write_json
from fedcom.runs.run import device_name
from fedcom.studies import sweep
from fedcom.tasks.task import Task

Played = tuple[sweep.Trial, str, list[Row]]
REFUSED = "refused"
END = ("device", "simulated", "status", "rows")  # what a record says besides which run it is of


def reproduce(
    study: Study, scale: Scale, out: Path, device: str = "auto", quiet: bool = False
) -> list[Verdict]:
    """Play what is not yet in the folder's results.jsonl, then draw, judge and write the study."""
    where = device_name(pick_device(device))  # refused now, or every run would be
    panels = study.plan(scale)
    clear(out, ())
    runs = [run for panel in panels for run in panel.runs(scale.seeds)]
    results = Results(panels, _records(study, runs, out / "results.jsonl", where, device, quiet), scale)
    images = study.draw(results, out)
    verdicts = study.judge(results)
    write_csv(_points(results.records), out / "points.csv")
    write_json(out / "verdicts.json", [verdict.table() for verdict in verdicts])
    (out / "README.md").write_text(study_page.study_page(study, results, verdicts, images), encoding="utf-8")
    return verdicts


def _records(
    study: Study, runs: Sequence[StudyRun], path: Path, where: str, device: str, quiet: bool
) -> list[Record]:
    """The records of all runs; those that are new are written as they come."""
    known = sweep.records_of(path, runs)
    pending = [run for run in runs if run.key not in known]
    twins = {} if study.measure else _elsewhere(path)
    shared = [(run, twins[run.digest]) for run in pending if run.digest in twins]
    pending = [run for run in pending if run.digest not in twins]
    ends = ((run, {"device": where, "simulated": not study.measure, "status": status, "rows": rows})
            for run, status, rows in _play(study, pending, device, quiet))  # fmt: skip
    with path.open("a") as log:
        log.write("\n" if path.read_text()[-1:] not in ("", "\n") else "")  # a line an interruption cut
        for run, end in chain(shared, ends):
            known[run.key] = {**run.facts, **end}
            if end["status"] != REFUSED:  # may well work the next time
                log.write(json.dumps(known[run.key], allow_nan=False) + "\n")
                log.flush()
    return [known[run.key] for run in runs]


def _elsewhere(path: Path) -> dict[str, dict[str, Any]]:
    """How runs of other studies beside this one ended, by config."""
    found = {}
    for other in sorted({*path.parent.parent.glob("*/results.jsonl")} - {path}):
        for line in other.read_text().splitlines():
            with suppress(json.JSONDecodeError):  # the line an interruption cut
                record = json.loads(line)
                if record.get("simulated") and all(key in record for key in END):
                    found[record["config"]] = {key: record[key] for key in END}
    return found


def _play(study: Study, runs: Sequence[StudyRun], device: str, quiet: bool) -> Iterator[Played]:
    """Stack by stack, panel by panel; a stack that is refused is told of, and the others go on."""
    tasks: dict[str, Task] = {}
    for panel in dict.fromkeys(run.panel for run in runs):
        own = [run for run in runs if run.panel == panel]
        for stack in sweep.stacks(own) if study.measure is None else [[run] for run in own]:
            try:
                if study.measure is None:
                    yield from sweep.play(stack, evaluated, device, quiet, tasks)
                else:
                    yield stack[0], *study.measure(stack[0], device, quiet)
            except (ConfigError, WireError) as error:
                print(f"fedcom: {stack[0].title}: {error}", file=sys.stderr)
                yield from ((run, REFUSED, []) for run in stack)


def evaluated(run: RunConfig) -> set[int]:
    """The rounds with a row: the first, every so many, and the last."""
    return {*range(0, run.rounds, run.eval_every), run.rounds}


def _points(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Every row of every run, flat."""
    flat = [
        {"panel": r["panel"], "method": r["method"], **r["point"], "seed": r["seed"], "status": r["status"],
         **{key: value for key, value in row.items() if key != "seconds"}}
        for r in records for row in r["rows"] or [{}]
    ]  # fmt: skip
    keys = dict.fromkeys(key for row in flat for key in row)
    return [{key: row.get(key) for key in keys} for row in flat]
