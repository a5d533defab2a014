"""Reproduce the paper's six tables: measure how rounds grow with each factor, and judge what is stated."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fedcom.codecs import Identity
from fedcom.errors import ConfigError
from fedcom.reports.comparison import write_csv
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.tables.cells import CHECKS
from fedcom.reproduce.tables.checks import DIM, Case, Check
from fedcom.reproduce.tables.figure import figure
from fedcom.reproduce.tables.measured import MeasuredRounds, Measurement, holds, measurements, points, summary
from fedcom.reproduce.tables.rivals import RIVALS
from fedcom.reproduce.tables.rounds import StackedRuns
from fedcom.reproduce.tables.tables_page import TABLES, of_table, page, setting
from fedcom.runs.display import progress
from fedcom.runs.folder import claim
from fedcom.saving.whole import write_json
from fedcom.traffic.links import Links

SEEDS = 3  # seeds per seed of the scale, as these runs are small


def reproduce_tables(scale: Scale, out: Path, device: str = "cpu", quiet: bool = False) -> list[Verdict]:
    """Reproduce all tables at a scale, on all cores of the CPU.

    Args:
        out: the folder of the tables.
        device: not used, as a GPU does not help with such small problems.
        quiet: show no progress.
    """
    if scale.overrides:
        raise ConfigError(f"tables have no config that {scale.overrides[0]!r} could override; leave it out")
    work = work_of(scale)
    return reproduce_checks(work, CHECKS, out, quick=scale.quick, quiet=quiet)


def work_of(scale: Scale) -> list[Measurement]:
    """The measurements of all checks at a scale."""
    return measurements(CHECKS, SEEDS * scale.seeds, 2 if scale.quick else 4)


def reproduce_checks(
    work: Sequence[Measurement],
    checks: Sequence[Check],
    out: Path,
    *,
    quick: bool = False,
    quiet: bool = False,
    workers: int | None = None,
) -> list[Verdict]:
    """Run what is not yet in the folder's results.jsonl, then draw, judge and write the tables.

    Args:
        work: the measurements that the checks need; see `measurements`.
        quick: whether the page says that the quick command repeats it.
        quiet: show no progress.
        workers: processes to use; None for one per core.
    """
    with claim(out, used=True):
        found = MeasuredRounds(_records(work, out / "results.jsonl", quiet, workers))
        write_csv(list(points(found, checks)), out / "points.csv")
        return publish(found, checks, work[0], out, quick)


def publish(
    found: MeasuredRounds, checks: Sequence[Check], example: Measurement, out: Path, quick: bool = False
) -> list[Verdict]:
    """Draw and judge what was measured; write the images, verdicts and page; return the verdicts.

    Args:
        example: any of the measurements; its seeds and step sizes are named in the page.
        quick: whether the page says that the quick command repeats it.
    """
    verdicts = judge(found, checks, example)
    images = draw(found, out, checks)
    write_json(out / "verdicts.json", [verdict.table() for verdict in verdicts])
    text = page(found, verdicts, images, checks, example, quick)
    (out / "README.md").write_text(text, encoding="utf-8")
    return verdicts


def draw(found: MeasuredRounds, out: Path, checks: Sequence[Check]) -> list[str]:
    """Draw one figure per table into a folder; return the names of the files."""
    numbers = [number for number in TABLES if of_table(number, checks)]
    for number in numbers:
        title = f"Table {number}: {TABLES[number].title}"
        figure(title, of_table(number, checks), found, out / f"table{number}.png")
    return [f"table{number}.png" for number in numbers]


def judge(found: MeasuredRounds, checks: Sequence[Check], example: Measurement) -> list[Verdict]:
    """For every table, a verdict on each method's bounds and on each comparison of two methods.

    Args:
        example: any of the measurements; its seeds and step sizes are named in the verdicts.
    """
    verdicts, where = [], setting(example)
    for number in TABLES:
        own = of_table(number, checks)
        for method in dict.fromkeys(check.base.method for check in own):
            mine = [check for check in own if check.base.method == method]
            verdicts.append(_bounds(number, method, mine, found, where))
        for rival in (rival for rival in RIVALS if rival.table == number):
            pair = rival.pair(own)
            verdicts += [rival.verdict(found, pair, where)] if pair else []
    return [*verdicts, _vectors()] if of_table(4, checks) else verdicts


def _bounds(number: int, method: str, own: Sequence[Check], found: MeasuredRounds, where: str) -> Verdict:
    """The verdict on all bounds of one method in one table."""
    said = "; ".join(
        f"{x['column']}, {x['factor']} in {x['stated']}: {x['slope']}, {x['verdict']}"
        for x in summary(found, own)
    )
    claim = f"Table {number}, {method}: rounds grow no faster than stated."
    return Verdict.of(claim, [holds(found, check) for check in own], f"Slopes: {said}.", where)


def _vectors() -> Verdict:
    """The verdict on the bytes that SCAFFOLD and FedGATE send up in one round."""
    sizes = []
    for method in ("scaffold", "fedgate"):
        s = Case(method, alike=False)
        runs = StackedRuns(s.problem(), s.algorithm(), Links(Identity()), [0.01], [0])
        runs.step()
        sizes.append(runs.bill.total("uplink"))
    ratio = sizes[0] / sizes[1]
    claim = "Table 4: SCAFFOLD sends two vectors up, the others one."
    return Verdict.of(
        claim, [abs(ratio - 2) < 0.01], f"{ratio:.2f} times the bytes.", f"one round, d = {DIM}"
    )


def _records(
    work: Sequence[Measurement], path: Path, quiet: bool, workers: int | None
) -> list[tuple[Measurement, list[dict[str, Any]]]]:
    """The rows of all measurements; new ones are appended to the file as each one ends."""
    known = _read(path)
    pending = [measurement for measurement in work if measurement.key not in known]
    cut = path.exists() and path.stat().st_size
    with path.open("a") as log, progress(len(pending), "tables", quiet) as show:
        log.write("\n" if cut else "")  # after a line that may be cut short
        for done, (measurement, rows) in enumerate(_measured(pending, workers or os.cpu_count() or 1), 1):
            log.write(json.dumps({"key": measurement.key, "rows": rows}, allow_nan=False) + "\n")
            log.flush()
            known[measurement.key] = rows
            show.advance(done)
    return [(measurement, known[measurement.key]) for measurement in work]


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    known = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        known[record["key"]] = record["rows"]
    return known


def _measured(
    work: Sequence[Measurement], workers: int
) -> Iterator[tuple[Measurement, list[dict[str, Any]]]]:
    """Run measurements in several processes of one thread each; yield each with its rows as it ends."""
    if workers == 1 or len(work) < 2:
        yield from ((measurement, measurement.run()) for measurement in work)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = {pool.submit(measurement.run): measurement for measurement in _longest_first(work)}
        for job in as_completed(jobs):
            yield jobs[job], job.result()


def _longest_first(work: Iterable[Measurement]) -> list[Measurement]:
    """The measurements in order of their estimated time, so that no long one starts last."""
    return sorted(work, key=lambda m: -m.case.m * (m.case.tau + 4) * (1 + m.case.q) / min(m.epsilons))
