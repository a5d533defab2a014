"""Rotation, a quantiser, an entropy coder and an unbiased scale (after EDEN, Vargaftik et al., 2022).

After two random rotations every vector looks Gaussian. So the quantiser's step and levels and the coder's
table follow from the rate alone, and need not travel. The receiver multiplies what it decodes, y', by the
scale |y|^2 / <y, y'> of the rotated vector y, which makes the result unbiased over the rotations.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedcom.codecs import wire
from fedcom.codecs.base import Parts, Sizes, together
from fedcom.codecs.coding import hadamard, lloyd_max, rotation, trellis, uniform
from fedcom.codecs.coding.entropy import STATES
from fedcom.codecs.coding.lloyd_max import LloydMax
from fedcom.codecs.coding.trellis import Trellis
from fedcom.codecs.coding.uniform import Uniform
from fedcom.codecs.entropy_coded import EntropyCoded
from fedcom.codecs.kernels import cpu, gpu
from fedcom.codecs.kernels.jit import placed
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.vectors import Layout

_SCALE = Field("scale", 1, 32, floating=True)
_SMALL = 1 << 12  # up to so many rotated coordinates all of them may be too small for a code
_REACH = 16  # more than twice as much as any quantiser's largest centre

Quantiser = Uniform | Trellis | LloydMax


@dataclass(frozen=True)
class Rotated(EntropyCoded):
    """Rotated, quantised and entropy-coded to any rate from 0.05 to 8 bits per coordinate, header included.

    Unbiased, and of the variance it promises, as far as the rotations make a vector Gaussian: from about a
    thousand coordinates on, the variance below half a bit from some four thousand on. Messages of small
    models exceed the rate: they have 39 bytes beside the codes.

    Args:
        bits: the bits per coordinate; in tier fixed 1, 2, 3 or 4, to which header and padding are added.
        tier: which quantiser. fast is uniform, 0.25 bits from the bound. trellis is 0.07 bits from it up to
            6 bits, and slow: it searches on the CPU, one vector at a time. fixed has no entropy coder and is
            0.27, 0.46, 0.57 or 0.64 bits from the bound, as EDEN is.
    """

    bits: float = 2.0
    tier: Literal["fast", "trellis", "fixed"] = "fast"

    name: ClassVar[str] = "rotated"
    id: ClassVar[int] = 6
    highest_rate: ClassVar[float] = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_rate(self.bits)
        if self.tier == "fixed" and self.bits not in lloyd_max.BITS:
            raise ConfigError(
                f"tier fixed takes 1, 2, 3 or 4 bits; got {self.bits!r}: tier fast has any rate"
            )

    def has_rate(self, bits: float) -> bool:
        return bits in lloyd_max.BITS if self.tier == "fixed" else super().has_rate(bits)

    @property
    def exact_size(self) -> bool:
        return self.tier == "fixed"

    def variance(self, layout: Layout) -> float:
        return self.quantiser(layout).q

    def quantiser(self, layout: Layout) -> Quantiser:
        """The quantiser that meets the rate with header, scale and padding; in tier fixed, without them."""
        if self.tier == "fixed":
            return lloyd_max.for_bits(int(self.bits))
        n = hadamard.padded(layout.size)
        overhead = 8 * (wire.HEADER + _SCALE.nbytes + STATES + 3)  # 3 are lost in the last word and byte
        bits = max((self.bits * layout.size - overhead) / n, 0.02)
        served = self.tier == "trellis" and trellis.RATES[0] <= bits <= trellis.RATES[1]
        return trellis.for_rate(bits) if served else uniform.for_rate(bits)

    def tables(self, layout: Layout) -> bytes:
        quantiser = self.quantiser(layout)
        numbers = torch.cat([quantiser.centres, quantiser.coder.frequencies.double()]).numpy()
        return numbers.astype("<f8").tobytes()

    def fields(self, layout: Layout) -> list[Field]:
        return [_SCALE]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        quantiser = self.quantiser(layout)
        n, b = hadamard.padded(layout.size), hadamard.block_size(layout.size)
        if isinstance(quantiser, Uniform) and n > _SMALL and gpu.rotates(x, draw, b):
            codes, power, overlap = _codes_on_gpu(x, quantiser, draw)
        else:
            codes, power, overlap = _codes(x, quantiser, draw)
        scale = torch.where(overlap > 0, power / overlap, 0 * power)  # zero if all codes mean zero
        # On a GPU the power is that of x, and only the overlap shows that sums overflow in the rotation.
        few = isinstance(quantiser, Uniform) and n <= _SMALL
        loud = codes.ne(0).sum(-1, keepdim=True).double().sqrt() if few else math.sqrt(n)
        reach = (scale * (_REACH * loud)).to(layout.dtype)
        return {"scale": together(scale.to(torch.float32), power, overlap, reach), "codes": codes}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        quantiser = self.quantiser(layout)
        low, centres = quantiser.coder.low, quantiser.centres
        return rotation.unrotate(parts["codes"], low, centres, parts["scale"], layout, draw)

    def on_host(self, parts: Parts, layout: Layout) -> Parts:
        narrow = parts["codes"].to(self.quantiser(layout).coder.dtype)
        return super().on_host({**parts, "codes": narrow}, layout)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        scale = _SCALE.pack(parts["scale"])
        return scale + self.quantiser(layout).coder.pack(parts["codes"]) if parts["scale"].any() else scale

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        scale, stream = self.first_number(_SCALE, body)
        n = hadamard.padded(layout.size)
        if not scale.any() and not stream:
            return {"scale": scale, "codes": torch.zeros(n, dtype=torch.int32, device="cpu")}
        return {"scale": scale, "codes": self.quantiser(layout).coder.unpack(stream, n)}

    def itemise(self, parts: Parts, layout: Layout, exact: bool = True) -> Sizes:
        codes = self.quantiser(layout).coder.nbytes(parts["codes"], exact)
        sent = parts["scale"].squeeze(-1) > 0  # of a vector of zeros only the scale travels
        return {"header": wire.HEADER, "scale": _SCALE.nbytes, "codes": torch.where(sent, codes, 0)}


def _codes(x: Tensor, quantiser: Quantiser, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of the rotated vectors, their |y|^2, and their inner product with what the codes mean.

    The last two are columns in float64.
    """
    y = hadamard.rotate(x, draw)
    power = rotation.power_of(y, draw)
    sigma = _deviation(power, y.shape[-1])
    fast = y.dtype == torch.float32 and cpu.ready(y, draw)
    if fast and isinstance(quantiser, Uniform):
        centres, coder = placed(quantiser.centres, y.device, y.dtype), quantiser.coder
        codes, overlap = cpu.quantised(y, sigma * quantiser.step, coder.low, coder.high, centres)
    else:
        codes = quantiser.codes(y, sigma)
        image = rotation.image(codes, quantiser.coder.low, quantiser.centres, y.dtype)
        overlap = cpu.product(y, image) if fast else (y.double() * image).sum(-1, keepdim=True)
    if isinstance(quantiser, Uniform) and y.shape[-1] <= _SMALL:
        codes, overlap = _with_one_at_least(codes, overlap, y, power, quantiser)
    return codes, power, overlap


