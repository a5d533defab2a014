"""Bytes from a client are hostile: each message is refused with WireError or is a finite vector of size d."""

import random
import struct
from collections import Counter

import pytest
import torch
from torch import Tensor

from fedcom.codecs import Codec, Identity, Int, Natural, Qsgd, RandK, TopK, compact, wire
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout
from tests.codecs.cases import CODECS_TESTED, each_codec, each_dtype, gaussian, label, layout

WHERE = layout("several", torch.float32)
DRAW = Draw.seeded(0)
LARGEST = torch.finfo(torch.float32).max


def message(codec: Codec, where: Layout = WHERE) -> bytes:
    return codec.encode(gaussian(where), where, DRAW)


def refused(codec: Codec, data: bytes, where: Layout = WHERE) -> bool:
    """Whether a message is refused; if it is not, it must have become a proper vector."""
    try:
        x = codec.decode(data, where, DRAW)
    except WireError:
        return True
    assert x.shape == (where.size,)
    assert x.dtype == where.dtype
    assert x.isfinite().all()
    return False


def reframed(codec: Codec, body: bytes, where: Layout = WHERE) -> bytes:
    return codec.frame(body, where)


def body_of(codec: Codec, where: Layout = WHERE) -> bytes:
    return message(codec, where)[codec.format.HEADER :]


def packed(codec: Codec, where: Layout = WHERE, **changes: Tensor) -> bytes:
    """A well-formed message with some of its parts replaced."""
    parts = codec.compress(gaussian(where), where, DRAW)
    assert set(changes) <= set(parts)
    return reframed(codec, codec.pack({**parts, **changes}, where), where)


