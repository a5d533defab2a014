"""Trellis-coded quantisation of Gaussian vectors (Fischer and Wang, 1992): 0.07 bits from the bound.

There are two quantisers: the even multiples of a step and the odd ones. A machine of sixteen states (the code
of Ungerboeck, 1982) says which of the two the next coordinate has, and the second bit of each multiple moves
the machine to its next state. The encoder searches the cheapest way through the machine (Viterbi); a way
costs its squared error plus lambda times its bits. The decoder follows the codes. The points of the two
quantisers and their frequencies, which are those of a Gaussian, follow from the rate. Below 0.35 bits only a
share of the coordinates is sent, at that rate, and the others are taken to be zero.

The search runs on the CPU, one row at a time, wherever the vectors are.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.coding import normal
from fedcom.codecs.coding.entropy import (
    PRECISION,
    STATES,
    TOTAL,
    countable,
    encode,
    histogram,
    normalise,
    stream_bytes,
    stream_lengths,
)
from fedcom.codecs.kernels.arrays import Codes, Floats, Ints, Reals
from fedcom.codecs.kernels.jit import jit
from fedcom.errors import WireError

_REACH = 5.0  # in standard deviations; what lies beyond has the last code
_CELLS = 4096  # between minus and plus _REACH; for each there is a table of the four codes to choose from
_PASSES, _TOLERANCE = 5, 0.01  # of the search for a lambda that meets the rate
_LOW = 1 << 16  # a state of the entropy coder is at least this
_UNITS = 2**30  # masses are rounded to multiples of 1/_UNITS, whose sums are exact in any order

_MACHINE = 16  # the number of states of the machine
_NEXT = np.array([[s >> 1 ^ 0b1001 * (s & 1) ^ 0b10 * b for b in (0, 1)] for s in range(_MACHINE)])
_INTO = [[(s, b) for s in range(_MACHINE) for b in (0, 1) if _NEXT[s, b] == t] for t in range(_MACHINE)]
_FROM = np.array([[s for s, b in ways] for ways in _INTO])
_WAY = np.array([[2 * (s & 1) + b for s, b in ways] for ways in _INTO])  # the kind of code of each move


class Design(NamedTuple):
    """Parameters that meet a rate, found by search on 2^20 Gaussian coordinates.

    Args:
        bits: the rate in bits per coordinate.
        step: the distance between points, in standard deviations.
        spread: one minus the variance of the Gaussian that the frequencies follow.
        weight: lambda, the price of a bit in squared error.
        gap: the bits per coordinate above the bound.
    """

    bits: float
    step: float
    spread: float
    weight: float
    gap: float


_DESIGNS = (
    Design(0.35, 1.1, 0.57, 0.8513, 0.0615),
    Design(0.4, 1.086, 0.556, 0.8269, 0.0639),
    Design(0.45, 1.072, 0.542, 0.7961, 0.0649),
    Design(0.5, 1.058, 0.528, 0.7561, 0.0648),
    Design(0.55, 1.044, 0.514, 0.7029, 0.0643),
    Design(0.6, 1.0275, 0.4757, 0.6594, 0.0644),
    Design(0.7, 0.99233, 0.4141, 0.574, 0.0644),
    Design(0.85, 0.93785, 0.3363, 0.4663, 0.0646),
    Design(1.0, 0.88242, 0.2732, 0.3787, 0.0645),
    Design(1.2, 0.80081, 0.207, 0.287, 0.0644),
    Design(1.45, 0.6989, 0.1464, 0.203, 0.0646),
    Design(1.7, 0.60251, 0.1035, 0.1435, 0.0645),
    Design(2.0, 0.49881, 0.0683, 0.09468, 0.0645),
    Design(2.5, 0.35904, 0.03415, 0.04734, 0.0642),
    Design(3.0, 0.25607, 0.01707, 0.02367, 0.0644),
    Design(4.0, 0.12892, 0.004269, 0.005918, 0.0648),
    Design(5.0, 0.064588, 0.001067, 0.001479, 0.0658),
    Design(6.2, 0.028169, 0.0002022, 0.0002803, 0.0692),
)
_LOWEST_RATE = _DESIGNS[0].bits
RATES = 0.07, _DESIGNS[-1].bits  # below 0.07 bits a uniform quantiser is better


@dataclass(frozen=True, eq=False)
class TrellisCoder:
    """Codes to bytes and back, where codes are those of two quantisers: first the even ones, then the odd.

    Args:
        bits: which way each code moves the machine, 0 or 1.
        frequencies: those of the even codes and those of the odd ones; each half sums to TOTAL.
        share: the share of the coordinates, from the first on, that travels; the others are zero.
    """

    bits: Tensor
    frequencies: Tensor
    share: float

    low: ClassVar[int] = 0
    dtype: ClassVar[torch.dtype] = torch.int32

    @property
    def zero(self) -> int:
        """The code of zero."""
        return len(self.frequencies) // 4

    def coded(self, n: int) -> int:
        """The number of codes of n coordinates that travel."""
        return max(1, round(self.share * n))

    def pack(self, codes: Tensor) -> bytes:
        """The bytes of one vector of codes."""
        array = codes[: self.coded(len(codes))].cpu().to(torch.int32).contiguous().numpy()
        return encode(array, self.frequencies.numpy())

    def unpack(self, body: memoryview, n: int) -> Tensor:
        """The n codes in a message's bytes."""
        if len(body) < STATES or len(body) % 2:
            raise WireError(f"a trellis-coded stream cannot have {len(body)} bytes")
        states = np.frombuffer(body[:STATES], "<u4").astype(np.int64)
        words = np.frombuffer(body[STATES:], "<u2")
        frequencies = self.frequencies.numpy()
        lookup = np.repeat(np.arange(len(frequencies), dtype=np.int32), frequencies)
        codes = np.full(n, self.zero, np.int32)
        coded = codes[: self.coded(n)]
        starts = (np.cumsum(frequencies) - frequencies) % TOTAL
        used = _decode(states, words, frequencies, starts, lookup, self.bits.numpy(), coded)
        if used != len(words) or (states != _LOW).any():
            raise WireError("a trellis-coded stream does not end where it should")
        return torch.from_numpy(codes)

    def nbytes(self, codes: Tensor, exact: bool = True) -> Tensor:
        """The bytes of each row; `countable` says where they can be exact."""
        coded = codes[..., : self.coded(codes.shape[-1])]
        if exact and countable(codes):
            return stream_lengths(coded, self.frequencies)
        return stream_bytes(histogram(coded, len(self.frequencies)), self.frequencies)


