"""How a number grows with another: a power law fitted, and held against the one a bound states."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MARGIN = 0.1  # what lower-order terms and whole rounds may add to a slope before it counts

CONSISTENT, BETTER = "consistent with the bound", "better than the bound"
WORSE, UNKNOWN = "worse than the bound", "too few points to say"


@dataclass(frozen=True)
class Fit:
    """y = factor * x^slope; error: two standard errors of the slope."""

    slope: float
    error: float
    factor: float

    def __str__(self) -> str:
        return f"{self.slope:.2f} ± {self.error:.2f}"

    def at(self, x: float) -> float:
        """The fitted y."""
        return float(self.factor * x**self.slope)


def fit(x: Sequence[float], y: Sequence[float]) -> Fit | None:
    """The least-squares line through the logarithms; None below three points or where x does not vary."""
    if len(set(x)) < 3:
        return None
    u, v = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    spread = float(((u - u.mean()) ** 2).sum())
    slope = float(((u - u.mean()) * (v - v.mean())).sum()) / spread
    rest = v - v.mean() - slope * (u - u.mean())
    error = 2 * math.sqrt(float((rest**2).sum()) / (len(u) - 2) / spread)
    return Fit(slope, error, math.exp(float(v.mean()) - slope * float(u.mean())))


def hold(found: Fit | None, stated: float) -> str:
    """A fitted slope beside the one an upper bound states: slower growth is better than it promised."""
    if found is None:
        return UNKNOWN
    if found.slope - found.error > stated + MARGIN:
        return WORSE
    return BETTER if found.slope + found.error < stated - MARGIN else CONSISTENT
