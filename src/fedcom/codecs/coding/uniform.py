"""A uniform quantiser of a Gaussian vector: step, means of the cells and frequencies follow from the rate."""

from bisect import bisect_left
from functools import lru_cache
from math import fsum
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.codecs.coding import normal
from fedcom.codecs.coding.entropy import PRECISION, SymbolCoder, normalise
from fedcom.codecs.kernels import cpu
from fedcom.codecs.kernels.jit import COMPILED

_SYMBOLS = 200  # at most; finer codes send their low bits raw
_REACH = 5.0  # standard deviations; what lies beyond counts as the last code
_FINE, _OCTAVES, _STEPS = -7, 10, 1024  # steps from 2^-7 to 2^3, so many an octave
_UNITS = 2**30  # shares are whole multiples of 1/_UNITS, and their sums exact in any order


class Uniform(NamedTuple):
    """A uniform quantiser of a standard normal variable, with the mean of each cell."""

    step: float
    centres: Tensor
    coder: SymbolCoder
    rate: float  # bits a coordinate, the mean
    q: float  # 1/cos^2 - 1 between a Gaussian vector and its image

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What sender and receiver must agree on."""
        return self.centres, self.coder.frequencies

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations."""
        step = (sigma * self.step).to(y.dtype)
        if COMPILED and y.device.type == "cpu" and y.dtype == torch.float32:
            return cpu.levels(y, step, self.coder.low, self.coder.high)
        codes = (y / step).round_()
        return codes.nan_to_num_(0).clamp_(self.coder.low, self.coder.high).to(torch.int32)


@lru_cache(maxsize=256)
def for_rate(bits: float) -> Uniform:
    """The finest quantiser that takes so many bits on average, or fewer."""
    steps = range(_OCTAVES * _STEPS + 1)
    return _numbered(bisect_left(steps, -bits, key=lambda i: -_numbered(i).rate, hi=len(steps) - 1))


@lru_cache(maxsize=4096)
def _numbered(i: int) -> Uniform:
    """The quantiser of the i-th step, a number of eleven bits."""
    octave, fraction = divmod(i, _STEPS)
    return _quantiser((1 + fraction / _STEPS) * 2.0 ** (_FINE + octave))


def _quantiser(step: float) -> Uniform:
    k = max(1, int(_REACH / step + 0.5))
    mass, means = normal.cells([0.0, *((j - 0.5) * step for j in range(1, k + 1))])
    mass = [*reversed(mass[1:]), 2 * mass[0], *mass[1:]]
    means = [*(-mean for mean in reversed(means[1:])), 0.0, *means[1:]]
    shift = max(0, (len(mass) // _SYMBOLS).bit_length())
    shares = [max(1, round(m * _UNITS)) for m in mass]
    counts = [sum(shares[i : i + (1 << shift)]) for i in range(0, len(shares), 1 << shift)]
    frequencies = normalise(torch.tensor(counts))
    lengths = [PRECISION - normal.log2(f) for f in frequencies.tolist()]
    rate = shift + fsum(c * length for c, length in zip(counts, lengths, strict=True)) / sum(counts)
    centres = [normal.rounded(mean) for mean in means]
    q = normal.variance(mass, means, centres)
    centres += centres[-1:] * ((len(counts) << shift) - len(centres))  # of codes only a made-up message holds
    table = torch.tensor(centres, dtype=torch.float64)
    return Uniform(step, table, SymbolCoder(-k, shift, frequencies), rate, q)
