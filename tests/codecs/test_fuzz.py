"""A short run of the fuzzer (make fuzz runs it at length), and messages made to take time or memory."""

import re
import resource
import struct
import sys
from pathlib import Path

import pytest
import torch
from fuzz.decode import CASES, Tally, attempt, guided, run

from fedcom.codecs import CODECS, Codec, Dithered, Rotated, wire
from fedcom.codecs.coding import integer_stream
from fedcom.codecs.dithered import _codes as dithered_codes
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout
from tests.codecs.cases import label
from tests.conftest import CHAOS

EACH = 420 if CHAOS else 140


def test_the_fuzzer_knows_every_codec() -> None:
    assert {type(codec) for codec in CASES} == set(CODECS.values())


@pytest.mark.parametrize("codec", CASES, ids=label)
def test_hostile_messages_are_refused_or_finite(codec: Codec) -> None:
    *_, tally = run(codec, EACH)
    assert tally.violations == []
    assert tally.rejected + tally.decoded == EACH
    assert min(tally.rejected, tally.decoded) >= 5  # both ways are taken


def dithered(body: bytes) -> bytes:
    """A dithered message of step 1 for 50 coordinates."""
    return wire.frame(7, Dithered(q=1.0).fingerprint(Layout.vector(50)), struct.pack("<f", 1.0) + body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\1",
        b"\0\0",
        struct.pack("<HI", 1, 0),
        b"\xff\xff" + bytes(200_000),  # a table of 65,535 symbols
        struct.pack("<H", 248) + bytes(600),  # one more than there are
        struct.pack("<H2sI", 1, b"\x80\0", 2**32 - 1),  # a stream of 4 GiB
        struct.pack("<H2sI", 1, b"\x80\0", 16) + bytes(16),  # states below their least
        struct.pack("<H2sI", 1, b"\x80\0", 15) + bytes(15),
        struct.pack("<H2sI", 1, b"\xff\xfe", 16) + bytes(16),  # a frequency of 32,767
        struct.pack("<H2sI", 1, b"\x80\0", 16) + bytes([0, 0, 1, 0]) * 4 + b"\0",  # raw bits nobody asked for
    ],
)
def test_streams_no_one_writes(body: bytes) -> None:
    with pytest.raises(WireError):
        Dithered(q=1.0).decode(dithered(body), Layout.vector(50), Draw.seeded(0))


def test_symbols_above_the_last_are_refused() -> None:
    # All of the 2^14 on the 248th symbol, whose magnitude would be 2^31.
    table = wire.Field("table", 248, 15).pack(torch.tensor([0] * 247 + [1 << 14]))
    body = struct.pack("<H", 248) + table + struct.pack("<I", 16) + bytes([0, 0, 1, 0]) * 4 + bytes(182)
    with pytest.raises(WireError, match="a table of 248 symbols"):
        Dithered(q=1.0).decode(dithered(body), Layout.vector(50), Draw.seeded(0))


def test_stray_raw_bits_are_refused() -> None:
    data = bytearray(integer_stream.pack(torch.tensor([0, 40, 0])))  # three raw bits, in a byte
    data[-1] |= 0x80
    with pytest.raises(WireError, match="stray"):
        integer_stream.unpack(memoryview(bytes(data)), 3)


@pytest.mark.parametrize("codec", [Dithered(q=1.0), Rotated(2.0)], ids=label)
def test_scales_of_the_wrong_sign_are_refused(codec: Codec) -> None:
    where = Layout.vector(50)
    body = codec.encode(torch.linspace(-1, 1, 50), where, Draw.seeded(0))[16:]
    data = wire.frame(codec.id, codec.fingerprint(where), struct.pack("<f", -1.0) + body[4:])
    with pytest.raises(WireError, match="negative"):
        codec.decode(data, where, Draw.seeded(0))


def test_codes_stay_below_2_to_the_31_in_float32() -> None:
    # 2^31 - 1 is no float32: the nearest is 2^31, which has no symbol.
    for x in (torch.tensor([1e20, -1e20]), torch.tensor([1e20, -1e20], dtype=torch.float64)):
        codes = dithered_codes(x, torch.ones(1), Draw.seeded(0))
        assert 2**30 < int(codes.abs().max()) < 2**31
        assert integer_stream.unpack(memoryview(integer_stream.pack(codes)), 2).tolist() == codes.tolist()


def peak(anew: bool = False) -> int:
    """The most bytes of memory that this process has had, or has had since it was asked to count anew."""
    if not Path("/proc/self/clear_refs").exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024


@pytest.mark.parametrize("codec", CASES, ids=label)
def test_a_small_message_does_not_grow(codec: Codec) -> None:
    where, draw = Layout(("a", "b"), ((300, 300), (10_000,))), Draw.seeded(0)
    codec.decode(codec.encode(torch.zeros(where.size), where, draw), where, draw)
    tally, before = Tally(), peak(anew=True)
    for size in (1, 20, 60, 200):
        for byte in (b"\0", b"\1", b"\x7f", b"\xff"):
            attempt(codec, codec.frame(byte * size, where), where, draw, tally)
    assert tally.violations == []
    assert peak() - before <= 80 * where.size


def test_guided_fuzzing_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)  # as where it is not installed
    with pytest.raises(SystemExit, match="--guided needs atheris, which is not installed"):
        guided()
