"""Rounding with numbers spread over clients: each message as before, the mean nearer to the truth.

Statistics have fixed seeds; thresholds are those a right codec misses once in two million (5 sigma).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcom import ConfigError, FedCOM, FedCOMGATE, Int, Links, Qsgd, Scaffold, Simulation, Task, TopK
from fedcom.codecs import CODECS, Auto, Codec, Dithered, LowRank
from fedcom.config import Config, read
from fedcom.draws import Draw, Strata
from fedcom.engines.stacks import stack_runs
from fedcom.vectors import Layout
from tests.codecs.cases import LONG, gaussian, label, same
from tests.codecs.test_statistics import excess
from tests.conftest import after, close, mlp_task

N = 20
FIXED = [Int(1), Int(4), Int(8), Int(4, scale="vector"), Qsgd(1), Qsgd(7), Qsgd(127)]
CODED = [Dithered(q=0.1), Dithered(q=10.0), Dithered(bits=1.5), LowRank(q=0.1), Auto(q=0.1)]
each_codec = pytest.mark.parametrize("codec", FIXED + CODED, ids=label)
RATES: Any = {"eta": 0.05, "gamma": 1.0, "tau": 3, "batch": 5}


def clients(n: int = N, seed: int = 0, spread: bool = True) -> Draw:
    """The draws of the n clients of a round."""
    root = Draw.seeded(seed)
    strata = Strata(root, root.fold("ranks").permutation(n), n) if spread else None
    return Draw(root.fold(torch.arange(n)).key, strata).fold("uplink", "D")


def alike(where: Layout, apart: float = 0.3) -> Tensor:
    """Vectors of n clients that have much in common."""
    own = partial(torch.randn, generator=torch.Generator().manual_seed(1))
    return (own(where.size) + apart * own(N, where.size)).to(where.dtype)


@each_codec
def test_each_message_is_unbiased(codec: Codec) -> None:
    """The same client in 400 rounds, whose ranks differ."""
    rounds, ranks = Draw.seeded(5).fold(torch.arange(400)), torch.arange(400) % N
    draw = Draw(rounds.fold(3).key, Strata(rounds, ranks, N)).fold("uplink", "D")
    x = gaussian(LONG)
    error = codec.quantise(x.expand(400, -1), LONG, draw).double() - x.double()
    assert excess(error) < 1


@pytest.mark.parametrize(
    ("codec", "times"),
    [
        (Int(1), 5),
        (Int(8), 1.5),
        (Qsgd(7), 2),
        (Dithered(q=0.5), 1.3),
        (Dithered(q=10.0), 4),
        (LowRank(q=2.0), 2),
    ],
    ids=str,
)
def test_the_mean_is_nearer_to_the_truth(codec: Codec, times: float) -> None:
    x, errors = alike(LONG), {True: 0.0, False: 0.0}
    for spread in errors:
        for seed in range(10):
            heard = codec.quantise(x, LONG, clients(seed=seed, spread=spread))
            errors[spread] += float((heard - x).double().mean(0).square().sum())
    assert errors[False] > times * errors[True]


def test_clients_that_round_the_same_number_round_it_as_often_as_they_should() -> None:
    """Of 20 clients that round 0.37 with one bit, 7 or 8 round up at every place."""
    x = torch.full((N, 1002), 0.37)
    x[:, 0], x[:, -1] = 0.0, 1.0
    up = Int(1, scale="vector").compress(x, Layout.vector(1002), clients())["codes"].sum(0)
    assert set(up[1:-1].tolist()) == {7, 8}


@each_codec
def test_messages_are_as_long_as_before(codec: Codec) -> None:
    x = alike(LONG)
    sizes = [
        sum(int(torch.as_tensor(size).sum()) for size in codec.transmit(x, LONG, draw)[1].values())
        for draw in (clients(), clients(spread=False))
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0 if codec in FIXED else 0.02)


@each_codec
def test_a_stack_is_its_messages(codec: Codec) -> None:
    x, draw = alike(LONG), clients()
    heard = codec.quantise(x, LONG, draw)
    for i, row in enumerate(x[:4]):
        assert same(codec.decode(codec.encode(row, LONG, draw[i]), LONG, draw[i]), heard[i])
    some = torch.tensor([7, 2, 5])
    assert same(codec.quantise(x[some], LONG, draw[some]), heard[some])


# In a simulation


def flat(seed: int = 0) -> Task:
    """A task whose gradients have the same bits in any group of clients."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x, y = torch.randn(240, 12), torch.randint(0, 4, (240,))
        module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    return Task.from_arrays(module, x, y, x[:20], y[:20], clients=8, seed=seed)


