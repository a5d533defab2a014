"""A run as a curve: its rows, how it ended, and what it took to reach a target accuracy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedcom.engines.results import Row
from fedcom.formats import is_number

ENDED = ("done", "diverged", "interrupted", "failed")  # how a run can end
UNFINISHED = ("diverged", "interrupted", "failed", "dead", "running")  # all that a run can be if not done


@dataclass(frozen=True)
class Curve:
    """One run: one method, one seed.

    Args:
        method: the method's label; curves with the same label are averaged over their seeds.
        rows: in order of rounds.
        status: "done", or one of `UNFINISHED`.
    """

    method: str
    seed: int
    rows: Sequence[Row] = field(repr=False)
    status: str


def milestones(rows: Sequence[Row], target: float | None) -> dict[str, Any]:
    """The best accuracy of a run, and the rounds, bytes and time it took to reach the target.

    Args:
        rows: the run's rows, whose bytes are per client.
        target: a test accuracy from 0 to 1; None for no target.
    """
    scored = [row for row in rows if is_number(row.get("test_accuracy"))]
    reached = (row for row in scored if target is not None and row["test_accuracy"] >= target)
    first: Row = next(reached, {})
    time = {"seconds_to_target": first.get("modelled_seconds")} if timed(rows) else {}
    return {
        "best_accuracy": max((row["test_accuracy"] for row in scored), default=None),
        "rounds_to_target": first.get("round"),
        "uplink_bytes_to_target": first.get("uplink_bytes"),
        "downlink_bytes_to_target": first.get("downlink_bytes"),
        **time,
    }


def timed(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any of some rows or table entries has a modelled time."""
    return any("modelled_seconds" in row for row in rows)
