"""Identities in float64: each compares two methods, or a method with a few plain lines."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedcom import (
    ALGORITHMS,
    VRLSGD,
    Diana,
    FedAvg,
    FedCOM,
    FedCOMGATE,
    FedGATE,
    FedPAQ,
    Identity,
    Int,
    Links,
    LocalSGD,
    Natural,
    Qsgd,
    RandK,
    Round,
    Scaffold,
    Simulation,
    Task,
    TopK,
    VRDiana,
)
from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.tasks.oracle import DataOracle
from fedcom.vectors import Vectors
from tests.conftest import after, close, mlp_task, quadratic_task

RATES = {"eta": 0.05, "tau": 4, "batch": 5}
PLAIN = Links(Identity())
CODECS = [Identity(), Int(8), Int(2), Int(4, rounding="nearest"), Qsgd(7), Natural(), RandK(0.4), TopK(0.3)]


def fedavg_in_ten_lines(task: Task, rounds: int, eta: float, tau: int, batch: int) -> torch.Tensor:
    w = task.objective.start.clone()
    for r in range(rounds):
        models = []
        for j in range(task.clients):
            w_j = w.clone()
            for c in range(tau):
                draw = Draw.seeded(0).fold(r).fold(torch.tensor([j]))
                oracle = DataOracle(task, torch.tensor([j]), draw, batch, step=c)
                w_j = w_j - eta * 0.99**r * oracle.batch(w_j[None])[0]
            models.append(w_j)
        w = torch.stack(models).mean(0)
    return w


def test_fedcom_without_codec_at_gamma_1_is_fedavg_in_ten_lines() -> None:
    task = mlp_task()
    expected = fedavg_in_ten_lines(task, 5, **RATES)  # type: ignore[arg-type]
    for algorithm in (FedCOM(gamma=1.0, **RATES), FedAvg(**RATES), LocalSGD(**RATES)):  # type: ignore[arg-type]
        assert close(after(task, algorithm, PLAIN).server.w, expected)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_fedcom_at_gamma_1_is_fedpaq(codec: Codec) -> None:
    task, links = mlp_task(), Links(codec)
    a = after(task, FedCOM(gamma=1.0, **RATES), links)  # type: ignore[arg-type]
    b = after(task, FedPAQ(**RATES), links)  # type: ignore[arg-type]
    assert torch.equal(a.server.w, b.server.w)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedcomgate_without_codec_is_fedgate(participation: float) -> None:
    task, rates = mlp_task(), {**RATES, "gamma": 2.0}
    a = after(task, FedCOMGATE(**rates), PLAIN, participation=participation)  # type: ignore[arg-type]
    b = after(task, FedGATE(**rates), PLAIN, participation=participation)  # type: ignore[arg-type]
    assert torch.equal(a.server.w, b.server.w)


def test_fedgate_at_gamma_1_is_vrl_sgd() -> None:
    task = mlp_task()
    a = after(task, FedGATE(gamma=1.0, **RATES))  # type: ignore[arg-type]
    assert torch.equal(a.server.w, after(task, VRLSGD(**RATES)).server.w)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_fedgate_is_scaffold_at_full_participation(weights: str) -> None:
    task = mlp_task(sizes=[5, 9, 12, 20, 7, 30])
    rates = {**RATES, "gamma": 1.5, "weights": weights}
    a, b = after(task, FedGATE(**rates), rounds=12), after(task, Scaffold(**rates), rounds=12)  # type: ignore[arg-type]
    assert close(a.server.w, b.server.w)


def test_fedgate_is_not_scaffold_with_sampling() -> None:
    task, rates = mlp_task(), {**RATES, "gamma": 1.5}
    a = after(task, FedGATE(**rates), rounds=6, participation=0.5)  # type: ignore[arg-type]
    b = after(task, Scaffold(**rates), rounds=6, participation=0.5)  # type: ignore[arg-type]
    assert not close(a.server.w, b.server.w, 1e-6)


def test_options_1_and_2_differ_only_in_downlink_bytes() -> None:
    task = mlp_task()
    one, two = (after(task, FedCOMGATE(option=option, **RATES), Links(Int(8))) for option in ("I", "II"))  # type: ignore[arg-type]
    assert torch.equal(one.server.w, two.server.w)
    assert one.ledger.total("uplink") == two.ledger.total("uplink")
    model_bytes = 16 + 8 * task.objective.layout.size
    assert two.ledger.total("downlink") - one.ledger.total("downlink") == 6 * (5 - 1) * model_bytes


@pytest.mark.covers(2)
@pytest.mark.parametrize(
    ("damping", "memory"), [("auto", "none"), (1.0, "none"), ("auto", "error-feedback"), (0.3, "paper")]
)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.name}")
def test_the_weighted_sum_of_delta_is_zero(
    codec: Codec, participation: float, damping: float | str, memory: str
) -> None:
    task = mlp_task(sizes=[5, 9, 12, 20, 7, 30])
    algorithm = FedCOMGATE(damping=damping, weights="size", gamma=1.0, **RATES)  # type: ignore[arg-type]
    links = Links(codec, uplink_memory=memory)  # type: ignore[arg-type]
    simulation = after(task, algorithm, links, rounds=4, participation=participation)
    delta = simulation.client_states().delta
    assert float(delta.abs().max()) > 1e-3
    assert close(simulation.weights @ delta, torch.zeros_like(delta[0]))


@pytest.mark.covers(2)
@pytest.mark.parametrize("method", [Diana, VRDiana])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_dianas_server_shift_is_the_mean_of_the_clients(
    method: type[Diana], codec: Codec, participation: float, weights: str
) -> None:
    task = mlp_task(sizes=[5, 9, 12, 20, 7, 30])
    algorithm = method(eta=0.05, batch=5, weights=weights)  # type: ignore[arg-type]
    simulation = after(task, algorithm, Links(codec), rounds=5, participation=participation)
    assert float(simulation.server.h.abs().max()) > 1e-3
    assert close(simulation.server.h, simulation.weights @ simulation.client_states().h)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_scaffolds_server_control_is_the_mean_of_the_clients(weights: str) -> None:
    task = mlp_task(sizes=[5, 9, 12, 20, 7, 30])
    algorithm = Scaffold(weights=weights, gamma=1.0, **RATES)  # type: ignore[arg-type]
    simulation = after(task, algorithm, Links(Int(4)), rounds=8, participation=0.5)
    assert close(simulation.server.c, simulation.weights @ simulation.client_states().c)


@pytest.mark.parametrize(
    "algorithm", [FedAvg, FedCOM, FedGATE, FedCOMGATE, Scaffold, Diana, VRDiana], ids=lambda a: a.name
)
def test_one_full_step_of_identical_clients_is_gradient_descent(algorithm: type) -> None:
    one = mlp_task(sizes=[12])
    same = Task(one.objective, one.x.repeat(4, 1), one.y.repeat(4), one.sizes.repeat(4), one.x, one.y, 3)
    simulation = after(same, algorithm(eta=0.2, gamma=1.0, tau=1, batch="full"), PLAIN, rounds=6)
    w = one.objective.start.clone()
    for r in range(6):
        oracle = DataOracle(one, torch.tensor([0]), Draw.seeded(0).fold(torch.tensor([0])), None)
        w = w - 0.2 * 0.99**r * oracle.full(w[None])[0]
    assert close(simulation.server.w, w)


@pytest.mark.parametrize("codec", [Int(8), Int(4)], ids=lambda c: f"{c.bits} bits")
def test_tracking_what_the_server_heard_reaches_the_optimum(codec: Int) -> None:
    """Tracking the client's uncompressed update stops at 1.8e-2 at 8 bits, 0.25 at 4 (eta 0.1)."""
    task = quadratic_task(sigma=0.0, L=1.0, mu=0.3)
    algorithm = FedCOMGATE(eta=0.2, gamma=1.0, tau=5, batch="full", decay=1.0)
    assert after(task, algorithm, Links(codec), rounds=60).row()["train_loss"] < 1e-13
    drifting = after(task, FedCOM(eta=0.2, gamma=1.0, tau=5, batch="full", decay=1.0), PLAIN, rounds=25)
    assert drifting.row()["train_loss"] > 1e-6


