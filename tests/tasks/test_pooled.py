"""Convolutional networks as matrix products have torch's gradients, those of ties in pooling included."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedcom import Task
from fedcom.algorithms import FedAvg
from fedcom.draws import Draw
from fedcom.tasks.models import Cnn, Lenet
from fedcom.tasks.objective import Objective
from fedcom.tasks.oracle import DataOracle
from tests.conftest import close

SMALL = nn.Sequential(
    *(nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    nn.Linear(36, 5, bias=False),
)


def batch(shape: tuple[int, ...], whole: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Images of three clients, of zeros and ones or of any numbers; the second has a short batch."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, *shape, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 5, (3, 4), generator=draw)
    weight = torch.rand(3, 4, generator=draw, dtype=torch.float64)
    weight[1, 2:] = 0
    return (x > 0.5).double() if whole else x, y, weight


@pytest.mark.parametrize("whole", [False, True], ids=["any numbers", "ties"])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Lenet().module((1, 28, 28), 10), (1, 28, 28)),
        (Lenet().module((3, 19, 16), 10), (3, 19, 16)),
        (Cnn().module((1, 10, 14), 5), (1, 10, 14)),
        (SMALL, (2, 9, 7)),
    ],
    ids=["lenet", "lenet, uneven", "cnn", "no bias, a last row that is not pooled"],
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_gradients_are_those_of_torch(
    module: nn.Module, shape: tuple[int, ...], whole: bool, device: str
) -> None:
    objective = Objective(module, dtype="float64")
    pooled = objective.pooled
    assert pooled is not None
    x, y, weight = batch(shape, whole)
    noise = torch.randn(3, objective.layout.size, generator=torch.Generator().manual_seed(1))
    w = objective.start + 0.1 * noise.double()
    w = (4 * w).round() / 4 if whole else w  # so that sums are exact and many windows have ties
    for client in range(3):
        own = w[client].clone().requires_grad_()
        (objective.losses(objective.outputs(own, x[client]), y[client]) * weight[client]).sum().backward()
        there = [tensor.to(device) for tensor in (w, x, y, weight)]
        found = pooled.gradients(*there)[client].cpu()
        assert own.grad is not None
        assert close(found, own.grad, 1e-12)
        assert float(found.abs().max()) > 0


def network(
    conv: nn.Module, relu: nn.Module | None = None, pool: nn.Module | None = None, flat: bool = True
) -> nn.Module:
    flatten = [nn.Flatten()] if flat else []
    return nn.Sequential(conv, relu or nn.ReLU(), pool or nn.MaxPool2d(2), *flatten, nn.Linear(8, 2))


TWICE = (nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
OTHERS = {
    "stride": network(nn.Conv2d(1, 2, 3, stride=2)),
    "pool 3": network(nn.Conv2d(1, 2, 3), pool=nn.MaxPool2d(3)),
    "overlap": network(nn.Conv2d(1, 2, 3), pool=nn.MaxPool2d(2, stride=1)),
    "ceil": network(nn.Conv2d(1, 2, 3), pool=nn.MaxPool2d(2, ceil_mode=True)),
    "oblong": network(nn.Conv2d(1, 2, (3, 5))),
    "same": network(nn.Conv2d(1, 2, 3, padding="same")),
    "groups": network(nn.Conv2d(2, 2, 3, groups=2)),
    "tanh": network(nn.Conv2d(1, 2, 3), relu=nn.Tanh()),
    "not flat": network(nn.Conv2d(1, 2, 3), flat=False),
    "dense": nn.Sequential(nn.Flatten(), nn.Linear(8, 2)),
    "one layer": nn.Linear(8, 2),
    "twice": nn.Sequential(*TWICE, *TWICE, nn.Flatten(), nn.Linear(8, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_left_to_autograd(name: str) -> None:
    assert Objective(OTHERS[name]).pooled is None
    assert Objective(SMALL).pooled is not None
    assert Objective(SMALL, loss=nn.CrossEntropyLoss()).pooled is None


def test_minibatches_whose_rows_were_found_at_once_are_those_of_each_step() -> None:
    x, y = torch.rand(20, 1, 8, 8), torch.randint(0, 5, (20,))
    owners = torch.arange(3).repeat_interleave(torch.tensor([7, 2, 11]))
    task = Task.from_arrays(Cnn().module((1, 8, 8), 5), x, y, partition=owners, dtype="float64").augmented()
    clients = torch.tensor([2, 0, 1])
    oracle = DataOracle.of(task, clients, Draw.seeded(0).fold(clients), FedAvg(epochs=2, batch=4))
    found = oracle.located(oracle.picks(4, 4, torch.float64))
    for step in range(4):
        once = replace(oracle, picked=found.at(step)).some(torch.tensor([1, 2]))
        each = oracle.at(step).minibatch(4, torch.float64)
        for mine, other in zip(once.minibatch(4, torch.float64), each, strict=True):
            assert torch.equal(mine, other[1:])
