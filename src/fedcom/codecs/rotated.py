"""Rotation, a uniform quantiser, an entropy coder and an unbiased scale (after EDEN, Vargaftik et al., 2022).

After two random rotations every vector looks Gaussian, so the quantiser's step, its reconstruction points and
the coder's table follow from the rate alone and need not travel. The scale |y|^2 / <y, y^> makes the result
unbiased over the rotation.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedcom import wire
from fedcom.codecs import fused, hadamard, lloyd_max, trellis
from fedcom.codecs.base import Codec, Parts, within
from fedcom.codecs.entropy import PRECISION, STATES, Alphabet, normalise
from fedcom.codecs.kernels import COMPILED
from fedcom.codecs.lloyd_max import LloydMax
from fedcom.codecs.trellis import Trellis
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from fedcom.wire import Field

_SCALE = Field("scale", 1, 32, floating=True)
_SYMBOLS = 200  # at most; finer codes send their low bits raw
_REACH = 5.0  # standard deviations; what lies beyond counts as the last code


class Quantiser(NamedTuple):
    """A uniform quantiser of a standard normal variable, with the mean of each cell."""

    step: float
    centres: Tensor
    alphabet: Alphabet
    rate: float  # bits a coordinate
    q: float  # 1/cos^2 - 1 between a Gaussian vector and its image

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations."""
        step = (sigma * self.step).to(y.dtype)
        if COMPILED and y.device.type == "cpu" and y.dtype == torch.float32:
            return fused.levels(y, step, self.alphabet.low, self.alphabet.high)
        codes = (y / step).round_()
        return codes.nan_to_num_(0).clamp_(self.alphabet.low, self.alphabet.high).to(torch.int32)


