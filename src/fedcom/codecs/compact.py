"""The compact format, for messages of so few bytes that a header of 16 would be most of them.

Codec, settings and layout are agreed on before, and the transport says where a message ends:

    offset  bytes  what
    0       1      0xC2: a compact message, version 2 of the format
    1       2      CRC-16 (poly 0x1021, from 0xFFFF) of fingerprint (4 bytes), codec id (1 byte) and body
    3       ...    the codec's fields, whose bits follow one another without gaps

All fields are integers, packed bit by bit, most significant bit first; only the last byte of the message is
filled up with zeros. A message of another codec, setting or layout fails the CRC, but for one in 65,536.
"""

import struct
from binascii import crc_hqx
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedcom.codecs.wire import Data, Field, check, check_header, check_length
from fedcom.errors import WireError

_HEADER = struct.Struct("<BH")
HEADER = _HEADER.size
_TAG = 0xC2
_AGREED = struct.Struct("<IB")


def pack(fields: Sequence[Field], parts: Mapping[str, Tensor]) -> bytes:
    """The body of one message."""
    return np.packbits(np.concatenate([field.to_bits(parts[field.name]) for field in fields])).tobytes()


def unpack(fields: Sequence[Field], body: memoryview) -> dict[str, Tensor]:
    """The parts of one message, whose length must be that of the receiver's own fields."""
    total = sum(field.count * field.bits for field in fields)
    check_length(body, (total + 7) // 8)
    bits = np.unpackbits(np.frombuffer(body, np.uint8))
    if bits[total:].any():
        raise WireError("the message has stray bits in its padding")
    parts, start = {}, 0
    for field in fields:
        end = start + field.count * field.bits
        parts[field.name], start = field.from_bits(bits[start:end]), end
    return parts


def sizes(fields: Sequence[Field]) -> dict[str, int]:
    """The bytes of each field; a byte that two fields share counts for the first of them."""
    found, bits, before = {}, 0, 0
    for field in fields:
        bits += field.count * field.bits
        found[field.name], before = (bits + 7) // 8 - before, (bits + 7) // 8
    return found


def frame(codec_id: int, fingerprint: int, body: bytes) -> bytes:
    """A whole message: header and body."""
    return _HEADER.pack(_TAG, _crc(codec_id, fingerprint, body)) + body


def unframe(codec_id: int, fingerprint: int, data: Data) -> memoryview:
    """The body of a message; raises WireError unless its header says what the receiver expects."""
    check_header(data, HEADER)
    tag, crc = _HEADER.unpack_from(data)
    body = memoryview(data)[HEADER:]
    check("tag of a compact message", tag, _TAG)
    check("checksum of body, codec, settings, layout and tables", crc, _crc(codec_id, fingerprint, body))
    return body


def _crc(codec_id: int, fingerprint: int, body: bytes | memoryview) -> int:
    return crc_hqx(body, crc_hqx(_AGREED.pack(fingerprint, codec_id), 0xFFFF))
