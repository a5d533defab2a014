"""The Markdown page of the tables: what each claims, how it is measured, and the verdicts."""

from collections.abc import Sequence

from fedcom.reports.markdown import markdown_table
from fedcom.reproduce.results import MARKS, Verdict
from fedcom.reproduce.tables.cells import INTRODUCTION, TABLES
from fedcom.reproduce.tables.checks import DIM, LARGEST, MOST, OCTAVES, Check
from fedcom.reproduce.tables.measured import MeasuredRounds, Measurement, summary


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
        title, claim = TABLES[number]
        mine = [v for v in verdicts if v.claim.startswith(f"Table {number}")]
        parts += [
            f"## Table {number}: {title}",
            f"What the paper says: {claim}",
            f"![{title}]({image})",
            _markdown(summary(found, of_table(number, checks))),
            "\n".join(f"- {MARKS[v.outcome]} **{v.outcome}**: {_said(v)}" for v in mine),
        ]
    return "\n\n".join(parts) + "\n"


def _said(verdict: Verdict) -> str:
    """A verdict in one line, without the slopes, which are in the table above it."""
    return verdict.claim if verdict.numbers.startswith("Slopes") else f"{verdict.claim} {verdict.numbers}"


def _markdown(lines: Sequence[dict[str, str]]) -> str:
    return markdown_table(list(lines[0]), [list(line.values()) for line in lines], "l" * len(lines[0]))
