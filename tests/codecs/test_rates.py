"""Rates of the entropy-coded codecs on a Gaussian vector, against the least any unbiased scheme can do."""

import math

import pytest
import torch

from fedcom.codecs import Codec, Dithered, Rotated
from fedcom.draws import Draw
from fedcom.vectors import Layout

WHERE = Layout.vector(200_000)
X = torch.randn(WHERE.size, generator=torch.Generator().manual_seed(0))


def measured(codec: Codec) -> tuple[float, float]:
    """Bits a coordinate, headers in, and the error relative to |x|^2."""
    data = codec.encode(X, WHERE, Draw.seeded(0))
    heard = codec.decode(data, WHERE, Draw.seeded(0)).double()
    return 8 * len(data) / WHERE.size, float((heard - X).square().sum() / X.double().square().sum())


@pytest.mark.parametrize(
    ("bits", "most"), [(8, 0.30), (4, 0.30), (2, 0.30), (1, 0.30), (0.5, 0.16), (0.25, 0.09), (0.1, 0.05)]
)
def test_rotated_is_near_the_bound_at_the_rate_asked_for(bits: float, most: float) -> None:
    rate, q = measured(Rotated(bits))
    assert rate == pytest.approx(bits, rel=0.02)
    assert 0 < rate - 0.5 * math.log2(1 + 1 / q) <= most  # a Gaussian vector allows no q below 1/(4^R - 1)
    assert q == pytest.approx(Rotated(bits).variance(WHERE), rel=0.05)


@pytest.mark.parametrize(("bits", "most"), [(6, 0.28), (4, 0.28), (2, 0.34), (1, 0.53)])
def test_dithered_is_near_the_rate_asked_for(bits: float, most: float) -> None:
    rate, q = measured(Dithered(bits=bits))
    assert rate == pytest.approx(bits, rel=0.02)
    assert 0 < rate - 0.5 * math.log2(1 + 1 / q) <= most


@pytest.mark.parametrize("q", [1e-4, 0.1, 10.0])
def test_dithered_has_the_error_asked_for(q: float) -> None:
    assert measured(Dithered(q=q))[1] == pytest.approx(q, rel=0.02)
