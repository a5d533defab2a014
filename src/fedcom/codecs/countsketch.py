"""Count sketch (Charikar et al., 2002), as in FetchSGD (Rothchild et al., 2020): signed sums in buckets."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, check_range, check_share, kept_count, largest
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.vectors import Layout


@dataclass(frozen=True)
class CountSketch(Codec):
    """Sums of coordinates with random signs, in random buckets; unbiased with q = (d-1)/(number of sums).

    Buckets and signs follow from the shared draw, so only the sums travel. At a given number of sums, more
    rows make large errors rarer but do not lower the mean squared error.

    Args:
        ratio: the number of sums, as a share of the number of coordinates.
        rows: how many times every coordinate is summed; the receiver takes the mean of the rows' estimates.
    """

    ratio: float = 0.1
    rows: int = 1

    name: ClassVar[str] = "count-sketch"
    id: ClassVar[int] = 13
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("ratio", self.ratio)
        check_range("rows", self.rows, 1, 64)

    def at(self, bits: float) -> Self | None:
        return replace(self, ratio=bits / 32) if 0 < bits <= 32 else None

    def columns(self, layout: Layout) -> int:
        """The number of buckets in each row."""
        return kept_count(self.ratio / self.rows, layout.size)

    def variance(self, layout: Layout) -> float:
        return (layout.size - 1) / (self.rows * self.columns(layout))

    def fields(self, layout: Layout) -> list[Field]:
        return [Field("sums", self.rows * self.columns(layout), 8 * layout.itemsize, floating=True)]

    def hashes(self, layout: Layout, draw: Draw) -> Iterator[tuple[Tensor, Tensor]]:
        """Each coordinate's bucket and sign, row by row; they depend on the shared draw alone."""
        for row in range(self.rows):
            own = draw.fold(row)
            signs = 1 - 2 * own.fold("signs").bits(layout.size).bitwise_and_(1)
            yield own.fold("buckets").integers(self.columns(layout), layout.size), signs

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        unit = _unit(x)
        whole = (x.to(torch.float64) / unit).round_().nan_to_num_(0).to(torch.int64)
        zeros = whole.new_zeros((*x.shape[:-1], self.columns(layout)))
        rows = [
            zeros.scatter_add(-1, buckets.expand(x.shape), whole * signs)
            for buckets, signs in self.hashes(layout, draw)
        ]
        sums = (torch.cat(rows, -1) * unit).to(layout.dtype)
        fits = (largest(sums) * self.rows).isfinite()
        return {"sums": torch.where(fits, sums, torch.nan)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        rows = torch.split(parts["sums"], self.columns(layout), -1)
        estimates = torch.zeros((), dtype=layout.dtype, device=draw.key.device)
        for sums, (buckets, signs) in zip(rows, self.hashes(layout, draw), strict=True):
            estimates = estimates + sums.gather(-1, buckets.expand(*sums.shape[:-1], -1)) * signs
        return estimates / self.rows


def _unit(x: Tensor) -> Tensor:
    """A power of two so large that all sums of x are below 2^62 of it; NaN where x is not finite.

    Whole multiples of it have the same sum in any order. Floats do not, and a GPU adds in no fixed order.
    """
    top = largest(x).to(torch.float64)
    exponent = torch.frexp(top).exponent.clamp(min=-900) + x.shape[-1].bit_length() - 62
    unit = torch.ldexp(torch.ones_like(top), exponent.to(torch.float64))
    return torch.where(top.isfinite(), unit, torch.nan)
