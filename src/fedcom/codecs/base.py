"""What a codec is: a lossy map of vectors, split where the wire is.

`compress` makes the parts that travel, `expand` makes the vector the receiver sees, and `fields` says how
many bits each part takes. Simulation runs expand(compress(x)) on all clients at once; a real link packs
the same parts into bytes, so the two agree by construction and the size is known without the bytes.
"""

import math
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedcom import settings
from fedcom.codecs import wire
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

Parts = dict[str, Tensor]
# The bytes of each part: one number that holds for every message, or one per message, in a tensor with
# the leading axes of x.
Sizes = dict[str, int | Tensor]


@dataclass(frozen=True)
class Codec(ABC):
    """A compressor with its exact byte format; parameters are fields."""

    name: ClassVar[str]
    id: ClassVar[int]  # one byte in the message header; never reused
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settings.check(self)

    def at(self, bits: float) -> Self | None:
        """This codec, its other settings kept, at about so many bits per coordinate.

        None where it has no such rate.
        """
        return None

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether E Q(x) = x, as the paper assumes."""

    @property
    def exact_size(self) -> bool:
        """Whether itemise is the real size; else it is within 0.2% or a few bytes of it."""
        return True

    @abstractmethod
    def variance(self, layout: Layout) -> float:
        """The promise v in E|Q(x) - x|^2 <= v |x|^2: q if unbiased, else one minus the contraction."""

    def kept(self, layout: Layout) -> float:
        """The share of x a message carries; if unbiased, 1/(1 + q): that multiple of Q is nearest to x."""
        return 1 / (1 + self.variance(layout)) if self.unbiased else 1.0

    @abstractmethod
    def fields(self, layout: Layout) -> list[Field]:
        """What a message holds, in order."""

    @abstractmethod
    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        """The parts that travel; leading axes of x and of every part are clients."""

    @abstractmethod
    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        """The vector the receiver sees."""

    def check(self, parts: Parts, layout: Layout) -> None:  # noqa: B027
        """Raise WireError on parts that no sender following the format makes; by default all will do."""

    def quantise(self, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """What the receiver will see of x, without making the bytes."""
        return self.expand(self.compress(x, layout, draw), layout, draw)

    def transmit(self, x: Tensor, layout: Layout, draw: Draw) -> tuple[Tensor, Sizes]:
        """What the receiver hears of x, and the bytes of each message by part, without making them.

        Here every message has the same size. A codec whose sizes depend on the vector overrides this, as
        EntropyCoded does.
        """
        return self.quantise(x, layout, draw), self.itemise({}, layout)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        """The body of one message."""
        return wire.pack(self.fields(layout), parts)

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        """The parts of one message, checked."""
        parts = wire.unpack(self.fields(layout), body)
        self.check(parts, layout)
        return parts

    def itemise(self, parts: Parts, layout: Layout) -> Sizes:
        """The bytes of each message by part, header included; a codec of fixed sizes ignores the parts."""
        return {"header": wire.HEADER, **{f.name: f.nbytes for f in self.fields(layout)}}

    def fingerprint(self, layout: Layout) -> int:
        """32 bits that sender and receiver agree on only if codec, parameters, layout and tables do."""
        return zlib.crc32(self._spelt + self.tables(layout), layout.fingerprint)

    @cached_property
    def _spelt(self) -> bytes:
        return repr(self).encode()

    def tables(self, layout: Layout) -> bytes:
        """What sender and receiver each work out from the parameters; by default nothing."""
        return b""

    def encode(self, x: Tensor, layout: Layout, draw: Draw) -> bytes:
        """The message of one vector."""
        body = self.pack(self.compress(x, layout, draw), layout)
        return wire.frame(self.id, self.fingerprint(layout), body)

    def decode(self, data: bytes, layout: Layout, draw: Draw) -> Tensor:
        """The vector of one message; equals quantise(x) for the same draw."""
        parts = self.unpack(wire.unframe(self.id, self.fingerprint(layout), data), layout)
        x = self.expand({name: part.to(draw.key.device) for name, part in parts.items()}, layout, draw)
        if not math.isfinite(x.sum()) and not math.isfinite(x.abs().max()):  # the sum is quicker
            raise WireError(f"a {self.name} message overflows: its scale is too large")
        return x


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a parameter outside its range."""
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low:g} and {high:g}; got {value!r}")


def check_share(name: str, value: float) -> None:
    """Refuse a share that is not in (0, 1]."""
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be above 0 and at most 1; got {value!r}")


def width(symbols: int) -> int:
    """Bits that tell `symbols` different values apart."""
    return max(1, (symbols - 1).bit_length())


def float32_above(x: Tensor) -> Tensor:
    """The float32 just above x: scales that travel as float32 must not fall short of the data."""
    y = x.to(torch.float32)
    return torch.nextafter(y, torch.full_like(y, torch.inf))


def kept_count(ratio: float, d: int) -> int:
    """The number of coordinates a sparsifier keeps of d."""
    return max(1, round(ratio * d))
