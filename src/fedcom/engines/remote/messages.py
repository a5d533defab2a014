"""The bytes of calls and replies: an envelope of 46 bytes, then messages in the wire format.

    offset  bytes  what
    0       2      magic, b"FN"
    2       1      version of this format, 2
    3       2      version of the fedcom that made it: 0 and 2 for 0.2.3
    5       1      kind: 1 call, 2 update, 3 "my state is lost", 4 "I cannot"
    6       4      fingerprint of what both sides must share: method, links, model and what is frozen in it,
                   clients, seed
    10      8      the job, a number that the coordinator drew
    18      4      session: how often the coordinator has started
    22      4      round
    26      4      generation
    30      4      client
    34      8      length of the body
    42      4      CRC-32 of all before it and of the body
    46      ...    the body

The first five bytes mean the same in every version of the format. Numbers are little-endian. A list of
messages is their number (1 byte), their lengths (8 bytes each), and the messages, which codecs/wire.py
explains. The body of an update is such a list. The body of "I cannot" is a text. The body of a call is
explained at `Call`. Readers check every length against the bytes that are there before they use it.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedcom.codecs import wire
from fedcom.codecs.wire import Data
from fedcom.errors import WireError
from fedcom.version import SERIES

VERSION = 2
CALL, UPDATE, LOST, FAILED = 1, 2, 3, 4
NO_MODEL, BROADCAST, REPLICA, SEED = 0, 1, 2, 3  # what a call brings of the model
NEVER = -1  # the last counted round of a client that was never counted
LONGEST_REASON = 300  # bytes

_ENVELOPE = struct.Struct("<2sBBBBI8sIIIIQ")
_MAKER = struct.Struct("<2sBBB")
_CRC = struct.Struct("<I")
ENVELOPE = _ENVELOPE.size + _CRC.size
_CALL = struct.Struct("<dqqBBH")
_TOLD = struct.Struct("<Id")
_LENGTH = struct.Struct("<Q")
_FACTOR = struct.Struct("<d")


class Envelope(NamedTuple):
    """What every call and reply begins with."""

    kind: int
    agreement: int  # fingerprint of what both sides must have set alike
    job: bytes
    session: int
    round: int
    generation: int
    client: int

    def seal(self, body: bytes) -> bytes:
        """The whole message."""
        head = _ENVELOPE.pack(b"FN", VERSION, *SERIES, *self, len(body))
        return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


class OtherVersion(WireError):
    """A message of another version of fedcom, whose arithmetic may differ.

    Args:
        series: that version.
        envelope: None if the message is in another format, and cannot be read.
    """

    def __init__(self, series: Sequence[int], envelope: Envelope | None) -> None:
        theirs, ours = (".".join(map(str, one)) for one in (series, SERIES))
        how = "" if envelope else " in another format"
        super().__init__(
            f"made by fedcom {theirs}{how}, this is {ours}; "
            "install the same version on the server and on all clients"
        )
        self.envelope = envelope


def unseal(data: Data) -> tuple[Envelope, memoryview]:
    """The envelope and the body of a message; raises WireError if it is not one, or of another version."""
    wire.check_header(data, _MAKER.size)
    magic, version, *made_by = _MAKER.unpack_from(data)
    wire.check("magic", magic, b"FN")
    if version != VERSION:
        raise OtherVersion(made_by, None)
    wire.check_header(data, ENVELOPE)
    _, _, _, _, *fields, length = _ENVELOPE.unpack_from(data)
    body = memoryview(data)[ENVELOPE:]
    wire.check("length of the body", length, len(body))
    (crc,) = _CRC.unpack_from(data, _ENVELOPE.size)
    wire.check("checksum", crc, zlib.crc32(body, zlib.crc32(memoryview(data)[: _ENVELOPE.size])))
    envelope = Envelope(*fields)
    if made_by != [*SERIES]:
        raise OtherVersion(made_by, envelope)
    return envelope, body


def cannot(envelope: Envelope, reason: str) -> bytes:
    """The reply of a client that cannot do what the call with this envelope asks for."""
    return envelope._replace(kind=FAILED).seal(reason.encode()[:LONGEST_REASON])


class Told(NamedTuple):
    """What the server told the clients of a round at its end."""

    round: int
    share: float  # the weight of the clients that were counted among all
    messages: Sequence[Data]  # the mean and the numbers beside it, as `server_work` sends them


@dataclass(frozen=True)
class Call:
    """What a client is sent to begin a round.

    The body has, in this order: share (float64), counted and base (int64), kind of model, number of factors
    (1 byte each), number of told rounds (2 bytes); the factors (float64); for each told round its number
    (4 bytes), its share (float64) and its messages; the messages of the model.

    Args:
        share: the weight of the clients that are called among all.
        counted: the last round in which the client was counted; NEVER: in none.
        base: the model is that of the beginning of this round; with NO_MODEL the client has it already.
        factors: by what the server multiplied each vector of the client in that round; empty: by 1.
        told: what the client is to be told of earlier rounds, the oldest first.
        model: which vectors come: NO_MODEL, BROADCAST, REPLICA or SEED.
        messages: those of the model.
    """

    envelope: Envelope
    share: float
    counted: int
    base: int
    factors: tuple[float, ...]
    told: tuple[Told, ...]
    model: int
    messages: Sequence[Data]

    def pack(self) -> bytes:
        """The bytes of the call."""
        head = _CALL.pack(self.share, self.counted, self.base, self.model, len(self.factors), len(self.told))
        told = (_TOLD.pack(one.round, one.share) + joined(one.messages) for one in self.told)
        factors = (_FACTOR.pack(factor) for factor in self.factors)
        return self.envelope.seal(b"".join((head, *factors, *told, joined(self.messages))))

    @classmethod
    def unpack(cls, data: Data) -> "Call":
        """The call in some bytes; raises WireError if there is none."""
        envelope, body = unseal(data)
        wire.check("kind of message", envelope.kind, CALL)
        reader = _Reader(body)
        share, counted, base, model, factors, told = reader.take(_CALL)
        if model > SEED:
            raise WireError(f"a call cannot bring a model of kind {model}")
        found = cls(
            envelope,
            share,
            counted,
            base,
            tuple(reader.take(_FACTOR)[0] for _ in range(factors)),
            tuple(reader.told() for _ in range(told)),
            model,
            reader.messages(),
        )
        reader.end()
        return found


def joined(messages: Sequence[Data]) -> bytes:
    """A list of messages as bytes."""
    lengths = (_LENGTH.pack(len(message)) for message in messages)
    return b"".join((bytes([len(messages)]), *lengths, *messages))


def split(body: Data) -> list[Data]:
    """The messages in a list that fills the body."""
    reader = _Reader(memoryview(body))
    found = reader.messages()
    reader.end()
    return found


def overhead(messages: int) -> int:
    """The bytes of a reply with so many messages, except those of the messages."""
    return ENVELOPE + 1 + messages * _LENGTH.size


class _Reader:
    """Takes numbers and messages from the front of a body."""

    def __init__(self, body: memoryview) -> None:
        self._rest = body

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self._bytes(form.size))

    def messages(self) -> list[Data]:
        count = self._bytes(1)[0]
        lengths = [self.take(_LENGTH)[0] for _ in range(count)]
        return [self._bytes(length) for length in lengths]

    def told(self) -> Told:
        round_index, share = self.take(_TOLD)
        return Told(round_index, share, self.messages())

    def end(self) -> None:
        if self._rest:
            raise WireError(f"{len(self._rest)} bytes follow the end of the message")

    def _bytes(self, size: int) -> memoryview:
        if size > len(self._rest):
            raise WireError(f"the message claims {size} bytes more where {len(self._rest)} are left")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken
