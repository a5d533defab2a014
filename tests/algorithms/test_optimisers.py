"""Server optimisers: torch.optim and the published loops, every method's direction, what is refused."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedcom import ALGORITHMS, ConfigError, FedCOM, Int, Links, Simulation
from fedcom.algorithms.base import Algorithm, Round, Server
from fedcom.algorithms.optimisers import (
    OPTIMISERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Nesterov,
    ServerOptimiser,
    Yogi,
)
from fedcom.vectors import Vectors
from tests.conftest import mlp_task, quadratic_task

ROUNDS = 10
DIRECTIONS: list[tuple[float, Tensor]] = []  # eta and direction of each round


@dataclass(frozen=True, kw_only=True)
class Noting(FedCOM):
    """FedCOM that notes the directions of its rounds."""

    name: ClassVar[str] = "noting"

    def server_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        DIRECTIONS.append((float(rnd.eta), mean["D"].clone()))
        return super().server_direction(server, mean, rnd)


def played(server: Any) -> tuple[Tensor, Tensor]:
    """The first and the last model of a run with sampling, unequal tau and a codec; it notes its rounds."""
    DIRECTIONS.clear()
    method = Noting(eta=0.1, gamma=2, tau=(1, 2, 3, 4, 5, 6), batch=4, decay=0.9, server=server)
    run = Simulation(mlp_task(), method, Links(Int(bits=4)), rounds=ROUNDS, participation=0.5)
    first = run.server.w.clone()
    run.run()
    del DIRECTIONS[::2]  # server_step, whose model is not used, asks too
    assert len(DIRECTIONS) == ROUNDS
    return first, run.server.w


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_torch(mu: float, nesterov: bool) -> None:
    first, last = played((Nesterov if nesterov else Momentum)(mu))
    w = torch.nn.Parameter(first)
    optimiser = torch.optim.SGD([w], lr=1.0, momentum=mu, nesterov=nesterov and mu > 0)
    for eta, direction in DIRECTIONS:
        optimiser.param_groups[0]["lr"] = (1 - mu) * eta * 2
        w.grad = direction
        optimiser.step()
    torch.testing.assert_close(last, w.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad])
def test_adaptive_steps_are_the_published_loop(kind: type[Adagrad]) -> None:
    given: dict[str, float] = {"rate": 0.05, "beta1": 0.8, "tau": 0.01}
    given |= {"beta2": 0.95} if kind is not Adagrad else {}
    first, last = played(kind(**given))
    x, m, v = first.clone(), torch.zeros_like(first), torch.full_like(first, 0.01**2)
    for eta, direction in DIRECTIONS:
        change = -eta * direction  # Delta_t of the paper: the mean change of the clients' models
        m = 0.8 * m + 0.2 * change
        if kind is Adagrad:
            v = v + change**2
        elif kind is Yogi:
            v = v - 0.05 * change**2 * torch.sign(v - change**2)
        else:
            v = 0.95 * v + 0.05 * change**2
        x = x + 0.05 * m / (torch.sqrt(v) + 0.01)
    torch.testing.assert_close(last, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*ALGORITHMS])
def test_without_momentum_every_method_steps_as_before(name: str) -> None:
    kind = ALGORITHMS[name]
    models = []
    for server in (SGD(), Momentum(0.0)):
        method = kind(eta=0.02, server=server, **({} if "tau" in kind.fixed else {"tau": 2}))
        run = Simulation(quadratic_task(6), method, rounds=4, participation=1.0)
        run.run()
        models.append(run.server.w)
    torch.testing.assert_close(models[0], models[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["fedcomgate", "scaffold", "scallion", "diana"])
def test_what_the_method_keeps_is_not_touched(name: str) -> None:
    """A server that hardly steps learns the control variates that one without momentum learns."""
    kept, damping = [], {"damping": 1.0} if name in ("fedcomgate", "scaffold") else {}
    for server in (SGD(), Momentum(0.5)):
        method = ALGORITHMS[name](eta=0.02, gamma=1e-9, decay=1, server=server, **damping)
        run = Simulation(quadratic_task(6), method, rounds=6)
        run.run()
        kept.append([x for key, x in run.server._asdict().items() if key != "w"])
    for one, other in zip(*kept, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    assert name == "fedcomgate" or any(float(x.norm()) > 0 for x in kept[0])


class Halved(FedCOM):
    name: ClassVar[str] = "halved"

    def server_step(self, server: Server, mean: Vectors, rnd: Round) -> Server:
        return server._replace(w=server.w - 0.5 * rnd.eta * mean["D"])


class HalvedAndNamed(Halved):
    name: ClassVar[str] = "halved-and-named"

    def server_direction(self, server: Server, mean: Vectors, rnd: Round) -> Tensor:
        return 0.5 * mean["D"]


class Short(FedCOM):
    name: ClassVar[str] = "short"

    def server_direction(self, server: Server, mean: Vectors, rnd: Round) -> Any:
        return mean["D"][:3]


def test_a_stranger_s_server_step_needs_a_direction() -> None:
    Simulation(quadratic_task(), Halved(eta=0.1), rounds=2).run()
    with pytest.raises(ConfigError, match="halved has a server_step of its own"):
        Simulation(quadratic_task(), Halved(eta=0.1, server=Momentum()), rounds=2)
    Simulation(quadratic_task(), HalvedAndNamed(eta=0.1, server=Momentum()), rounds=2).run()
    with pytest.raises(ConfigError, match="short: server_direction must return a vector like the model"):
        Simulation(quadratic_task(), Short(eta=0.1, server=Momentum()), rounds=2).run()


@dataclass(frozen=True)
class Signs(ServerOptimiser):
    """A stranger's optimiser that keeps nothing, and whose settings are no shares."""

    scale: float = 5.0
    both: bool = True

    name: ClassVar[str] = "signs"

    def step(self, w: Tensor, moments: Vectors, direction: Tensor, *rates: Any) -> tuple[Tensor, Vectors]:
        return w - 0.01 * self.scale * torch.sign(direction), {}


