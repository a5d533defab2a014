"""The Markdown page of the tables: what each claims, how it is measured, and the verdicts."""

from collections.abc import Sequence
from typing import NamedTuple

from fedcom.reports.markdown import markdown_table
from fedcom.reproduce.results import MARKS, Verdict
from fedcom.reproduce.tables.checks import DIM, LARGEST, OCTAVES, Check
from fedcom.reproduce.tables.measured import MOST, MeasuredRounds, Measurement, summary


class PaperTable(NamedTuple):
    """A table of the paper.

    Args:
        title: what it compares.
        claim: what it claims, in our words.
    """

    title: str
    claim: str


TABLES = {
    1: PaperTable(
        "compression, homogeneous data",
        "With identical data FedCOM pays for compression with q/m + 1 times the rounds (strongly convex and "
        "convex) or with none (nonconvex, given local steps that grow with q + 1), and its rounds grow with "
        "the logarithm of 1/ε where FedPAQ's and Qsparse's grow with a power of it.",
    ),
    2: PaperTable(
        "compression, heterogeneous data",
        "With different data FedCOMGATE's rounds grow as q + 1, and in 1/ε as without compression, where "
        "Qsparse's grow with a larger power of it.",
    ),
    3: PaperTable(
        "no compression, homogeneous data",
        "Without compression FedCOM needs rounds that do not grow with the clients, m times fewer than what "
        "was known of local SGD.",
    ),
    4: PaperTable(
        "no compression, heterogeneous data",
        "Without compression FedCOMGATE, that is FedGATE, needs as many rounds as SCAFFOLD but sends one "
        "vector instead of two, and fewer rounds than local SGD and VRL-SGD.",
    ),
    5: PaperTable(
        "FedCOM beside DIANA and VR-DIANA, homogeneous data",
        "With identical data FedCOM's rounds grow more slowly in q than those of DIANA and VR-DIANA.",
    ),
    6: PaperTable(
        "FedCOMGATE beside DIANA and VR-DIANA, heterogeneous data",
        "With different data FedCOMGATE's rounds grow more slowly in q than VR-DIANA's where the loss is "
        "convex or not; where it is strongly convex DIANA's bound is the smaller.",
    ),
}

INTRODUCTION = """The tables state upper bounds on the rounds to an accuracy ε. Each bound is checked by
varying one of its factors and fitting a power law to the measured rounds. A slope of 1 against the bound is
growth as stated; if the bound does not depend on the factor, so is a slope of 0 against the factor. A
smaller slope is better than stated. One that is larger by more than 0.1 and the slope's 95% interval (±) is
worse. Where rounds are stated to grow with log(1/ε), the rounds to the first accuracy and its bound are
subtracted first, because the start of a run does not follow the law. Every point takes the fewest rounds
over one fixed grid of steps eta gamma tau L, with gamma as in the theorems: m for FedCOM, the root of m tau
for FedCOMGATE, FedGATE and SCAFFOLD, 1 for the others. A step is constant over a run. This alone can cost a
method that is bounded by a power of 1/ε a factor of log(1/ε), which a falling step would save; where that
factor explains a slope, the verdict says so. A bound that is a sum hides a constant in each term; the
verdict also says so where the slope is above 1 against such a bound in q, but not against q alone over the
last three points.

Problems, each with L = 1: `quadratic`, strongly convex, eigenvalues from 1 to 1/κ; `flat`, a quadratic
whose eigenvalues fall to 10⁻⁴, on which gradient descent needs 1/ε rounds; `logistic` regression; `wave`, a
quadratic and a sine, not convex. The accuracy is the loss above its least or, for `wave`, the mean of |∇f|²
over rounds, relative to its value at the start. Where tau is as stated, it is a quarter of the formula,
rounded up, and gradients have noise of variance 1/2. Elsewhere tau is 4 and gradients are exact, except
FedPAQ's, since tau only helps against noise. VR-DIANA's `logistic` gradients are of one sample; on the
other problems its noise cancels, which makes it DIANA. Rand-k keeps d/(1+q) coordinates, which gives
exactly this q; Qsparse's top-k keeps as many. DIANA's shifts move by 1/(1+q). `fedcomgate` is the paper's
method and `fedcomgate damped` moves its tracking by 1/(1+q) as well (`docs/decisions/damped-tracking.md`)."""


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