def test_vr_diana_reaches_the_optimum_and_diana_does_not() -> None:
    task = quadratic_task(sigma=1.0, L=1.0, mu=0.4)
    rates = {"eta": 0.3, "batch": 4, "decay": 1.0}
    assert after(task, VRDiana(**rates), Links(Int(4)), rounds=300).row()["train_loss"] < 1e-13  # type: ignore[arg-type]
    assert after(task, Diana(**rates), Links(Int(4)), rounds=150).row()["train_loss"] > 1e-4  # type: ignore[arg-type]


def test_each_round_samples_participation_times_clients_anew() -> None:
    simulation = Simulation(mlp_task(10), FedAvg(**RATES), participation=0.3, device="cpu")  # type: ignore[arg-type]
    samples = []
    for _ in range(12):
        samples.append(tuple(simulation.sample().tolist()))
        simulation.step()
    assert {len(s) for s in samples} == {3}
    assert len(set(samples)) > 6
    assert set().union(*samples) == set(range(10))


def test_a_mean_of_models_is_for_methods_that_use_d_as_it_is() -> None:
    """What derives from a method that can have it, and sends something else, has it not."""

    @dataclass(frozen=True, kw_only=True)
    class Halved(Scaffold):
        name: ClassVar[str] = "halved"

        def upload(self, client: Any, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
            return {name: x / 2 for name, x in super().upload(client, down, w, rnd).items()}

    can = {"local-sgd", "fedavg", "fedpaq", "fedcom", "qsparse", "scaffold"}
    can |= {"fedavgm", "fedadam", "fedyogi", "fedadagrad", "diloco", "muloco", "sparseloco"}
    for name, kind in {**ALGORITHMS, "halved": Halved}.items():
        refused = pytest.raises(ConfigError, match=f"{name} learns from D per step")
        with nullcontext() if name in can else refused:
            kind(average="models")


def test_with_equal_steps_a_mean_of_models_is_the_mean() -> None:
    task = mlp_task()
    plain, models = (Simulation(task, FedAvg(tau=3, batch=4, average=a)) for a in (None, "models"))
    for _ in range(3):
        plain.step()
        models.step()
    torch.testing.assert_close(models.server.w, plain.server.w, rtol=1e-12, atol=1e-12)
