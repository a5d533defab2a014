"""What was measured for the tables: plays, their rows, and the growth fitted to them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedcom.reproduce.tables.checks import DIM, LARGEST, NOISE, OCTAVES, SHAPES, SPREAD, Check, Setting
from fedcom.reproduce.tables.rounds import rounds_to
from fedcom.reproduce.tables.scaling import BETTER, CONSISTENT, WORSE, Fit, fit, hold

BY_A_LOGARITHM = "worse than the bound, by no more than log(1/ε)"
LIKE_Q = "worse than the bound's sum, but not than its term in q"
MOST = 3000  # rounds after which an accuracy counts as never reached
CONSTANTS = (DIM, NOISE, SPREAD, LARGEST, OCTAVES, MOST, SHAPES)  # a play of others is another play
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Play:
    """Runs of one setting, over a grid of steps and some seeds, to one accuracy or several."""

    setting: Setting
    epsilons: tuple[float, ...]
    seeds: int
    finer: int = 2  # steps an octave

    @property
    def key(self) -> str:
        """What tells it from others, in results.jsonl."""
        return json.dumps([asdict(self.setting), self.epsilons, self.seeds, self.finer, CONSTANTS])

    def measure(self) -> list[dict[str, Any]]:
        """A row an accuracy: rounds to it, and the step that needed fewest; None: never reached."""
        s = self.setting
        steps = [LARGEST * 2 ** (-k / self.finer) for k in range(OCTAVES * self.finer + 1)]
        found = rounds_to(
            self.epsilons, s.problem(), s.algorithm(), s.links(), steps, seeds=self.seeds, most=MOST,
            averaged=s.objective == "wave",
        )  # fmt: skip
        return [{"epsilon": eps, "rounds": r.rounds, "step": r.step} for eps, r in found.items()]


def plays(checks: Sequence[Check], seeds: int, finer: int = 2) -> list[Play]:
    """What has to be run: settings that differ in the accuracy alone are one play."""
    wanted: dict[Setting, set[float]] = {}
    for setting in (s for check in checks for s in check.settings()):
        wanted.setdefault(replace(setting, epsilon=0.0), set()).add(setting.epsilon)
    return [Play(s, tuple(sorted(eps, reverse=True)), seeds, finer) for s, eps in wanted.items()]


class Found:
    """What was measured, by setting."""

    def __init__(self, records: Sequence[tuple[Play, Sequence[Record]]]) -> None:
        self._rows = {
            replace(play.setting, epsilon=row["epsilon"]): row for play, rows in records for row in rows
        }

    def row(self, setting: Setting) -> Record:
        """Rounds and step of one point."""
        return self._rows[setting]

    def rounds(self, check: Check) -> list[int | None]:
        """The rounds of a check's points, in order."""
        return [self.row(s)["rounds"] for s in check.settings()]

    def fit(self, check: Check, times: Sequence[float] | None = None) -> Fit | None:
        """Rounds against the bound or, where that does not know the factor, against the factor.

        times: something the bound is multiplied by first.
        """
        x = [a * b for a, b in zip(abscissa(check), times or [1.0] * len(check.values), strict=True)]
        known = [(a, r) for a, r in zip(x, self.rounds(check), strict=True) if r]
        origin = known[0] if check.semilog and known else (0.0, 0.0)
        return fit([a for a, _ in known], [r for _, r in known], origin)

    def outcome(self, check: Check) -> str:
        """What became of the bound."""
        outcome = hold(self.fit(check), stated(check))
        if outcome != WORSE or check.flat:
            return outcome
        if check.factor == "q" and self._like_q(check):
            return LIKE_Q
        if check.factor == "epsilon" and "log" not in check.bound:
            logarithm = [math.log(1 / s.epsilon) for s in check.settings()]
            return outcome if hold(self.fit(check, logarithm), 1.0) == WORSE else BY_A_LOGARITHM
        return outcome

    def _like_q(self, check: Check) -> bool:
        """Whether the last three points grow no faster than q: terms of a sum have constants of their own."""
        known = [(v, r) for v, r in zip(check.values, self.rounds(check), strict=True) if v and r]
        return hold(fit(*zip(*known[-3:], strict=True)), 1.0) in (CONSISTENT, BETTER)

    def never(self, check: Check) -> list[float]:
        """The values at which the accuracy was never reached."""
        return [v for v, r in zip(check.values, self.rounds(check), strict=True) if not r]


def abscissa(check: Check) -> list[float]:
    """What rounds are fitted against."""
    if check.flat:
        return [drawn_at(check.factor, value) for value in check.values]
    return [check.promised(s) for s in check.settings()]


def stated(check: Check) -> float:
    """The slope the bound states, of rounds against the abscissa."""
    return 0.0 if check.flat else 1.0


def drawn_at(factor: str, value: float) -> float:
    """Where a value lies on a logarithmic axis: q at 1 + q, an accuracy at its inverse."""
    if factor == "q":
        return 1 + value
    return 1 / value if factor == "epsilon" else value


def points(found: Found, checks: Sequence[Check]) -> Iterator[dict[str, Any]]:
    """Every point of every check, flat."""
    for check in checks:
        for setting in check.settings():
            row = found.row(setting)
            yield {
                "tables": " ".join(map(str, check.tables)), **asdict(setting), "factor": check.factor,
                "bound": check.bound, "promised": check.promised(setting), "stated_tau": check.tau or "",
                "rounds": row["rounds"], "step": row["step"],
            }  # fmt: skip


def summary(found: Found, checks: Sequence[Check]) -> list[dict[str, str]]:
    """One line a check: what is stated, what was measured and what follows."""
    lines = []
    for check in checks:
        line, never = found.fit(check), found.never(check)
        lines.append({
            "method": check.base.method, "column": check.base.column, "problem": check.base.objective,
            "factor": check.factor, "stated": check.bound, "tau": check.tau or "fixed",
            "rounds": ", ".join(str(r or "never") for r in found.rounds(check)),
            "slope": str(line or "-") + (" (stated 0)" if check.flat else ""),
            "verdict": found.outcome(check) + (f"; never at {_list(check.factor, never)}" if never else ""),
        })  # fmt: skip
    return lines


def _list(factor: str, values: Sequence[float]) -> str:
    return f"{factor} = " + ", ".join(f"{value:.3g}" for value in values)


def holds(found: Found, check: Check) -> bool:
    """Whether rounds grow no faster than stated, wherever the accuracy was asked for."""
    return found.outcome(check) in (CONSISTENT, BETTER) and not found.never(check)