@dataclass(frozen=True)
class SignedSGD(SGD):
    """Another, derived from SGD."""

    name: ClassVar[str] = "signed-sgd"

    step = Signs.step  # type: ignore[assignment]
    scale: float = 5.0


@pytest.mark.parametrize("server", [Signs(), SignedSGD()])
def test_a_stranger_s_optimiser_that_keeps_nothing_is_used(server: ServerOptimiser) -> None:
    first, last = played(server)
    for _, direction in DIRECTIONS:
        first = first - 0.05 * torch.sign(direction)
    torch.testing.assert_close(last, first, rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match="halved has a server_step of its own"):
        Simulation(quadratic_task(), Halved(eta=0.1, server=server), rounds=2)


def test_optimisers_are_given_by_name_class_table_or_instance() -> None:
    given = ("momentum", Momentum, {"name": "momentum"}, Momentum(0.9))
    assert {FedCOM(server=one).server for one in given} == {Momentum(0.9)}
    assert replace(FedCOM(server="adam"), eta=0.1).server == Adam()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("momentun", "server optimiser"),
        ({"name": "momentum", "momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"name": "adam", "rate": 0}, "rate must be above 0"),
        ({"name": "sgd", "momentum": 0.9}, "it is a key of momentum, nesterov"),
        (3, "server must be"),
    ],
)
def test_other_optimisers_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FedCOM(server=given)


def test_momentum_averages_noise() -> None:
    """On a quadratic at its end, the model's spread under a coarse codec is smaller by about 1 - mu."""
    spreads = []
    for server in (SGD(), Momentum(0.9)):
        method = FedCOM(eta=0.05, gamma=1, tau=1, batch="full", decay=1, server=server)
        run = Simulation(quadratic_task(6), method, Links(Int(bits=1)), rounds=400)
        seen = []
        while run.round < run.rounds:
            run.step()
            if run.round > 200:
                seen.append(run.server.w.clone())
        spreads.append(float(torch.stack(seen).var(0).mean()))
    assert spreads[1] < spreads[0]
    assert all(map(math.isfinite, spreads))


def test_every_optimiser_is_registered() -> None:
    assert set(OPTIMISERS) == {"sgd", "momentum", "nesterov", "adam", "yogi", "adagrad"}
    assert isinstance(Algorithm.server, SGD)
