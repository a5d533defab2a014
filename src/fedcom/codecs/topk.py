"""Top-k: the coordinates of largest magnitude, with their indices."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, check_range, check_share, kept_count, largest, spread_out, width
from fedcom.codecs.identity import Identity
from fedcom.codecs.integers import Int
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout


@dataclass(frozen=True)
class TopK(Codec):
    """The coordinates of largest magnitude, and where they are; biased, so it needs a memory or damping.

    Args:
        ratio: the share of coordinates that is kept. The paper's C_r is a ratio of bytes instead, and counts
            the indices too.
        values: how kept values travel, as floats or as integers that are rounded stochastically.
        bits: the bits of each kept value where values are integers.
    """

    ratio: float = 0.1
    values: Literal["float", "int"] = "float"
    bits: int = 8

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 4
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("ratio", self.ratio)
        check_range("bits", self.bits, 1, 16)

    def at(self, bits: float) -> Self | None:
        # A kept coordinate costs its value and an index of about 18 bits. With a bitmap instead of indices it
        # costs its value, and every coordinate, kept or not, costs one bit.
        value = 32 if self.values == "float" else self.bits
        ratio = max(bits / (value + 18), (bits - 1) / value)
        return replace(self, ratio=ratio) if 0 < ratio <= 1 else None

    def kept(self, layout: Layout) -> float:
        return self.kept_layout(layout).size / layout.size

    @property
    def inner(self) -> Codec:
        """The codec of the kept values."""
        return Int(self.bits) if self.values == "int" else Identity()

    def kept_layout(self, layout: Layout) -> Layout:
        """The kept values as a vector of their own."""
        return Layout.vector(kept_count(self.ratio, layout.size), layout.dtype)

    def variance(self, layout: Layout) -> float:
        kept = self.kept_layout(layout)
        return 1 - kept.size / layout.size + self.inner.variance(kept)

    def fields(self, layout: Layout) -> list[Field]:
        # Sorted indices, or one bit per coordinate where that is shorter.
        k, d = self.kept_layout(layout).size, layout.size
        where = Field("indices", k, width(d)) if k * width(d) < d else Field("bitmap", d, 1)
        return [where, *self.inner.fields(self.kept_layout(layout))]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        kept = self.kept_layout(layout)
        indices = x.abs().topk(kept.size, dim=-1).indices.sort(dim=-1).values
        where = {
            "indices": indices,
            "bitmap": torch.zeros_like(x, dtype=torch.int32).scatter_(-1, indices, 1),
        }
        name = self.fields(layout)[0].name
        values = x.gather(-1, indices)  # with what is not finite: it counts as the largest
        if self.values == "float":
            values = torch.where(largest(values).isfinite(), values, torch.nan)
        return {name: where[name], **self.inner.compress(values, kept, draw)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        values = self.inner.expand(parts, self.kept_layout(layout), draw)
        if "bitmap" in parts and values.is_cuda:  # to find the marks would be to wait for the GPU
            order = parts["bitmap"].cumsum(-1) - 1  # the number of the kept value of a marked coordinate
            rest = torch.where(values[..., :1].isnan(), torch.nan, 0.0)
            return torch.where(parts["bitmap"] > 0, values.gather(-1, order.clamp_(min=0)), rest)
        marks = parts["bitmap"].nonzero()[:, -1] if "bitmap" in parts else parts["indices"]
        return spread_out(values, marks.reshape(values.shape).to(torch.int64), layout.size)

    def check(self, parts: Parts, layout: Layout) -> None:
        k = self.kept_layout(layout).size
        if "bitmap" in parts and int(parts["bitmap"].sum()) != k:
            raise WireError(f"a topk bitmap marks {int(parts['bitmap'].sum())} coordinates instead of {k}")
        if "indices" in parts:
            indices = parts["indices"]
            if (indices[1:] <= indices[:-1]).any() or (indices >= layout.size).any():
                raise WireError(f"topk indices must increase strictly and stay below {layout.size}")
        self.inner.check(parts, self.kept_layout(layout))
