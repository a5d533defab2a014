"""TernGrad (Wen et al., 2017): minus, nothing or plus the largest magnitude, drawn to be right on average."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedcom.codecs.base import Codec, Parts, float32_above
from fedcom.codecs.kernels.jit import placed
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout

_WEIGHTS = torch.tensor(
    [81, 27, 9, 3, 1]
)  # five trits a byte, the first most significant; 243 of 256 bytes are used


@dataclass(frozen=True)
class TernGrad(Codec):
    """Three levels, minus to plus the largest magnitude, stochastic, five coordinates a byte; unbiased."""

    scale: Literal["tensor", "vector"] = "tensor"

    name: ClassVar[str] = "terngrad"
    id: ClassVar[int] = 11

    def at(self, bits: float) -> Self | None:
        return self if bits == 1.6 else None

    @property
    def unbiased(self) -> bool:
        return True

    def blocks(self, layout: Layout) -> Layout:
        """The pieces of the vector that share a scale."""
        return layout if self.scale == "tensor" else Layout.vector(layout.size, layout.dtype)

    def variance(self, layout: Layout) -> float:
        # E|Q(x) - x|^2 = s|x|_1 - |x|^2 with s = max|x|: worst for one s and d - 1 times s/(sqrt(d) + 1).
        return (math.sqrt(max(self.blocks(layout).sizes)) - 1) / 2

    def fields(self, layout: Layout) -> list[Field]:
        scales = Field("scale", len(self.blocks(layout).sizes), 32, floating=True)
        return [scales, Field("codes", -(-layout.size // 5), 8)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        blocks = self.blocks(layout)
        scale = float32_above(torch.stack([block.abs().amax(-1) for block in blocks.split(x)], -1))
        trits = torch.empty_like(x, dtype=torch.int32)
        u = draw.uniform(x.shape[-1], x.dtype)
        for i, (block, out, v) in enumerate(zip(*map(blocks.split, (x, trits, u)), strict=True)):
            kept = v < block.abs() / scale[..., i : i + 1]
            out.copy_(1 + kept * (1 - 2 * (block < 0).to(torch.int32)))
        return {"scale": scale, "codes": _pack_trits(trits)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        blocks, scale = self.blocks(layout), parts["scale"].to(layout.dtype)
        trits = _unpack_trits(parts["codes"])[..., : layout.size]
        x = torch.empty_like(trits, dtype=layout.dtype)
        for i, (trit, out) in enumerate(zip(blocks.split(trits), blocks.split(x), strict=True)):
            torch.mul(trit - 1, scale[..., i : i + 1], out=out)
        return x

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["scale"] < 0).any() or (parts["codes"] > 242).any():
            raise WireError("a terngrad message has a negative scale or a byte above 242")
        if _unpack_trits(parts["codes"])[layout.size :].any():
            raise WireError("a terngrad message has stray trits in its padding")


def _pack_trits(trits: Tensor) -> Tensor:
    """Five numbers of 0..2 a byte, the last byte filled with zeros."""
    fives = pad(trits, (0, -trits.shape[-1] % 5)).reshape(*trits.shape[:-1], -1, 5)
    return (fives * placed(_WEIGHTS, fives.device, torch.int32)).sum(-1, dtype=torch.int32)


def _unpack_trits(codes: Tensor) -> Tensor:
    """The numbers of 0..2 in bytes below 243."""
    codes = codes.to(torch.int32).unsqueeze(-1)
    return (codes // placed(_WEIGHTS, codes.device, torch.int32) % 3).flatten(-2)
