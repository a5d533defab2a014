"""Rand-k: a random share of the coordinates, scaled up; the shared draw says which ones."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, check_share, kept_count, largest, spread_out
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.vectors import Layout


@dataclass(frozen=True)
class RandK(Codec):
    """Random coordinates, divided by the share that is kept; unbiased with q = d/k - 1, without indices.

    Args:
        ratio: the share of coordinates that is kept. The paper's C_r is a ratio of bytes instead.
    """

    ratio: float = 0.1

    name: ClassVar[str] = "randk"
    id: ClassVar[int] = 5
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("ratio", self.ratio)

    def at(self, bits: float) -> Self | None:
        return replace(self, ratio=bits / 32) if 0 < bits <= 32 else None

    def variance(self, layout: Layout) -> float:
        return layout.size / kept_count(self.ratio, layout.size) - 1

    def fields(self, layout: Layout) -> list[Field]:
        return [Field("values", kept_count(self.ratio, layout.size), 8 * layout.itemsize, floating=True)]

    def indices(self, layout: Layout, draw: Draw) -> Tensor:
        """The kept coordinates, which depend on the shared draw alone."""
        k = kept_count(self.ratio, layout.size)
        return draw.ranks(layout.size).topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        # What is not finite must be seen in a coordinate that is not kept too.
        indices = self.indices(layout, draw)
        reach = largest(x) * (layout.size / indices.shape[-1])
        return {"values": torch.where(reach.isfinite(), x.gather(-1, indices), torch.nan)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        values = parts["values"] * (layout.size / parts["values"].shape[-1])
        return spread_out(values, self.indices(layout, draw), layout.size)
