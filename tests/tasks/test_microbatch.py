"""Gradients of some samples at a time: their sum is that of all, in every model and method."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcom import AdamWSteps, ConfigError, FedAvg, FedCOM, FedCOMGATE, Int, Simulation, Task
from fedcom.config import Config
from fedcom.draws import Draw
from fedcom.runs.prepare import prepare
from fedcom.tasks.survival import cox
from tests.conftest import close

X = Draw.seeded(5).normal(60 * 6, torch.float64).reshape(60, 6)
Y = Draw.seeded(6).integers(3, 60)


class Attending(nn.Module):
    """A transformer that drops in attention, between layers and by a function."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, 0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x.unsqueeze(1) * torch.tensor([[1.0], [0.5]], dtype=x.dtype))
        found: Tensor = self.head(F.dropout(h.mean(1), 0.3, self.training))
        return found


def made(kind: str) -> Task:
    torch.manual_seed(1)
    given: dict[str, Any] = {"dtype": torch.float64, "clients": 5, "seed": 1}
    if kind == "text":
        words = {f"client {i}": "to be or not to be, that is the question\n" * (i + 1) for i in range(5)}
        # The last sequence of each client is padded.
        return Task.from_text(
            lambda size: nn.Sequential(nn.Embedding(size, 6), nn.Linear(6, size)),
            words,
            length=8,
            dtype="float64",
        )
    module = (
        Attending() if kind == "attending" else nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    )
    if kind == "weighted":
        given["loss"] = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
    return Task.from_arrays(module, X, Y, X[:9], Y[:9], **given)


def ended(task: Task, algorithm: Any, **settings: Any) -> Tensor:
    simulation = Simulation(task, algorithm, Int(8), rounds=3, device="cpu", **settings)
    simulation.run()
    found: Tensor = simulation.server.w
    return found


@pytest.mark.parametrize("kind", ["dense", "weighted", "attending", "text"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedCOMGATE(tau=3, eta=0.05, batch=5),
        FedCOM(eta=0.01, batch=5, epochs=2, local=AdamWSteps(keep=True)),
        FedCOM(tau=2, eta=0.05, batch="full"),
    ],
    ids=["tracking", "epochs of adamw", "full"],
)
def test_parts_of_minibatches_add_up(kind: str, algorithm: Any) -> None:
    task = made(kind)
    whole = ended(task, algorithm)
    assert not torch.equal(whole, task.objective.start)
    for microbatch in (1, 4):
        close(ended(task, algorithm, microbatch=microbatch), whole, 1e-10)
    assert torch.equal(ended(task, algorithm, microbatch=100), whole)


def test_a_loaded_run_computes_as_many_samples_at_once(tmp_path: Path) -> None:
    task, algorithm = made("dense"), FedCOM(tau=2, eta=0.05, batch=5)
    run = Simulation(task, algorithm, rounds=2, microbatch=2, device="cpu")
    run.step()
    run.save(tmp_path)
    loaded = Simulation.load(tmp_path, task, device="cpu")
    for one in (run, loaded):
        one.run()
    assert torch.equal(loaded.server.w, run.server.w)
    assert loaded.task.objective.microbatch == 2
    with pytest.raises(ConfigError, match="chunk must be 1 or more; got 0"):
        Simulation(task, algorithm, chunk=0)


def test_curvature_is_that_of_whole_minibatches() -> None:
    for kind in ("dense", "attending"):
        task = made(kind)
        w = task.objective.start.repeat(2, 1)
        v, weight = torch.randn_like(w), torch.full((2, 6), 1 / 6, dtype=w.dtype)
        given = (
            w,
            v,
            X[:12].reshape(2, 6, 6),
            Y[:12].reshape(2, 6),
            weight,
            Draw.seeded(2).fold(torch.arange(2)).key,
        )
        given = given if kind == "attending" else given[:-1]
        parts = task.objective.in_parts(4)
        close(parts.curvatures(*given), task.objective.curvatures(*given), 1e-12)


def test_no_more_samples_than_asked_for_are_computed_at_once() -> None:
    seen = list[int]()

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape[0])
            return super().forward(x.tanh())

    task = Task.from_arrays(Watched(6, 3), X, Y, dtype=torch.float64, clients=5)
    simulation = Simulation(task, FedAvg(tau=2, eta=0.1, batch=7), rounds=1, device="cpu", microbatch=3)
    seen.clear()
    simulation.step()
    assert max(seen) == 3
    assert {*seen} == {3, 1}


def test_a_config_says_it() -> None:
    table = {
        "data": {"name": "digits"},
        "algorithm": {"name": "fedavg"},
        "run": {"rounds": 1, "microbatch": 4},
    }
    assert prepare(Config.of(table))[0].task.objective.microbatch == 4


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            lambda: Task.from_arrays(
                nn.Linear(6, 1),
                X,
                torch.stack((X[:, 0].exp(), Y.double().clamp(max=1)), 1),
                loss=cox,
                clients=2,
            ),
            "microbatch=2 takes minibatches apart, but the loss must see whole ones",
        ),
        (
            lambda: Task.from_arrays(
                nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
                *(X, Y),
                clients=2,
                batch_norm="averaged",
            ),
            "microbatch=2 takes minibatches apart, but BatchNorm's statistics must see whole ones",
        ),
    ],
)
def test_what_must_see_whole_minibatches_is_refused(task: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Simulation(task(), FedAvg(), device="cpu", microbatch=2)
    with pytest.raises(ConfigError, match="microbatch must be 1 or more; got 0"):
        Simulation(made("dense"), FedAvg(), device="cpu", microbatch=0)
