"""A run as a curve: its rows, how it ended, and what it took to reach a target."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcom.formats import is_number

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """One run: one method, one seed."""

    method: str
    seed: int
    rows: Sequence[Row]
    status: str  # "done" | "diverged" | "interrupted"


def milestones(rows: Sequence[Row], target: float | None) -> dict[str, Any]:
    """The best accuracy of a run, and what it took to reach the target; bytes are per client."""
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


def timed(rows: Iterable[Row]) -> bool:
    """Whether rows tell modelled time."""
    return any("modelled_seconds" in row for row in rows)
