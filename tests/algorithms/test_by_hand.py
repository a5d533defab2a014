"""Two clients, two steps: the first rounds of every method computed by hand.

Client 1 has f(w) = 1/2 (w - 1)^2, client 2 has f(w) = (w + 1)^2; w starts at 0, eta = 0.1, no decay. The
gradients are w - 1 and 2 (w + 1).
"""

from typing import Any

import pytest
import torch

from fedcom import (
    VRLSGD,
    Diana,
    FedAvg,
    FedCOM,
    FedCOMGATE,
    FedGATE,
    FedPAQ,
    Identity,
    Links,
    LocalSGD,
    Qsparse,
    Scafcom,
    Scaffold,
    Scallion,
    Task,
    TopK,
    VRDiana,
)
from fedcom.tasks.models import Quadratic
from fedcom.tasks.objective import Objective
from tests.conftest import after, quadratic_task

RATES: Any = {"eta": 0.1, "tau": 2, "decay": 1.0, "batch": "full"}
ONE: Any = {**RATES, "gamma": 1.0}
DIANA: Any = {"eta": 0.1, "decay": 1.0, "batch": "full", "shift_rate": 0.5}
PLAIN = Links(Identity())


def task(a: list[list[float]], b: list[list[float]]) -> Task:
    """One sample per client: f_j(w) = 1/2 sum a_j (w - b_j)^2."""
    x = torch.tensor([a, b], dtype=torch.float64).transpose(0, 1)
    model, m = Quadratic(dim=len(a[0])), len(a)
    y = torch.zeros(m, dtype=torch.float64)
    objective = Objective(model.module((), 0), model.loss(), torch.float64)
    return Task(objective, x, y, torch.ones(m, dtype=torch.int64), x[:0], y[:0], 0)


def two() -> Task:
    return task(a=[[1.0], [2.0]], b=[[1.0], [-1.0]])


def model_after(rounds: int, algorithm: Any, links: Links = PLAIN) -> float:
    return float(after(two(), algorithm, links, rounds=rounds).server.w)


@pytest.mark.parametrize("method", [LocalSGD, FedAvg, FedPAQ, FedCOM])
def test_averaging(method: type) -> None:
    """0 -> .1 -> .19 and 0 -> -.2 -> -.36: D = -1.9 and 3.6, mean .85."""
    assert model_after(1, method(gamma=1.0, **RATES)) == pytest.approx(-0.085, abs=1e-15)


@pytest.mark.parametrize("method", [FedAvg, FedPAQ, FedCOM])
def test_averaging_with_a_global_rate(method: type) -> None:
    assert model_after(1, method(gamma=2.0, **RATES)) == pytest.approx(-0.17, abs=1e-15)


@pytest.mark.parametrize("method", [FedGATE, FedCOMGATE, VRLSGD, Scaffold])
def test_tracking(method: type) -> None:
    """After round 1 delta = -+1.375; then -.085 -> -.114 -> -.1401 and -.085 -> -.1305 -> -.1669."""
    simulation = after(two(), method(gamma=1.0, **RATES), PLAIN, rounds=2)
    assert float(simulation.server.w) == pytest.approx(-0.1535, abs=1e-15)


def test_tracker_and_control_variates() -> None:
    delta = after(two(), FedGATE(gamma=1.0, **RATES), rounds=2).client_states().delta
    assert delta.flatten().tolist() == pytest.approx([-1.442, 1.442], abs=1e-14)
    scaffold = after(two(), Scaffold(gamma=1.0, **RATES), rounds=1)
    assert scaffold.client_states().c.flatten().tolist() == pytest.approx([-0.95, 1.8], abs=1e-14)
    assert float(scaffold.server.c) == pytest.approx(0.425, abs=1e-14)


def test_damped_tracking() -> None:
    """With half the step delta = -+.6875: D = -.75525 and 2.0565 in round 2."""
    assert model_after(2, FedCOMGATE(damping=0.5, gamma=1.0, **RATES)) == pytest.approx(-0.1500625, abs=1e-15)


@pytest.mark.parametrize(
    "algorithm", [Scallion(alpha=0.5, **ONE), Scafcom(beta=0.5, **ONE)], ids=lambda a: a.name
)
def test_half_the_way_to_the_gradient_in_one_vector(algorithm: Any) -> None:
    """g = -.95, 1.8 and d = half of it, mean .2125: w = -.2 (.2125), c_j = d_j.

    Then -.0425 -> -.007 -> .02495 and -.0425 -> -.16525 -> -.26345: D/tau = -.33725, 1.10475. Half of
    D/tau - c is d = -.274875, .446125, mean .085625: w -= .2 (.2125 + .085625).
    """
    simulation = after(two(), algorithm, PLAIN, rounds=2)
    assert float(simulation.server.w) == pytest.approx(-0.102125, abs=1e-15)
    assert float(simulation.server.c) == pytest.approx(0.298125, abs=1e-14)
    assert simulation.client_states().c.flatten().tolist() == pytest.approx([-0.749875, 1.346125], abs=1e-14)


