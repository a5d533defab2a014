"""A uniform quantiser of Gaussian vectors, whose step, centres and frequencies follow from the rate."""

from bisect import bisect_left
from functools import lru_cache
from math import fsum
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.codecs.coding import normal
from fedcom.codecs.coding.entropy import PRECISION, SymbolCoder, normalise

_SYMBOLS = 200  # at most; with more codes than that, their low bits travel raw
_REACH = 5.0  # in standard deviations; what lies beyond has the last code
_FINE, _OCTAVES, _STEPS = -7, 10, 1024  # ten octaves of steps from 2^-7 to 2^3, 1024 in each
_UNITS = 2**30  # masses are rounded to multiples of 1/_UNITS, whose sums are exact in any order


class Uniform(NamedTuple):
    """A uniform quantiser of a standard normal variable.

    Args:
        step: the width of a cell.
        centres: the mean of each code's cell.
        rate: the bits per coordinate, on average.
        q: the variance of Gaussian vectors, 1/cos^2 - 1 with the angle between a vector and its centres.
    """

    step: float
    centres: Tensor
    coder: SymbolCoder
    rate: float
    q: float

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations."""
        step = (sigma * self.step).to(y.dtype)
        codes = (y / step).round_()
        return codes.nan_to_num_(0).clamp_(self.coder.low, self.coder.high).to(torch.int32)


@lru_cache(maxsize=256)
def for_rate(bits: float) -> Uniform:
    """The finest quantiser that takes at most so many bits per coordinate on average."""
    steps = range(_OCTAVES * _STEPS + 1)
    return _numbered(bisect_left(steps, -bits, key=lambda i: -_numbered(i).rate, hi=len(steps) - 1))


@lru_cache(maxsize=4096)
def _numbered(i: int) -> Uniform:
    """The quantiser of step number i; every step is a number of eleven bits."""
    octave, fraction = divmod(i, _STEPS)
    return _quantiser((1 + fraction / _STEPS) * 2.0 ** (_FINE + octave))


def _quantiser(step: float) -> Uniform:
    """The quantiser of a given step; its tables are the same on every machine."""
    k = max(1, int(_REACH / step + 0.5))
    mass, means = normal.cells([0.0, *((j - 0.5) * step for j in range(1, k + 1))])
    mass = [*reversed(mass[1:]), 2 * mass[0], *mass[1:]]
    means = [*(-mean for mean in reversed(means[1:])), 0.0, *means[1:]]
    shift = max(0, (len(mass) // _SYMBOLS).bit_length())
    shares = [max(1, round(m * _UNITS)) for m in mass]
    counts = [sum(shares[i : i + (1 << shift)]) for i in range(0, len(shares), 1 << shift)]
    frequencies = normalise(torch.tensor(counts, device="cpu"))
    lengths = [PRECISION - normal.log2(f) for f in frequencies.tolist()]
    rate = shift + fsum(c * length for c, length in zip(counts, lengths, strict=True)) / sum(counts)
    centres = [normal.rounded(mean) for mean in means]
    q = normal.variance(mass, means, centres)
    # Only a forged message holds codes beyond the last cell.
    centres += centres[-1:] * ((len(counts) << shift) - len(centres))
    table = torch.tensor(centres, dtype=torch.float64, device="cpu")
    return Uniform(step, table, SymbolCoder(-k, shift, frequencies), rate, q)
