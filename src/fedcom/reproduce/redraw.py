"""Draw, judge and write studies anew from the points that are kept of them, without a run."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcom.errors import ConfigError
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.runner import publish, results_of
from fedcom.reproduce.study import Study
from fedcom.reproduce.tables.cells import CHECKS
from fedcom.reproduce.tables.measured import MeasuredRounds
from fedcom.reproduce.tables.tables_runner import publish as publish_tables
from fedcom.reproduce.tables.tables_runner import work_of
from fedcom.runs.files import append, open_log
from fedcom.studies.sweep import Record
from fedcom.tasks.scores import WORST

Line = Mapping[str, str]  # of points.csv


def redraw(study: Study, out: Path) -> list[Verdict]:
    """Write a study's images, table, verdicts and page from the points.csv and the page in its folder.

    ConfigError if the study as it is now has runs that are not among these points.
    """
    return publish(study, results_of(*_kept(study, out), {}), [], out)


def take_up(study: Study, kept: Path, out: Path) -> None:
    """Write the runs of the points that a study's folder keeps to the results.jsonl of another folder.

    `reproduce` then goes on from there.
    """
    _, records, _ = _kept(study, kept)
    out.mkdir(parents=True, exist_ok=True)
    with open_log(out / "results.jsonl") as log:
        for record in records:
            append(log, {**record, "simulated": study.measure is None})


def _kept(study: Study, folder: Path) -> tuple[list[Panel], list[Record], Scale]:
    """The panels of which a folder keeps points, the records of their runs, and their scale."""
    lines = _lines(folder)
    scale = Scale(seeds=len({line["seed"] for line in lines}))
    panels = study.plan(scale)
    if study.in_part:
        panels = [p.part({line["method"] for line in lines if line["panel"] == p.name}) for p in panels]
    page = (folder / "README.md").read_text(encoding="utf-8")
    where = re.search(r"^Run on: (.*)\.$", page, re.MULTILINE)
    device = {"device": where.group(1)} if where else {}
    records: list[Record] = [
        {**record, **device}
        for panel in panels
        if (own := [line for line in lines if line["panel"] == panel.name])
        for record in _records(panel, scale, own)
    ]
    return panels, records, scale


def redraw_tables(out: Path) -> list[Verdict]:
    """Write the tables' images, verdicts and page from the points.csv in their folder."""
    found = MeasuredRounds.of_points(CHECKS, _lines(out))
    return publish_tables(found, CHECKS, work_of(Scale())[0], out)


def _lines(out: Path) -> list[dict[str, str]]:
    with (out / "points.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _records(panel: Panel, scale: Scale, lines: Sequence[Line]) -> list[Record]:
    """The records of a panel's runs, in order."""
    found: list[Record] = []
    for run in panel.runs(scale.seeds):
        told = {"method": run.method, "seed": str(run.seed), **{key: str(v) for key, v in run.point}}
        own = [line for line in lines if all(line[key] == value for key, value in told.items())]
        if not own:
            raise ConfigError(f"no point of {run.title}, seed {run.seed}; run the study again")
        rows = [row for line in own if (row := _row(line, {*told, "panel", "status"}))]
        found.append({**run.facts, "status": own[0]["status"], "rows": rows})
    return found


def _row(line: Line, known: set[str]) -> dict[str, Any]:
    """The numbers of a line, and a client's name; what is empty was not measured."""
    own = {key: value for key, value in line.items() if key not in known and value}
    return {key: value if key == WORST else json.loads(value) for key, value in own.items()}
