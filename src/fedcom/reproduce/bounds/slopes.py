"""How rounds to an accuracy grow with the codec's variance, at the step sizes that the theorems prescribe."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from fedcom.reproduce.tables.checks import MOST, Case
from fedcom.reproduce.tables.scaling import Fit, fit

QS = (0.0, 1.0, 3.0, 7.0, 15.0, 31.0)


@dataclass(frozen=True)
class SlopeCase:
    """A case of the tables with exact gradients, at the step size eta gamma tau L = 1/(2 growth)."""

    case: Case
    seeds: int = 20

    @property
    def key(self) -> str:
        """The text that identifies it in results.jsonl."""
        return json.dumps(["slope", asdict(self.case), self.seeds, MOST])

    @property
    def growth(self) -> float:
        """1 + q/m if clients are alike, else 1 + q: the rounds grow with it, says the theorem."""
        s = self.case
        return 1 + (s.q / s.m if s.alike else s.q)

    def run(self) -> dict[str, Any]:
        """The first round in which the mean error over seeds is down to epsilon."""
        s = self.case
        found = s.rounds_to([s.epsilon], [0.5 / self.growth], self.seeds)
        return {"rounds": found[s.epsilon].rounds}


class Slope(NamedTuple):
    """The rounds of one problem over 1 + q/m or 1 + q, and the power law fitted to them."""

    base: Case
    x: list[float]
    rounds: list[int | None]
    line: Fit | None


def slope_cases(seeds: int, quick: bool = False) -> list[SlopeCase]:
    """FedCOM and FedCOMGATE, damped, on a problem of each kind."""
    kinds: list[dict[str, Any]] = [
        {"objective": "quadratic", "kappa": 8.0, "epsilon": 0.01},
        {"objective": "flat", "epsilon": 0.05},
        {"objective": "wave", "epsilon": 0.2},
    ]
    bases = [
        Case(method, alike=alike, m=m, **kind)
        for kind in (kinds[:1] if quick else kinds)
        for method, alike, m in (("fedcom", True, 4), ("fedcomgate damped", False, 4))
    ]
    return [SlopeCase(replace(base, q=q), seeds) for base in bases for q in QS]


def slopes(found: list[tuple[SlopeCase, Any]]) -> list[Slope]:
    """The measured growth of each problem."""
    bases: dict[Case, list[tuple[float, int | None]]] = {}
    for job, rows in found:
        bases.setdefault(replace(job.case, q=0.0), []).append((job.growth, rows["rounds"]))
    made = []
    for base, points in bases.items():
        known = [(x, r) for x, r in points if r]
        line = fit([x for x, _ in known], [r for _, r in known])
        made.append(Slope(base, [x for x, _ in points], [r for _, r in points], line))
    return made
