"""Rates of the entropy-coded codecs on a Gaussian vector, against the least any unbiased scheme can do."""

import math

import pytest
import torch

from fedcom import ConfigError, Links, Simulation
from fedcom.codecs import Auto, Codec, Dithered, Int, Rotated
from fedcom.codecs.rotated import least_bits
from fedcom.draws import Draw
from fedcom.vectors import Layout
from tests.conftest import mlp_task

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


@pytest.mark.parametrize("bits", [0.1, 0.25, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("size", [14, 64, 100, 300, 1000, 2000, 5000])
def test_rotated_keeps_its_rate_and_says_something_of_a_small_model_or_refuses_it(
    size: int, bits: float
) -> None:
    """Where the header leaves no room for codes, most messages would be zeros: 93% with 64 coordinates."""
    codec, where, n = Rotated(bits), Layout.vector(size), 200
    x = torch.randn(size, generator=torch.Generator().manual_seed(1)).expand(n, size).contiguous()
    if bits < least_bits(where):
        with pytest.raises(ConfigError, match=rf"rotated needs .* of this model's {size} coordinates"):
            codec.variance(where)
        return
    draw = Draw.seeded(2).fold(torch.arange(n))
    heard, sizes = codec.transmit(x, where, draw)
    shares = (heard * x).sum(-1) / x.square().sum(-1)
    assert (shares - 1).abs().max() < 1e-4  # unbiased because each message is scaled so, but for silent ones
    assert float(codec.variance(where)) < math.inf
    assert 8 * float(sum(sizes.values()).double().mean()) <= 1.05 * bits * size


def test_a_run_with_a_rate_that_its_model_is_too_small_for_is_refused() -> None:
    task = mlp_task()  # 66 coordinates
    for uplink in (Rotated(2.0), Auto(0.5)):
        with pytest.raises(ConfigError, match="of this model's 66 coordinates"):
            Simulation(task, "fedcom", uplink, device="cpu")
    with pytest.raises(ConfigError, match="rotated needs"):
        Simulation(task, "fedcomgate", Links(Int(8), Rotated(1.0)), device="cpu")
