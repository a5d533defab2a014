"""Low-rank parts with an unbiased residual, and the choice among codecs."""

import pytest
import torch
from torch import Tensor

from fedcom import FedCOMGATE, Links, Simulation
from fedcom.codecs import Auto, Codec, Dithered, LowRank, Rotated
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from tests.codecs.cases import keys
from tests.conftest import mlp_task

WHERE = Layout(("w", "b", "v"), ((40, 60), (40,), (30, 8, 8)))


def near_rank_two(noise: float = 0.05, n: int | None = None) -> Tensor:
    """Matrices of rank two, with some noise on every coordinate."""
    lead = () if n is None else (n,)
    draw = keys(n) if n is not None else Draw.seeded(0)
    parts = []
    for i, (rows, columns) in enumerate(((40, 60), (40, 1), (30, 64))):
        left = draw.fold("left", i).normal(2 * rows).reshape(*lead, rows, 2)
        right = draw.fold("right", i).normal(2 * columns).reshape(*lead, 2, columns)
        parts.append((left @ right).flatten(-2))
    x = torch.cat(parts, -1)
    return x + noise * draw.fold("noise").normal(WHERE.size)


def relative_error(y: Tensor, x: Tensor) -> float:
    return float((y - x).square().sum() / x.square().sum())


@pytest.mark.parametrize("codec", [LowRank(2, 2.5), LowRank(1, 1.5), Auto(2.5), Auto(0.5)], ids=repr)
def test_bytes_come_back_as_what_simulation_saw(codec: Codec) -> None:
    x = near_rank_two(n=3)
    stack = codec.quantise(x, WHERE, keys(3))
    for j in range(3):
        draw = Draw(keys(3).key[j])
        message = codec.encode(x[j], WHERE, draw)
        y = codec.decode(message, WHERE, draw)
        assert torch.equal(y, codec.quantise(x[j], WHERE, draw))
        assert torch.allclose(y, stack[j], atol=1e-6)
        counted = sum(codec.itemise(codec.compress(x[j], WHERE, draw), WHERE).values())
        assert abs(counted - len(message)) <= 12


def test_a_low_rank_update_costs_little() -> None:
    """Rank two takes nearly all of it: the error falls far below that of coding every coordinate."""
    x, draw = near_rank_two(), Draw.seeded(3)
    low_rank = relative_error(LowRank(2, 2.5).quantise(x, WHERE, draw), x)
    assert low_rank < 0.3 * relative_error(Dithered(bits=2.5).quantise(x, WHERE, draw), x)


def test_exact_rank_one_by_hand() -> None:
    """An outer product of +-1 vectors is its own rank-one part, to the rounding of eight bits."""
    where = Layout(("w",), ((64, 64),))
    a, b = (1 - 2 * Draw.seeded(s).integers(2, 64).float() for s in (1, 2))
    x = torch.outer(a, b).flatten()
    parts = LowRank(1, 4.0).compress(x, where, Draw.seeded(0))
    assert set(parts["factors"].tolist()) == {0, 254}
    assert relative_error(LowRank(1, 4.0).quantise(x, where, Draw.seeded(0)), x) < 1e-4


@pytest.mark.parametrize("codec", [LowRank(2, 2.5), LowRank(2, 0.9), Auto(1.0)], ids=repr)
def test_unbiased(codec: Codec) -> None:
    x, n = near_rank_two(0.3), 400
    seen = codec.quantise(x.expand(n, -1), WHERE, keys(n)).double()
    q = float((seen - x).square().sum(-1).mean() / x.square().sum())
    assert relative_error(seen.mean(0), x.double()) < 1.3 * q / n


def test_auto_takes_what_suits_the_vector() -> None:
    gaussian = Draw.seeded(0).normal(WHERE.size)
    for codec, x, kind in (
        (Auto(2.5), near_rank_two(), LowRank),
        (Auto(0.5), gaussian, Rotated),
        (Auto(1.5), gaussian**5, Dithered),
    ):
        choice = int(codec.compress(x, WHERE, Draw.seeded(1))["choice"])
        assert isinstance(codec.candidates(WHERE)[choice], kind)


def test_auto_refuses_a_choice_there_is_not() -> None:
    codec = Auto(2.5)
    with pytest.raises(WireError, match="one of 4 codecs"):
        codec.unpack(memoryview(b"\x09abc"), WHERE)


def test_a_rank_the_rate_cannot_pay_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower rank or raise bits"):
        LowRank(8, 0.5).quantise(near_rank_two(), WHERE, Draw.seeded(0))


def test_vectors_without_matrices_are_all_residual() -> None:
    where = Layout.vector(3000)
    x = Draw.seeded(0).normal(3000)
    codec = LowRank(2, 4.0)
    assert codec.matrices(where) == []
    assert relative_error(codec.quantise(x, where, Draw.seeded(1)), x) < 0.02


def test_a_codec_that_cannot_serve_the_model_says_so_before_round_0() -> None:
    with pytest.raises(ConfigError, match="lower rank or raise bits"):
        Simulation(mlp_task(), FedCOMGATE(), Links(LowRank(1, 0.05)), device="cpu")
