"""Scaled sign (Karimireddy et al., 2019): one bit per coordinate and the mean magnitude."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Parts, together
from fedcom.codecs.blocks import InBlocks
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout


@dataclass(frozen=True)
class Sign(InBlocks):
    """The sign of each coordinate times the mean magnitude; biased, so it needs memory=error-feedback.

    Args:
        scale: what shares a mean magnitude, each tensor or the whole vector.
    """

    scale: Literal["tensor", "vector"] = "tensor"

    name: ClassVar[str] = "sign"
    id: ClassVar[int] = 10
    unbiased: ClassVar[bool] = False

    def at(self, bits: float) -> Self | None:
        return self if bits == 1 else None

    def variance(self, layout: Layout) -> float:
        # |Q(x) - x|^2 = |x|^2 - |x|_1^2/d, and |x|_1 >= |x|, with equality for a single coordinate.
        return 1 - 1 / max(self.blocks(layout).sizes)

    def fields(self, layout: Layout) -> list[Field]:
        return [self.scales("scale", layout), Field("signs", layout.size, 1)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        # In float64: a sum of float32 numbers may overflow, and its last bit depends on the order.
        means = [block.abs().mean(-1, dtype=torch.float64) for block in self.blocks(layout).split(x)]
        scale = together(torch.stack(means, -1).to(torch.float32))
        return {"scale": scale, "signs": (x < 0).to(torch.int32)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        scale = parts["scale"].to(layout.dtype)
        return self.scaled(parts["signs"], scale, layout, lambda signs: 1 - 2 * signs)

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["scale"] < 0).any():
            raise WireError("a sign message has a negative scale")
