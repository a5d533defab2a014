"""Scaled sign (Karimireddy et al., 2019): one bit per coordinate and the mean magnitude."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, together
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout


@dataclass(frozen=True)
class Sign(Codec):
    """The sign of each coordinate times the mean magnitude; biased, so it needs memory=error-feedback.

    Args:
        scale: what shares a mean magnitude, each tensor or the whole vector.
    """

    scale: Literal["tensor", "vector"] = "tensor"

    name: ClassVar[str] = "sign"
    id: ClassVar[int] = 10

    def at(self, bits: float) -> Self | None:
        return self if bits == 1 else None

    @property
    def unbiased(self) -> bool:
        return False

    def blocks(self, layout: Layout) -> Layout:
        """The pieces of the vector that share a scale."""
        return layout if self.scale == "tensor" else Layout.vector(layout.size, layout.dtype)

    def variance(self, layout: Layout) -> float:
        # |Q(x) - x|^2 = |x|^2 - |x|_1^2/d, and |x|_1 >= |x|, with equality for a single coordinate.
        return 1 - 1 / max(self.blocks(layout).sizes)

    def fields(self, layout: Layout) -> list[Field]:
        scales = Field("scale", len(self.blocks(layout).sizes), 32, floating=True)
        return [scales, Field("signs", layout.size, 1)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        # In float64: a sum of float32 numbers may overflow, and its last bit depends on the order.
        means = [block.abs().mean(-1, dtype=torch.float64) for block in self.blocks(layout).split(x)]
        scale = together(torch.stack(means, -1).to(torch.float32))
        return {"scale": scale, "signs": (x < 0).to(torch.int32)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        blocks, scale = self.blocks(layout), parts["scale"].to(layout.dtype)
        x = torch.empty_like(parts["signs"], dtype=layout.dtype)
        for i, (signs, out) in enumerate(zip(blocks.split(parts["signs"]), blocks.split(x), strict=True)):
            torch.mul(1 - 2 * signs, scale[..., i : i + 1], out=out)
        return x

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["scale"] < 0).any():
            raise WireError("a sign message has a negative scale")
