"""The choice among codecs by a variance: unbiased, within q, and no longer than dithered alone."""

import math

import pytest
import torch
from torch import Tensor

from fedcom import FedCOMGATE, Links, Simulation
from fedcom.codecs import Auto, Codec, Dithered, LowRank, Peaks, Rotated
from fedcom.config import Config
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from tests.codecs.cases import KINDS, LONG, keys, layout
from tests.codecs.test_lowrank import WHERE as MATRICES
from tests.codecs.test_lowrank import near_rank_two
from tests.codecs.test_statistics import errors, excess, long_vector
from tests.conftest import mlp_task

LARGE = Layout.vector(60_000)


def large_vector(kind: str) -> Tensor:
    x = Draw.seeded(3).normal(LARGE.size)
    if kind == "sparse":
        return torch.zeros_like(x).index_put_((torch.tensor([7, 31_000]),), torch.tensor([1.0, -2.0]))
    return {"gaussian": x, "heavy-tailed": x**3, "constant": torch.full_like(x, -0.7)}[kind]


@pytest.mark.covers(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q", [0.01, 0.3, 3.0])
def test_the_mean_is_the_vector_and_the_variance_at_most_q(q: float, kind: str) -> None:
    x, n = long_vector(kind), 200
    error = errors(Auto(q=q), x, LONG, n)
    assert excess(error) <= 1
    squares = error.square().sum(-1) / float(x.double() @ x.double())
    assert float(squares.mean()) <= q + 5 * float(squares.std()) / math.sqrt(n)


@pytest.mark.parametrize("q", [0.01, 1.0])
def test_lowrank_is_unbiased_and_has_exactly_q(q: float) -> None:
    x, n = near_rank_two(0.3), 200
    error = errors(LowRank(1, q=q), x, MATRICES, n)
    assert excess(error) <= 1
    squares = error.square().sum(-1) / float(x.double() @ x.double())
    assert abs(float(squares.mean()) - q) <= 5 * float(squares.std()) / math.sqrt(n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q", [1e-3, 0.1, 1.0, 10.0])
def test_a_message_is_no_longer_than_dithered_and_the_tag(q: float, kind: str) -> None:
    x, draw = large_vector(kind), Draw.seeded(1)
    assert len(Auto(q=q).encode(x, LARGE, draw)) <= len(Dithered(q).encode(x, LARGE, draw)) + 1


@pytest.mark.parametrize(
    ("q", "x", "where", "kind"),
    [
        (1.0, large_vector("gaussian"), LARGE, Rotated),
        (1e-3, large_vector("gaussian"), LARGE, Dithered),
        (1.0, large_vector("sparse"), LARGE, Dithered),
        (0.01, near_rank_two(), MATRICES, LowRank),
    ],
)
def test_it_takes_what_is_shortest(q: float, x: Tensor, where: Layout, kind: type[Codec]) -> None:
    codec, draw = Auto(q=q), Draw.seeded(1)
    chosen = codec.candidates(where)[int(codec.compress(x, where, draw)["choice"])]
    assert isinstance(chosen, kind)
    others = [len(c.encode(x, where, draw)) for c in codec.candidates(where)]
    assert len(chosen.encode(x, where, draw)) <= 1.02 * min(others)


@pytest.mark.parametrize("q", [1e-3, 0.1, 1.0, 10.0])
def test_every_candidate_promises_q_with_no_bits_to_spare(q: float) -> None:
    rotated = [codec for codec in Auto(q=q).candidates(LARGE) if isinstance(codec, Rotated)]
    assert [codec.variance(LARGE) <= q for codec in rotated] == [True]
    assert Rotated(rotated[0].bits - 0.001).variance(LARGE) > q


@pytest.mark.parametrize("bits", [0.0015, 0.01, 0.0499])
def test_at_the_lowest_rates_it_is_peaks(bits: float) -> None:
    codec, x, draw = Auto(bits=bits), large_vector("heavy-tailed"), Draw.seeded(1)
    message, alone = codec.encode(x, LARGE, draw), Peaks(bits).encode(x, LARGE, draw)
    assert message[3:] == alone[3:]  # the header has another checksum, for the codec's id is in it
    assert 8 * len(message) <= bits * LARGE.size
    assert torch.equal(codec.decode(message, LARGE, draw), Peaks(bits).decode(alone, LARGE, draw))
    assert codec.variance(LARGE) == Peaks(bits).variance(LARGE)
    with pytest.raises(WireError, match="checksum"):
        Peaks(bits).decode(message, LARGE, draw)


def test_a_model_too_small_for_the_lowest_rates_is_refused_with_what_is_possible() -> None:
    with pytest.raises(ConfigError, match=r"peaks needs 0.00107 bits"):
        Auto(bits=0.0005).variance(LARGE)
    with pytest.raises(ConfigError, match=r"between 0.0001 and 8; got 5e-05"):
        Auto(bits=5e-5)


@pytest.mark.parametrize("q", [25.0, 100.0, 1000.0])
def test_a_large_variance_is_had_for_the_bits_of_peaks(q: float) -> None:
    (peaks,) = (codec for codec in Auto(q=q).candidates(LARGE) if isinstance(codec, Peaks))
    assert peaks.variance(LARGE) <= q < Peaks(peaks.bits - 2e-4).variance(LARGE)
    message = Auto(q=q).encode(large_vector("gaussian"), LARGE, Draw.seeded(1))
    assert len(message) <= 16 + 1 + peaks.bits * LARGE.size / 8


def test_short_vectors_are_not_rotated() -> None:
    codecs = Auto(q=1.0).candidates(layout("several", torch.float32))
    assert not any(isinstance(codec, Rotated) for codec in codecs)


@pytest.mark.parametrize("q", [0.01, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_come_back_as_what_simulation_saw(q: float, dtype: torch.dtype) -> None:
    where, codec = Layout(MATRICES.names, MATRICES.shapes, dtype), Auto(q=q)
    x = torch.stack([near_rank_two(), torch.ones(where.size), Draw.seeded(2).normal(where.size)]).to(dtype)
    stack = codec.quantise(x, where, keys(3))
    for j in range(3):
        draw = Draw(keys(3).key[j])
        message = codec.encode(x[j], where, draw)
        assert torch.equal(codec.decode(message, where, draw), codec.quantise(x[j], where, draw))
        assert torch.allclose(stack[j], codec.quantise(x[j], where, draw), atol=1e-6)
        counted = sum(codec.itemise(codec.compress(x[j], where, draw), where).values())
        assert abs(counted - len(message)) <= 12


def test_a_receiver_with_another_q_refuses_the_message() -> None:
    message = Auto(q=0.1).encode(large_vector("gaussian"), LARGE, Draw.seeded(0))
    with pytest.raises(WireError, match="wrong fingerprint"):
        Auto(q=0.2).decode(message, LARGE, Draw.seeded(0))


@pytest.mark.parametrize("codec", [Auto, LowRank])
def test_it_takes_q_or_bits(codec: type[Auto] | type[LowRank]) -> None:
    assert codec() == codec(bits=1.0)
    assert codec(q=0.1).variance(MATRICES) == 0.1
    with pytest.raises(ConfigError, match="takes q or bits, not both"):
        codec(q=0.1, bits=2.0)
    with pytest.raises(ConfigError, match="q must be between"):
        codec(q=0.0)


def test_a_config_takes_q() -> None:
    config = Config.of({"uplink": {"name": "auto", "q": 0.1}})
    assert config.links.uplink == Auto(q=0.1)
    assert config.table()["uplink"] == {"name": "auto", "q": 0.1, "memory": "none"}
    assert Config.of(config.table()) == config


def test_a_run_by_q() -> None:
    simulation = Simulation(mlp_task(), FedCOMGATE(), Links(Auto(q=0.1)), rounds=2, device="cpu")
    assert all(math.isfinite(row["train_loss"]) for row in simulation.run())


def test_a_stack_is_billed_what_its_messages_are_alone() -> None:
    """Both low-rank candidates are chosen in it, whose parts have the same names in the books."""
    where, codec = Layout(("w",), ((120, 90),)), Auto(bits=2.0)
    x = torch.stack([_near_rank(rank, seed) for rank in (2, 4) for seed in range(2)])
    draw = keys(len(x))
    chosen = codec.compress(x, where, draw)["choice"].flatten().tolist()
    names = [codec.candidates(where)[i] for i in chosen]
    assert {getattr(each, "rank", None) for each in names} >= {2, 4}
    whole = _total(codec.transmit(x, where, draw)[1], len(x))
    alone = [
        _total(codec.transmit(row, where, Draw(key))[1], 1) for row, key in zip(x, draw.key, strict=True)
    ]
    assert whole == sum(alone)


def _near_rank(rank: int, seed: int) -> torch.Tensor:
    """A matrix of that rank and some noise, flat."""
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(120, rank, generator=generator), torch.randn(rank, 90, generator=generator)
    return (left @ right + 0.01 * torch.randn(120, 90, generator=generator)).flatten()


def _total(sizes: dict[str, int | torch.Tensor], messages: int) -> int:
    return sum(int(n.sum()) if isinstance(n, torch.Tensor) else messages * n for n in sizes.values())
