"""What every test may use: small tasks in float64, the draws behind them, and the rules for all tests."""

import gc
import os
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from fedcom import Algorithm, Links, Simulation, Task
from fedcom.draws import Draw
from fedcom.tasks.models import Quadratic
from fedcom.tasks.objective import Objective
from tests.choice import some

torch.set_num_threads(1)
gc.disable()  # until all tests are collected: there is next to no garbage before

CHAOS = os.environ.get("FEDCOM_CHAOS", "0") not in ("", "0")  # all cases, and new examples at each run

# No test fails because a machine is slow; a failing example is printed so that it can be run again.
settings.register_profile(
    "fedcom",
    deadline=None,
    max_examples=100 if CHAOS else 40,
    print_blob=True,
    derandomize=not CHAOS,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedcom")


@pytest.hookimpl(trylast=True)  # after -k and -m have made their choice
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where torch sees no GPU, and leave out cases unless all are wanted."""
    for item in items:
        if not torch.cuda.is_available() and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU that torch sees"))
    if not CHAOS:
        families: dict[object, list[pytest.Item]] = {}
        for item in items:
            families.setdefault(getattr(item, "function", item), []).append(item)
        chosen = {item for family in families.values() for item in some(family)}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


def pytest_collection_finish() -> None:
    """Leave modules and the list of tests, a million objects that stay, out of later garbage collections."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def draw() -> Draw:
    return Draw.seeded(7)


@cache
def quadratic_task(clients: int = 6, **parameters: float) -> Task:
    """Quadratic losses with a known minimum; clients differ in curvature and optimum.

    Like the next, it is made once for all tests of a process, which must not change it.
    """
    model = Quadratic(**{"dim": 8, "sigma": 0.3, **parameters})  # type: ignore[arg-type]
    data = model.data(clients, Draw.seeded(3))
    assert data.groups is not None
    parts = [(data.groups == j).nonzero()[:, 0] for j in range(clients)]
    return Task.build(Objective(model.module((), 0), model.loss(), torch.float64), data, parts)


def mlp_task(clients: int = 6, sizes: Sequence[int] | None = None, seed: int = 0) -> Task:
    """A small classifier on Gaussian blobs, shifted by client, in float64."""
    return _mlp_task(tuple(sizes or [12] * clients), seed)


@cache
def _mlp_task(sizes: tuple[int, ...], seed: int) -> Task:
    draw = Draw.seeded(seed)
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    y = draw.fold("labels").integers(3, len(owner))
    x = draw.fold("inputs").normal(5 * len(owner), torch.float64).reshape(-1, 5)
    x = x + y[:, None] + 0.5 * owner[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return Task.from_arrays(
        module, x, y, x[:9], y[:9], groups=owner, partition="natural", dtype=torch.float64
    )


def after(
    task: Task, algorithm: Algorithm, links: Links | None = None, rounds: int = 5, **options: object
) -> Simulation:
    """A simulation that has played some rounds."""
    simulation = Simulation(task, algorithm, links, rounds=rounds, device="cpu", **options)  # type: ignore[arg-type]
    for _ in range(rounds):
        simulation.step()
    return simulation


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    """Whether two tensors are equal up to rounding, relative to the largest value in either (at least 1)."""
    scale = max(float(a.abs().max()), float(b.abs().max()), 1.0)
    return float((a - b).abs().max()) <= tolerance * scale


Check = Callable[[Tensor, Tensor], bool]