@dataclass(frozen=True)
class Rotated(Codec):
    """Rotated, quantised and entropy-coded to any rate from 0.05 to 8 bits a coordinate, headers in.

    Unbiased, with the variance promised, as far as the rotations make a vector Gaussian: from about a
    thousand coordinates on. Shorter vectors are better sent another way. The trellis tier, up to 6 bits, is
    0.07 bits from the bound where the fast one is 0.25, and slow: it searches on the CPU, vector by vector.
    The fixed tier has 1, 2, 3 or 4 bits a coordinate, beside header and padding, and no entropy coder; it is
    0.27, 0.46, 0.57 and 0.64 bits from the bound, as EDEN is.
    """

    bits: float = 2.0
    tier: Literal["fast", "trellis", "fixed"] = "fast"

    name: ClassVar[str] = "rotated"
    id: ClassVar[int] = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        within("bits", self.bits, 0.05, 8)
        if self.tier == "fixed" and self.bits not in lloyd_max.BITS:
            raise ConfigError(f"tier fixed has 1, 2, 3 or 4 bits; got {self.bits!r}: tier fast has any rate")

    @classmethod
    def at(cls, bits: float) -> "Rotated | None":
        return cls(bits) if 0.05 <= bits <= 8 else None

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def exact_size(self) -> bool:
        return self.tier == "fixed"

    def variance(self, layout: Layout) -> float:
        return self.quantiser(layout).q

    def quantiser(self, layout: Layout) -> Quantiser | Trellis | LloydMax:
        """The quantiser that meets the rate once header, scale and padding are paid; fixed has them on top."""
        if self.tier == "fixed":
            return lloyd_max.for_bits(int(self.bits))
        n = hadamard.padded(layout.size)
        overhead = 8 * (wire.HEADER + _SCALE.nbytes + STATES) - 32
        bits = max((self.bits * layout.size - overhead) / n, 0.02)
        served = self.tier == "trellis" and trellis.RATES[0] <= bits <= trellis.RATES[1]
        return trellis.for_rate(bits) if served else for_rate(bits)

    def fields(self, layout: Layout) -> list[Field]:
        return [_SCALE]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        y, quantiser = hadamard.rotate(x, draw), self.quantiser(layout)
        fast = y.dtype == torch.float32 and fused.ready(y, draw)
        size = fused.power(y) if fast else y.double().square().sum(-1, keepdim=True)
        sigma = (size / y.shape[-1]).sqrt().to(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
        codes = quantiser.codes(y, sigma)
        image = self._image(codes, quantiser, y.dtype)
        overlap = fused.product(y, image) if fast else (y.double() * image).sum(-1, keepdim=True)
        scale = torch.where(overlap > 0, size / overlap, 0 * size)  # no code but zero
        scale = torch.where(size.isfinite(), scale, torch.nan)  # a NaN of one kind, wherever it was made
        return {"scale": scale.to(torch.float32), "codes": codes}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        image = self._image(parts["codes"], self.quantiser(layout), layout.dtype)
        return hadamard.unrotate(image, layout.size, draw) * parts["scale"].to(layout.dtype)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        return _SCALE.pack(parts["scale"]) + self.quantiser(layout).alphabet.pack(parts["codes"])

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        if len(body) < _SCALE.nbytes:
            raise WireError(f"a rotated message cannot have {len(body)} bytes")
        scale = _SCALE.unpack(body[: _SCALE.nbytes])
        if (scale < 0).any():
            raise WireError("a rotated message has a negative scale")
        n = hadamard.padded(layout.size)
        return {"scale": scale, "codes": self.quantiser(layout).alphabet.unpack(body[_SCALE.nbytes :], n)}

    def itemise(self, parts: Parts, layout: Layout) -> dict[str, int]:
        messages = parts["scale"].numel()
        codes = self.quantiser(layout).alphabet.nbytes(parts["codes"])
        return {"header": messages * wire.HEADER, "scale": messages * _SCALE.nbytes, "codes": codes}

    @staticmethod
    def _image(codes: Tensor, quantiser: Quantiser | Trellis | LloydMax, dtype: torch.dtype) -> Tensor:
        centres = quantiser.centres.to(codes.device, dtype)
        if COMPILED and codes.device.type == "cpu" and dtype == torch.float32:
            return fused.image(codes, quantiser.alphabet.low, centres)
        return centres[(codes - quantiser.alphabet.low).to(torch.int64)]


@lru_cache(maxsize=256)
def for_rate(bits: float) -> Quantiser:
    """The quantiser of a standard normal variable at so many bits, by bisection on its step."""
    fine, coarse = 1e-4, 12.0
    for _ in range(60):
        middle = (fine * coarse) ** 0.5
        fine, coarse = (middle, coarse) if _quantiser(middle).rate > bits else (fine, middle)
    return _quantiser(coarse)


def _quantiser(step: float) -> Quantiser:
    k = max(1, int(_REACH / step + 0.5))
    shift = max(0, ((2 * k + 1) // _SYMBOLS).bit_length())
    edges = (torch.arange(-k, k + 2, dtype=torch.float64) - 0.5) * step
    edges[0], edges[-1] = -torch.inf, torch.inf
    mass = torch.special.ndtr(edges).diff()
    density = torch.exp(-0.5 * edges.square())
    centres = -density.diff() / mass.clamp(min=1e-300) / (2 * torch.pi) ** 0.5
    symbols = -(-(2 * k + 1) >> shift)
    share = torch.zeros(symbols << shift, dtype=torch.float64)
    share[: 2 * k + 1] = mass
    share = share.reshape(symbols, 1 << shift).sum(-1)
    frequencies = normalise(share.clamp(min=1e-12))
    rate = shift + float((share * (PRECISION - frequencies.double().log2())).sum())
    overlap = float((mass * centres.square()).sum())
    return Quantiser(
        step, _fill(centres, symbols << shift), Alphabet(-k, shift, frequencies), rate, 1 / overlap - 1
    )


def _fill(centres: Tensor, n: int) -> Tensor:
    """Centres for codes that only a made-up message holds."""
    return torch.cat([centres, centres[-1:].expand(n - len(centres))])
