"""How a number grows with another: a power law fitted, and held against the one a bound states."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDE = 0.6  # an interval beyond which a slope that is near the bound's says nothing
MARGIN = 0.1  # what lower-order terms and whole rounds may add to a slope before it counts

CONSISTENT, BETTER = "consistent with the bound", "better than the bound"
WORSE, UNKNOWN = "worse than the bound", "too uncertain to say"


STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57}  # standard errors of a 95% interval, by freedom


@dataclass(frozen=True)
class Fit:
    """y - y0 = factor * (x - x0)^slope; error: half of the slope's 95% interval."""

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
    """The least-squares line through the logarithms; None below three points or where x does not vary."""
    x0, y0 = origin
    beyond = [(a - x0, b - y0) for a, b in zip(x, y, strict=True) if a > x0 and b > y0]
    if len({a for a, _ in beyond}) < 3:
        return None
    u, v = np.log(np.array(beyond, dtype=float)).T
    spread = float(((u - u.mean()) ** 2).sum())
    slope = float(((u - u.mean()) * (v - v.mean())).sum()) / spread
    rest = v - v.mean() - slope * (u - u.mean())
    freedom = len(u) - 2
    error = STUDENT.get(freedom, 2.0) * math.sqrt(float((rest**2).sum()) / freedom / spread)
    return Fit(slope, error, math.exp(float(v.mean()) - slope * float(u.mean())), origin)


def hold(found: Fit | None, stated: float) -> str:
    """A fitted slope beside the one an upper bound states: slower growth is better than it promised."""
    if found is None:
        return UNKNOWN
    if found.slope - found.error > stated + MARGIN:
        return WORSE
    if found.slope + found.error < stated - MARGIN:
        return BETTER
    return CONSISTENT if found.error <= WIDE else UNKNOWN
