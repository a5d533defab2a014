"""The trellis tier of the rotated codec: close to the bound, unbiased, exact on the wire, safe to decode."""

import math
import random

import pytest
import torch
from torch import Tensor

from fedcom.codecs import Rotated, wire
from fedcom.codecs.coding import trellis
from fedcom.codecs.coding.entropy import TOTAL
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

LARGE, SMALL = Layout.vector(200_000), Layout.vector(5_000)
DRAW = Draw.seeded(0)
VECTORS = {
    "gaussian": Draw.seeded(5).normal(5_000),
    "sparse": torch.nn.functional.pad(torch.tensor([3.0, -1.0, 0.5]), (0, 4_997)),
    "constant": torch.full((5_000,), 0.7),
}


def coded(bits: float) -> Rotated:
    return Rotated(bits, tier="trellis")


def gap(bits: float, q: float) -> float:
    """Bits above what any unbiased scheme of that variance needs."""
    return bits - 0.5 * math.log2(1 + 1 / q)


def error(x: Tensor, y: Tensor) -> float:
    return float((x - y).double().square().sum() / x.double().square().sum())


@pytest.mark.parametrize("bits", [3, 2, 1, 0.5])
def test_a_gaussian_vector_is_a_tenth_of_a_bit_from_the_bound(bits: float) -> None:
    codec, x = coded(bits), Draw.seeded(1).normal(LARGE.size)
    data = codec.encode(x, LARGE, DRAW)
    y = codec.decode(data, LARGE, DRAW)
    assert torch.equal(y, codec.quantise(x, LARGE, DRAW))
    assert gap(8 * len(data) / LARGE.size, error(x, y)) < 0.1
    assert error(x, y) == pytest.approx(codec.variance(LARGE), rel=0.03)
    assert 8 * len(data) / LARGE.size == pytest.approx(bits, rel=0.01)
    parts = codec.compress(x, LARGE, DRAW)
    assert sum(codec.itemise(parts, LARGE).values()) == pytest.approx(len(data), rel=0.002)


@pytest.mark.parametrize("bits", [0.05, 0.08, 0.17, 0.33, 0.37, 0.43, 0.66, 0.92, 1.37, 2.7, 3.4, 4.6, 6])
def test_every_rate_is_met_and_no_worse_than_the_fast_tier(bits: float) -> None:
    where = Layout.vector(100_000)
    codec, x = coded(bits), Draw.seeded(2).normal(where.size)
    parts = codec.compress(x, where, DRAW)
    assert 8 * sum(codec.itemise(parts, where).values()) / where.size == pytest.approx(bits, rel=0.02)
    assert error(x, codec.expand(parts, where, DRAW)) == pytest.approx(codec.variance(where), rel=0.05)
    assert codec.variance(where) < 1.01 * Rotated(bits).variance(where)


@pytest.mark.parametrize("bits", [0.05, 8])
def test_other_rates_are_left_to_the_fast_tier(bits: float) -> None:
    x = VECTORS["gaussian"]
    assert torch.equal(coded(bits).quantise(x, SMALL, DRAW), Rotated(bits).quantise(x, SMALL, DRAW))


def test_there_are_three_tiers() -> None:
    with pytest.raises(ConfigError, match="tier must be 'fast' or 'trellis' or 'fixed'; got 'slow'"):
        Rotated(2, tier="slow")  # type: ignore[arg-type]


@pytest.mark.covers(1)
@pytest.mark.parametrize("bits", [2, 0.5, 0.2])
@pytest.mark.parametrize("name", VECTORS)
def test_the_mean_over_rotations_is_the_vector(name: str, bits: float) -> None:
    n, x, codec = 200, VECTORS[name], coded(bits)
    y = codec.quantise(x.expand(n, -1), SMALL, DRAW.fold(torch.arange(n))).double()
    size = float(x.double().square().sum())
    q = float((y - x).square().sum(-1).mean()) / size
    # The squared mean error is q/N: its d near-independent coordinates leave sqrt(2/d) = 2% of spread.
    assert float((y.mean(0) - x).square().sum()) / size * n / q == pytest.approx(1, abs=0.12)
    assert abs(float(((y - x) @ x.double()).mean())) / size < 5 * math.sqrt(q / n / SMALL.size) + 1e-4
    assert q == pytest.approx(codec.variance(SMALL), rel=0.1)