CORRELATED = [Links(codec, correlated=True) for codec in (Int(2), Qsgd(3), Dithered(q=0.5))]
each_link = pytest.mark.parametrize("links", CORRELATED, ids=lambda links: links.uplink.name)


@each_link
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_groups_of_any_size_give_the_same_bits(links: Links, participation: float) -> None:
    algorithm = Scaffold(**RATES)
    whole = after(flat(), algorithm, links, rounds=3, chunk=8, participation=participation)
    for chunk in (1, 3):
        cut = after(flat(), algorithm, links, rounds=3, chunk=chunk, participation=participation)
        assert torch.equal(cut.server.w, whole.server.w)
        assert cut.ledger.as_dict() == whole.ledger.as_dict()


@each_link
def test_encoded_messages_say_what_counted_ones_do(links: Links) -> None:
    algorithm, real = FedCOMGATE(**RATES), replace(links, encode=True)
    counted, encoded = (after(flat(), algorithm, each, rounds=3) for each in (links, real))
    assert torch.equal(counted.server.w, encoded.server.w)


@each_link
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_runs_in_step_are_the_runs_alone(links: Links, participation: float) -> None:
    def make(seed: int) -> Simulation:
        options: Any = {"rounds": 3, "participation": participation, "seed": seed, "device": "cpu"}
        return Simulation(mlp_task(seed=seed), FedCOM(**RATES), links, **options)

    stacked = [make(seed) for seed in range(3)]
    play = stack_runs(stacked)
    for _ in range(3):
        play.step()
    for seed, run in enumerate(stacked):
        alone = make(seed)
        for _ in range(3):
            alone.step()
        assert torch.allclose(run.server.w, alone.server.w, rtol=1e-12, atol=1e-14)


@each_link
def test_tracking_keeps_its_invariant(links: Links) -> None:
    algorithm = FedCOMGATE(weights="size", **RATES)
    task = mlp_task(sizes=[5, 9, 12, 20, 7, 30])
    simulation = after(task, algorithm, links, rounds=4, participation=0.5)
    delta = simulation.client_states().delta
    assert close(simulation.weights @ delta, torch.zeros_like(delta[0]))


def test_clients_with_budgets_of_their_own() -> None:
    links = Links(Int(8), budgets=(2.0, 8.0, 2.0, 4.0, 8.0, 4.0), correlated=True)
    runs = [after(mlp_task(), FedCOMGATE(**RATES), links, rounds=3, chunk=chunk) for chunk in (6, 2)]
    assert close(runs[0].server.w, runs[1].server.w)


def test_it_is_an_option() -> None:
    plain, spread = (after(flat(), FedCOM(**RATES), Links(Int(2), correlated=on)) for on in (False, True))
    assert torch.equal(plain.server.w, after(flat(), FedCOM(**RATES), Links(Int(2))).server.w)
    assert not torch.equal(plain.server.w, spread.server.w)
    assert plain.ledger.as_dict() == spread.ledger.as_dict()


def test_from_a_config() -> None:
    config = Config.of(read(None, ["uplink.bits=2", "uplink.correlated=true"]))
    assert config.links.correlated
    assert Config.of(config.table()).links == config.links
    assert "correlated" not in Config.of(read(None, [])).table()["uplink"]


@pytest.mark.parametrize("codec", [TopK(), Int(8, "nearest"), CODECS["rotated"](), Auto(0.01)], ids=label)
def test_a_codec_that_rounds_with_nothing_is_refused(codec: Codec) -> None:
    with pytest.raises(ConfigError, match=f"{codec.name} as set has none; use int"):
        Links(codec, correlated=True)
