"""Measurements for the tables: what to run, the rounds found, and the growth fitted to them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedcom.reproduce.tables.checks import DIM, LARGEST, MOST, NOISE, OCTAVES, SHAPES, SPREAD, Case, Check
from fedcom.reproduce.tables.scaling import BETTER, CONSISTENT, WORSE, Fit, fit, hold

BY_A_LOGARITHM = "worse than the bound, by no more than log(1/ε)"
LIKE_Q = "worse than the bound's sum, but not than its term in q"
CONSTANTS = (DIM, NOISE, SPREAD, LARGEST, OCTAVES, MOST, SHAPES)  # a part of every key
ReachedRow = Mapping[str, Any]  # an epsilon, the rounds to it, and the step that needed fewest


@dataclass(frozen=True)
class Measurement:
    """The runs of one case, over a grid of step sizes and several seeds.

    Args:
        case: its epsilon is not used.
        epsilons: the accuracies to count rounds to, largest first.
        finer: step sizes per factor of two.
    """

    case: Case
    epsilons: tuple[float, ...]
    seeds: int
    finer: int = 2

    @property
    def key(self) -> str:
        """The text that identifies this measurement in results.jsonl."""
        return json.dumps([asdict(self.case), self.epsilons, self.seeds, self.finer, CONSTANTS])

    def run(self) -> list[dict[str, Any]]:
        """One row per accuracy: the fewest rounds to it and the step that took them; None if not reached."""
        steps = [LARGEST * 2 ** (-k / self.finer) for k in range(OCTAVES * self.finer + 1)]
        found = self.case.rounds_to(self.epsilons, steps, self.seeds)
        return [{"epsilon": eps, **reached._asdict()} for eps, reached in found.items()]


def measurements(checks: Sequence[Check], seeds: int, finer: int = 2) -> list[Measurement]:
    """What has to be run for some checks; cases that differ only in epsilon are one measurement.

    Args:
        seeds: how many seeds each measurement averages over.
        finer: step sizes per factor of two.
    """
    wanted: dict[Case, set[float]] = {}
    for case in (case for check in checks for case in check.cases()):
        wanted.setdefault(replace(case, epsilon=0.0), set()).add(case.epsilon)
    return [Measurement(s, tuple(sorted(eps, reverse=True)), seeds, finer) for s, eps in wanted.items()]


class MeasuredRounds:
    """The measured rounds, by case.

    Args:
        records: measurements and the rows they gave.
    """

    def __init__(self, records: Sequence[tuple[Measurement, Sequence[ReachedRow]]]) -> None:
        self._rows = {
            replace(measurement.case, epsilon=row["epsilon"]): row
            for measurement, rows in records
            for row in rows
        }

    @classmethod
    def of_points(cls, checks: Sequence[Check], lines: Sequence[Mapping[str, str]]) -> "MeasuredRounds":
        """What `points` has written of these checks, from the lines of points.csv."""
        cases = [case for check in checks for case in check.cases()]
        found = cls([])
        for case, line in zip(cases, lines, strict=True):
            rounds = int(line["rounds"]) if line["rounds"] else None
            step = float(line["step"]) if line["step"] else None
            found._rows[case] = {"epsilon": case.epsilon, "rounds": rounds, "step": step}
        return found

    def row(self, case: Case) -> ReachedRow:
        """Rounds and step of one case."""
        return self._rows[case]

    def rounds(self, check: Check) -> list[int | None]:
        """The rounds of a check's cases, in order; None for one that never reached its accuracy."""
        return [self.row(s)["rounds"] for s in check.cases()]

    def fit(self, check: Check, times: Sequence[float] | None = None) -> Fit | None:
        """A power law of the rounds against the bound or, if that is independent of it, against the factor.

        Args:
            times: what to multiply the bound by first, one number per case.
        """
        x = [a * b for a, b in zip(abscissa(check), times or [1.0] * len(check.values), strict=True)]
        known = [(a, r) for a, r in zip(x, self.rounds(check), strict=True) if r]
        origin = known[0] if check.semilog and known else (0.0, 0.0)
        return fit([a for a, _ in known], [r for _, r in known], origin)

    def outcome(self, check: Check) -> str:
        """Whether the rounds grow as the bound states, in words."""
        outcome = hold(self.fit(check), stated(check))
        if outcome != WORSE or check.independent:
            return outcome
        if check.factor == "q" and self._like_q(check):
            return LIKE_Q
        if check.factor == "epsilon" and "log" not in check.bound:
            logarithm = [math.log(1 / s.epsilon) for s in check.cases()]
            return outcome if hold(self.fit(check, logarithm), 1.0) == WORSE else BY_A_LOGARITHM
        return outcome

    def _like_q(self, check: Check) -> bool:
        """Whether the last three points grow no faster than q.

        A bound that is a sum has a constant in each term, so its term in q may dominate later than stated.
        """
        known = [(v, r) for v, r in zip(check.values, self.rounds(check), strict=True) if v and r]
        return hold(fit(*zip(*known[-3:], strict=True)), 1.0) in (CONSISTENT, BETTER)

    def never(self, check: Check) -> list[float]:
        """The values of the factor at which the accuracy was never reached."""
        return [v for v, r in zip(check.values, self.rounds(check), strict=True) if not r]


def abscissa(check: Check) -> list[float]:
    """What the rounds of each case are fitted against: the bound, or the factor."""
    if check.independent:
        return [drawn_at(check.factor, value) for value in check.values]
    return [check.promised(s) for s in check.cases()]


def stated(check: Check) -> float:
    """The slope of rounds against the abscissa that the bound states."""
    return 0.0 if check.independent else 1.0


def drawn_at(factor: str, value: float) -> float:
    """Where a value of a factor is drawn on a logarithmic axis: q at 1 + q, epsilon at 1/epsilon."""
    if factor == "q":
        return 1 + value
    return 1 / value if factor == "epsilon" else value


def points(found: MeasuredRounds, checks: Sequence[Check]) -> Iterator[dict[str, Any]]:
    """Every case of every check as one flat row, for points.csv."""
    for check in checks:
        for case in check.cases():
            row = found.row(case)
            yield {
                "tables": " ".join(map(str, check.tables)),
                **asdict(case),
                "factor": check.factor,
                "bound": check.bound,
                "promised": check.promised(case),
                "stated_tau": check.tau or "",
                "rounds": row["rounds"],
                "step": row["step"],
            }


def summary(found: MeasuredRounds, checks: Sequence[Check]) -> list[dict[str, str]]:
    """One line per check: what is stated, what was measured, and the verdict."""
    lines = []
    for check in checks:
        line, never = found.fit(check), found.never(check)
        entry = {
            "method": check.base.method,
            "column": check.base.column,
            "problem": check.base.objective,
            "factor": check.factor,
            "stated": check.bound,
            "tau": check.tau or "fixed",
            "rounds": ", ".join(str(r or "never") for r in found.rounds(check)),
            "slope": str(line or "-") + (" (stated 0)" if check.independent else ""),
            "verdict": found.outcome(check) + (f"; never at {_list(check.factor, never)}" if never else ""),
        }
        lines.append(entry)
    return lines


def _list(factor: str, values: Sequence[float]) -> str:
    return f"{factor} = " + ", ".join(f"{value:.3g}" for value in values)


def holds(found: MeasuredRounds, check: Check) -> bool:
    """Whether rounds grow no faster than stated, and every case reached its accuracy."""
    return found.outcome(check) in (CONSISTENT, BETTER) and not found.never(check)