def test_diana() -> None:
    """g = -1, 2 then -1.05, 1.9; shifts -.5, 1 after round 1; the second message is -.55, .9."""
    simulation = after(two(), Diana(**DIANA), PLAIN, rounds=2)
    assert float(simulation.server.w) == pytest.approx(-0.0925, abs=1e-15)
    assert float(simulation.server.h) == pytest.approx(0.3375, abs=1e-14)
    assert simulation.client_states().h.flatten().tolist() == pytest.approx([-0.775, 1.45], abs=1e-14)


def test_vr_diana_on_a_quadratic_is_diana_with_full_gradients() -> None:
    """Additive noise is the same at w and at the reference point, so it cancels exactly."""
    noisy = quadratic_task(sigma=2.0)
    full = after(noisy, Diana(**DIANA), PLAIN, rounds=7).server.w
    reduced = after(noisy, VRDiana(**{**DIANA, "batch": 3}), PLAIN, rounds=7).server.w
    assert torch.allclose(full, reduced, atol=1e-13)


def test_unequal_local_steps_are_scaled_to_the_nominal_number() -> None:
    """One step and three, nominal 2: D = 2 (-.1)/.1 = -2 and 2 (.488)/.3."""
    expected = -0.1 * (-2 + 2 * 0.488 / 0.3) / 2
    assert model_after(1, FedAvg(**{**RATES, "tau": (1, 3)})) == pytest.approx(expected, abs=1e-15)


def plane() -> Task:
    """Optima (1, 2) and (3, 0) in the plane, unit curvature."""
    return task(a=[[1.0, 1.0]] * 2, b=[[1.0, 2.0], [3.0, 0.0]])


def test_error_feedback_keeps_what_top_1_dropped() -> None:
    """Client 1 means (-1, -2), sends (0, -2), keeps .1 (-1, 0); next it means .1 (-.85, -1.9) + (-.1, 0)."""
    algorithm = Qsparse(**{**RATES, "tau": 1})
    simulation = after(plane(), algorithm, Links(TopK(0.5)), rounds=1)
    assert simulation.server.w.tolist() == pytest.approx([0.15, 0.1], abs=1e-15)
    assert simulation.client_memory()["D"].flatten().tolist() == pytest.approx([-0.1, 0, 0, 0], abs=1e-15)
    simulation.step()
    # Client 1 means (-.185, -.19) and sends -.19; client 2 means .1 (-2.85, .1) and sends -.285.
    assert simulation.server.w.tolist() == pytest.approx([0.15 + 0.1425, 0.1 + 0.095], abs=1e-15)


def test_scafcom_through_top_1() -> None:
    """Round 1: v = (-.475, -.95) and (-1.425, 0), said (0, -.95) and (-1.425, 0), mean (-.7125, -.475).

    Round 2: g = (-.779, -1.8335) and (-2.75025, .114), v = (-.627, -1.39175) and (-2.087625, .057), v - c =
    (-.627, -.44175) and (-.662625, .057). Each says its first coordinate: the mean is (-.6448125, 0).
    """
    simulation = after(plane(), Scafcom(beta=0.5, **ONE), Links(TopK(0.5)), rounds=1)
    assert simulation.server.w.tolist() == pytest.approx([0.1425, 0.095], abs=1e-15)
    simulation.step()
    assert simulation.server.w.tolist() == pytest.approx([0.1425 + 0.2714625, 0.095 + 0.095], abs=1e-15)
    c, v = simulation.client_states()
    assert c.flatten().tolist() == pytest.approx([-0.627, -0.95, -2.087625, 0], abs=1e-14)
    assert v.flatten().tolist() == pytest.approx([-0.627, -1.39175, -2.087625, 0.057], abs=1e-14)


def test_the_papers_memory_rule_as_printed() -> None:
    """nu = u/m - mean u: (-.1, -.2)/2 - (-.15, -.1) and (-.3, 0)/2 - (-.15, -.1)."""
    algorithm, links = FedCOM(**{**RATES, "tau": 1, "gamma": 1.0}), Links(TopK(0.5), uplink_memory="paper")
    memory = after(plane(), algorithm, links, rounds=1).client_memory()["D"]
    assert memory.flatten().tolist() == pytest.approx([0.1, 0.0, 0.0, 0.1], abs=1e-15)
