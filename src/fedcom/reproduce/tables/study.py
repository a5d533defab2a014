"""The paper's six tables: how rounds to an accuracy grow with their factors, beside what they state."""

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
from fedcom.reproduce.tables.checks import DIM, Check, Setting
from fedcom.reproduce.tables.figure import figure
from fedcom.reproduce.tables.measured import Found, Play, holds, plays, points, summary
from fedcom.reproduce.tables.rivals import RIVALS
from fedcom.reproduce.tables.rounds import Grid
from fedcom.reproduce.tables.tables_page import TABLES, of_table, page, setting
from fedcom.runs.display import progress
from fedcom.runs.folder import clear, write_json
from fedcom.traffic.links import Links

SEEDS = 3  # runs that stand for one seed: these are small


def play_tables(scale: Scale, out: Path, device: str = "cpu", quiet: bool = False) -> list[Verdict]:
    """All tables at a scale; they are played on the CPU, by every core."""
    if scale.overrides:
        raise ConfigError(f"tables have no config to lay {scale.overrides[0]!r} over; leave it out")
    work = plays(CHECKS, SEEDS * scale.seeds, 2 if scale.quick else 4)
    return reproduce(work, CHECKS, out, quick=scale.quick, quiet=quiet)


def reproduce(
    work: Sequence[Play], checks: Sequence[Check], out: Path, *, quick: bool = False, quiet: bool = False,
    workers: int | None = None,
) -> list[Verdict]:  # fmt: skip
    """Play what is not yet in the folder's results.jsonl, then draw, judge and write the tables."""
    clear(out, ())
    found = Found(_records(work, out / "results.jsonl", quiet, workers))
    verdicts = judge(found, checks, work[0])
    images = draw(found, out, checks)
    write_csv(list(points(found, checks)), out / "points.csv")
    write_json(out / "verdicts.json", [verdict.table() for verdict in verdicts])
    text = page(found, verdicts, images, checks, work[0], quick)
    (out / "README.md").write_text(text, encoding="utf-8")
    return verdicts


def draw(found: Found, out: Path, checks: Sequence[Check]) -> list[str]:
    """One figure a table."""
    numbers = [number for number in TABLES if of_table(number, checks)]
    for number in numbers:
        title = f"Table {number}: {TABLES[number].title}"
        figure(title, of_table(number, checks), found, out / f"table{number}.png")
    return [f"table{number}.png" for number in numbers]


def judge(found: Found, checks: Sequence[Check], play: Play) -> list[Verdict]:
    """Of every table, each method's bounds and what the table says of methods beside each other."""
    verdicts, where = [], setting(play)
    for number in TABLES:
        own = of_table(number, checks)
        for method in dict.fromkeys(check.base.method for check in own):
            mine = [check for check in own if check.base.method == method]
            verdicts.append(_bounds(number, method, mine, found, where))
        for rival in (rival for rival in RIVALS if rival.table == number):
            pair = rival.pair(own)
            verdicts += [rival.verdict(found, pair, where)] if pair else []
    return [*verdicts, _vectors()] if of_table(4, checks) else verdicts


def _bounds(number: int, method: str, own: Sequence[Check], found: Found, where: str) -> Verdict:
    """What became of one method's bounds."""
    said = "; ".join(
        f"{x['column']}, {x['factor']} in {x['stated']}: {x['slope']}, {x['verdict']}"
        for x in summary(found, own)
    )
    claim = f"Table {number}, {method}: rounds grow no faster than stated."
    return Verdict.of(claim, [holds(found, check) for check in own], f"Slopes: {said}.", where)


def _vectors() -> Verdict:
    """The bytes of one round up, SCAFFOLD's against FedGATE's."""
    sizes = []
    for method in ("scaffold", "fedgate"):
        s = Setting(method, alike=False)
        grid = Grid(s.problem(), s.algorithm(), Links(Identity()), [0.01], [0])
        grid.step()
        sizes.append(grid.bill.total("uplink"))
    ratio = sizes[0] / sizes[1]
    claim = "Table 4: SCAFFOLD sends two vectors up, the others one."
    return Verdict.of(
        claim, [abs(ratio - 2) < 0.01], f"{ratio:.2f} times the bytes.", f"one round, d = {DIM}"
    )


def _records(
    work: Sequence[Play], path: Path, quiet: bool, workers: int | None
) -> list[tuple[Play, list[dict[str, Any]]]]:
    """The rows of all plays; those that are new are written as they come."""
    known = _read(path)
    pending = [play for play in work if play.key not in known]
    cut = path.exists() and path.stat().st_size
    with path.open("a") as log, progress(len(pending), "tables", quiet) as show:
        log.write("\n" if cut else "")  # after a line an interruption cut
        for done, (play, rows) in enumerate(_measured(pending, workers or os.cpu_count() or 1), 1):
            log.write(json.dumps({"key": play.key, "rows": rows}, allow_nan=False) + "\n")
            log.flush()
            known[play.key] = rows
            show.advance(done)
    return [(play, known[play.key]) for play in work]


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    known = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        known[record["key"]] = record["rows"]
    return known


def _measured(work: Sequence[Play], workers: int) -> Iterator[tuple[Play, list[dict[str, Any]]]]:
    """Plays and their rows as they are done, by some processes of one thread each."""
    if workers == 1 or len(work) < 2:
        yield from ((play, play.measure()) for play in work)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = {pool.submit(play.measure): play for play in _longest_first(work)}
        for job in as_completed(jobs):
            yield jobs[job], job.result()


def _longest_first(work: Iterable[Play]) -> list[Play]:
    """So that no process is left with a long one at the end."""
    return sorted(
        work, key=lambda p: -p.setting.m * (p.setting.tau + 4) * (1 + p.setting.q) / min(p.epsilons)
    )
