"""What a codec is: a lossy map of vectors, in two halves, the sender's and the receiver's.

`compress` makes the parts that travel, `expand` makes the vector the receiver sees, and `fields` says how
many bits each part takes. A simulation runs expand(compress(x)) on all clients at once. A real link packs
the same parts into bytes, so both give the same vector, and sizes are known without making the bytes.

What is not finite has one meaning for every codec, on every processor. A vector that holds inf or NaN, or one
so large that its message or what is heard of it might overflow, is heard as NaN in every coordinate, and
counts as many bytes as a vector of zeros (with auto, one that its first candidate sends). `encode` raises
NotFinite for it. The other vectors of a stack are heard as they are alone. The identity, which computes
nothing, hands on such a vector as it is.

So a codec's `compress` makes NaN of every scale of such a message (`together` helps), never an integer of a
NaN, and `expand` makes NaN of all coordinates where a scale is NaN. Codecs that are not fedcom's own need not
care: they are given zeros in place of such a vector, and what they make of them is not heard.
"""

import math
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedcom import settings
from fedcom.codecs import wire
from fedcom.codecs.wire import Data, Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, NotFinite
from fedcom.formats import described, html_table
from fedcom.vectors import Layout

OTHERS_IDS = range(128, 256)  # a message has one byte for the id; those below are fedcom's own
Parts = dict[str, Tensor]  # what travels of a vector, by name
# The bytes of each part: one number that holds for every message, or one per message, in a tensor with
# the leading axes of x.
Sizes = dict[str, int | Tensor]