@pytest.mark.covers(2)
@pytest.mark.parametrize("bits", [0.05, 0.3, 0.5, 1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 97, 5_000])
def test_bytes_and_back(bits: float, dtype: torch.dtype, d: int) -> None:
    where, codec = Layout.vector(d, dtype), coded(bits)
    for x in (DRAW.normal(d, dtype), torch.zeros(d, dtype=dtype), torch.full((d,), 1e-30, dtype=dtype)):
        data = codec.encode(x, where, DRAW)
        assert data == codec.encode(x, where, DRAW)
        assert torch.equal(codec.decode(data, where, DRAW), codec.quantise(x, where, DRAW))


def test_a_stack_is_its_rows() -> None:
    x, draws = torch.stack(list(VECTORS.values())), DRAW.fold(torch.arange(3))
    stacked = coded(1).quantise(x, SMALL, draws)
    for row, y, key in zip(x, stacked, draws.key, strict=True):
        assert torch.equal(coded(1).quantise(row, SMALL, Draw(key)), y)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_or_vanishes(bad: float) -> None:
    x = VECTORS["gaussian"].clone()
    x[7] = bad
    for code in coded(1).compress(x, SMALL, DRAW)["codes"].unique().tolist():
        assert 0 <= code < len(coded(1).quantiser(SMALL).centres)


@pytest.mark.parametrize("bits", [0.07, 0.35, 1, 6])
def test_tables_are_whole_and_clipped_at_five_deviations(bits: float) -> None:
    design = trellis.for_rate(bits)
    even, odd = design.coder.frequencies.reshape(2, -1)
    assert int(even.sum()) == int(odd.sum()) == TOTAL
    assert int(min(even.min(), odd.min())) >= 1
    assert float(design.centres[design.coder.zero]) == 0
    assert 5 <= float(design.centres.abs().max()) < 5 + 4 * float(design.centres[1] - design.centres[0])
    # Points are small multiples of 2^-16: the same floats everywhere.
    assert torch.equal((design.centres * 2**16).round() / 2**16, design.centres.float().double())


def test_the_tables_of_two_bits_by_hand() -> None:
    # Step 0.49881 as a multiple of 2^-16; a Gaussian of variance 1 - 0.0683 on its even and odd multiples.
    design = trellis.for_rate(2.0)
    step = round(0.49881 * 2**16) / 2**16
    weights = [math.exp(-((2 * j * step) ** 2) / 2 / (1 - 0.0683)) for j in range(-6, 7)]
    assert design.centres.tolist() == [2 * j * step for j in range(-6, 7)] + [
        (2 * j - 1) * step for j in range(-6, 7)
    ]
    expected = [max(1, round(TOTAL * w / sum(weights))) for w in weights]
    expected[6] -= sum(expected) - TOTAL  # the commonest pays for what others are raised to
    assert design.coder.frequencies[:13].tolist() == expected


def refused(codec: Rotated, body: bytes, where: Layout) -> bool:
    try:
        y = codec.decode(wire.frame(codec.id, codec.fingerprint(where), body), where, DRAW)
    except WireError:
        return True
    assert y.shape == (where.size,)
    assert y.isfinite().all()
    return False


@pytest.mark.parametrize("bits", [0.7, 1, 4])
def test_hostile_bytes(bits: float) -> None:
    where, codec, rng = Layout.vector(500), coded(bits), random.Random(0)
    body = codec.encode(DRAW.normal(500), where, DRAW)[wire.HEADER :]
    assert not refused(codec, body, where)
    for cut in (1, 2, 8, len(body) // 2, len(body) - 21, len(body) - 3, len(body)):
        assert refused(codec, body[:-cut], where)
    for tail in (b"\0", b"\0\0", rng.randbytes(100)):
        assert refused(codec, body + tail, where)
    for _ in range(200):
        mutated = bytearray(body)
        mutated[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        refused(codec, bytes(mutated), where)
        refused(codec, body[:4] + rng.randbytes(len(body) - 4), where)
        refused(codec, rng.randbytes(rng.randrange(2 * len(body))), where)
    for byte in (b"\0", b"\xff"):
        assert refused(codec, body[:4] + byte * (len(body) - 4), where)


def test_a_stream_that_does_not_end_where_it_should() -> None:
    where, codec = Layout.vector(500), coded(1)
    body = bytearray(codec.encode(DRAW.normal(500), where, DRAW)[wire.HEADER :])
    body[-1] ^= 1
    with pytest.raises(WireError, match="does not end where it should"):
        codec.decode(wire.frame(codec.id, codec.fingerprint(where), bytes(body)), where, DRAW)
