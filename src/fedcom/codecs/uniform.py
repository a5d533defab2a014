"""A uniform quantiser of a Gaussian vector: step, means of the cells and frequencies follow from the rate."""

from bisect import bisect_left
from functools import lru_cache
from math import fsum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs import fused, normal
from fedcom.codecs.entropy import PRECISION, Alphabet, normalise
from fedcom.codecs.kernels import COMPILED, jit

_SYMBOLS = 200  # at most; finer codes send their low bits raw
_REACH = 5.0  # standard deviations; what lies beyond counts as the last code
_FINE, _OCTAVES, _STEPS = -7, 10, 1024  # steps from 2^-7 to 2^3, so many an octave
_MANY = 1000  # coordinates, from which on a rate is kept
_PASSES = 20  # in which codes that are too long are made shorter
_BIT = 2**16  # units of length
_UNITS = 2**30  # shares are whole multiples of 1/_UNITS, and their sums exact in any order


class Uniform(NamedTuple):
    """A uniform quantiser of a standard normal variable, with the mean of each cell."""

    step: float
    centres: Tensor
    alphabet: Alphabet
    lengths: Tensor  # of the symbols, raw bits in, in units of 2^-16 bits
    rate: float  # bits a coordinate, the mean
    most: float  # bits a coordinate that no long vector exceeds
    q: float  # 1/cos^2 - 1 between a Gaussian vector and its image

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What sender and receiver must agree on."""
        return self.centres, self.alphabet.frequencies

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations.

        A vector whose codes are too long is coded with a larger step, which makes them smaller; the receiver
        need not know, since the scale that follows fits the image to the vector. Short ones stay as they are.
        """
        step = (sigma * self.step).to(y.dtype)
        codes, most = self._levels(y, step), int(self.most * y.shape[-1] * _BIT)
        for i in range(_PASSES if y.shape[-1] >= _MANY else 0):
            long = self._length(codes) > most
            if not long.any():
                break
            step = torch.where(long, (1.002 + 0.002 * i) * step, step)
            codes = self._levels(y, step)
        return codes

    def _levels(self, y: Tensor, step: Tensor) -> Tensor:
        if COMPILED and y.device.type == "cpu" and y.dtype == torch.float32:
            return fused.levels(y, step, self.alphabet.low, self.alphabet.high)
        codes = (y / step).round_()
        return codes.nan_to_num_(0).clamp_(self.alphabet.low, self.alphabet.high).to(torch.int32)

    def _length(self, codes: Tensor) -> Tensor:
        """The length of each row's codes, as a column."""
        low, shift = self.alphabet.low, self.alphabet.shift
        if COMPILED and codes.device.type == "cpu":
            rows, lengths = codes.reshape(-1, codes.shape[-1]).numpy(), self.lengths.numpy()
            totals = torch.tensor([_total(row, low, shift, lengths) for row in rows])
            return totals.reshape(*codes.shape[:-1], 1)
        return self.lengths.to(codes.device)[(codes - low) >> shift].sum(-1, keepdim=True)


@lru_cache(maxsize=256)
def for_rate(bits: float, n: int) -> Uniform:
    """The quantiser that sends n coordinates with no more than so many bits each.

    Lengths stray by about 0.6 bits over sqrt(n), less where most codes are zero, and those that are too long
    are cut: so it promises no more than a quantiser of that much less does.
    """
    stray = 0.6 * (min(1.0, 5 * bits) / n) ** 0.5
    promised = _finest(max(bits - stray, bits / 2)) if n >= _MANY else _finest(bits)
    return _finest(bits)._replace(most=bits, q=promised.q)


def _finest(bits: float) -> Uniform:
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
    whole = torch.tensor([round((shift + length) * _BIT) for length in lengths])
    return Uniform(step, table, Alphabet(-k, shift, frequencies), whole, rate, rate, q)


@jit
def _total(codes: NDArray[np.int32], low: int, shift: int, lengths: NDArray[np.int64]) -> int:
    total = 0
    for code in codes:
        total += lengths[(code - low) >> shift]
    return total
