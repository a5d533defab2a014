"""Local optimisers: torch.optim in a loop by hand, every method, what tracking means then, refusals."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedcom import (
    ConfigError,
    FedAvg,
    FedCOM,
    FedGATE,
    Scaffold,
    Simulation,
)
from fedcom.algorithms import ALGORITHMS
from fedcom.algorithms.base import Algorithm, Round
from fedcom.algorithms.local_optimisers import (
    LOCAL_OPTIMISERS,
    AdamWSteps,
    LocalOptimiser,
    LocalStep,
    MomentumSteps,
    MuonSteps,
    PlainSteps,
)
from fedcom.tasks.oracle import DataOracle
from fedcom.vectors import Vectors
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


@pytest.mark.covers(1)
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


def error(run: Simulation, rounds: int) -> float:
    """How long the gradient of the objective is after some rounds, over how long it was."""
    norms = []
    for _ in range(2):
        every, w = torch.arange(run.task.clients), run.server.w
        oracle = DataOracle.of(run.task, every, run.state.draw.fold(every), run.algorithm)
        norms.append(float(oracle.full(w.expand(len(every), -1)).mean(0).norm()))
        for _ in range(rounds if len(norms) == 1 else 0):
            run.step()
    return norms[1] / norms[0]


QUADRATICS = {"L": 1.0, "mu": 0.4, "sigma": 0.0, "samples": 1}


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"nesterov": True}, marks=pytest.mark.thorough),
        pytest.param({"keep": True}, marks=pytest.mark.thorough),
        {"keep": True, "correction": "outside"},
    ],
)
def test_tracking_with_local_momentum_converges_where_averaging_does_not(more: dict[str, Any]) -> None:
    task, taus = quadratic_task(6, **QUADRATICS), (3, 4, 5, 3, 4, 5)
    left, local = {}, MomentumSteps(momentum=0.7, **more)
    for kind in (FedAvg, FedGATE, Scaffold):
        method = kind(eta=0.1, gamma=1, tau=taus, batch="full", decay=1, local=local)
        run = Simulation(task, method, "identity", rounds=40, participation=0.5, device="cpu")
        left[kind.name] = error(run, 40)
    assert left.pop("fedavg") > 1e-2
    assert max(left.values()) < 1e-3, left


def test_tracking_learns_mean_gradients() -> None:
    """Where the model stays, control variates become the clients' gradients, whatever the momentum."""
    task, every = quadratic_task(6, **QUADRATICS), torch.arange(6)
    for more in ({}, {"nesterov": True}, {"keep": True}, {"correction": "outside"}):
        local = MomentumSteps(momentum=0.5, **more)  # type: ignore[arg-type]
        method = Scaffold(eta=1e-7, gamma=1e-9, tau=(1, 2, 3, 4, 5, 6), batch="full", decay=1, local=local)
        run = Simulation(task, method, rounds=30, device="cpu")
        g = DataOracle.of(task, every, run.state.draw.fold(every), method).full(run.server.w.expand(6, -1))
        for _ in range(30):
            run.step()
        assert close(run.client_states().c, g, 1e-5), local


def test_clipping_does_not_move_where_tracking_ends() -> None:
    """What is clipped is the corrected gradient, which vanishes there; each client's own does not."""
    task, local = quadratic_task(6, **QUADRATICS), MomentumSteps(momentum=0.5, clip=0.3, mu=0.3)
    rates: dict[str, Any] = {"eta": 0.1, "gamma": 1, "tau": 4, "batch": "full", "decay": 1}
    assert error(Simulation(task, FedGATE(**rates, local=local), rounds=100, device="cpu"), 80) < 1e-4
    assert error(Simulation(task, FedAvg(**rates, local=local), rounds=100, device="cpu"), 80) > 1e-2


def two_steps(name: str) -> dict[str, int]:
    return {} if "tau" in ALGORITHMS[name].fixed else {"tau": 2}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_without_momentum_every_method_steps_as_before(name: str) -> None:
    models, steps = [], two_steps(name)
    for local in (
        PlainSteps(),
        MomentumSteps(momentum=0.0),
        PlainSteps(clip=1e9),
        MomentumSteps(momentum=0.0, keep=True),
    ):
        method = ALGORITHMS[name](eta=0.02, batch=3, local=local, **steps)
        run = Simulation(mlp_task(), method, rounds=3, participation=0.5, device="cpu")
        run.run()
        models.append(run.server.w)
    for other in models[1:]:
        assert close(models[0], other)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_that_track_need_steps_that_are_sums_of_gradients(name: str) -> None:
    for local in ("adamw", "muon"):
        method = ALGORITHMS[name](eta=0.01, batch=3, local=local, **two_steps(name))
        if method.tracks:
            with pytest.raises(ConfigError, match=f"{name} learns gradients .* local {local} are no sums"):
                Simulation(mlp_task(), method, rounds=2, device="cpu")
            method = replace(method, local={"name": local, "correction": "outside"})
        if name in ("feddyn", "scaffold-m"):  # which have a gradient or direction of their own
            with pytest.raises(ConfigError, match=f"outside adds what `corrections` names, and {name} has a"):
                Simulation(mlp_task(), method, rounds=2, device="cpu")
            continue
        run = Simulation(mlp_task(), method, rounds=2, device="cpu")
        run.run()
        assert bool(run.server.w.isfinite().all())


