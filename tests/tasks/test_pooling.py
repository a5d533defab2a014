"""2x2 max-pooling on a CPU has torch's bits; convolutions client by client have a stack's gradients."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedcom import AdamWSteps, FedCOM, FedCOMGATE, Int, Scaffold, Simulation, Task
from fedcom.codecs.kernels.jit import COMPILED
from fedcom.draws import Draw
from fedcom.tasks import pooling
from fedcom.tasks.objective import Objective
from fedcom.tasks.pooling import Halved, halved
from fedcom.tasks.scores import EVAL_BLOCK, block_of
from tests.conftest import close

needs_numba = pytest.mark.skipif(not COMPILED, reason="without numba torch's pooling is used")


def images(*shape: int) -> Tensor:
    """Few different numbers, so that many are equal, with NaN and infinities among them."""
    x = (Draw.seeded(2).normal(torch.Size(shape).numel()) * 2).round().reshape(shape)
    for special, i in ((torch.nan, 3), (torch.inf, 7), (-torch.inf, 11)):
        x.flatten()[i::13] = special
    return x


@needs_numba
@pytest.mark.parametrize("shape", [(3, 2, 6, 8), (1, 1, 2, 2), (2, 3, 5, 7), (4, 1, 9, 2)])
def test_pooling_has_the_bits_of_torch(shape: tuple[int, ...]) -> None:
    layer, x = halved(nn.MaxPool2d(2)), images(*shape)
    assert type(layer) is Halved
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, right = layer(ours), F.max_pool2d(theirs, 2)
    assert torch.equal(found.nan_to_num(0.5), right.nan_to_num(0.5))
    g = Draw.seeded(3).normal(found.numel()).reshape(found.shape)
    assert torch.equal(torch.autograd.grad(found, ours, g)[0], torch.autograd.grad(right, theirs, g)[0])
    with torch.no_grad():
        assert torch.equal(layer(x).nan_to_num(0.5), right.nan_to_num(0.5))


@needs_numba
def test_what_the_loop_cannot_take_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(pooling, "_halve", fail)
    layer, x = halved(nn.MaxPool2d(2)), torch.randn(2, 3, 6, 6)
    with pytest.raises(AssertionError):
        layer(x)
    for other in (x.double(), x[0], x.contiguous(memory_format=torch.channels_last), x.mT, x[:0]):
        assert torch.equal(layer(other), F.max_pool2d(other, 2))
    stacked = vmap(grad(lambda x: layer(x).sum()))(x.unsqueeze(1))
    assert stacked.sum() == 2 * 3 * 9
    with pytest.raises(RuntimeError, match="too small"):
        layer(x[..., :1])


def test_other_pooling_stays_torchs() -> None:
    others = [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d((2, 1)),
        nn.MaxPool2d(2, return_indices=True),
        nn.MaxPool1d(2),
        nn.AvgPool2d(2),
    ]
    assert not any(isinstance(part, Halved) for part in halved(nn.Sequential(*others)).modules())


class Plain(nn.Module):
    """A user's module, with what is often there: view, dropout, a frozen part, pooling by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.frozen = nn.Conv2d(4, 4, 1).requires_grad_(False)
        self.pool, self.drop = nn.MaxPool2d(2), nn.Dropout(0.3)
        self.head = nn.Linear(4 * 2 * 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(self.pool(self.frozen(self.first(x)).relu()), 2)
        found: Tensor = self.head(self.drop(h.view(len(h), -1)))
        return found


def task(kind: str, dtype: torch.dtype = torch.float64) -> Task:
    torch.manual_seed(0)
    x, y = Draw.seeded(5).normal(60 * 64).reshape(60, 1, 8, 8), Draw.seeded(6).integers(3, 60)
    given: dict[str, Any] = {"dtype": dtype, "clients": 5, "seed": 1}
    module: nn.Module = Plain()
    if kind in ("averaged", "own"):
        norm = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        module, given["batch_norm"] = nn.Sequential(norm, nn.Flatten(), nn.Linear(36, 3)), kind
    if kind == "weighted":
        given["loss"] = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
    return Task.from_arrays(module, x, y, x[:9], y[:9], **given)


def ended(task: Task, algorithm: Any, **settings: Any) -> Tensor:
    simulation = Simulation(task, algorithm, Int(8), rounds=3, device="cpu", **settings)
    simulation.run()
    found: Tensor = simulation.server.w
    return found


@pytest.mark.parametrize("kind", ["plain", "weighted", "averaged", "own"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedCOMGATE(tau=3, eta=0.05, batch=5),
        FedCOM(eta=0.01, batch=5, epochs=2, local=AdamWSteps(keep=True)),
        Scaffold(tau=2, eta=0.05, batch="full"),
    ],
    ids=["tracking", "epochs of adamw", "full"],
)
def test_clients_by_themselves_end_where_a_stack_does(
    kind: str, algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked = ended(task(kind), algorithm)
    assert task(kind).objective.convolved > 0
    monkeypatch.setattr("fedcom.tasks.objective._LARGE", 1)
    called, own = [], Objective._one_by_one
    monkeypatch.setattr(Objective, "_one_by_one", lambda *given: called.append(1) or own(*given))
    close(ended(task(kind), algorithm), stacked, 1e-10)
    assert called


def test_clients_by_themselves_have_the_same_bits_in_any_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcom.tasks.objective._LARGE", 1)
    algorithm = FedCOMGATE(tau=3, eta=0.05, batch=5)
    whole = ended(task("plain", torch.float32), algorithm)
    for chunk in (1, 2):
        assert torch.equal(ended(task("plain", torch.float32), algorithm, chunk=chunk), whole)


def test_a_loss_that_no_parameter_moves_has_no_gradient() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    objective = Objective(module, lambda outputs, y: (outputs.detach() - y).square().mean())
    w, x = objective.start.repeat(2, 1), torch.randn(2, 4, 1, 8, 8)
    objective.convolved = 1 << 18
    assert not objective.gradients(w, x, torch.randn(2, 4, 3), torch.full((2, 4), 0.25)).any()


def test_fewer_samples_are_evaluated_at_once_where_convolutions_give_much() -> None:
    small = task("plain")
    assert small.objective.convolved == 2 * 4 * 64
    assert block_of(small.objective, small.y, 3) == EVAL_BLOCK
    small.objective.convolved = 1 << 20
    assert block_of(small.objective, small.y, 3) == 4
    small.objective.convolved = 1 << 30
    assert block_of(small.objective, small.y, 3) == 1
