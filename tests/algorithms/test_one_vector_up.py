"""SCALLION and SCAFCOM in float64: what the server keeps, other methods as cases of them, their limit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcom import (
    ConfigError,
    Identity,
    Int,
    Links,
    Natural,
    Qsgd,
    RandK,
    Scafcom,
    Scaffold,
    Scallion,
    Task,
    TopK,
)
from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle
from tests.conftest import CHAOS, after, close, mlp_task, quadratic_task

RATES: Any = {"eta": 0.05, "tau": 4, "batch": 5, "gamma": 1.5}
FULL: Any = {"eta": 0.1, "gamma": 1.0, "tau": 3, "batch": "full", "decay": 1.0}
PLAIN = Links(Identity())
CODECS = [Identity(), Int(8), Int(2), Int(4, rounding="nearest"), Qsgd(7), Natural(), RandK(0.4), TopK(0.3)]
METHODS = [Scallion(), Scafcom(), Scafcom(beta=1.0)]
UNEQUAL = [5, 9, 12, 20, 7, 30]


@pytest.mark.covers(2)
@pytest.mark.parametrize(
    "method", [Scallion(), Scafcom(), Scafcom(beta=1.0)], ids=["scallion", "scafcom", "beta 1"]
)
@pytest.mark.parametrize("memory", ["none", "error-feedback"])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_the_servers_control_is_the_mean_of_the_clients(
    method: Any, codec: Codec, participation: float, weights: Any, memory: Any
) -> None:
    algorithm = replace(method, weights=weights, eta=0.02, tau=4, batch=5, gamma=1.0)
    links = Links(codec, uplink_memory=memory)
    simulation = after(mlp_task(sizes=UNEQUAL), algorithm, links, rounds=5, participation=participation)
    assert float(simulation.server.c.abs().max()) > 1e-4
    assert close(simulation.server.c, simulation.weights @ simulation.client_states().c)


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("method", [Scallion(alpha=1.0), Scafcom(beta=1.0)], ids=lambda a: a.name)
def test_uncompressed_and_undamped_they_are_scaffold(method: Any, participation: float, weights: Any) -> None:
    task, rates = mlp_task(sizes=UNEQUAL), {**RATES, "weights": weights}
    a = after(task, replace(method, **rates), PLAIN, rounds=8, participation=participation)
    b = after(task, Scaffold(**rates), PLAIN, rounds=8, participation=participation)
    assert close(a.server.w, b.server.w)
    assert close(a.client_states().c, b.client_states().c)
    assert 2 * a.ledger.total("uplink") == b.ledger.total("uplink")
    assert a.ledger.total("downlink") == b.ledger.total("downlink")


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_uncompressed_they_are_each_other(participation: float) -> None:
    """c_j is then v_j, and v_j - c_j is beta (g_j - c_j)."""
    a = after(mlp_task(), Scallion(alpha=0.3, **RATES), PLAIN, rounds=8, participation=participation)
    b = after(mlp_task(), Scafcom(beta=0.3, **RATES), PLAIN, rounds=8, participation=participation)
    assert close(a.server.w, b.server.w)


def ef21_sgdm(task: Task, codec: Codec, eta: float, beta: float, rounds: int) -> Tensor:
    layout, draw, w = task.objective.layout, Draw.seeded(0), task.objective.start.clone()
    clients = torch.arange(task.clients)
    oracle = DataOracle(task, clients, draw.fold(clients), None)
    g = v = w.new_zeros(task.clients, layout.size)
    for _ in range(rounds):
        v = (1 - beta) * v + beta * oracle.full(w.expand_as(v))
        g = g + codec.quantise(v - g, layout, draw)
        w = w - eta * g.mean(0)
    return w


@pytest.mark.parametrize("beta", [0.2, 1.0])
def test_scafcom_with_one_local_step_is_ef21_with_momentum_written_out(beta: float) -> None:
    task, codec = mlp_task(), TopK(0.1)
    algorithm = Scafcom(beta=beta, eta=0.05, gamma=2.0, tau=1, batch="full", decay=1.0)
    w = after(task, algorithm, Links(codec), rounds=20).server.w
    assert close(w, ef21_sgdm(task, codec, 0.05 * 2.0, beta, 20))


@pytest.mark.covers(1)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(
    ("algorithm", "codec"),
    [
        (Scallion(alpha=0.25, **FULL), RandK(0.25)),
        (Scafcom(beta=0.5, **FULL), TopK(0.25)),
        pytest.param(Scallion(**FULL), RandK(0.25), marks=pytest.mark.thorough),
        pytest.param(Scafcom(**FULL), TopK(0.25), marks=pytest.mark.thorough),
        pytest.param(Scallion(**FULL), Int(4), marks=pytest.mark.thorough),
        pytest.param(Scallion(**FULL), Qsgd(3), marks=pytest.mark.thorough),
        pytest.param(Scafcom(beta=1.0, **FULL), TopK(0.125), marks=pytest.mark.thorough),
    ],
    ids=lambda x: x.name,
)
def test_they_reach_the_optimum(algorithm: Any, codec: Codec, participation: float) -> None:
    task = quadratic_task(sigma=0.0, L=1.0, mu=0.5)
    rounds = round((360 if CHAOS else 150) / participation)
    simulation = after(task, algorithm, Links(codec), rounds, participation=participation)
    assert abs(simulation.row()["train_loss"]) < 1e-13  # type: ignore[arg-type]


def test_without_momentum_clients_keep_one_vector() -> None:
    assert Scafcom(beta=1.0).init_client(torch.zeros(3))._fields == ("c",)
    assert Scafcom().init_client(torch.zeros(3))._fields == ("c", "v")


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5])
def test_rates_of_averaging_are_shares(value: float) -> None:
    with pytest.raises(ConfigError, match=r"alpha must be in \(0, 1\]"):
        Scallion(alpha=value)
    with pytest.raises(ConfigError, match=r"beta must be in \(0, 1\]"):
        Scafcom(beta=value)
