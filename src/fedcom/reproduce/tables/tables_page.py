"""The page of the tables: what each claims, how it is measured, and what came of it."""

from collections.abc import Sequence
from typing import NamedTuple

from fedcom.reports.markdown import markdown_table
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.tables.checks import DIM, LARGEST, OCTAVES, Check
from fedcom.reproduce.tables.measured import MOST, Found, Play, summary


class Table(NamedTuple):
    """A table of the paper: what it compares, and what it claims in our words."""

    title: str
    claim: str


TABLES = {
    1: Table(
        "compression, homogeneous data",
        "With identical data FedCOM pays for compression with q/m + 1 times the rounds (strongly convex and "
        "convex) or with none (nonconvex, given local steps that grow with q + 1), and its rounds grow with "
        "the logarithm of 1/ε where FedPAQ's and Qsparse's grow with a power of it.",
    ),
    2: Table(
        "compression, heterogeneous data",
        "With different data FedCOMGATE's rounds grow as q + 1, and in 1/ε as without compression, where "
        "Qsparse's grow with a larger power of it.",
    ),
    3: Table(
        "no compression, homogeneous data",
        "Without compression FedCOM needs rounds that do not grow with the clients, m times fewer than what "
        "was known of local SGD.",
    ),
    4: Table(
        "no compression, heterogeneous data",
        "Without compression FedCOMGATE, that is FedGATE, needs as many rounds as SCAFFOLD but sends one "
        "vector instead of two, and fewer rounds than local SGD and VRL-SGD.",
    ),
    5: Table(
        "FedCOM beside DIANA and VR-DIANA, homogeneous data",
        "With identical data FedCOM's rounds grow more slowly in q than those of DIANA and VR-DIANA.",
    ),
    6: Table(
        "FedCOMGATE beside DIANA and VR-DIANA, heterogeneous data",
        "With different data FedCOMGATE's rounds grow more slowly in q than VR-DIANA's where the loss is "
        "convex or not; where it is strongly convex DIANA's bound is the smaller.",
    ),
}

INTRODUCTION = """The tables state upper bounds on the rounds to an accuracy ε. Each is checked by varying
one of its factors and fitting a power law to the rounds measured. A slope of 1 against the bound (or of 0
against the factor, where the bound does not know it) is growth as stated, less is better than stated, and
more by over 0.1 and the slope's 95% interval (±) is worse. Where rounds are to grow with log(1/ε), those to
the first accuracy are taken off, and its bound: they are a start that no factor explains. Every point takes
the fewest rounds over one fixed grid of steps eta gamma tau L, with gamma as the theorems have it: m for
FedCOM, the root of m tau for FedCOMGATE, FedGATE and SCAFFOLD, 1 for the others. A step is constant over a
run, which alone can cost a method bounded by a power of 1/ε a factor of log(1/ε) that a falling step would
save: where that factor explains a slope, the verdict says so. A bound that is a sum hides a constant in
each term: a slope in q above 1 that is not so against q alone, over the last three points, is told apart.

Problems, each with L = 1: `quadratic`, strongly convex, eigenvalues from 1 to 1/κ; `flat`, a quadratic
whose eigenvalues fall to 10⁻⁴, on which gradient descent needs 1/ε rounds; `logistic` regression; `wave`, a
quadratic and a sine, not convex. The accuracy is the loss above its least or, for `wave`, the mean of |∇f|²
over rounds, as a share of what it is at the start. Where tau is as stated, it is a quarter of the formula,
rounded up, and gradients have noise of variance 1/2; else tau is 4 and gradients are exact but for
FedPAQ's, since tau serves against noise alone. VR-DIANA's `logistic` gradients are of one sample; on the
others its noise cancels, which makes it DIANA. Rand-k keeps d/(1+q) coordinates, which has exactly this q;
Qsparse's top-k keeps as many. DIANA's shifts move by 1/(1+q). `fedcomgate` is the paper's method and
`fedcomgate damped` moves its tracking by 1/(1+q) as well (`docs/decisions/damped-tracking.md`)."""


def of_table(number: int, checks: Sequence[Check]) -> list[Check]:
    """The checks of one table."""
    return [check for check in checks if number in check.tables]


def setting(play: Play) -> str:
    """Where numbers were measured, in words."""
    return (
        f"d = {DIM}; unless varied m = 4, κ = 32, ε = 0.01 (wave and logistic: 0.1); the best of "
        f"{OCTAVES * play.finer + 1} steps from {LARGEST:g} down, the mean of {play.seeds} seeds"
    )


def page(
    found: Found, verdicts: Sequence[Verdict], images: Sequence[str], checks: Sequence[Check], play: Play,
    quick: bool,
) -> str:  # fmt: skip
    """All tables as Markdown."""
    parts = ["# The six tables", INTRODUCTION, f"Settings: {setting(play)}. A run is given {MOST} rounds.",
             f"`fedcom reproduce tables{' --quick' * quick}` repeats it."]  # fmt: skip
    for number, image in zip([n for n in TABLES if of_table(n, checks)], images, strict=True):
        title, claim = TABLES[number]
        mine = [v for v in verdicts if v.claim.startswith(f"Table {number}")]
        parts += [
            f"## Table {number}: {title}", f"What the paper says: {claim}", f"![{title}]({image})",
            _markdown(summary(found, of_table(number, checks))),
            "\n".join(f"- **{v.outcome}**: {_said(v)}" for v in mine),
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _said(verdict: Verdict) -> str:
    """A verdict's line; slopes are in the table above it."""
    return verdict.claim if verdict.numbers.startswith("Slopes") else f"{verdict.claim} {verdict.numbers}"


def _markdown(lines: Sequence[dict[str, str]]) -> str:
    return markdown_table(list(lines[0]), [list(line.values()) for line in lines], "l" * len(lines[0]))