class Halved(FedCOM):
    name: ClassVar[str] = "halved"

    def local_step(self, w: Tensor, client: Any, down: Vectors, oracle: Any, rnd: Round) -> Tensor:
        return w - 0.5 * rnd.eta * oracle.batch(w)


class HalvedAndNamed(Halved):
    name: ClassVar[str] = "halved-and-named"

    def gradient(self, w: Tensor, client: Any, down: Vectors, oracle: Any, rnd: Round) -> Tensor:
        return 0.5 * oracle.batch(w)


class Learns(FedCOM):
    name: ClassVar[str] = "learns"

    def corrections(self, client: Any, down: Vectors) -> tuple[Tensor, ...]:
        return (0 * down["w"],)


@dataclass(frozen=True)
class Short(LocalOptimiser):
    name: ClassVar[str] = "short"

    def init(self, w: Tensor) -> Vectors:
        return {"last": torch.zeros_like(w)}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> Any:
        return {"model": (w[:, 1:], moments), "moments": (w, {}), "nothing": None}[KIND[0]]


KIND = ["model"]


def test_a_stranger_s_local_step_needs_a_gradient() -> None:
    rates: dict[str, Any] = {"eta": 0.1, "tau": 2}
    Simulation(quadratic_task(), Halved(**rates), rounds=2).run()
    with pytest.raises(ConfigError, match="halved has a local_step of its own"):
        Simulation(quadratic_task(), Halved(**rates, local="momentum"), rounds=2)
    Simulation(quadratic_task(), HalvedAndNamed(**rates, local="momentum"), rounds=2).run()
    outside = MomentumSteps(correction="outside")
    with pytest.raises(ConfigError, match="halved-and-named has a gradient of its own"):
        Simulation(quadratic_task(), HalvedAndNamed(**rates, local=outside), rounds=2)
    with pytest.raises(ConfigError, match="learns learns gradients"):
        Simulation(quadratic_task(), Learns(**rates, local="adamw"), rounds=2)
    for KIND[0], told in {
        "model": "local optimiser short: step must return the clients' models",
        "moments": "short: step must return the models and the moments last; got nothing",
        "nothing": "short: step must return the models and the moments last; got ",
    }.items():
        with pytest.raises(ConfigError, match=told):
            Simulation(quadratic_task(), FedCOM(**rates, local=Short()), rounds=2).run()


def test_optimisers_are_given_by_name_class_table_or_instance() -> None:
    given = ("momentum", MomentumSteps, {"name": "momentum"}, MomentumSteps(momentum=0.9))
    assert {FedCOM(local=one).local for one in given} == {MomentumSteps()}
    assert replace(FedCOM(local="adamw"), eta=0.1).local == AdamWSteps()
    assert set(LOCAL_OPTIMISERS) == {"sgd", "momentum", "adamw", "muon"}
    assert Algorithm.local == PlainSteps()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("momentun", "unknown local optimiser 'momentun'; did you mean 'momentum'"),
        ({"name": "momentum", "momentum": 1.0}, r"local: momentum must be in \[0, 1\)"),
        ({"name": "sgd", "clip": 0}, "clip must be above 0"),
        ({"name": "adamw", "weight_decay": -1}, "weight_decay must be zero or more"),
        ({"name": "sgd", "momentum": 0.9}, "it is a key of momentum, muon"),
        ({"name": "sgd", "correction": "aside"}, "correction must be 'inside' or 'outside'"),
        (3, "local must be"),
    ],
)
def test_other_optimisers_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FedCOM(local=given)


def test_auto_rates_keep_the_path_of_a_round() -> None:
    task = quadratic_task(6)
    plain, heavy = (
        Simulation(
            task, FedGATE(eta="auto", gamma="auto", tau=5, local=local), rounds=1, device="cpu"
        ).algorithm
        for local in ("sgd", "momentum")
    )
    assert heavy.gamma == plain.gamma
    assert heavy.local_rate(0) * heavy.local.reach(5) == pytest.approx(5 * plain.local_rate(0), rel=0.01)
    with pytest.raises(ConfigError, match="gamma=auto needs gradients, and steps of local adamw"):
        Simulation(task, FedAvg(eta=0.01, gamma="auto", local="adamw"), rounds=1, device="cpu")