@dataclass(frozen=True, eq=False)
class Trellis:
    """Two quantisers of a standard normal variable, and the tables for a search through the machine.

    Args:
        centres: the point of each code.
        lengths: the bits of each code.
        weight: lambda, the price of a bit in squared error.
        nearest: for each cell, the best code of each of the four kinds.
        rate: the bits per coordinate.
        q: the variance of Gaussian vectors, 1/cos^2 - 1 with the angle between a vector and its points.
    """

    centres: Tensor
    coder: TrellisCoder
    lengths: Tensor
    weight: float
    nearest: Tensor
    rate: float
    q: float

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations."""
        z = y / sigma.to(y.dtype)
        rows = z.detach().reshape(-1, z.shape[-1])[:, : self.coder.coded(z.shape[-1])]
        rows = rows.to("cpu", torch.float32).nan_to_num(0).clamp(-_REACH, _REACH).contiguous()
        codes = torch.full((len(rows), z.shape[-1]), self.coder.zero, dtype=torch.int32, device="cpu")
        for row, code in zip(rows.numpy(), codes.numpy(), strict=True):
            self._search(row, code[: len(row)])
        return codes.reshape(z.shape).to(z.device)

    def _search(self, row: Floats, codes: Codes) -> None:
        """Fill in the codes of one vector, with a lambda that meets the rate.

        The decoder need not know lambda. It is searched for each vector, because below half a bit the rates
        of vectors differ: for long stretches the machine sends little, and then much.
        """
        nearest, centres, lengths = self.nearest.numpy(), self.centres.numpy(), self.lengths.numpy()
        weight = self.weight
        for _ in range(_PASSES):
            _search(row, nearest, centres, weight * lengths, codes)
            excess = float(lengths[codes].mean()) * self.coder.share / self.rate
            if abs(excess - 1) < _TOLERANCE:
                break
            weight *= min(max(excess, 0.5), 2.0) ** 0.25


@lru_cache(maxsize=256)
def for_rate(bits: float) -> Trellis:
    """The trellis that takes so many bits per coordinate of a Gaussian vector."""
    share, bits = min(1.0, bits / _LOWEST_RATE), max(bits, _LOWEST_RATE)
    above = bisect_left(_DESIGNS, bits, lo=1, hi=len(_DESIGNS) - 1, key=lambda design: design.bits)
    low, high = _DESIGNS[above - 1 : above + 1]
    t = (bits - low.bits) / (high.bits - low.bits)
    logs = [(1 - t) * normal.log(a) + t * normal.log(b) for a, b in zip(low[1:], high[1:], strict=True)]
    return build(Design(bits, *map(normal.exp, logs)), share)


def build(design: Design, share: float = 1.0) -> Trellis:
    """The trellis of a design; its points and frequencies are the same on every computer.

    Args:
        share: the share of the coordinates that travels.
    """
    step, variance = normal.rounded(design.step), normal.rounded(1 - design.spread)
    k = math.ceil(_REACH / step / 2)
    multiples = 2 * torch.arange(-k, k + 1, device="cpu") - torch.tensor([[0], [1]], device="cpu")
    centres = multiples.double() * step
    mass = [[normal.exp(-c * c / (2 * variance)) for c in row] for row in centres.tolist()]
    frequencies = normalise(
        torch.tensor([[max(1, round(m * _UNITS)) for m in row] for row in mass], device="cpu")
    ).flatten()
    bits, centres = (multiples >> 1 & 1).flatten(), centres.flatten()
    lengths = PRECISION - frequencies.double().log2()
    cells = ((torch.arange(_CELLS, dtype=torch.float32, device="cpu") + 0.5) / _CELLS * 2 - 1) * _REACH
    costs = (cells.double().unsqueeze(-1) - centres).square() + design.weight * lengths
    ways = 2 * (multiples & 1).flatten() + bits
    nearest = [torch.where(ways == way, costs, torch.inf).argmin(-1) for way in range(4)]
    q = 1 / share / (1 - 4 ** (design.gap - design.bits)) - 1
    table = torch.stack(nearest, -1).to(torch.int32)
    coder = TrellisCoder(bits, frequencies, share)
    return Trellis(centres, coder, lengths, design.weight, table, share * design.bits, q)


@jit
def _cell(z: float) -> int:
    """The number of the cell in which a coordinate lies."""
    return min(int((z + _REACH) * (_CELLS / (2 * _REACH))), _CELLS - 1)


@jit
def _search(z: Floats, nearest: Codes, centres: Reals, prices: Reals, codes: Codes) -> None:
    """Fill in the codes of the cheapest way through the machine, given the price of each code's bits."""
    turns = np.empty(len(z), np.uint32)  # bit t says which of the two ways into state t is cheaper
    cost, later, price = np.full(_MACHINE, np.inf), np.empty(_MACHINE), np.empty(4)
    cost[0] = 0.0
    for i in range(len(z)):
        cell = _cell(z[i])
        for way in range(4):
            code = nearest[cell, way]
            price[way] = (z[i] - centres[code]) ** 2 + prices[code]
        turn = 0
        for t in range(_MACHINE):
            left = cost[_FROM[t, 0]] + price[_WAY[t, 0]]
            right = cost[_FROM[t, 1]] + price[_WAY[t, 1]]
            turn |= int(right < left) << t
            later[t] = min(left, right)
        turns[i] = turn
        cost, later = later, cost
    t = int(np.argmin(cost))
    for i in range(len(z) - 1, -1, -1):
        turn = (int(turns[i]) >> t) & 1
        codes[i] = nearest[_cell(z[i]), _WAY[t, turn]]
        t = _FROM[t, turn]


@jit
def _decode(
    states: Ints,
    words: NDArray[np.uint16],
    frequencies: Ints,
    starts: Ints,
    lookup: Codes,
    bits: Ints,
    codes: Codes,
) -> int:
    """Fill in the codes of a stream, and return how many words were read, or -1 if there are too few."""
    used, s = 0, 0
    for i in range(len(codes)):
        x = states[i & 3]
        slot = x & (TOTAL - 1)
        code = lookup[((s & 1) << PRECISION) + slot]
        codes[i] = code
        x = frequencies[code] * (x >> PRECISION) + slot - starts[code]
        if x < _LOW:
            if used == len(words):
                return -1
            x = (x << 16) | words[used]
            used += 1
        states[i & 3] = x
        s = _NEXT[s, bits[code]]
    return used
