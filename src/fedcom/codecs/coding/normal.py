"""The standard normal distribution, computed by additions, multiplications and divisions alone.

IEEE 754 defines these to the last bit, while exp, log and erf differ between machines. So tables made with
the functions here are the same for every sender and receiver.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

_LOG_2 = 0.6931471805599453
_PEAK = 0.3989422804014327  # 1/sqrt(2 pi), the density at zero
_GRID = 2**16  # tables hold multiples of 1/_GRID, which are exact in float32 up to 256


def exp(x: float) -> float:
    """e^x: a power of two times the series of the rest."""
    power = round(x / _LOG_2)
    rest, total, term = x - power * _LOG_2, 1.0, 1.0
    for n in range(1, 18):
        term *= rest / n
        total += term
    return math.ldexp(total, power)


def log(x: float) -> float:
    """The natural logarithm, by log m = 2 artanh((m - 1)/(m + 1)) for m between 1/2 and 1."""
    m, exponent = math.frexp(x)
    ratio = (m - 1) / (m + 1)
    power, total = ratio, ratio
    for n in range(3, 37, 2):
        power *= ratio * ratio
        total += power / n
    return 2 * total + exponent * _LOG_2


def log2(x: float) -> float:
    """The logarithm to base two."""
    return log(x) / _LOG_2


def density(x: float) -> float:
    """The density at x."""
    return _PEAK * exp(-x * x / 2)


def central(x: float) -> float:
    """The mass between 0 and x, for x up to 8: the density times x + x^3/3 + x^5/(3 5) + ..."""
    term = total = x
    n = 1
    while term > 1e-18 * total:
        n += 2
        term *= x * x / n
        total += term
    return total * density(x)


def cells(edges: Sequence[float]) -> tuple[list[float], list[float]]:
    """The mass and the mean of each cell between given edges, from zero up; the last cell is unbounded."""
    masses = [*map(central, edges), 0.5]
    densities = [*map(density, edges), 0.0]
    mass = [b - a for a, b in pairwise(masses)]
    drop = [a - b for a, b in pairwise(densities)]
    return mass, [d / m for d, m in zip(drop, mass, strict=True)]


def rounded(x: float) -> float:
    """The nearest number that a table may hold."""
    return round(x * _GRID) / _GRID


def variance(mass: Sequence[float], means: Sequence[float], centres: Sequence[float]) -> float:
    """The q of Gaussian vectors that are sent as centres, scaled to be unbiased: 1/cos^2 - 1.

    Args:
        mass: the mass of each cell.
        means: the mean of each cell.
        centres: what each cell is sent as.
    """
    overlap = math.fsum(m * a * b for m, a, b in zip(mass, means, centres, strict=True))
    power = math.fsum(m * c * c for m, c in zip(mass, centres, strict=True))
    return power / overlap**2 - 1
