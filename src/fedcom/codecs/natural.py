"""Natural compression (Horvath et al., 2019): a sign and a power of two, rounded stochastically."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, largest
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import NotFinite
from fedcom.vectors import Layout

_LOWEST, _HIGHEST = -126, 127  # the exponents of float32's normal numbers
_BROKEN = 255  # the code of every coordinate of a vector that is not finite as float32


@dataclass(frozen=True)
class Natural(Codec):
    """Nine bits per coordinate, sign and exponent; unbiased with q = 1/8 for coordinates up to 2^127."""

    name: ClassVar[str] = "natural"
    id: ClassVar[int] = 3
    unbiased: ClassVar[bool] = True

    def variance(self, layout: Layout) -> float:
        return 1 / 8

    def fields(self, layout: Layout) -> list[Field]:
        return [Field("codes", layout.size, 9)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        size = x.abs()
        mantissa, exponent = torch.frexp(size)  # |x| = mantissa 2^exponent, mantissa in [1/2, 1)
        down = exponent - 1  # |x| lies between 2^down and 2^(down + 1)
        small = size < 2.0**_LOWEST  # zero too: these become zero or the smallest power
        share = torch.where(small, torch.ldexp(size, -x.new_full((), _LOWEST)), 2 * mantissa - 1)
        up = (draw.uniform(x.shape[-1], x.dtype) < share).to(torch.int32)
        code = torch.where(small, up, down - _LOWEST + 1 + up).clamp(max=_HIGHEST - _LOWEST + 1)
        fits = largest(x).to(torch.float32).isfinite()
        return {"codes": torch.where(fits, code + 256 * torch.signbit(x), _BROKEN)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        code = parts["codes"].to(torch.int32)
        magnitude = code % 256
        one = torch.ones((), dtype=layout.dtype, device=code.device)
        value = torch.ldexp(one, (magnitude - 1 + _LOWEST).to(layout.dtype))
        value = torch.where(magnitude == 0, 0 * one, value)
        value = torch.where(magnitude == _BROKEN, torch.nan * one, value)
        return value * (1 - 2 * (code // 256))

    def refuse_not_finite(self, parts: Parts, layout: Layout) -> None:
        self.check(parts, layout)

    def check(self, parts: Parts, layout: Layout) -> None:
        if (parts["codes"] % 256 == _BROKEN).any():
            raise NotFinite("a natural message holds a value that is not finite")
