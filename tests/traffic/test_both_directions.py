"""Every codec up and down, at a low and at a normal rate: alone, in a stack of runs, and with real bytes."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from fedcom import Algorithm, FedAvg, FedCOMGATE, FedCOMGATEExact, Links, Scaffold, Simulation, Task
from fedcom.codecs import (
    CODECS,
    Auto,
    Codec,
    CountSketch,
    Dithered,
    Identity,
    Int,
    LowRank,
    Peaks,
    PowerSgd,
    Qsgd,
    RandK,
    Rotated,
    TopK,
)
from fedcom.engines.stacks import stack_runs
from fedcom.traffic.ledger import Direction
from tests.codecs.cases import label
from tests.conftest import after

CLIENTS, ROUNDS, RUNS = 4, 3, 2
WAYS: tuple[Direction, ...] = ("uplink", "downlink")
LOW: list[Codec] = [
    *(Int(1), Qsgd(1), TopK(0.01), RandK(0.01), CountSketch(0.01), PowerSgd(1)),
    *(Dithered(bits=0.35), Rotated(0.1), LowRank(1, bits=0.7), Auto(0.1), Auto(0.03), Peaks(0.05)),
]
RATES = {"eta": 0.05, "gamma": 1.0, "tau": 2, "batch": 4}
METHODS: list[Algorithm] = [
    FedCOMGATE(**RATES),  # type: ignore[arg-type]
    FedCOMGATEExact(**RATES),  # type: ignore[arg-type]
    Scaffold(**RATES, option="I"),  # type: ignore[arg-type]
    FedAvg(**RATES, option="I"),  # type: ignore[arg-type]
]


@cache
def task(seed: int) -> Task:
    """A classifier of 2163 coordinates, whose gradients have the same bits in any stack of clients."""
    torch.manual_seed(seed)
    x, y = torch.randn(8 * CLIENTS, 50), torch.randint(0, 3, (8 * CLIENTS,))
    module = nn.Sequential(nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 3))
    return Task.from_arrays(module, x, y, clients=CLIENTS, seed=seed)


def make(method: Algorithm, codec: Codec, participation: float, seed: int) -> Simulation:
    links = Links(Identity() if method.compresses else codec, codec)
    return Simulation(
        task(seed), method, links, rounds=ROUNDS, participation=participation, seed=seed, device="cpu"
    )


@pytest.mark.covers(1)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("codec", [*(kind() for kind in CODECS.values()), *LOW], ids=label)
def test_a_run_is_the_same_alone_in_a_stack_and_with_real_bytes(
    codec: Codec, method: Algorithm, participation: float
) -> None:
    stacked = [make(method, codec, participation, seed) for seed in range(RUNS)]
    engine = stack_runs(stacked)
    for _ in range(ROUNDS):
        engine.step()
    for seed, run in enumerate(stacked):
        links, options = run.rules.links, {"participation": participation, "seed": seed}
        alone = after(task(seed), method, links, ROUNDS, **options)
        assert torch.equal(run.server.w, alone.server.w)
        assert run.ledger.as_dict() == alone.ledger.as_dict()
    real = after(task(seed), method, replace(links, encode=True), ROUNDS, **options)
    assert torch.equal(real.server.w, alone.server.w)
    for way in WAYS:
        assert alone.ledger.total(way) == real.ledger.total(way)
