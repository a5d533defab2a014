"""Peaks of blocks: rates, errors, bytes worked out by hand, short scales, and messages no one writes."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcom.codecs import Peaks, compact
from fedcom.codecs.coding import hadamard, rotation, short_scale
from fedcom.codecs.kernels import cpu
from fedcom.codecs.peaks import Cut, _finest, _peak, least_bits
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from tests.codecs.cases import LONG, each_dtype, gaussian, keys, same

WHERE = Layout.vector(200_000)
X = torch.randn(WHERE.size, generator=torch.Generator().manual_seed(0))
DRAW = Draw.seeded(0)


def relative_error(codec: Peaks, x: Tensor, where: Layout, draws: int) -> float:
    heard = codec.quantise(x.expand(draws, -1), where, keys(draws)).double()
    return float((heard - x).square().sum(-1).mean() / x.double().square().sum())


@pytest.mark.parametrize(
    ("bits", "most"), [(0.002, 1.45), (0.005, 1.35), (0.01, 1.35), (0.02, 1.35), (0.05, 1.38), (0.1, 1.42)]
)
def test_the_error_is_near_the_bound(bits: float, most: float) -> None:
    codec = Peaks(bits)
    message = codec.encode(X, WHERE, DRAW)
    assert 0.97 * bits <= 8 * len(message) / WHERE.size <= bits
    assert len(message) == sum(int(size) for size in codec.itemise({}, WHERE).values())
    q = relative_error(codec, X, WHERE, 8)
    assert q * (4**bits - 1) <= most  # no unbiased scheme has a q below 1/(4^R - 1) on a Gaussian vector
    assert q == pytest.approx(codec.variance(WHERE), rel=0.03)


@pytest.mark.parametrize("bits", [0.002, 0.01, 0.05])
@pytest.mark.parametrize("kind", ["heavy-tailed", "sparse"])
def test_the_error_depends_little_on_the_vector(kind: str, bits: float) -> None:
    x = X**3 if kind == "heavy-tailed" else X * (torch.arange(WHERE.size) % 100 == 7)
    assert relative_error(Peaks(bits), x, WHERE, 8) == pytest.approx(Peaks(bits).variance(WHERE), rel=0.04)


@pytest.mark.parametrize("bits", [0.02, 0.1, 0.7])
@each_dtype
def test_bytes_carry_what_simulation_sees(bits: float, dtype: torch.dtype) -> None:
    where, codec = replace(LONG, dtype=dtype), Peaks(bits)
    x, draw = gaussian(where, n=3), keys(3)
    heard = codec.quantise(x, where, draw)
    for row, key, wanted in zip(x, draw.key, heard, strict=True):
        message = codec.encode(row, where, Draw(key))
        assert len(message) == sum(int(size) for size in codec.itemise({}, where).values())
        assert len(message) <= bits * where.size / 8
        assert same(codec.decode(message, where, Draw(key)), wanted)


def test_a_message_by_hand() -> None:
    # Five coordinates are not rotated, as their rows have one each, but for the signs. 64 bits: eight bytes.
    where = Layout.vector(5)
    assert (hadamard.block_size(5), Peaks(12.8).cut(where)) == (1, Cut(1, 0, 3))
    y = torch.tensor([1.0, -4.0, 0.5, 0.25, 2.0])
    x = hadamard.unrotate(y, 5, DRAW)
    assert x.abs().tolist() == y.abs().tolist()
    message = Peaks(12.8).encode(x, where, DRAW)
    # Peaks: -4 at 1, 0.5 at 0, 2 at 0, each in two bits; the scale is |y|^2 / (4 + 0.5 + 2) = 21.3125 / 6.5.
    body = message[compact.HEADER :]
    scale = short_scale.from_code(torch.tensor(int.from_bytes(body[:2], "big")), torch.float64)
    assert float(scale) == pytest.approx(21.3125 / 6.5, rel=2**-7)
    assert body[2:] == bytes([0b11_00_00_00])
    heard = hadamard.rotate(Peaks(12.8).decode(message, where, DRAW), DRAW)
    assert heard.tolist() == [0.0, -float(scale), float(scale), 0.0, float(scale)]


def test_the_sizes_of_parts_by_hand() -> None:
    # 24 peaks of 14 bits and one of 13: 349 bits in 44 bytes, of which 42 hold the large blocks.
    codec = Peaks(0.002)
    assert codec.fields(WHERE) == [Field("scale", 1, 16), Field("large", 24, 14), Field("small", 1, 13)]
    assert codec.itemise({}, WHERE) == {"header": 3, "scale": 2, "large": 42, "small": 2}


@pytest.mark.parametrize("n", [1, 2, 3, 5, 128, 200_704])
def test_blocks_cover_the_vector_within_the_bits(n: int) -> None:
    most = 2 + (n - 1).bit_length()
    for bits in {0, 1, 2, most, *(most + n * i // 40 for i in range(41))}:
        cut = _finest(n, bits)
        if cut is None:
            assert bits < max(2, 1 + (n - 1).bit_length())
            continue
        runs = cut.runs
        assert sum(run.blocks * (run.log + 1) for run in runs) <= bits
        end = runs[-1].start + (runs[-1].blocks << runs[-1].log)
        assert n <= end < n + (1 << cut.log)  # the last block has a coordinate of its own
        assert bits - sum(run.blocks * (run.log + 1) for run in runs) < cut.log or cut == Cut(
            1, 0, -(-n // 2)
        )


@pytest.mark.parametrize(("log", "mean", "variance"), [(0, 0.797885, 0.363380), (1, 1.128379, 0.363380)])
def test_peaks_by_hand(log: int, mean: float, variance: float) -> None:
    # Of one number: sqrt(2/pi) and 1 - 2/pi. Of two: 2/sqrt(pi) and 1 + 2/pi - 4/pi.
    assert _peak(log) == pytest.approx((mean, variance), abs=1e-4)


@pytest.mark.parametrize("d", [1, 8, 97, 3613, 100_000, 1_797_010])
def test_a_rate_too_low_is_refused_with_the_least_that_serves(d: int) -> None:
    where = Layout.vector(d)
    least = least_bits(where)
    x = torch.ones(d)
    assert 6 <= len(Peaks(max(least, 1e-4)).encode(x, where, DRAW)) <= max(9, 1e-4 * d / 8)
    if least > 2e-4:
        with pytest.raises(
            ConfigError, match=f"peaks needs {least:g} bits for each of this model's {d} coord"
        ):
            Peaks(0.97 * least - 1e-5).encode(x, where, DRAW)


@pytest.mark.parametrize("bits", [0.0, 9e-5, 64.1])
def test_rates_it_does_not_have(bits: float) -> None:
    with pytest.raises(ConfigError, match=r"bits must be between 0\.0001 and 64"):
        Peaks(bits)


def test_torch_finds_the_same_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gaussian(LONG, n=4)
    x[1] = x[1].sign()  # many are equally large, and the first of them is the peak
    x[2] = 0
    fast = {bits: Peaks(bits).compress(x, LONG, keys(4)) for bits in (0.02, 0.1, 1.0)}
    monkeypatch.setattr(cpu, "ready", lambda *_: False)
    monkeypatch.setattr(rotation, "COMPILED", False)
    for bits, parts in fast.items():
        plain = Peaks(bits).compress(x, LONG, keys(4))
        assert all(torch.equal(plain[name], part) for name, part in parts.items())


def test_nothing_is_sent_as_nothing() -> None:
    zero = torch.zeros(LONG.size)
    message = Peaks(0.05).encode(zero, LONG, DRAW)
    assert not any(message[compact.HEADER :])
    assert same(Peaks(0.05).decode(message, LONG, DRAW), zero)


# Scales of two bytes


def test_scales_are_right_on_average_and_within_a_step() -> None:
    scale = torch.full((4000, 1), 1.2345, dtype=torch.float64)
    heard = short_scale.from_code(short_scale.to_code(scale, keys(4000)), torch.float64)
    assert sorted(heard.unique().tolist()) == [1 + 30 / 128, 1 + 31 / 128]
    assert float(heard.mean()) == pytest.approx(1.2345, abs=5 * 2**-8 / 4000**0.5)


@pytest.mark.parametrize("scale", [0.0, 2.0**-256, 1e-45, 3e-39, 1.0, 1.9999, 3e38, 2.0**255])
def test_scales_of_every_size(scale: float) -> None:
    column = torch.full((50, 1), scale, dtype=torch.float64)
    heard = short_scale.from_code(short_scale.to_code(column, keys(50)), torch.float64)
    if scale == 2.0**-256:  # whose code is that of zero
        assert not heard.any()
    else:
        assert torch.allclose(heard, column, rtol=2**-7, atol=0)


@pytest.mark.parametrize("scale", [math.nan, -math.nan, math.inf, 2.0**256])
def test_scales_that_cannot_be_written_are_not_finite(scale: float) -> None:
    code = short_scale.to_code(torch.tensor([scale], dtype=torch.float64), DRAW)
    assert int(code) == short_scale.NOT_FINITE
    assert short_scale.from_code(code, torch.float32).isnan().all()


# Messages no one writes


def refused(body: bytes, told: str, bits: float = 12.8, d: int = 5) -> None:
    where = Layout.vector(d)
    with pytest.raises(WireError, match=told):
        Peaks(bits).decode(Peaks(bits).frame(body, where), where, DRAW)


def test_malformed_messages() -> None:
    refused(bytes(2), "the body has 2 bytes where the codec's format has 3")
    refused(bytes(4), "the body has 4 bytes where the codec's format has 3")
    refused(bytes([128, 0, 1]), "stray bits in its padding")
    refused(bytes([128, 0, 0b00_00_10_00]), "a peak must lie below 5")  # the sixth coordinate of five
    refused(b"\xff\xff\0", "a scale that is not finite")
    refused(b"\xff\xfe\0", "overflows")


@pytest.mark.parametrize("bits", [0.02, 0.1])
def test_any_body_of_the_right_length_is_refused_or_finite(bits: float) -> None:
    codec, rng, seen = Peaks(bits), random.Random(0), 0
    size = len(codec.encode(torch.ones(LONG.size), LONG, DRAW)) - compact.HEADER
    for _ in range(200):
        try:
            x = codec.decode(codec.frame(rng.randbytes(size), LONG), LONG, DRAW)
        except WireError:
            continue
        assert x.isfinite().all()
        seen += 1
    assert seen > 0


def test_messages_of_another_setting_or_key_of_the_layout() -> None:
    message = Peaks(0.05).encode(torch.ones(LONG.size), LONG, DRAW)
    for codec, where in (
        (Peaks(0.0501), LONG),
        (Peaks(0.05), replace(LONG, names=("a", "b", "c", "e"))),
    ):
        with pytest.raises(WireError, match="wrong checksum of body, codec, settings, layout and tables"):
            codec.decode(message, where, DRAW)


@pytest.mark.parametrize("length", range(3))
def test_messages_shorter_than_a_header(length: int) -> None:
    with pytest.raises(WireError, match=f"a message of {length} bytes is shorter than its 3-byte header"):
        Peaks().decode(bytes(length), LONG, DRAW)


def test_the_compact_frame_by_hand() -> None:
    assert compact.frame(14, 0x01020304, b"")[0] == 0xC2
    crc = 0xFFFF
    for byte in (4, 3, 2, 1, 14, *b"abc"):  # CRC-16 bit by bit: x^16 + x^12 + x^5 + 1
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ (0x1021 if crc & 0x8000 else 0)
        crc &= 0xFFFF
    assert compact.frame(14, 0x01020304, b"abc") == bytes([0xC2, crc & 255, crc >> 8]) + b"abc"


def test_fields_follow_one_another_without_gaps() -> None:
    fields = [Field("a", 1, 16), Field("b", 3, 3), Field("c", 2, 5)]
    parts = {"a": torch.tensor([0xABCD]), "b": torch.tensor([1, 2, 7]), "c": torch.tensor([31, 1])}
    body = compact.pack(fields, parts)
    assert body == bytes([0xAB, 0xCD, 0b001_010_11, 0b1_11111_00, 0b001_00000])
    back = compact.unpack(fields, memoryview(body))
    assert all(np.array_equal(back[name], parts[name]) for name in parts)
    assert compact.sizes(fields) == {"a": 2, "b": 2, "c": 1}
