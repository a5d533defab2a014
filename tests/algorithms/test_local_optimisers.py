"""Local optimisers: torch.optim in a loop by hand, every method, what tracking means then, refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcom import FedAvg, FedCOMGATE, FedGATE, Scaffold, Simulation
from fedcom.algorithms import ALGORITHMS
from fedcom.algorithms.base import Algorithm
from fedcom.algorithms.local_optimisers import (
    LOCAL_OPTIMISERS,
    AdamWSteps,
    LocalOptimiser,
    MomentumSteps,
    MuonSteps,
    PlainSteps,
)
from fedcom.tasks.oracle import DataOracle
from tests.conftest import close, mlp_task, quadratic_task

ROUNDS = 10
TAUS = (1, 2, 3, 4, 5, 6)
Optimisers = list[torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter], **more: Any) -> Optimisers:
    return [torch.optim.SGD(parameters, **more)]


def adamw(parameters: list[nn.Parameter], **more: Any) -> Optimisers:
    return [torch.optim.AdamW(parameters, **more)]


def muon(parameters: list[nn.Parameter]) -> Optimisers:
    matrices = [p for p in parameters if p.dim() == 2]
    others = [p for p in parameters if p.dim() != 2]
    return [torch.optim.Muon(matrices, weight_decay=0.1), torch.optim.AdamW(others, weight_decay=0.1)]


HAND: dict[str, tuple[LocalOptimiser, Callable[[list[nn.Parameter]], Optimisers]]] = {
    "sgd": (PlainSteps(clip=0.05, mu=0.3, weight_decay=0.1), sgd),
    "momentum": (MomentumSteps(momentum=0.8), lambda p: sgd(p, momentum=0.8)),
    "nesterov": (
        MomentumSteps(nesterov=True, clip=0.05, weight_decay=0.2),
        lambda p: sgd(p, momentum=0.9, nesterov=True),
    ),
    "adamw": (AdamWSteps(), adamw),
    "adamw, proximal": (
        AdamWSteps(beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3, mu=0.5),
        lambda p: adamw(p, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
    ),
    "muon": (MuonSteps(), muon),
}


def by_hand(run: Simulation, make: Callable[[list[nn.Parameter]], Optimisers]) -> Tensor:
    """The model after all rounds of federated averaging with an optimiser of torch in each client.

    Gradients are those of the run's own minibatches. D_j is normalised by the weights of j's gradients.
    """
    a, local, layout, w = run.algorithm, run.algorithm.local, run.rules.layout, run.server.w.clone()
    assert isinstance(a.tau, tuple)
    kept: dict[int, tuple[list[nn.Parameter], Optimisers]] = {}
    mean_tau = sum(a.tau) / len(a.tau)
    for r in range(run.rounds):
        inputs = run.state.inputs(r)
        sample, total = run.state.sample(r), torch.zeros_like(w)
        for j in sample.tolist():
            begun = kept.get(j) if local.keep else None
            parameters = begun[0] if begun else [nn.Parameter(x.clone()) for x in layout.tensors(w).values()]
            optimisers = begun[1] if begun else make(parameters)
            with torch.no_grad():
                for p, x in zip(parameters, layout.tensors(w).values(), strict=True):
                    p.copy_(x)
            oracle = DataOracle.of(run.task, torch.tensor([j]), inputs.draw.fold(torch.tensor([j])), a)
            for c in range(a.tau[j]):
                here = torch.cat([p.detach().flatten() for p in parameters])
                g = oracle.at(c).batch(here.unsqueeze(0))[0] + local.mu * (here - w)
                for p, x in zip(parameters, layout.tensors(g).values(), strict=True):
                    p.grad = x.clone()
                if local.clip is not None:
                    nn.utils.clip_grad_norm_(parameters, local.clip)
                with torch.no_grad():
                    for p in parameters if isinstance(local, PlainSteps | MomentumSteps) else ():
                        p.mul_(1 - inputs.eta * local.weight_decay)
                for optimiser in optimisers:
                    optimiser.param_groups[0]["lr"] = inputs.eta
                    optimiser.step()
            kept[j] = (parameters, optimisers)
            after = torch.cat([p.detach().flatten() for p in parameters])
            total += (w - after) / local.reach(a.tau[j]) / len(sample)
        w = w - a.global_rate * local.reach(mean_tau) * total
    return w


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", HAND)
def test_it_is_the_optimiser_of_torch(name: str, keep: bool) -> None:
    local, make = HAND[name]
    local = type(local)(**{**vars(local), "keep": keep})
    method = FedAvg(eta=0.02, gamma=1.3, tau=TAUS, batch=4, decay=0.9, local=local)
    run = Simulation(mlp_task(), method, rounds=ROUNDS, participation=0.5, device="cpu")
    right = by_hand(run, make)
    run.run()
    assert close(run.server.w, right), float((run.server.w - right).abs().max())
    assert float((run.server.w - run.task.objective.start).norm()) > 0.01


@pytest.mark.parametrize("nesterov", [False, True])
def test_reach_is_the_sum_of_the_weights_of_all_gradients(nesterov: bool) -> None:
    """Steps along a gradient of one move w by minus the sum of the weights."""
    for steps in (1, 4, 7):
        w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimiser = torch.optim.SGD([w], lr=1.0, momentum=0.7, nesterov=nesterov)
        for _ in range(steps):
            w.grad = torch.ones_like(w)
            optimiser.step()
        reach = MomentumSteps(momentum=0.7, nesterov=nesterov).reach(steps)
        assert reach == pytest.approx(-float(w.detach()), rel=1e-14)
