"""Fit a power law to measured rounds, and compare its slope with the one that a bound states."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDE = 0.6  # with a larger error, a slope near the stated one says nothing
MARGIN = 0.1  # smaller differences from the stated slope may come from lower-order terms or rounding

CONSISTENT, BETTER = "consistent with the bound", "better than the bound"
WORSE, UNKNOWN = "worse than the bound", "too uncertain to say"


@dataclass(frozen=True)
class Fit:
    """The power law y - y0 = factor * (x - x0)^slope.

    Args:
        error: half of the slope's 95% interval.
        origin: x0 and y0.
    """

    slope: float
    error: float
    factor: float
    origin: tuple[float, float] = (0.0, 0.0)

    def __str__(self) -> str:
        return f"{self.slope:.2f} ± {self.error:.2f}"

    def at(self, x: float) -> float:
        """The fitted y."""
        x0, y0 = self.origin
        return float(y0 + self.factor * (x - x0) ** self.slope)


def fit(x: Sequence[float], y: Sequence[float], origin: tuple[float, float] = (0.0, 0.0)) -> Fit | None:
    """The power law through some points, by least squares in logarithms; None if fewer than three x differ.

    Args:
        origin: x0 and y0, which are subtracted first; points that are not beyond both are left out.
    """
    from scipy import stats  # a dependency of scikit-learn

    x0, y0 = origin
    beyond = [(a - x0, b - y0) for a, b in zip(x, y, strict=True) if a > x0 and b > y0]
    if len({a for a, _ in beyond}) < 3:
        return None
    u, v = np.log(np.array(beyond, dtype=float)).T
    spread = float(((u - u.mean()) ** 2).sum())
    slope = float(((u - u.mean()) * (v - v.mean())).sum()) / spread
    rest = v - v.mean() - slope * (u - u.mean())
    freedom = len(u) - 2
    error = float(stats.t.ppf(0.975, freedom)) * math.sqrt(float((rest**2).sum()) / freedom / spread)
    return Fit(slope, error, math.exp(float(v.mean()) - slope * float(u.mean())), origin)


def hold(found: Fit | None, stated: float) -> str:
    """Compare a fitted slope with the one that an upper bound states; a smaller slope is better."""
    if found is None:
        return UNKNOWN
    if found.slope - found.error > stated + MARGIN:
        return WORSE
    if found.slope + found.error < stated - MARGIN:
        return BETTER
    return CONSISTENT if found.error <= WIDE else UNKNOWN
