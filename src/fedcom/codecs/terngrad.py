"""TernGrad (Wen et al., 2017): each coordinate is minus the largest magnitude, zero or plus it, at random."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedcom.codecs.base import Parts, float32_above, together
from fedcom.codecs.blocks import InBlocks
from fedcom.codecs.kernels.jit import placed
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout

# Five numbers of 0..2 in each byte, the first most significant: bytes from 0 to 242.
_WEIGHTS = torch.tensor([81, 27, 9, 3, 1], device="cpu")


@dataclass(frozen=True)
class TernGrad(InBlocks):
    """Zero, or plus or minus the largest magnitude, drawn at random; five coordinates per byte; unbiased.

    Args:
        scale: what shares a largest magnitude, each tensor or the whole vector.
    """

    scale: Literal["tensor", "vector"] = "tensor"

    name: ClassVar[str] = "terngrad"
    id: ClassVar[int] = 11
    unbiased: ClassVar[bool] = True

    def at(self, bits: float) -> Self | None:
        return self if bits == 1.6 else None

    def variance(self, layout: Layout) -> float:
        # E|Q(x) - x|^2 = s|x|_1 - |x|^2 with s = max|x|. The worst x has one coordinate s and all others
        # s/(sqrt(d) + 1).
        return (math.sqrt(max(self.blocks(layout).sizes)) - 1) / 2

    def fields(self, layout: Layout) -> list[Field]:
        return [self.scales("scale", layout), Field("codes", -(-layout.size // 5), 8)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        blocks = self.blocks(layout)
        tops = torch.stack([block.abs().amax(-1) for block in blocks.split(x)], -1)
        scale = together(float32_above(tops))
        trits = torch.empty_like(x, dtype=torch.int32)
        u = draw.uniform(x.shape[-1], x.dtype)
        for i, (block, out, v) in enumerate(zip(*map(blocks.split, (x, trits, u)), strict=True)):
            kept = v < block.abs() / scale[..., i : i + 1]
            out.copy_(1 + kept * (1 - 2 * (block < 0).to(torch.int32)))
        return {"scale": scale, "codes": _pack_trits(trits)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        trits = _unpack_trits(parts["codes"])[..., : layout.size]
        return self.scaled(trits, parts["scale"].to(layout.dtype), layout, lambda trits: trits - 1)

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["scale"] < 0).any() or (parts["codes"] > 242).any():
            raise WireError("a terngrad message has a negative scale or a byte above 242")
        if _unpack_trits(parts["codes"])[layout.size :].any():
            raise WireError("a terngrad message has stray trits in its padding")


def _pack_trits(trits: Tensor) -> Tensor:
    """Five numbers of 0..2 in each byte, the last byte filled with zeros."""
    fives = pad(trits, (0, -trits.shape[-1] % 5)).reshape(*trits.shape[:-1], -1, 5)
    return (fives * placed(_WEIGHTS, fives.device, torch.int32)).sum(-1, dtype=torch.int32)


def _unpack_trits(codes: Tensor) -> Tensor:
    """The numbers of 0..2 in bytes below 243."""
    codes = codes.to(torch.int32).unsqueeze(-1)
    return (codes // placed(_WEIGHTS, codes.device, torch.int32) % 3).flatten(-2)
