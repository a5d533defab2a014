"""The largest coordinate of every block of the rotated vector, for some thousandths of a bit per coordinate.

After two random rotations every vector looks Gaussian (coding/hadamard.py). The rotated vector y is cut into
blocks, and of each block travels where its largest coordinate lies, and the sign. The receiver takes 1 or -1
there and 0 elsewhere, y', and multiplies by |y|^2 / <y, y'>, which makes the result unbiased over the
rotations, as in rotated. A block of 2^l coordinates is thus a vector quantiser whose 2^(l + 1) points are the
axes and their opposites, and takes l + 1 bits.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from fedcom.codecs import compact, wire
from fedcom.codecs.base import Codec, Parts, check_range, together, width
from fedcom.codecs.coding import hadamard, normal, rotation, short_scale
from fedcom.codecs.kernels import cpu
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, NotFinite, WireError
from fedcom.vectors import Layout

_SCALE = Field("scale", 1, short_scale.BITS)
_BARE = compact.HEADER + _SCALE.nbytes  # the bytes of a message beside its peaks
_HIGHEST = 64.0  # bits per coordinate; those of a single coordinate are 48
_GRID = 1 / 64  # of the integrals that give a peak's mean and variance
_SIGNS = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class Peaks(Codec):
    """The place and sign of the largest coordinate of every block, after a rotation: for the lowest rates.

    Unbiased, and of the variance it promises, as far as the rotations make a vector Gaussian: from about a
    thousand coordinates on. All messages have the same size.

    Args:
        bits: the most bits per coordinate, header included. The codec cannot use more than one, beside the
            header of a small model.
    """

    bits: float = 0.05

    name: ClassVar[str] = "peaks"
    id: ClassVar[int] = 14
    unbiased: ClassVar[bool] = True
    format: ClassVar[wire.Format] = compact
    lowest_rate: ClassVar[float] = 0.0001

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("bits", self.bits, self.lowest_rate, _HIGHEST)

    def at(self, bits: float) -> Self | None:
        return replace(self, bits=bits) if self.lowest_rate <= bits <= 1 else None

    def variance(self, layout: Layout) -> float:
        cut = self.cut(layout)
        (m1, v1), (m2, v2) = _peak(cut.log + 1), _peak(cut.log)
        blocks = cut.large + cut.small
        mean, variance = cut.large * m1 + cut.small * m2, cut.large * v1 + cut.small * v2
        return hadamard.padded(layout.size) * blocks / mean**2 * (1 + 3 * variance / mean**2) - 1

    def cut(self, layout: Layout) -> "Cut":
        """The blocks of a model's rotated vector; refuses a rate that does not pay for one of them."""
        n, room = hadamard.padded(layout.size), math.floor(self.bits * layout.size / 8 + 1e-6) - _BARE
        found = _finest(n, 8 * room)
        if found is None:
            raise ConfigError(
                f"peaks needs {least_bits(layout):g} bits for each of this model's {layout.size} "
                f"coordinates, {_BARE} bytes of header and scale among them; got {self.bits:g}: raise bits"
            )
        return found

    def fields(self, layout: Layout) -> list[Field]:
        return [_SCALE, *(Field(run.name, run.blocks, run.log + 1) for run in self.cut(layout).runs)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        y, power = rotation.rotate(x, draw)
        found = {run.name: _peaks(y, run, draw) for run in self.cut(layout).runs}
        tops = torch.cat([tops for _, tops in found.values()], dim=-1)
        overlap = tops.double().sum(-1, keepdim=True)
        scale = torch.where(overlap > 0, power / overlap, 0 * power)
        reach = (scale * (2 * math.sqrt(y.shape[-1]))).to(layout.dtype)
        scale = together(scale, power, overlap, reach)
        code, broken = short_scale.to_code(scale, draw.fold("scale")), scale.isnan()
        # Of a vector that is not finite no peak is told: which one is found depends on the device.
        return {"scale": code, **{name: codes.masked_fill(broken, 0) for name, (codes, _) in found.items()}}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        n = hadamard.padded(layout.size)
        y = parts["scale"].new_zeros((*parts["scale"].shape[:-1], n), dtype=torch.int32)
        for run in self.cut(layout).runs:
            codes = parts[run.name]
            y.scatter_(-1, _places(codes, run), (1 - 2 * (codes & 1)).to(torch.int32))
        scale = short_scale.from_code(parts["scale"], layout.dtype)
        return rotation.unrotate(y, -1, _SIGNS, scale, layout, draw)

    def refuse_not_finite(self, parts: Parts, layout: Layout) -> None:
        self.check(parts, layout)

    def check(self, parts: Parts, layout: Layout) -> None:
        if int(parts["scale"]) == short_scale.NOT_FINITE:
            raise NotFinite("a peaks message has a scale that is not finite")
        n = hadamard.padded(layout.size)
        for run in self.cut(layout).runs:
            if (_places(parts[run.name], run) >= n).any():
                raise WireError(f"a peak must lie below {n}")


class Run(NamedTuple):
    """Blocks of equal size, one behind another.

    Args:
        name: the part of a message that holds their peaks.
        start: the first coordinate of the first block.
        blocks: how many there are.
        log: the logarithm of their size to base two.
    """

    name: str
    start: int
    blocks: int
    log: int


class Cut(NamedTuple):
    """Blocks of 2^(log + 1) coordinates, then blocks of 2^log; the last may reach beyond the vector."""

    log: int
    large: int
    small: int

    @property
    def runs(self) -> list[Run]:
        """The large blocks and the small ones, where there are any."""
        large = Run("large", 0, self.large, self.log + 1)
        small = Run("small", self.large << (self.log + 1), self.small, self.log)
        return [run for run in (large, small) if run.blocks]


def least_bits(layout: Layout) -> float:
    """The lowest rate for a model, a multiple of 0.00001 bits per coordinate."""
    peak = width(2 * hadamard.padded(layout.size))
    return math.ceil(1e5 * 8 * (_BARE + (peak + 7) // 8) / layout.size) / 1e5


@lru_cache(maxsize=256)
def _finest(n: int, bits: int) -> Cut | None:
    """The cut of n coordinates into the most blocks whose peaks take at most so many bits.

    None if there is none. Two small blocks in place of a large one take `log` bits more.
    """
    for log in range(1, max(2, width(n))):
        pieces = -(-n >> log)
        large, small = divmod(pieces, 2)
        spare = bits - large * (log + 2) - small * (log + 1)
        if spare >= 0:
            halved = min(large, spare // log)
            return Cut(log, large - halved, small + 2 * halved)
    return None


@lru_cache(maxsize=64)
def _peak(log: int) -> tuple[float, float]:
    """The mean and the variance of the largest magnitude of 2^log normal numbers."""
    first = second = 0.0
    for i in range(int(8 / _GRID)):
        t = (i + 0.5) * _GRID
        above = 1 - (2 * normal.central(t)) ** (1 << log)
        first, second = first + above * _GRID, second + 2 * t * above * _GRID
    return first, second - first * first


def _peaks(y: Tensor, run: Run, draw: Draw) -> tuple[Tensor, Tensor]:
    """The codes of the blocks' peaks, and their magnitudes.

    A code is 2 i for the coordinate i of its block, and 2 i + 1 if the peak is negative.
    """
    if y.dtype == torch.float32 and cpu.ready(y, draw):
        return cpu.peaks(y, run.start, run.blocks, 1 << run.log)
    size = run.blocks << run.log
    some = y[..., run.start : run.start + size]
    whole = functional.pad(some, (0, size - some.shape[-1]))
    blocks = whole.reshape(*y.shape[:-1], run.blocks, 1 << run.log)
    places = blocks.abs().argmax(-1, keepdim=True)  # the first of several
    tops = blocks.gather(-1, places).squeeze(-1)
    return 2 * places.squeeze(-1) + (tops < 0), tops.abs()


def _places(codes: Tensor, run: Run) -> Tensor:
    """The coordinates at which blocks have their peaks."""
    starts = run.start + (torch.arange(run.blocks, device=codes.device) << run.log)
    return starts + (codes >> 1)
