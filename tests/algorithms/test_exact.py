"""Exact tracking and the server's H: identities in float64, the invariants, and no error floor."""

from typing import Any

import pytest
import torch

from fedcom import (
    Codec,
    Dithered,
    FedCOM,
    FedCOMGATE,
    FedCOMGATEExact,
    FedGATE,
    Identity,
    Int,
    Links,
    RandK,
    Rotated,
    Sign,
    Simulation,
    TopK,
)
from fedcom.errors import ConfigError
from tests.conftest import after, close, mlp_task, quadratic_task

RATES: dict[str, Any] = {"eta": 0.05, "gamma": 1.0, "batch": 5}
UNEQUAL = {"tau": (2, 3, 4, 1, 2, 3), "weights": "size"}
SIZES = [5, 9, 12, 20, 7, 30]
COARSE: list[Codec] = [Int(2), RandK(0.1), Dithered(q=2.0), TopK(0.1), Sign()]


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("steps", [{"tau": 3}, UNEQUAL], ids=["equal", "unequal"])
def test_without_a_codec_it_is_fedgate(steps: Any, participation: float) -> None:
    task = mlp_task(sizes=SIZES)
    options = {"rounds": 6, "participation": participation}
    plain = after(task, FedGATE(**RATES, **steps), **options)
    exact = after(task, FedCOMGATEExact(**RATES, **steps), Links(Identity()), **options)
    assert close(plain.server.w, exact.server.w)
    assert close(plain.client_states().delta, exact.client_states().delta)


@pytest.mark.covers(1)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("codec", COARSE, ids=lambda c: c.name)
def test_the_weighted_sum_of_h_is_zero(codec: Codec, participation: float) -> None:
    task = mlp_task(sizes=SIZES)
    exact = after(
        task, FedCOMGATEExact(**RATES, **UNEQUAL), Links(codec), rounds=5, participation=participation
    )
    h = exact.client_states().h
    assert float(h.abs().max()) > 1e-4
    assert close(exact.weights @ h, torch.zeros_like(h[0]))


def test_the_sum_is_zero_with_budgets_too() -> None:
    links = Links(Int(8), budgets=(2.0, 8.0, 2.0, 4.0, 8.0, 4.0))
    exact = after(mlp_task(), FedCOMGATEExact(tau=3, **RATES), links, rounds=5)
    assert close(exact.weights @ exact.client_states().h, torch.zeros(66, dtype=torch.float64))


@pytest.mark.parametrize("down", [RandK(0.3), Int(3), TopK(0.2)], ids=lambda c: c.name)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("method", [FedCOMGATE, FedCOMGATEExact])
def test_the_server_knows_the_sum_under_a_lossy_downlink(
    method: type[FedCOMGATE], participation: float, down: Codec
) -> None:
    links = Links(RandK(0.2), down)
    run = after(
        mlp_task(sizes=SIZES), method(**RATES, **UNEQUAL), links, rounds=6, participation=participation
    )
    state = run.client_states()
    kept = state.h if method is FedCOMGATEExact else state.delta
    assert float(run.server.H.abs().max()) > 1e-4
    assert close(run.weights @ kept, run.server.H)


@pytest.mark.parametrize(
    "codec",
    [Int(2), *(pytest.param(c, marks=pytest.mark.thorough) for c in (RandK(0.25), Dithered(q=2.0)))],
    ids=lambda c: c.name,
)
def test_no_error_floor_under_an_unbiased_codec(codec: Codec) -> None:
    """Full gradients, a strongly convex problem: linear to the optimum, where FedCOM stops."""
    task = quadratic_task(sigma=0.0, L=1.0, mu=0.5)
    rates: dict[str, Any] = {"eta": 0.2, "gamma": 1.0, "tau": 3, "batch": "full", "decay": 1.0}
    exact, plain = (
        after(task, method(**rates), Links(codec), rounds=rounds).row()["train_loss"]
        for method, rounds in ((FedCOMGATEExact, 100), (FedCOM, 50))
    )
    assert abs(exact) < 1e-12
    assert plain > 1e-3


@pytest.mark.parametrize("down", [RandK(0.5), Int(4)], ids=lambda c: c.name)
def test_no_error_floor_under_a_lossy_downlink(down: Codec) -> None:
    task = quadratic_task(sigma=0.0, L=1.0, mu=0.5)
    algorithm = FedCOMGATEExact(eta=0.2, gamma=1.0, tau=3, batch="full", decay=1.0)
    assert abs(after(task, algorithm, Links(RandK(0.5), down), rounds=80).row()["train_loss"]) < 1e-12


def test_a_round_by_hand() -> None:
    """f_j = |w - b_j|^2/2 with b = -+1, eta .1, tau 1, gamma 1: r_j = -+(-1), D = 0, delta_j = r_j, w = 0.

    Rand-k keeps everything here, so that the second round starts from corrections that cancel each gradient.
    """
    task = quadratic_task(clients=2, dim=1, L=1.0, mu=1.0, sigma=0.0)
    algorithm = FedCOMGATEExact(eta=0.1, gamma=1.0, tau=1, batch="full", decay=1.0)
    run = after(task, algorithm, Links(RandK(1.0)), rounds=1)
    b = task.x[:: len(task.x) // 2, 1]
    assert close(run.client_states().delta, -(b - b.mean(0)))
    assert close(run.client_states().h, -(b - b.mean(0)))
    assert close(run.server.w, 0.1 * b.mean(0))


def test_beta_follows_the_measured_q_and_the_share() -> None:
    """Half of the clients: (1 - s)/s = 1, and delta moves by 1/(1 + q) of the difference."""
    links, rounds = Links(RandK(0.25)), {"rounds": 1, "participation": 0.5}
    auto = after(mlp_task(), FedCOMGATEExact(tau=2, **RATES), links, **rounds)
    full = after(mlp_task(), FedCOMGATEExact(tau=2, beta=1.0, **RATES), links, **rounds)
    assert auto.q is not None
    assert close(auto.client_states().delta, full.client_states().delta / (1 + auto.q), 1e-9)
    all_of_them = after(mlp_task(), FedCOMGATEExact(tau=2, **RATES), links, rounds=1)
    exact = after(mlp_task(), FedCOMGATEExact(tau=2, beta=1.0, **RATES), links, rounds=1)
    assert close(all_of_them.client_states().delta, exact.client_states().delta)


def test_a_beta_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match='beta must be "auto" or in'):
        FedCOMGATEExact(beta=0.0)


def test_a_method_that_makes_up_for_the_downlink_needs_no_memory_there(recwarn: Any) -> None:
    run = Simulation(mlp_task(), FedCOMGATE(), Links(Int(8), Rotated(2.0, "fast")), device="cpu")
    assert not run.rules.downlink.remembers
    kept = Links(Int(8), Int(8), downlink_memory="error-feedback")
    assert Simulation(mlp_task(), FedCOMGATE(), kept, device="cpu").rules.downlink.remembers
    assert Simulation(
        mlp_task(), FedCOM(option="I"), Links(Int(8), Int(8)), device="cpu"
    ).rules.downlink.remembers
    assert not recwarn.list