@dataclass(frozen=True)
class Codec(ABC):
    """A compressor with its exact byte format; its settings are the fields of the dataclass.

    In every method x is one vector [d] or a stack [clients, d], `layout` says where the model's tensors lie
    in it, and `draw` holds the random numbers that sender and receiver share, one key per client.

    Attributes:
        name: what a config calls the codec.
        id: the codec's byte in the message header; never used for another codec.
        lossless: whether the receiver sees exactly x.
        dithers: whether it rounds with Draw.dither, which clients can spread so that errors cancel.
        format: that of the messages: wire, or compact for those of some dozen bytes.
        lowest_rate: the least bits per coordinate of a budget that follows from a bandwidth.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    lossless: ClassVar[bool] = False
    dithers: ClassVar[bool] = False
    format: ClassVar[wire.Format] = wire
    lowest_rate: ClassVar[float] = 0.05

    def __post_init__(self) -> None:
        settings.check(self)

    def _repr_html_(self) -> str:
        """Its settings as a table, for notebooks."""
        words = (type(self).__doc__ or "").strip().splitlines()[:1]
        kind = "lossless" if self.lossless else "unbiased" if self.unbiased else "biased"
        rows = [("what", *words), ("kind", kind)]
        rows += [(field.name, getattr(self, field.name)) for field in dataclass_fields(self)]
        return html_table(rows, title=f"codec {self.name}")

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
        """Whether itemise gives the real size on every device.

        If not, it does so on a CPU, but on a GPU or without numba is within 12 bytes or 0.1% of it.
        """
        return True

    def counts_exactly(self, x: Tensor) -> bool:
        """Whether the bytes that transmit counts for x are those of the real messages."""
        return self.exact_size

    @abstractmethod
    def variance(self, layout: Layout) -> float:
        """The v for which the codec promises E|Q(x) - x|^2 <= v |x|^2.

        The paper's q if the codec is unbiased, one minus its contraction if not.
        """

    def kept(self, layout: Layout) -> float:
        """The share of x that a message carries.

        If the codec is unbiased this is 1/(1 + q), the multiple of Q(x) that is nearest to x on average.
        """
        if not self.unbiased:
            return 1.0
        q = self.variance(layout)
        if not q >= 0:
            raise ConfigError(f"codec {self.name}: variance must be zero or more; got {q}")
        return 1 / (1 + q)

    @abstractmethod
    def fields(self, layout: Layout) -> list[Field]:
        """What a message holds, in the order in which it is written."""

    @abstractmethod
    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        """The parts that travel; leading axes of x and of every part are clients."""

    @abstractmethod
    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        """The vector the receiver sees."""

    def check(self, parts: Parts, layout: Layout) -> None:  # noqa: B027
        """Raise WireError on parts that no sender following the format makes; by default none are refused."""

    def quantise(self, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """What the receiver will see of x, without making the bytes."""
        return self._heard(self._parts(x, layout, draw), x, layout, draw)

    def _parts(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        """The parts of x; a codec not of fedcom is checked, and shown finite vectors alone."""
        if self.id not in OTHERS_IDS:
            return self.compress(x, layout, draw)
        finite = largest(x).isfinite()
        parts = self.compress(torch.where(finite, x, 0.0), layout, draw)
        named = isinstance(parts, dict)
        wrong = [part for part in parts.values() if not isinstance(part, Tensor)] if named else [parts]
        if wrong:
            got = described(wrong[0])
            raise ConfigError(f"codec {self.name}: compress must return tensors by name; got {got}")
        if type(self).pack is Codec.pack and not _unseen(finite):
            self._check_fields(parts, layout, x[..., 0].numel())
        return parts

    def _heard(self, parts: Parts, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """What the receiver will see of the parts that `_parts` made of x."""
        heard = self._expanded(parts, x, layout, draw)
        return torch.where(largest(x).isfinite(), heard, torch.nan) if self.id in OTHERS_IDS else heard

    def _expanded(self, parts: Parts, like: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """What expand makes of some parts; if the codec is not of fedcom, its shape and dtype are checked."""
        heard = self.expand(parts, layout, draw)
        if self.id in OTHERS_IDS and described(heard) != described(like):
            raise ConfigError(
                f"codec {self.name}: expand must return {described(like)}; got {described(heard)}"
            )
        return heard

    def _check_fields(self, parts: Parts, layout: Layout, messages: int) -> None:
        """Refuse parts that the fields cannot hold: their bytes would be counted wrong."""
        known = {field.name: field for field in self.fields(layout)}
        for name in {*known, *parts}:
            wrong = (
                "is not made by compress"
                if name not in parts
                else "is not in fields, so its bytes are not counted"
                if name not in known
                else known[name].misfit(parts[name], messages)
            )
            if wrong:
                raise ConfigError(f"codec {self.name}: part {name!r} {wrong}")

    def transmit(self, x: Tensor, layout: Layout, draw: Draw) -> tuple[Tensor, Sizes]:
        """What the receiver hears of x, and the bytes of each message by part, without making them.

        Here every message has the same size. A codec whose sizes depend on the vector overrides this, as
        EntropyCoded does.
        """
        return self.quantise(x, layout, draw), self.itemise({}, layout)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        """The body of one message."""
        return self.format.pack(self.fields(layout), parts)

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        """The parts of one message; raises WireError if no sender following the format makes them."""
        parts = self.format.unpack(self.fields(layout), body)
        self.check(parts, layout)
        return parts

    def itemise(self, parts: Parts, layout: Layout) -> Sizes:
        """The bytes of each message by part, header included; a codec of fixed sizes ignores the parts."""
        return {"header": self.format.HEADER, **self.format.sizes(self.fields(layout))}

    def fingerprint(self, layout: Layout) -> int:
        """A 32-bit checksum of codec, settings, layout and tables; a message with another one is refused."""
        return zlib.crc32(self._spelt + self.tables(layout), layout.fingerprint)

    @cached_property
    def _spelt(self) -> bytes:
        return repr(self).encode()

    def tables(self, layout: Layout) -> bytes:
        """The tables that sender and receiver each compute from the settings, as bytes; by default none."""
        return b""

    def encode(self, x: Tensor, layout: Layout, draw: Draw) -> bytes:
        """The message of one vector; raises NotFinite if there is none, as the module says above."""
        return self.pack_message(self.encode_parts(x, layout, draw), layout)

    def encode_parts(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        """The first half of encode, on the device of x: the parts of one vector, which can be sent."""
        try:
            if self.id in OTHERS_IDS and not largest(x).isfinite():
                raise NotFinite
            parts = self._parts(x, layout, draw)
            self.refuse_not_finite(parts, layout)
            return parts
        except NotFinite as error:
            why = f"this vector: {error}" if largest(x).isfinite() else "a vector that holds inf or NaN"
            raise NotFinite(f"codec {self.name} cannot send {why}") from None

    def on_host(self, parts: Parts, layout: Layout) -> Parts:
        """The parts of one vector on the CPU, where `pack` takes them; their numbers may be narrower."""
        return {name: part.cpu() for name, part in parts.items()}

    def pack_message(self, parts: Parts, layout: Layout) -> bytes:
        """The second half of encode, on the CPU, where several threads may do it at once."""
        return self.frame(self.pack(parts, layout), layout)

    def refuse_not_finite(self, parts: Parts, layout: Layout) -> None:
        """Raise NotFinite if the parts of one vector are marked as not finite."""
        for name, part in parts.items():
            if part.is_floating_point() and not math.isfinite(part.sum()) and not part.isfinite().all():
                raise NotFinite(f"its {name!r} would not be finite")

    def frame(self, body: bytes, layout: Layout) -> bytes:
        """The message that has this body."""
        return self.format.frame(self.id, self.fingerprint(layout), body)

    def decode(self, data: Data, layout: Layout, draw: Draw) -> Tensor:
        """The vector of one message; equals quantise(x) for the same draw."""
        return self.decode_parts(self.unpack_message(data, layout), layout, draw)

    def unpack_message(self, data: Data, layout: Layout) -> Parts:
        """The first half of decode, on the CPU, where several threads may do it at once."""
        return self.unpack(self.format.unframe(self.id, self.fingerprint(layout), data), layout)

    def decode_parts(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        """The second half of decode, on the device of the draw: the vector of a message's parts."""
        parts = {name: part.to(draw.key.device) for name, part in parts.items()}
        like = torch.empty(layout.size, dtype=layout.dtype, device="meta")
        x = self._expanded(parts, like, layout, draw)
        if not math.isfinite(x.sum()) and not math.isfinite(x.abs().max()):  # the sum is quicker
            raise NotFinite(f"a {self.name} message overflows: its scale is too large")
        return x


