"""Which k of n coordinates are kept, in log2 C(n, k) bits: no coding of the positions can be shorter.

A range coder goes through the coordinates. If r of the n that are left are still to come, the next one is
kept with probability r/n. So every set of k is equally likely, and all sets take the same number of bytes,
which is known before. Several chunks, each with its own n and k, share one stream.

The sender's interval has 48 bits. Kept coordinates are its upper part, of r times the whole part of span/n.
When less than 40 bits are left, the leading byte is written. At the end one byte picks the interval, and
zeros fill the rest. span/n is span times 1/n in float64, which IEEE 754 fixes to the last bit and which is
several times quicker than to divide integers.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedcom.codecs.coding import normal
from fedcom.codecs.kernels.arrays import Ints, Symbols
from fedcom.codecs.kernels.jit import jit
from fedcom.errors import WireError

_WHOLE = 1 << 48  # the sender's interval at the beginning
_LEAST = 1 << 40  # it is never shorter than this between two coordinates


class Run(NamedTuple):
    """Chunks of equal size, one behind another.

    Args:
        chunks: how many there are.
        size: the coordinates of each.
        kept: how many of them are kept.
    """

    chunks: int
    size: int
    kept: int


Runs = tuple[Run, ...]


@lru_cache(maxsize=256)
def nbytes(runs: Runs) -> int:
    """The bytes of any set of kept coordinates; none if all are kept."""
    some = [run for run in runs if run.kept < run.size]
    bits = sum(run.chunks * _bits(run.size, run.kept) for run in some)
    rounded_off = sum(run.chunks * run.kept * run.size for run in some) / (_LEAST >> 1)
    return math.floor((bits + rounded_off + 0.01) / 8) + 1 if some else 0


def _bits(n: int, k: int) -> float:
    """A number just above log2 C(n, k), the same on every machine, by Stirling's formula."""
    terms = n * normal.log2(n) - k * normal.log2(k) - (n - k) * normal.log2(n - k)
    return terms + normal.log2(n / (k * (n - k) * 6.283185307179586)) / 2


def pack(indices: Ints, runs: Runs) -> Symbols:
    """The bytes of kept coordinates, which must increase."""
    out = np.zeros(nbytes(runs), np.uint8)
    _encode(indices, *_arrays(runs), out)
    return out


def unpack(data: Symbols, runs: Runs) -> Ints:
    """The kept coordinates, in increasing order; raises WireError unless `pack` made the bytes."""
    sizes, kept = _arrays(runs)
    indices = np.empty(int(kept.sum()), np.int64)
    if not _decode(data, sizes, kept, indices):
        raise WireError("the positions of kept coordinates do not end where they should")
    return indices


def _arrays(runs: Sequence[Run]) -> tuple[Ints, Ints]:
    """The size of each chunk, and how many of its coordinates are kept."""
    chunks = [run.chunks for run in runs]
    size, kept = (np.array([run[i] for run in runs], np.int64) for i in (1, 2))
    return np.repeat(size, chunks), np.repeat(kept, chunks)


@jit
def _encode(indices: Ints, sizes: Ints, kept: Ints, out: Symbols) -> None:
    low, span = 0, _WHOLE
    start = at = i = 0
    for chunk in range(len(sizes)):
        n, r, place = sizes[chunk], kept[chunk], start
        while 0 < r < n:
            upper = int(span * (1.0 / n)) * r
            if indices[i] == place:
                low += span - upper
                span = upper
                r -= 1
                i += 1
                if low >= _WHOLE:
                    low -= _WHOLE
                    _carry(out, at)
            else:
                span -= upper
            n -= 1
            place += 1
            while span < _LEAST:
                out[at] = low >> 40
                low, span = (low & (_LEAST - 1)) << 8, span << 8
                at += 1
        i += r  # those that are left over are all kept
        start += sizes[chunk]
    last = (low + _LEAST - 1) >> 40
    if last == 256:
        _carry(out, at)
    elif last:
        out[at] = last


@jit
def _carry(out: Symbols, at: int) -> None:
    """Add one to the number that the bytes before a place are."""
    at -= 1
    while out[at] == 255:
        out[at] = 0
        at -= 1
    out[at] += 1


@jit
def _byte(data: Symbols, at: int) -> int:
    """The byte at a place; zero beyond the end."""
    return np.int64(data[at]) if at < len(data) else np.int64(0)  # type: ignore[return-value]


@jit
def _decode(data: Symbols, sizes: Ints, kept: Ints, indices: Ints) -> bool:
    """Fill in the kept coordinates, and return whether the sender of these coordinates makes these bytes."""
    offset, span = 0, _WHOLE  # of the number in the bytes above the lower end of the interval
    for at in range(6):
        offset = (offset << 8) | _byte(data, at)
    start = at = i = 0
    for chunk in range(len(sizes)):
        n, r, place = sizes[chunk], kept[chunk], start
        while 0 < r < n:
            upper = int(span * (1.0 / n)) * r
            span -= upper
            if offset >= span:
                offset -= span
                span = upper
                indices[i] = place
                r -= 1
                i += 1
            n -= 1
            place += 1
            while span < _LEAST:
                span <<= 8
                offset = (offset << 8) | _byte(data, at + 6)
                at += 1
        for _ in range(r):
            indices[i] = place
            i += 1
            place += 1
        start += sizes[chunk]
    for place in range(at + 1, len(data)):
        if data[place]:
            return False
    return offset < _LEAST
