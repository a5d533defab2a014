"""Reproduce the paper's six tables: measure how rounds grow with each factor, and judge what is stated."""

from collections.abc import Sequence
from pathlib import Path

from fedcom.codecs import Identity
from fedcom.reports.comparison import write_csv
from fedcom.reports.markdown import markdown_table
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.results import MARKS, Verdict
from fedcom.reproduce.small_runs import measure_all
from fedcom.reproduce.study_page import write_study
from fedcom.reproduce.tables.cells import CHECKS, INTRODUCTION, RIVALS, TABLES
from fedcom.reproduce.tables.checks import DIM, LARGEST, MOST, OCTAVES, Case, Check
from fedcom.reproduce.tables.figure import figure, slopes
from fedcom.reproduce.tables.measured import MeasuredRounds, Measurement, holds, measurements, points, summary
from fedcom.reproduce.tables.rounds import StackedRuns
from fedcom.runs.folder import claim
from fedcom.traffic.links import Links

SEEDS = 3  # seeds per seed of the scale, as these runs are small


def reproduce_tables(
    scale: Scale,
    out: Path,
    quiet: bool = False,
    checks: Sequence[Check] = CHECKS,
    workers: int | None = None,
) -> list[Verdict]:
    """Run what is not yet in the folder's results.jsonl, then draw, judge and write the tables.

    Args:
        out: the folder of the tables.
        quiet: show no progress.
        workers: processes to use; None for one per core.
    """
    work = work_of(scale, checks)
    with claim(out, used=True):
        found = MeasuredRounds(measure_all(work, out / "results.jsonl", "tables", quiet, workers, _time))
        write_csv(list(points(found, checks)), out / "points.csv")
        return publish(found, checks, work[0], out, scale.quick)


def work_of(scale: Scale, checks: Sequence[Check] = CHECKS) -> list[Measurement]:
    """The measurements that checks need at a scale."""
    return measurements(checks, SEEDS * scale.seeds, 2 if scale.quick else 4)


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
    write_study(out, verdicts, page(found, verdicts, images, checks, example, quick))
    return verdicts


def draw(found: MeasuredRounds, out: Path, checks: Sequence[Check]) -> list[str]:
    """Draw two figures per table into a folder, exponents and rounds; return the names of the former."""
    numbers = [number for number in TABLES if of_table(number, checks)]
    for number in numbers:
        title = f"Table {number}: {TABLES[number]['title']}"
        slopes(number, of_table(number, checks), found, out / f"table{number}.png")
        figure(title, of_table(number, checks), found, out / f"table{number}-panels.png")
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


def _time(work: Measurement) -> float:
    """About how long a measurement takes, in no unit."""
    s = work.case
    return s.m * (s.tau + 4) * (1 + s.q) / min(work.epsilons)


def of_table(number: int, checks: Sequence[Check]) -> list[Check]:
    """The checks of one table."""
    return [check for check in checks if number in check.tables]


def setting(example: Measurement) -> str:
    """Where numbers were measured, in words; any of the measurements will do."""
    return (
        f"d = {DIM}; unless varied m = 4, κ = 32, ε = 0.01 (wave and logistic: 0.1); the best of "
        f"{OCTAVES * example.finer + 1} steps from {LARGEST:g} down, the mean of {example.seeds} seeds"
    )


def page(
    found: MeasuredRounds,
    verdicts: Sequence[Verdict],
    images: Sequence[str],
    checks: Sequence[Check],
    example: Measurement,
    quick: bool,
) -> str:
    """The page of all tables.

    Args:
        images: names of the image files beside the page, one per table.
        example: any of the measurements; its seeds and step sizes are named in the page.
        quick: whether the quick command repeats it.
    """
    parts = [
        "# The six tables",
        INTRODUCTION,
        f"Settings: {setting(example)}. A run is given {MOST} rounds.",
        f"`fedcom reproduce tables{' --quick' * quick}` repeats it.",
    ]
    for number, image in zip([n for n in TABLES if of_table(n, checks)], images, strict=True):
        title, claim = TABLES[number].values()
        mine = [v for v in verdicts if v.claim.startswith(f"Table {number}")]
        parts += [
            f"## Table {number}: {title}",
            f"What the paper says: {claim}",
            f"![{title}]({image})",
            _markdown(summary(found, of_table(number, checks))),
            "\n".join(f"- {MARKS[v.outcome]} **{v.outcome}**: {_said(v)}" for v in mine),
        ]
    parts.append("## Appendix: the rounds behind the exponents")
    parts += [f"![{image}]({image.replace('.', '-panels.')})" for image in images]
    return "\n\n".join(parts) + "\n"


def _said(verdict: Verdict) -> str:
    """A verdict in one line, without the slopes, which are in the table above it."""
    return verdict.claim if verdict.numbers.startswith("Slopes") else f"{verdict.claim} {verdict.numbers}"


def _markdown(lines: Sequence[dict[str, str]]) -> str:
    return markdown_table(list(lines[0]), [list(line.values()) for line in lines], "l" * len(lines[0]))
