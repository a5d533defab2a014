"""Rates of the entropy-coded codecs on a Gaussian vector, against the least any unbiased scheme can do."""

import math

import pytest
import torch

from fedcom.codecs import Codec, Dithered, Rotated
from fedcom.draws import Draw
from fedcom.vectors import Layout
from tests.codecs.cases import keys, shaped

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


@pytest.mark.parametrize("kind", ["gaussian", "constant", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("size", [1, 14, 64, 300, 1000, 2000])
def test_rotated_says_something_of_every_vector(
    size: int, bits: float, dtype: torch.dtype, kind: str
) -> None:
    """At 0.02 bits per coordinate 93% of the messages of 64 coordinates held nothing but zeros."""
    codec, where, n = Rotated(bits), Layout.vector(size, dtype), 500
    x = shaped(kind, where).expand(n, size).contiguous()
    heard = codec.quantise(x, where, keys(n))
    shares = (heard * x).double().sum(-1) / x.double().square().sum(-1)
    assert (shares - 1).abs().max() < 1e-4  # messages are scaled so
    if size >= 64:  # of fewer numbers the rotations are few
        error, q = heard.double().mean(0) - x[0], (heard - x).double().square().sum(-1).mean()
        assert error.square().sum() <= 2.5 * q / n  # as small as chance makes it
    row = codec.decode(codec.encode(x[7], where, keys(n)[7]), where, keys(n)[7])
    assert torch.equal(row, heard[7])


def test_rotated_says_nothing_of_zeros() -> None:
    where = Layout.vector(64)
    assert not codec_of_few(torch.zeros(3, 64), where).any()
    tiny = torch.full((3, 64), 1e-38)
    assert codec_of_few(tiny, where).ne(0).any()


def codec_of_few(x: torch.Tensor, where: Layout) -> torch.Tensor:
    return Rotated(0.1).quantise(x, where, keys(len(x)))
