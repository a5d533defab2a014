"""The fixed tier of the rotated codec: Lloyd and Max's levels, codes packed as they are."""

import math

import pytest
import torch

from fedcom.codecs import Rotated, wire
from fedcom.codecs.coding import hadamard, lloyd_max
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

WHERE, DRAW = Layout.vector(200_000), Draw.seeded(0)
X = Draw.seeded(1).normal(WHERE.size)


def test_the_levels_max_published() -> None:
    # Quantizing for minimum distortion, table I: levels above zero, and the squared error.
    table = {
        1: ([0.7980], 0.3634),
        2: ([0.4528, 1.510], 0.1175),
        3: ([0.2451, 0.7560, 1.344, 2.152], 0.03454),
        4: ([0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733], 0.009497),
    }
    for bits, (levels, error) in table.items():
        quantiser = lloyd_max.for_bits(bits)
        assert quantiser.centres[2 ** (bits - 1) :].tolist() == pytest.approx(levels, abs=6e-4)
        assert torch.equal(quantiser.centres, -quantiser.centres.flip(0))
        assert 1 - 1 / (1 + quantiser.q) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize(("bits", "gap"), [(1, 0.27), (2, 0.46), (3, 0.57), (4, 0.64)])
def test_the_gap_to_the_bound(bits: int, gap: float) -> None:
    codec = Rotated(bits, "fixed")
    data = codec.encode(X, WHERE, DRAW)
    heard = codec.decode(data, WHERE, DRAW).double()
    q = float((heard - X).square().sum() / X.double().square().sum())
    assert q == pytest.approx(codec.variance(WHERE), rel=0.01)
    assert 8 * len(data) / WHERE.size - 0.5 * math.log2(1 + 1 / q) == pytest.approx(gap, abs=0.02)


@pytest.mark.parametrize("bits", lloyd_max.BITS)
@pytest.mark.parametrize("d", [1, 97, 5_000])
def test_sizes_are_exact(bits: int, d: int) -> None:
    where, codec = Layout.vector(d), Rotated(bits, "fixed")
    size = wire.HEADER + 4 + math.ceil(hadamard.padded(d) * bits / 8)
    assert codec.exact_size
    assert len(codec.encode(X[:d], where, DRAW)) == size
    assert sum(codec.itemise(codec.compress(X[:d], where, DRAW), where).values()) == size


def test_codes_by_hand() -> None:
    # Two bits: edges at 0 and 0.9816 deviations.
    quantiser = lloyd_max.for_bits(2)
    y = torch.tensor([-9.0, -1.97, -1.95, -0.01, 0.01, 1.95, 1.97, float("inf")])
    assert quantiser.codes(y, torch.tensor([2.0])).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert quantiser.coder.pack(torch.tensor([0, 1, 2, 3, 3])) == bytes([0b00011011, 0b11000000])


@pytest.mark.parametrize("bits", [0.5, 1.5, 5, 8])
def test_other_bits_are_refused(bits: float) -> None:
    with pytest.raises(ConfigError, match=f"tier fixed takes 1, 2, 3 or 4 bits; got {bits}"):
        Rotated(bits, "fixed")


def test_a_body_of_another_size_is_refused() -> None:
    codec, where = Rotated(2, "fixed"), Layout.vector(100)
    body = codec.encode(X[:100], where, DRAW)[wire.HEADER :]
    for other in (body[:-1], body + b"\0", body[:4]):
        with pytest.raises(WireError, match="codes of 2 bits cannot have"):
            codec.decode(wire.frame(codec.id, codec.fingerprint(where), other), where, DRAW)
