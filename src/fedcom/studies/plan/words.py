"""A plan for people to read: a table of its candidates, the recommendation, and how it turned out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedcom.formats import NOTHING, duration, megabytes, significant
from fedcom.studies.plan.prediction import Goal, Prediction

if TYPE_CHECKING:
    from rich.table import Table


def render(found: Sequence[Prediction], goal: Goal) -> "Table":
    """Candidates as a table for a terminal, the recommended one first."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False)
    timed = any(p.seconds is not None for p in found)
    by_loss = goal.loss is not None or any(p.by_loss for p in found)
    reached = "loss" if by_loss else "acc %"
    headings = ("candidate", "tau", "eta", "gamma", "rounds", "from", "to", "up MB", "down MB")
    for heading in (*headings, *(["time"] if timed else []), reached, ""):
        grid.add_column(
            heading, justify="left" if heading in ("candidate", "") else "right", no_wrap=heading != ""
        )
    for p in found:
        error = p.error if p.error is None or by_loss else 100 * (1 - p.error)
        cells = [p.label, str(p.tau), significant(p.eta, 3), significant(p.gamma, 3)]
        cells += [NOTHING if n is None else str(n) for n in (p.rounds, p.low, p.high)]
        cells += [megabytes(p.up), megabytes(p.down), *([duration(p.seconds)] if timed else [])]
        grid.add_row(*cells, significant(error, 3), p.how)
    return grid


def why(found: Sequence[Prediction], goal: Goal) -> str:
    """The recommendation and its reason, in a sentence or two."""
    best = found[0]
    if best.rounds is None:
        return "No candidate is predicted to get there; raise run.rounds, or ask for less."
    if not goal.reaches:
        return f"Recommended: {best.label}. It is predicted to get furthest, in {best.rounds} rounds."
    text = f"Recommended: {best.label}. It is predicted to need {best.rounds} rounds and {_total(best)} MB"
    second = next((p for p in found[1:] if p.rounds is not None), None)
    if second is not None:
        text += f"; next is {second.label} with {second.rounds} and {_total(second)} MB"
    return f"{text}."


def beside(best: Prediction, found: Mapping[str, Any], goal: Goal) -> str:
    """The outcome of a run beside what was predicted."""
    if found["rounds"] is None:
        return f"The run did not get there ({found['status']}); predicted were {best.rounds} rounds."
    spent = found["up"] + found["down"]
    if not goal.reaches:
        return f"With {spent / 1e6:.3g} MB its error is {found['error']:.3g}; predicted: {best.error:.3g}."
    ratio = spent / best.cost("bytes")
    return (
        f"It took {found['rounds']} rounds and {spent / 1e6:.3g} MB; predicted: {best.rounds} rounds and "
        f"{_total(best)} MB ({ratio:.2f} times the prediction)."
    )


def _total(p: Prediction) -> str:
    return f"{p.cost('bytes') / 1e6:.3g}"