@each_codec
def test_truncated_messages(codec: Codec) -> None:
    data = message(codec)
    for length in {0, 1, 2, 3, 15, 16, 17, len(data) // 2, len(data) - 2, len(data) - 1}:
        assert length >= len(data) or refused(codec, data[:length])
    body = body_of(codec)
    for cut in (1, 2, len(body)):
        assert refused(codec, reframed(codec, body[:-cut]))


@each_codec
def test_extended_messages(codec: Codec) -> None:
    data = message(codec)
    for tail in (b"\0", b"\xff", bytes(1000), data):
        assert refused(codec, data + tail)
        assert refused(codec, reframed(codec, body_of(codec) + tail))


@each_codec
def test_every_bit_of_the_header_and_some_of_the_body_matter(codec: Codec) -> None:
    data = message(codec)
    start = 8 * codec.format.HEADER
    body = range(start, 8 * len(data))
    places = [*range(start), *random.Random(0).sample(body, min(64, len(body)))]
    for place in places:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        assert refused(codec, bytes(flipped))


def mutate(body: bytes, rng: random.Random) -> bytes:
    """One of several ways to spoil a body without changing its length."""
    kind = rng.randrange(6)
    new = bytearray(body)
    if kind == 0:
        return rng.randbytes(len(body))
    if kind == 1:
        return bytes([rng.choice([0x00, 0x7F, 0x80, 0xFE, 0xFF])]) * len(body)
    if kind == 2:
        new[rng.randrange(len(new))] ^= 1 << rng.randrange(8)
    if kind == 3:
        for _ in range(rng.randint(1, 8)):
            new[rng.randrange(len(new))] = rng.randrange(256)
    if kind == 4:  # a float where one may be: the largest, the smallest, none
        number = rng.choice([LARGEST, -LARGEST, 1e-45, -1.0, float("inf"), float("nan")])
        start = 4 * rng.randrange(max(1, len(new) // 4))
        new[start : start + 4] = struct.pack("<f", number)[: len(new) - start]
    if kind == 5:
        i, j = sorted(rng.choices(range(len(new) + 1), k=2))
        new[i:j] = new[i:j][::-1]
    return bytes(new)


@pytest.mark.covers(1)
@each_dtype
@each_codec
def test_any_body_with_a_right_checksum(codec: Codec, dtype: torch.dtype) -> None:
    where, rng = layout("several", dtype), random.Random(label(codec))
    body = body_of(codec, where)
    seen = Counter(refused(codec, reframed(codec, mutate(body, rng), where), where) for _ in range(60))
    assert seen[False] > 0  # not everything is refused: the test reaches expand


@each_codec
def test_any_body_of_a_single_coordinate(codec: Codec) -> None:
    where, rng = layout("single", torch.float32), random.Random(label(codec))
    body = body_of(codec, where)
    for _ in range(40):
        refused(codec, reframed(codec, mutate(body, rng), where), where)


@each_codec
def test_messages_of_other_codecs(codec: Codec) -> None:
    for other in CODECS_TESTED:
        if other.id != codec.id:
            told = f"wrong codec id: got {other.id}, expected {codec.id}"
            told = told if codec.format is other.format is wire else "wrong (magic|tag)"
            with pytest.raises(WireError, match=told):
                codec.decode(message(other), WHERE, DRAW)


@each_codec
def test_messages_of_another_layout(codec: Codec) -> None:
    renamed = Layout(("x", "y", "z"), WHERE.shapes)
    reshaped = Layout(WHERE.names, ((8, 7), (29,), (3, 3, 3)))
    wider = Layout(WHERE.names, WHERE.shapes, torch.float64)
    for other in (renamed, reshaped, wider):
        with pytest.raises(WireError, match=r"wrong (fingerprint|checksum) of .*settings, layout and tables"):
            codec.decode(message(codec), other, DRAW)


@each_codec
def test_messages_of_another_version(codec: Codec) -> None:
    data = bytearray(message(codec))
    place, number, told = (2, 2, "version: got 2, expected 1")
    if codec.format is compact:
        place, number, told = (0, 0xC3, "tag of a compact message: got 195, expected 194")
    data[place] = number
    with pytest.raises(WireError, match=f"wrong {told}"):
        codec.decode(bytes(data), WHERE, DRAW)


@pytest.mark.parametrize("codec", [Int(8), Int(1), Qsgd(127), Qsgd(1000), TopK(0.4, "int", 8)], ids=label)
@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan")])
def test_scales_that_are_not_finite(codec: Codec, number: float) -> None:
    for field in codec.fields(WHERE):
        if field.floating:
            with pytest.raises(WireError, match=f"field '{field.name}' holds a value that is not finite"):
                codec.decode(packed(codec, **{field.name: torch.full((field.count,), number)}), WHERE, DRAW)


def test_values_that_are_not_finite() -> None:
    bad = torch.full((45,), 1.0)
    bad[7] = float("nan")
    for codec in (TopK(0.4), RandK(0.4)):
        assert codec.fields(WHERE)[-1].count == 45
        with pytest.raises(WireError, match="'values' holds a value that is not finite"):
            codec.decode(packed(codec, values=bad), WHERE, DRAW)


@pytest.mark.parametrize(
    ("codec", "changes"),
    [
        (Int(8), {"low": LARGEST, "step": LARGEST}),
        (Int(8), {"low": 0.0, "step": LARGEST}),
        (Int(1), {"low": LARGEST, "step": LARGEST}),
        (TopK(0.4, "int", 8), {"low": -LARGEST, "step": LARGEST}),
        (RandK(0.1), {"values": LARGEST}),
        (RandK(0.37), {"values": -LARGEST}),
    ],
)
def test_scales_that_overflow(codec: Codec, changes: dict[str, float]) -> None:
    counts = {field.name: field.count for field in codec.fields(WHERE)}
    parts = {name: torch.full((counts[name],), value) for name, value in changes.items()}
    with pytest.raises(WireError, match="overflows"):
        codec.decode(packed(codec, **parts), WHERE, DRAW)


@pytest.mark.parametrize("levels", [1, 3, 127, 1000])
def test_the_largest_norm_is_refused_or_finite(levels: int) -> None:
    codec = Qsgd(levels)
    for code in (0, 2 * levels):
        codes = torch.full((WHERE.size,), code)
        refused(codec, packed(codec, norm=torch.full((3,), LARGEST), codes=codes))


def test_scales_of_the_wrong_sign() -> None:
    with pytest.raises(WireError, match="negative step"):
        Int(8).decode(packed(Int(8), step=torch.tensor([1.0, -1.0, 1.0])), WHERE, DRAW)
    with pytest.raises(WireError, match="negative step"):
        TopK(0.4, "int").decode(packed(TopK(0.4, "int"), step=torch.tensor([-1e-45])), WHERE, DRAW)
    with pytest.raises(WireError, match="negative norm"):
        Qsgd(3).decode(packed(Qsgd(3), norm=torch.tensor([1.0, 1.0, -1e-45])), WHERE, DRAW)


def test_codes_that_mean_nothing() -> None:
    codes = torch.zeros(WHERE.size, dtype=torch.int64)
    codes[50] = 7  # of 0..6, in three bits
    with pytest.raises(WireError, match="code above"):
        Qsgd(3).decode(packed(Qsgd(3), codes=codes), WHERE, DRAW)
    for broken in (255, 511):
        codes[50] = broken
        with pytest.raises(WireError, match="not finite"):
            Natural().decode(packed(Natural(), codes=codes), WHERE, DRAW)


@pytest.mark.parametrize("codec", [TopK(0.05), TopK(0.4, "int"), TopK(0.1, "levels", chunk=50)], ids=label)
def test_positions_that_no_sender_writes(codec: Codec) -> None:
    body, size = body_of(codec), codec.fields(WHERE)[0].nbytes
    heard, refusals = set(), 0
    for byte in range(256):  # the last byte of the positions: other bytes are of other sets, or of none
        data = reframed(codec, body[: size - 1] + bytes([byte]) + body[size:])
        if refused(codec, data):
            refusals += 1
        else:
            heard.add(tuple(codec.decode(data, WHERE, DRAW).tolist()))
    assert len(heard) == 256 - refusals
    assert refusals > 0


def test_levels_that_no_sender_writes() -> None:
    codec = TopK(0.1, "levels", chunk=50)
    levels = torch.tensor([900, 800, 800, 900, 900, 0], dtype=torch.int32)
    with pytest.raises(WireError, match="the larger comes first"):
        codec.decode(packed(codec, levels=levels), WHERE, DRAW)
    for bad in (255 << 4, 4095):
        with pytest.raises(WireError, match="a level that is not finite"):
            codec.decode(packed(codec, levels=torch.full((6,), bad, dtype=torch.int32)), WHERE, DRAW)


def test_top_k_of_earlier_versions_is_told_apart() -> None:
    data = bytearray(message(TopK(0.05)))
    data[3] = 4
    for codec in (TopK(0.05), Int(8)):
        with pytest.raises(WireError, match=r"an earlier version .* sent this: top-k with plain indices"):
            codec.decode(bytes(data), WHERE, DRAW)


@pytest.mark.parametrize("codec", [Int(1), Int(2), Int(5), Int(12), Qsgd(3), Natural(), TopK(0.1, "levels")])
def test_stray_bits_in_the_padding(codec: Codec) -> None:
    where = Layout.vector(101)  # odd, so that the packed fields end inside a byte
    data = message(codec, where)
    start, strays = 16, 0
    for field in codec.fields(where):
        start += field.nbytes
        if field.count * field.bits % 8:
            strayed = bytearray(data)
            strayed[start - 1] |= 1
            with pytest.raises(WireError, match=f"field '{field.name}' has stray bits"):
                codec.decode(reframed(codec, bytes(strayed[16:]), where), where, DRAW)
            strays += 1
    assert strays == 1


def test_a_length_no_one_has_room_for() -> None:
    data = bytearray(message(Identity()))
    data[8:12] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(WireError, match="wrong body length: got 4294967295"):
        Identity().decode(bytes(data), WHERE, DRAW)


def test_messages_of_another_setting_of_the_same_codec() -> None:
    x, draw = torch.ones(WHERE.size), Draw.seeded(0)
    with pytest.raises(WireError, match="wrong fingerprint"):
        Qsgd(127).decode(Qsgd(100).encode(x, WHERE, draw), WHERE, draw)
