"""A random search for settings that go wrong together: methods, optimisers, links, steps and engines.

Each run ends, is refused in one line, or is told as diverged. Whatever plays it, and whether or not it was
saved on the way, it comes to the same. `make chaos` tries 500.
"""

import random
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedcom import ALGORITHMS, Algorithm, ConfigError, Diverged, Identity, Links, Simulation, Storage, Task
from fedcom.algorithms.local_optimisers import (
    AdamWSteps,
    LocalOptimiser,
    LocalStep,
    MomentumSteps,
    PlainSteps,
)
from fedcom.algorithms.optimisers import (
    SGD,
    Adagrad,
    Adam,
    Momentum,
    Nesterov,
    ServerOptimiser,
    Yogi,
)
from fedcom.engines.stacks import stack_runs
from fedcom.vectors import Vectors, descend
from tests.conftest import close, mlp_task
from tests.engines.remote.clients import deployed
from tests.engines.remote.test_equality import check_clients, check_ledger, local
from tests.engines.test_checkpoints import same
from tests.test_combinations import RATES, Heavy, codec

CLIENTS, ROUNDS, MIDDLE, BLOCK = 8, 4, 2, 8
FIRST = 24  # how many the suite tries


@dataclass(frozen=True)
class Signed(ServerOptimiser):
    """A stranger's optimiser: steps of one length, against the sign of an average.

    Args:
        rate: the length of a step in each coordinate.
        share: of the average that each round keeps.
    """

    rate: float = 0.01
    share: float = 0.5

    name: ClassVar[str] = "signed"

    @property
    def kept(self) -> float:
        return self.share

    def init(self, w: Tensor) -> Vectors:
        return {"average": torch.zeros_like(w)}

    def step(
        self, w: Tensor, moments: Vectors, direction: Tensor, eta: float | Tensor, gamma: float
    ) -> tuple[Tensor, Vectors]:
        average = self.share * moments["average"] + (1 - self.share) * direction
        return w - self.rate * torch.sign(average), {"average": average}


@dataclass(frozen=True)
class Averaged(LocalOptimiser):
    """A stranger's local optimiser: steps along an average of the gradients, whose weights are known.

    Args:
        share: of the average that each step keeps.
    """

    share: float = 0.5

    name: ClassVar[str] = "averaged"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True

    def init(self, w: Tensor) -> Vectors:
        return {"average": torch.zeros_like(w)}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        average = self.share * moments["average"] + (1 - self.share) * g
        return descend(w, at.eta, average), {"average": average}

    def reach(self, steps: Any) -> Any:
        return steps if self.keep else steps - self.share * (1 - self.share**steps) / (1 - self.share)


@dataclass(frozen=True)
class Unit(LocalOptimiser):
    """Another: each tensor of the model moves by eta against the last gradient but one, at first nowhere."""

    name: ClassVar[str] = "unit"

    def init(self, w: Tensor) -> Vectors:
        return {"first": w, "last": torch.zeros_like(w)}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        parts = at.layout.split(moments["last"])
        along = torch.cat([part / (part.norm(dim=-1, keepdim=True) + 1e-3) for part in parts], dim=-1)
        return descend(w, at.eta / at.number.to(w.dtype), along), {**moments, "last": g}


@cache
def task(dtype: torch.dtype) -> Task:
    """Three classes among eight clients with 4 to 11 samples each; the model is drawn from seed 0."""
    own = mlp_task(sizes=[4 + j for j in range(CLIENTS)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3))
    owner = torch.arange(CLIENTS).repeat_interleave(own.sizes)
    return Task.from_arrays(
        module, own.x, own.y, groups=owner, partition="natural", dtype=dtype, model_seed=0
    )


@dataclass(frozen=True)
class Case:
    """The settings of a run, and what is done with it besides playing it to its end."""

    kind: type[Algorithm]
    how: dict[str, Any]
    codecs: tuple[Any, Any]
    around: dict[str, Any]
    dtype: torch.dtype
    settings: dict[str, Any]
    engine: str

    def given(self, **how: Any) -> dict[str, Any]:
        """The arguments of a simulation, but for its task; with other hyper-parameters, if given."""
        algorithm, links = self.kind(**{**self.how, **how}), Links(*self.codecs, **self.around)
        return {"algorithm": algorithm, "links": links, "rounds": ROUNDS, **self.settings}

    def simulation(self, **how: Any) -> Simulation:
        return Simulation(task(self.dtype), device="cpu", **self.given(**how))


