"""What a worker sends in one outer step: a header, then one message of the codec for each piece.

    offset  bytes  what
    0       2      magic, b"FO"
    2       1      version of this format, 3
    3       1      1: the worker has nothing to send, since its change is not finite; 2: it has finished
    4       4      number of the fragment
    8       8      number of the outer step of this fragment; of the worker's own steps, if it has finished
    16      8      a checksum of the fragment's outer parameters before the step; 1 or 0, if the worker has
                   finished: whether it has gained something since its last message
    24      8      the worker's weight in the mean, a float
    32      4      a CRC-32 of the bytes before
    36      ...    for each piece the length of its message in 4 bytes, and the message

Numbers are little-endian.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from fedcom.errors import WireError

_HEADER = struct.Struct("<2sBBIqqd")
_LENGTH = _CRC = struct.Struct("<I")
VERSION = 3


@dataclass(frozen=True)
class Header:
    """What a message says of itself."""

    fragment: int
    turn: int  # the number of the outer step of this fragment
    checksum: int
    weight: float
    empty: bool = False
    end: bool = False


def pack(header: Header, pieces: Sequence[bytes]) -> bytes:
    """A whole message."""
    said = (header.fragment, header.turn, header.checksum, header.weight)
    head = _HEADER.pack(b"FO", VERSION, header.empty + 2 * header.end, *said)
    rest = [part for piece in pieces for part in (_LENGTH.pack(len(piece)), piece)]
    return b"".join([head, _CRC.pack(crc32(head)), *rest])


def head(data: memoryview) -> Header:
    """The header of a message; raises WireError if it is damaged."""
    if len(data) < _HEADER.size + _CRC.size:
        raise WireError(f"it has {len(data)} bytes, fewer than a header")
    magic, version, kind, number, own, checksum, weight = _HEADER.unpack_from(data)
    if (magic, version) != (b"FO", VERSION):
        raise WireError(f"it begins with {bytes(data[:3])!r}, not as a message of this version")
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
        raise WireError("its header is damaged")
    if not (math.isfinite(weight) and weight > 0):
        raise WireError(f"its weight is {weight}")
    return Header(number, own, checksum, weight, bool(kind & 1), bool(kind & 2))


def unpack(data: memoryview, fragment: int, turn: int, count: int) -> tuple[Header, list[memoryview]]:
    """The header and the messages of the pieces; raises WireError on what this outer step does not expect.

    Args:
        count: how many pieces the fragment has.
    """
    header = head(data)
    if header.end:
        return header, []
    if (header.fragment, header.turn) != (fragment, turn):
        raise WireError(
            f"it is of outer step {header.turn} of fragment {header.fragment}, not of {turn} of {fragment}"
        )
    pieces, at = list[memoryview](), _HEADER.size + _CRC.size
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise WireError("it ends within a piece")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise WireError("it ends within a piece")
        pieces.append(data[at : at + length])
        at += length
    if len(pieces) != (0 if header.empty else count):
        raise WireError(f"it has {len(pieces)} pieces, not {count}")
    return header, pieces
