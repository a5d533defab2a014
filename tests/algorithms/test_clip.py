"""A bound on norms has one meaning for every method, whether clients keep to it or the server enforces it.

All clients have the same samples and use all of them, so all send the same vector, and none is short of the
bound: the server's first step is gamma times as long as the bound.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedcom import ALGORITHMS, Identity, Links, Simulation, Task
from fedcom.algorithms.optimisers import SGD
from fedcom.engines.remote.terms import Terms
from tests.conftest import mlp_task
from tests.engines.remote.clients import deployed

CLIENTS, BOUND = 4, 1e-3


@cache
def alike() -> Task:
    one = mlp_task(1)
    x, y = one.x.repeat(CLIENTS, 1), one.y.repeat(CLIENTS)
    groups = torch.arange(CLIENTS).repeat_interleave(len(one.x))
    return Task.from_arrays(
        one.objective.module, x, y, groups=groups, partition="natural", dtype=torch.float64
    )


def moved(simulation: Simulation) -> float:
    """How far the server's model moves in the next round."""
    before: Tensor = simulation.server.w.clone()
    simulation.step()
    return float(torch.linalg.vector_norm(simulation.server.w - before))


@pytest.mark.covers(2)
@pytest.mark.parametrize("eta", [0.05, 0.3])
@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.server == SGD()])
def test_a_clipped_client_moves_the_model_by_the_bound(
    name: str, side: str, eta: float, tmp_path: Path
) -> None:
    method = ALGORITHMS[name](
        eta=eta, batch="full", **({} if "tau" in ALGORITHMS[name].fixed else {"tau": 2})
    )
    links = Links(Identity(), clip=BOUND if side == "client" else None, uplink_memory="none")
    if side == "client":
        simulation = Simulation(alike(), method, links, rounds=2, device="cpu")
    else:
        settings = {"algorithm": method, "links": links, "rounds": 2}
        simulation, _ = deployed(alike(), settings, tmp_path, terms=Terms(clip=BOUND))
    assert moved(simulation) == pytest.approx(method.global_rate * BOUND)
    if name in ("scaffold", "scaffold-m"):  # its second vector: what it makes the next tau local steps do
        c = getattr(method, "beta", 1.0) * float(torch.linalg.vector_norm(simulation.server.c))
        assert eta * method.tau * c == pytest.approx(BOUND)  # type: ignore[operator]
