"""The kept values of top-k in two bits each: the sign, and which of two magnitudes; one pair per chunk."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, together
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import NotFinite, WireError
from fedcom.vectors import Layout

_BITS = 12  # of a magnitude: eight of a float32's exponent and four of its mantissa
_DROPPED = 31 - _BITS
_INFINITY, _NAN = 255 << 4, (1 << _BITS) - 1  # codes
_ROUNDING = 2.0**-10  # of |x|^2, what rounding costs at most: 1/32 of a magnitude, squared


@dataclass(frozen=True)
class TwoLevels(Codec):
    """The sign of each value, and which of its chunk's two magnitudes is nearer.

    The magnitudes of a chunk are the mean of its n largest values and that of the others, for the n with the
    least error. This is a part of top-k's messages, and no codec that can be chosen.

    Args:
        runs: pairs of numbers, each for chunks of equal size: how many chunks, and the values of each.
    """

    runs: tuple[tuple[int, int], ...]

    name: ClassVar[str] = "two-levels"
    id: ClassVar[int] = 15  # top-k's
    unbiased: ClassVar[bool] = False
    overhead: ClassVar[int] = 2 * _BITS  # bits per chunk

    def variance(self, layout: Layout) -> float:
        # Let s_n be the sum of the n largest. The best n keeps M = max s_n^2/n of |x|^2 or more, and the n-th
        # value is at most s_n/n <= sqrt(M/n), so |x|^2 <= M (1 + 1/2 + ... + 1/k).
        most = max(size for _, size in self.runs)
        return 1 - (1 - _ROUNDING) / sum(1 / n for n in range(1, most + 1))

    def fields(self, layout: Layout) -> list[Field]:
        chunks = sum(chunks for chunks, _ in self.runs)
        return [Field("levels", 2 * chunks, _BITS), Field("codes", layout.size, 2)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        size = x.abs()
        best = torch.cat([_levels(chunks).flatten(-2) for chunks in self._chunks(size)], -1)
        levels = _to_codes(best.to(torch.float32))
        middles = [pairs.mean(-1, keepdim=True) for pairs in self._pairs(_from_codes(levels, x.dtype))]
        large = [chunks > middle for chunks, middle in zip(self._chunks(size), middles, strict=True)]
        return {"levels": levels, "codes": 2 * (x < 0).to(torch.int32) + _joined(large)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        codes, levels = parts["codes"], _from_codes(parts["levels"], layout.dtype)
        both = zip(self._chunks(codes & 1), self._pairs(levels), strict=True)
        size = _joined(torch.where(large > 0, pair[..., :1], pair[..., 1:]) for large, pair in both)
        return torch.where(codes > 1, -size, size)

    def refuse_not_finite(self, parts: Parts, layout: Layout) -> None:
        self.check(parts, layout)

    def check(self, parts: Parts, layout: Layout) -> None:
        pairs = parts["levels"].reshape(-1, 2)
        if (pairs >= _INFINITY).any():
            raise NotFinite("a topk message has a level that is not finite")
        if (pairs[:, 0] < pairs[:, 1]).any():
            raise WireError("a topk message has levels in the wrong order: the larger comes first")

    def _chunks(self, x: Tensor) -> list[Tensor]:
        """The values of the chunks, one tensor for each run, with the chunks as an axis."""
        return _cut(x, self.runs)

    def _pairs(self, levels: Tensor) -> list[Tensor]:
        """The levels of the chunks, one tensor for each run, with the chunks as an axis."""
        return _cut(levels, [(chunks, 2) for chunks, _ in self.runs])


def _cut(x: Tensor, shapes: Iterable[tuple[int, int]]) -> list[Tensor]:
    """Matrices of some shapes that lie one after another in x."""
    found, start = [], 0
    for rows, columns in shapes:
        some = x.narrow(-1, start, rows * columns)
        found.append(some.reshape(*x.shape[:-1], rows, columns))
        start += rows * columns
    return found


def _levels(size: Tensor) -> Tensor:
    """The two magnitudes with the least error for each chunk, in float64.

    They keep s_n^2/n + (s - s_n)^2/(k - n) of |x|^2, where s_n is the sum of the n largest values.
    """
    sums = size.double().sort(dim=-1, descending=True).values.cumsum(-1)
    k = size.shape[-1]
    n = torch.arange(1, k + 1, device=size.device)
    others = (sums[..., -1:] - sums) / (k - n).clamp(min=1)
    best = (sums.square() / n + others.square() * (k - n)).argmax(-1, keepdim=True)
    return torch.cat([(sums / n).gather(-1, best), others.gather(-1, best)], -1)


def _to_codes(levels: Tensor) -> Tensor:
    """The codes of float32 levels, rounded; all are those of NaN if one of the message is not finite."""
    known = together(levels)
    codes = (known.nan_to_num(0).view(torch.int32) + (1 << (_DROPPED - 1))) >> _DROPPED
    broken = known.isnan().any(-1, keepdim=True) | (codes >= _INFINITY).any(-1, keepdim=True)
    return codes.masked_fill(broken, _NAN)


def _from_codes(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The levels that codes stand for."""
    return (codes << _DROPPED).view(torch.float32).to(dtype)


def _joined(chunks: Iterable[Tensor]) -> Tensor:
    """The values of all chunks, one after another."""
    return torch.cat([x.flatten(-2) for x in chunks], -1)
