"""The byte format of a message: a header, then the codec's fields, each packed to its own width.

    offset  bytes  what
    0       2      magic, b"FC"
    2       1      version of this format, 1
    3       1      codec id
    4       4      fingerprint of the codec's parameters and tables and the layout (names, shapes, dtype)
    8       4      length of the body in bytes
    12      4      CRC-32 of the body
    16      ...    the codec's fields, in its own order, each starting on a byte

Numbers are little-endian. Integers of fewer than 8 bits, or of a width that is no machine type, are
packed bit by bit, most significant bit first, and the last byte of a field is filled up with zeros.

Messages of few bytes have the compact format of compact.py instead, which is version 2.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.errors import NotFinite, WireError

_HEADER = struct.Struct("<2sBBIII")
HEADER = _HEADER.size
VERSION = 1
RETIRED = {4: "top-k with plain indices"}  # ids of what earlier versions of fedcom sent
_TYPES = {8: "<u1", 16: "<u2", 32: "<u4"}

Bits = NDArray[np.uint8]  # one bit per number
Data = bytes | memoryview  # of a message


@dataclass(frozen=True)
class Field:
    """One named array of a message.

    Args:
        count: how many numbers it holds.
        bits: the bits of each number.
        floating: whether the numbers are floats; otherwise they are unsigned integers.
    """

    name: str
    count: int
    bits: int
    floating: bool = False

    @property
    def nbytes(self) -> int:
        """The size of the packed array."""
        return (self.count * self.bits + 7) // 8

    def misfit(self, values: Tensor, messages: int) -> str | None:
        """Why the field cannot hold the values of some messages; None: it can."""
        if values.numel() != self.count * messages:
            return f"has {self.count} numbers, but got {values.numel() / messages:g} per message"
        if self.floating:
            kept = values.to({16: torch.float16, 32: torch.float32, 64: torch.float64}[self.bits])
            exact = bool(((kept.to(values.dtype) == values) | values.isnan()).all())
            return None if exact else f"has floats of {self.bits} bits; round the values to them in compress"
        if values.is_floating_point() and not bool((values == values.round()).all()):
            return f"has whole numbers, but got {'NaN' if values.isnan().any() else 'fractions'}"
        low, high = (int(values.min()), int(values.max())) if values.numel() else (0, 0)
        if low < 0 or high >= 2**self.bits:
            return f"has whole numbers from 0 to {2**self.bits - 1}, but got {low} to {high}"
        return None

    def pack(self, values: Tensor) -> bytes:
        """The field's bytes."""
        array = values.detach().cpu().reshape(-1).numpy()
        if self.floating:
            return array.astype(f"<f{self.bits // 8}").tobytes()
        if self.bits in _TYPES:
            return array.astype(_TYPES[self.bits]).tobytes()
        return np.packbits(self.to_bits(values)).tobytes()

    def to_bits(self, values: Tensor) -> Bits:
        """The bits of integers, the most significant bit of each first."""
        array = values.detach().cpu().reshape(-1).numpy().astype(np.uint32)
        shifts = np.arange(self.bits - 1, -1, -1, dtype=np.uint32)
        return ((array[:, None] >> shifts) & 1).astype(np.uint8).reshape(-1)

    def unpack(self, data: memoryview) -> Tensor:
        """The field's values; floats that are not finite are refused."""
        if self.floating:
            numbers = np.frombuffer(data, f"<f{self.bits // 8}").copy()
            if not np.isfinite(numbers).all():
                raise NotFinite(f"field {self.name!r} holds a value that is not finite")
            return torch.from_numpy(numbers)
        if self.bits in _TYPES:
            return torch.from_numpy(np.frombuffer(data, _TYPES[self.bits]).astype(self._type))
        total = self.count * self.bits
        bits = np.unpackbits(np.frombuffer(data, np.uint8))
        if bits[total:].any():
            raise WireError(f"field {self.name!r} has stray bits in its padding")
        return self.from_bits(bits[:total])

    def from_bits(self, bits: Bits) -> Tensor:
        """The integers that have these bits."""
        numbers = np.zeros(self.count, self._type)
        for column in bits.reshape(self.count, self.bits).T:  # a product would be wider
            numbers <<= 1
            numbers |= column
        return torch.from_numpy(numbers)

    @property
    def _type(self) -> type[np.signedinteger[Any]]:
        """The type of the integers that are read: no wider than it must be."""
        return np.int32 if self.bits < 32 else np.int64


class Format(Protocol):
    """What a format of messages has: this module is one, with the functions below, compact.py another."""

    HEADER: int

    def pack(self, fields: Sequence[Field], parts: Mapping[str, Tensor]) -> bytes: ...
    def unpack(self, fields: Sequence[Field], body: memoryview) -> dict[str, Tensor]: ...
    def sizes(self, fields: Sequence[Field]) -> dict[str, int]: ...
    def frame(self, codec_id: int, fingerprint: int, body: bytes) -> bytes: ...
    def unframe(self, codec_id: int, fingerprint: int, data: Data) -> memoryview: ...


def pack(fields: Sequence[Field], parts: Mapping[str, Tensor]) -> bytes:
    """The body of one message."""
    return b"".join(field.pack(parts[field.name]) for field in fields)


def unpack(fields: Sequence[Field], body: memoryview) -> dict[str, Tensor]:
    """The parts of one message, whose length must be that of the receiver's own fields."""
    check_length(body, sum(field.nbytes for field in fields))
    parts, start = {}, 0
    for field in fields:
        parts[field.name] = field.unpack(body[start : start + field.nbytes])
        start += field.nbytes
    return parts


def sizes(fields: Sequence[Field]) -> dict[str, int]:
    """The bytes of each field."""
    return {field.name: field.nbytes for field in fields}


def frame(codec_id: int, fingerprint: int, body: bytes) -> bytes:
    """A whole message: header and body."""
    crc = zlib.crc32(body)
    return _HEADER.pack(b"FC", VERSION, codec_id, fingerprint, len(body), crc) + body


def unframe(codec_id: int, fingerprint: int, data: Data) -> memoryview:
    """The body of a message; raises WireError unless its header says what the receiver expects."""
    check_header(data, HEADER)
    magic, version, codec, spec, length, crc = _HEADER.unpack_from(data)
    body = memoryview(data)[HEADER:]
    expected = {
        "magic": (magic, b"FC"),
        "version": (version, VERSION),
        "codec id": (codec, codec_id),
        "fingerprint of settings, layout and tables": (spec, fingerprint),
        "body length": (length, len(body)),
        "checksum": (crc, zlib.crc32(body)),
    }
    if (magic, version) == (b"FC", VERSION) and codec != codec_id and codec in RETIRED:
        raise WireError(
            f"an earlier version of fedcom sent this: {RETIRED[codec]}; install the same on both sides"
        )
    for what, (got, wanted) in expected.items():
        check(what, got, wanted)
    return body


def check_header(data: Data, size: int) -> None:
    """Refuse a message too short for a header of that size."""
    if len(data) < size:
        raise WireError(f"a message of {len(data)} bytes is shorter than its {size}-byte header")


def check_length(body: memoryview, expected: int) -> None:
    """Refuse a body of another length."""
    if len(body) != expected:
        raise WireError(f"the body has {len(body)} bytes where the codec's format has {expected}")


def check(what: str, got: object, wanted: object) -> None:
    """Refuse a message if one of its numbers, named by `what`, is not the expected one."""
    if got != wanted:
        raise WireError(f"wrong {what}: got {got!r}, expected {wanted!r}")