def case(seed: int) -> Case:
    """The settings that a seed stands for."""
    rng = random.Random(seed)

    def perhaps(share: float) -> bool:
        return rng.random() < share

    kind: type[Algorithm] = rng.choice([*(ALGORITHMS[name] for name in ALGORITHMS), Heavy])
    engine = rng.choice(["chunks", "stack", "remote"])
    loses = kind.compresses is None or perhaps(0.05)  # whether the uplink may
    up = codec(rng) if loses else Identity()
    how: dict[str, Any] = {
        "eta": rng.choice([0.02, 0.05]),
        "batch": rng.choice([2, "full"]),
        "option": rng.choice([None, None, "I", "I", "II"]),
        "weights": rng.choice(["uniform", "size"]),
    }
    if perhaps(0.8) and (server := optimiser(rng)) is not None:
        how["server"] = server
    if (steps_by := local_optimiser(random.Random(-1 - seed), kind)) is not None:
        how["local"] = steps_by
    if "tau" not in kind.fixed or perhaps(0.05):
        steps = [{"tau": 2}, {"tau": tuple(1 + j % 3 for j in range(CLIENTS))}, {"epochs": 1}]
        how |= rng.choice(steps[: 1 if engine == "stack" and perhaps(0.9) else 3])
    memories = [None, None, None, *(["error-feedback", "none", "paper"] if loses else [])]
    around: dict[str, Any] = {
        "uplink_memory": rng.choice(memories),
        "downlink_memory": rng.choice([None, None, "none", "error-feedback"]),
        "first": rng.choice(["dense", "seed"]),
        "clip": rng.choice([None, None, None, 0.1, 1.0]),
        "correlated": up.dithers and up.unbiased and perhaps(0.4),
    }
    if type(up) in RATES and perhaps(0.05 if engine == "stack" else 0.4):
        around["budgets"] = tuple(rng.choice(RATES[type(up)]) for _ in range(CLIENTS))
    sends_mean = kind.needs_mean or how["option"] == "I" or around["uplink_memory"] == "paper"
    settings: dict[str, Any] = {"participation": rng.choice([1.0, 0.5, 0.25]), "seed": rng.randrange(5)}
    if engine == "chunks":
        around["encode"] = perhaps(0.3)
        settings["storage"] = rng.choice([None, Storage("disk"), Storage("memory", "bfloat16")])
    return Case(
        kind,
        how,
        (up, codec(rng) if perhaps(0.6 if sends_mean else 0.05) else Identity()),
        around,
        rng.choice([torch.float32, torch.float64]) if engine != "stack" else torch.float64,
        settings,
        engine,
    )


def optimiser(rng: random.Random) -> Any:
    """Any server optimiser, as an instance, by name or as a table; None: as the method has it."""
    mu = rng.choice([0.0, 0.5, 0.9])
    return rng.choice(
        [
            None,
            SGD,
            "momentum",
            Momentum(mu),
            {"name": "nesterov", "momentum": mu},
            Nesterov(mu),
            Adam(rate=0.02, beta1=mu),
            Yogi(rate=0.02, beta1=mu, beta2=0.5),
            {"name": "adagrad", "rate": 0.02, "beta1": mu},
            Adagrad,
            Signed(share=mu),
        ]
    )


def local_optimiser(rng: random.Random, kind: type[Algorithm]) -> Any:
    """Any local optimiser, as an instance, by name or as a table; None, most often: as the method has it.

    Args:
        kind: the method that is to have it, mostly.
    """
    around = {
        "keep": rng.random() < 0.5,
        "clip": rng.choice([None, None, 0.1]),
        "mu": rng.choice([0.0, 0.0, 0.5]),
        "weight_decay": rng.choice([0.0, 0.1]),
        "correction": rng.choice(["inside", "inside", "outside"]),
    }
    linear = [
        PlainSteps(**around),
        "momentum",
        {"name": "momentum", "nesterov": rng.random() < 0.3, **around},
        MomentumSteps(**around),
        Averaged(**around),
    ]
    others = [AdamWSteps, AdamWSteps(**around), {"name": "muon", **around}, Unit(**around)]
    chosen = (
        linear
        if kind.tracks and around["correction"] == "inside" and rng.random() < 0.9
        else [*linear, *others]
    )
    return rng.choice([*[None] * len(chosen), *chosen])


