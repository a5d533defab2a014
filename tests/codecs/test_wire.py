"""The byte format of messages: packing at any width, and headers that must be right."""

import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcom.codecs import wire
from fedcom.codecs.wire import Field
from fedcom.errors import WireError
from fedcom.vectors import Layout

WHERE = Layout.vector(3)


@pytest.mark.parametrize("bits", range(1, 33))
@given(data=st.data())
@settings(max_examples=25)
def test_integers_of_any_width_come_back(bits: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=41))
    field = Field("codes", len(values), bits)
    packed = field.pack(torch.tensor(values))
    assert len(packed) == field.nbytes == -(-len(values) * bits // 8)
    assert field.unpack(memoryview(packed)).tolist() == values


@pytest.mark.parametrize("bits", range(1, 33))
def test_the_ends_of_every_width_come_back(bits: int) -> None:
    for count in (1, 3, 7, 8, 9, 1001):
        values = torch.arange(count) % 2 * (2**bits - 1)
        field = Field("codes", count, bits)
        assert torch.equal(field.unpack(memoryview(field.pack(values))), values)


@pytest.mark.parametrize("bits", [b for b in range(1, 33) if b not in (8, 16, 32)])
@given(data=st.data())
@settings(max_examples=15)
def test_bytes_unpack_to_what_packs_to_them(bits: int, data: st.DataObject) -> None:
    # Every value has one encoding and every accepted encoding one value: nothing can hide in a message.
    count = data.draw(st.integers(1, 9))
    field = Field("codes", count, bits)
    body = data.draw(st.binary(min_size=field.nbytes, max_size=field.nbytes))
    stray = body[-1] & ((1 << (-count * bits) % 8) - 1)
    if stray:
        with pytest.raises(WireError, match="stray bits in its padding"):
            field.unpack(memoryview(body))
    else:
        values = field.unpack(memoryview(body))
        assert int(values.min()) >= 0
        assert int(values.max()) < 2**bits
        assert field.pack(values) == body


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(max_examples=50)
def test_floats_come_back_bit_for_bit(dtype: torch.dtype, data: st.DataObject) -> None:
    bits = 8 * dtype.itemsize
    finite = st.floats(width=bits, allow_nan=False, allow_infinity=False)
    values = torch.tensor(data.draw(st.lists(finite, min_size=1, max_size=20)), dtype=dtype)
    field = Field("values", len(values), bits, floating=True)
    back = field.unpack(memoryview(field.pack(values)))
    assert back.dtype == dtype
    assert back.numpy().tobytes() == values.numpy().tobytes()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_that_are_not_finite_are_refused(dtype: torch.dtype, bad: float) -> None:
    field = Field("values", 3, 8 * dtype.itemsize, floating=True)
    body = field.pack(torch.tensor([1.0, bad, 2.0], dtype=dtype))
    with pytest.raises(WireError, match="field 'values' holds a value that is not finite"):
        field.unpack(memoryview(body))


def test_bits_by_hand() -> None:
    # Most significant bit first: 1, 2, 3 at three bits are 001 010 011, then zeros to the byte's end.
    assert Field("codes", 3, 3).pack(torch.tensor([1, 2, 3])) == bytes([0b001_010_01, 0b1_0000000])
    assert Field("codes", 2, 12).pack(torch.tensor([0xABC, 0xDEF])) == bytes([0xAB, 0xCD, 0xEF])
    assert Field("codes", 2, 16).pack(torch.tensor([1, 0xABCD])) == bytes([1, 0, 0xCD, 0xAB])  # little-endian
    assert Field("codes", 1, 32).pack(torch.tensor([2**32 - 2])) == bytes([0xFE, 0xFF, 0xFF, 0xFF])
    assert Field("values", 1, 32, floating=True).pack(torch.tensor([1.0])) == struct.pack("<f", 1.0)


def test_unpacked_tensors_may_be_written_to() -> None:
    # frombuffer gives read-only memory, which torch must not be handed.
    for field in (Field("a", 4, 8), Field("a", 4, 3), Field("a", 4, 32, floating=True)):
        assert field.unpack(memoryview(bytes(field.nbytes))).add_(1).tolist() == [1] * 4


def test_fields_follow_one_another() -> None:
    fields = [Field("low", 1, 32, floating=True), Field("codes", 5, 3), Field("bitmap", 9, 1)]
    parts = {
        "low": torch.tensor([-2.5]),
        "codes": torch.tensor([7, 0, 1, 2, 3]),
        "bitmap": torch.tensor([1, 0, 0, 0, 0, 0, 0, 0, 1]),
    }
    body = wire.pack(fields, parts)
    assert body == struct.pack("<f", -2.5) + bytes([0b111_000_00, 0b1_010_011_0, 0b10000000, 0b1_0000000])
    back = wire.unpack(fields, memoryview(body))
    assert list(back) == ["low", "codes", "bitmap"]
    assert all(torch.equal(back[name], parts[name]) for name in parts)


@pytest.mark.parametrize("length", [0, 1, 7, 9, 1000])
def test_bodies_of_another_length_are_refused(length: int) -> None:
    fields = [Field("low", 1, 32, floating=True), Field("codes", 4, 8)]
    with pytest.raises(WireError, match=f"the body has {length} bytes where the codec's format has 8"):
        wire.unpack(fields, memoryview(bytes(length)))


def test_the_header_by_hand() -> None:
    data = wire.frame(7, WHERE.fingerprint, b"abc")
    assert data[:4] == b"FC\x01\x07"
    assert struct.unpack("<III", data[4:16]) == (WHERE.fingerprint, 3, zlib.crc32(b"abc"))
    assert data[16:] == b"abc"
    assert wire.HEADER == 16


@given(st.binary(max_size=64), st.integers(0, 255))
def test_frames_come_back(body: bytes, codec_id: int) -> None:
    data = wire.frame(codec_id, WHERE.fingerprint, body)
    assert len(data) == wire.HEADER + len(body)
    assert bytes(wire.unframe(codec_id, WHERE.fingerprint, data)) == body


@pytest.mark.parametrize(
    ("offset", "what"),
    [
        (0, "magic"),
        (1, "magic"),
        (2, "version"),
        (3, "codec id"),
        *((i, "fingerprint of settings, layout and tables") for i in range(4, 8)),
        *((i, "body length") for i in range(8, 12)),
        *((i, "checksum") for i in range(12, 19)),
    ],
)
def test_each_byte_of_a_frame_is_checked(offset: int, what: str) -> None:
    data = bytearray(wire.frame(7, WHERE.fingerprint, b"abc"))
    for bit in range(8):
        data[offset] ^= 1 << bit
        with pytest.raises(WireError, match=f"wrong {what}: got .*, expected"):
            wire.unframe(7, WHERE.fingerprint, bytes(data))
        data[offset] ^= 1 << bit


@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        wire.unframe(7, WHERE.fingerprint, data)


@pytest.mark.parametrize("length", range(16))
def test_messages_shorter_than_a_header(length: int) -> None:
    with pytest.raises(WireError, match=f"a message of {length} bytes is shorter than its 16-byte header"):
        wire.unframe(7, WHERE.fingerprint, wire.frame(7, WHERE.fingerprint, b"")[:length])


def test_strided_and_stacked_parts_pack_in_order() -> None:
    x = torch.arange(12).reshape(3, 4).T
    assert Field("codes", 12, 8).pack(x) == bytes(x.reshape(-1).tolist())
    assert np.frombuffer(Field("codes", 12, 16).pack(x), "<u2").tolist() == x.reshape(-1).tolist()
