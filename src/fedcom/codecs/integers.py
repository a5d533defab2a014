"""Affine integers: 2^bits levels from the smallest to the largest value, as in the paper's experiments."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from fedcom.codecs.base import Parts, check_range, float32_above, together
from fedcom.codecs.blocks import InBlocks
from fedcom.codecs.kernels import cpu
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout


@dataclass(frozen=True)
class Int(InBlocks):
    """Integers of 1 to 16 bits between the smallest and the largest value, per tensor or per vector.

    Args:
        bits: the bits of each coordinate.
        rounding: stochastic is unbiased; nearest is not, and does not meet the paper's assumption.
        scale: what shares a smallest and a largest value, each tensor or the whole vector.
        zero_point_noise: r, for a random shift of each tensor by a whole number of steps in [-r, r].
    """

    bits: int = 8
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    scale: Literal["tensor", "vector"] = "tensor"
    zero_point_noise: int = 0

    name: ClassVar[str] = "int"
    id: ClassVar[int] = 1
    dithers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("bits", self.bits, 1, 16)
        check_range("zero_point_noise", self.zero_point_noise, 0, 65535)

    def at(self, bits: float) -> Self | None:
        return replace(self, bits=int(bits)) if bits in range(1, 17) else None

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def variance(self, layout: Layout) -> float:
        # A step is at most sqrt(2)|x|/top. In every coordinate rounding adds at most step^2/4, and the noise
        # adds step^2 r(r+1)/3.
        noise = self.zero_point_noise * (self.zero_point_noise + 1) / 3
        return max(self.blocks(layout).sizes) * 2 * (0.25 + noise) / self.top**2

    def fields(self, layout: Layout) -> list[Field]:
        scales = [self.scales(name, layout) for name in ("low", "step")]
        return [*scales, Field("codes", layout.size, self.bits)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        low, step = self._scales(x, layout)
        if self._loops(x, layout, draw):
            codes = cpu.integers(x, self._affine(low, step, layout), draw if self.unbiased else None)
        else:
            z = (x - self._per_coordinate(low, layout)).div_(self._per_coordinate(step, layout))
            u = draw.dither(x.shape[-1], x.dtype) if self.unbiased else 0.5
            floor = z.floor()
            codes = (floor + (u < z.sub_(floor))).nan_to_num_(0).clamp_(0, self.top).to(torch.int32)
        return {"low": self._moved(low, step, draw).to(torch.float32), "step": step, "codes": codes}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        low, step, codes = parts["low"].to(layout.dtype), parts["step"].to(layout.dtype), parts["codes"]
        if torch.compiler.is_compiling():
            return codes * self._per_coordinate(step, layout) + self._per_coordinate(low, layout)
        if self._loops(codes, layout, draw):
            return cpu.values(codes, low, step, self.blocks(layout).sizes)
        x = codes.to(layout.dtype, copy=True)
        for k, block in enumerate(self.blocks(layout).split(x)):  # in place: messages may be large
            block.mul_(step[..., k : k + 1]).add_(low[..., k : k + 1])
        return x

    def quantise(self, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        changed = type(self).compress is not Int.compress or type(self).expand is not Int.expand
        if changed or not self._loops(x, layout, draw):  # the loops are for this class's own rules
            return super().quantise(x, layout, draw)
        low, step = self._scales(x, layout)
        affine, moved = self._affine(low, step, layout), self._moved(low, step, draw)
        return cpu.heard(x, affine, draw if self.unbiased else None, moved)

    def _loops(self, x: Tensor, layout: Layout, draw: Draw) -> bool:
        """Whether compiled loops serve a vector, or the codes of one."""
        known = x.dtype in (torch.float32, torch.int32) and layout.dtype == torch.float32
        return known and draw.strata is None and cpu.ready(x, draw)

    def _scales(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """The smallest value of each block, and its step; NaN steps if the message is not finite."""
        blocks = self.blocks(layout).split(x)
        low = torch.stack([block.amin(-1) for block in blocks], -1)
        high = torch.stack([block.amax(-1) for block in blocks], -1)
        low = -float32_above(-low) if x.dtype == torch.float64 else low
        step = float32_above((high - low) / self.top)
        # The least and the largest value that may be heard; twice the noise leaves room for rounding.
        a, b, r = low.to(layout.dtype), step.to(layout.dtype), 2 * self.zero_point_noise
        return low, together(step, a - r * b, a + (self.top + r) * b)

    def _affine(self, low: Tensor, step: Tensor, layout: Layout) -> cpu.Affine:
        return cpu.Affine(low, step, self.blocks(layout).sizes, self.top)

    def _moved(self, low: Tensor, step: Tensor, draw: Draw) -> Tensor:
        """The smallest value of each block as it travels: moved by the noise, if any."""
        r = self.zero_point_noise
        if not r:
            return low
        return low + step * (draw.fold("zero-point").integers(2 * r + 1, low.shape[-1]) - r)

    def _per_coordinate(self, scales: Tensor, layout: Layout) -> Tensor:
        """The scale of every coordinate, given one per block."""
        sizes = self.blocks(layout).sizes
        # A compiled look-up is one load; a compiled concatenation compares every coordinate to every piece.
        if torch.compiler.is_compiling() and len(sizes) > 1:
            place = torch.arange(layout.size, dtype=torch.int32, device=scales.device)
            return scales[..., sum((place >= start).int() for start in accumulate(sizes[:-1]))]
        pieces = [scales[..., i : i + 1].expand(*scales.shape[:-1], size) for i, size in enumerate(sizes)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["step"] < 0).any():
            raise WireError("an int message has a negative step")