def _with_one_at_least(
    codes: Tensor, overlap: Tensor, y: Tensor, power: Tensor, quantiser: Uniform
) -> tuple[Tensor, Tensor]:
    """Codes and overlap where a vector whose codes are all zero has one for its largest coordinate.

    Without it nothing would be heard of the vector, and no scale of other messages makes up for that.
    """
    silent = (overlap == 0) & (power > 0) & power.isfinite()
    if not (silent.is_cuda or silent.any()):
        return codes, overlap
    place = y.abs().argmax(-1, keepdim=True)  # the first of several
    top = y.gather(-1, place)
    centre = placed(quantiser.centres, y.device, y.dtype)[1 - quantiser.coder.low]
    code = (1 - 2 * (top < 0).to(codes.dtype)).where(silent, codes.gather(-1, place))
    return codes.scatter(-1, place, code), torch.where(silent, (top.abs() * centre).double(), overlap)


def _codes_on_gpu(x: Tensor, quantiser: Uniform, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """The same as _codes, by the kernels for a GPU."""
    n, b = hadamard.padded(x.shape[-1]), hadamard.block_size(x.shape[-1])
    y, power = gpu.first_half(x, n, b, draw)
    step, centres = _deviation(power, n) * quantiser.step, placed(quantiser.centres, x.device, x.dtype)
    coder = quantiser.coder
    codes, overlap = gpu.second_half(y, b, step, coder.low, coder.high, centres, draw)
    return codes, power, overlap


def _deviation(power: Tensor, n: int) -> Tensor:
    """The standard deviation of n coordinates whose squares sum to `power`."""
    return (power / n).sqrt().to(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
