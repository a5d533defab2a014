"""QSGD (Alistarh et al., 2017): coordinates as signed fractions of the norm, rounded stochastically."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Parts, check_range, float32_above, together, width
from fedcom.codecs.blocks import InBlocks
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout


@dataclass(frozen=True)
class Qsgd(InBlocks):
    """The norm, and each coordinate as a whole multiple of norm/levels, rounded stochastically; unbiased.

    Args:
        levels: the number of steps between zero and the norm.
        scale: what shares a norm, each tensor or the whole vector.
    """

    levels: int = 127
    scale: Literal["tensor", "vector"] = "tensor"

    name: ClassVar[str] = "qsgd"
    id: ClassVar[int] = 2
    unbiased: ClassVar[bool] = True
    dithers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("levels", self.levels, 1, 32767)

    def at(self, bits: float) -> Self | None:
        return replace(self, levels=2 ** (int(bits) - 1) - 1) if bits in range(2, 17) else None

    def variance(self, layout: Layout) -> float:
        s = self.levels
        return max(min(d / s**2, math.sqrt(d) / s) for d in self.blocks(layout).sizes)

    def fields(self, layout: Layout) -> list[Field]:
        return [self.scales("norm", layout), Field("codes", layout.size, width(2 * self.levels + 1))]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        blocks = self.blocks(layout)
        # In float64: squares of float32 numbers above 1e19 or below 1e-23 do not fit a float32.
        norms = [torch.linalg.vector_norm(b, dim=-1, dtype=torch.float64) for b in blocks.split(x)]
        norm = float32_above(torch.stack(norms, -1))
        norm = together(norm, norm.to(layout.dtype) / self.levels * self.levels)
        codes = torch.empty_like(x, dtype=torch.int32)
        u = draw.dither(x.shape[-1], x.dtype)
        for i, (block, out, v) in enumerate(zip(*map(blocks.split, (x, codes, u)), strict=True)):
            z = (block / norm[..., i : i + 1]).mul_(self.levels)
            floor = z.floor()
            rounded = (floor + (v < z.sub_(floor))).nan_to_num_(0)
            out.copy_(rounded.clamp_(-self.levels, self.levels)).add_(self.levels)
        return {"norm": norm, "codes": codes}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        step = parts["norm"].to(layout.dtype) / self.levels
        return self.scaled(parts["codes"], step, layout, lambda codes: codes - self.levels)

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["norm"] < 0).any() or (parts["codes"] > 2 * self.levels).any():
            raise WireError("a qsgd message has a negative norm or a code above 2 * levels")