def _unseen(finite: Tensor) -> bool:
    """Whether a compiler or a GPU that records a graph hides the values, or some vector is not finite."""
    if torch.compiler.is_compiling() or (finite.is_cuda and torch.cuda.is_current_stream_capturing()):
        return True
    return not bool(finite.all())


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of each vector, as a column; NaN if the vector holds one."""
    return torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))


def together(scales: Tensor, *reach: Tensor) -> Tensor:
    """The scales of each message, all of them NaN if one of them is not finite.

    Args:
        reach: further numbers for each message that must be finite, as columns: what may be heard at most.
    """
    finite = scales.isfinite().all(-1, keepdim=True)
    for numbers in reach:
        finite = finite & numbers.isfinite().all(-1, keepdim=True)
    return torch.where(finite, scales, torch.nan)


def nested(name: object, parts: Parts) -> Parts:
    """The parts that another codec made, under names that begin with its own."""
    return {f"{name} {part}": x for part, x in parts.items()}


def parts_of(name: object, parts: Parts) -> Parts:
    """Those of the parts that `nested` named so, under the names their codec has for them."""
    return {part.removeprefix(f"{name} "): x for part, x in parts.items() if part.startswith(f"{name} ")}


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a setting outside its range, ends included."""
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low:g} and {high:g}; got {value!r}")


def check_share(name: str, value: float) -> None:
    """Refuse a setting that is no share: above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be above 0 and at most 1; got {value!r}")


def width(symbols: int) -> int:
    """The number of bits that tell `symbols` different values apart."""
    return max(1, (symbols - 1).bit_length())


def float32_above(x: Tensor) -> Tensor:
    """The float32 just above x, for scales that travel as float32 and must not be smaller than the data."""
    y = x.to(torch.float32)
    return torch.nextafter(y, torch.full_like(y, torch.inf))


def kept_count(ratio: float, d: int) -> int:
    """How many of d coordinates a sparsifier keeps."""
    return max(1, round(ratio * d))


def spread_out(values: Tensor, indices: Tensor, d: int) -> Tensor:
    """Vectors of d coordinates with values at some places and zeros elsewhere; all NaN if the values are."""
    x = values.new_empty((*values.shape[:-1], d))
    x.copy_(torch.where(values[..., :1].isnan(), torch.nan, 0.0))
    return x.scatter_(-1, indices, values)