def saved_on_the_way(case: Case, whole: Simulation, folder: Path) -> None:
    """A run that is saved after some rounds and loaded ends with the bits of one that is not."""
    first = case.simulation()
    for _ in range(MIDDLE):
        first.step()
    first.save(folder / "saved")
    given = case.given()
    own = {"algorithm": given["algorithm"], "links": given["links"]}
    loaded = Simulation.load(folder / "saved", task(case.dtype), **own, device="cpu")
    loaded.run()
    assert same(loaded, whole)


def in_chunks(case: Case, whole: Simulation, folder: Path) -> None:
    """Groups of any size give the same bits."""
    for chunk in (1, 3):
        cut = replace(case, settings={**case.settings, "chunk": chunk}).simulation()
        cut.run()
        assert same(cut, whole), chunk


def in_a_stack(case: Case, whole: Simulation, folder: Path) -> None:
    """Runs that differ in momentum, played in step, are the runs by themselves, to rounding."""
    server = whole.algorithm.server
    keys = [key for key in ("momentum", "beta1", "share") if hasattr(server, key)]
    others = [replace(server, **{key: mu}) for key in keys for mu in (0.0, 0.7)] or [server]
    alone = [whole, *(case.simulation(server=other) for other in others)]
    stack = [case.simulation(), *(case.simulation(server=other) for other in others)]
    for run in alone[1:]:
        run.run()
    engine = stack_runs(stack)
    for _ in range(ROUNDS):
        engine.step()
    for mine, theirs in zip(stack, alone, strict=True):
        assert mine.ledger.as_dict() == theirs.ledger.as_dict()
        ours, single = mine.state.server_side.tensors(), theirs.state.server_side.tensors()
        assert ours.keys() == single.keys()
        for name, x in ours.items():
            assert close(x, single[name], 1e-9), name


def with_real_clients(case: Case, whole: Simulation, folder: Path) -> None:
    """Without faults, real clients give the bits and count the bytes of the local engine."""
    given = case.given()
    there = local(task(case.dtype), given)
    here, transport = deployed(task(case.dtype), given, folder)
    for _ in range(ROUNDS):
        there.step()
        here.step()
        ours, theirs = (run.state.server_side.tensors() for run in (here, there))
        assert all(torch.equal(ours[name], x) for name, x in theirs.items())
    check_clients(here, there, transport)
    check_ledger(here, there, transport)


CHECKS: dict[str, Callable[[Case, Simulation, Path], None]] = {
    "chunks": in_chunks,
    "stack": in_a_stack,
    "remote": with_real_clients,
}


def outcome(case: Case, folder: Path) -> str:
    """How a run ends: "runs", "refused", or "diverged"; fails if it comes to something else elsewhere."""
    try:
        whole = case.simulation()
        whole.run()
        assert bool(torch.isfinite(whole.server.w).all())
        saved_on_the_way(case, whole, folder)
        CHECKS[case.engine](case, whole, folder)
    except ConfigError as error:
        if "\n" in str(error):
            raise
        return "refused"
    except Diverged:
        return "diverged"
    return "runs"


def found(seed: int) -> str:
    """The outcome of a seed's run; if it fails, with the settings to repeat it."""
    given = case(seed)
    with warnings.catch_warnings(record=True) as told, tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("always")
        try:
            how = outcome(given, Path(folder))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {given}") from error
    for one in told:  # fedcom's own, and not torch's
        assert issubclass(one.category, UserWarning), (seed, given, one)
        assert "torch" not in Path(one.filename).parts, (seed, given, one)
        assert "Triggered internally" not in str(one.message), (seed, given, one)
    return how


@pytest.mark.parametrize(
    "first",
    [
        n if n < FIRST else pytest.param(n, marks=pytest.mark.thorough)
        for n in range(0, 500 + BLOCK - 1, BLOCK)
    ],
)
def test_whatever_plays_a_run_it_comes_to_the_same(first: int) -> None:
    ends = [found(seed) for seed in range(first, first + BLOCK)]
    assert ends.count("runs") >= BLOCK / 4
