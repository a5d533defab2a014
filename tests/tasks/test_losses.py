"""Losses of torch's: means with ignored targets and class weights are torch's own, and answers are scored."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from fedcom import ConfigError, FedAvg, FedCOMGATE, Simulation, Task
from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle

N, D, C = 600, 4, 3
WEIGHT = torch.tensor([1.0, 2.5, 0.3])
DRAW = Draw.seeded(5)
X = DRAW.normal(N * D, torch.float64).reshape(N, D)
Y = DRAW.fold("y").integers(C, N)


def some(ignored: int) -> Tensor:
    """Targets of which two in five are ignored."""
    return torch.where(torch.arange(N) % 5 < 2, ignored, Y)


def module(*end: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, C), *end).double()


def reference(task: Task, loss: Any, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The loss of a batch and its gradient, as torch computes them."""
    w = task.objective.start.clone().requires_grad_()
    outputs = functional_call(task.objective.module, task.objective.layout.tensors(w), (x,))
    value = loss(outputs, y)
    return float(value.detach()), torch.autograd.grad(value, w)[0]


LOSSES: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "ignored": (nn.CrossEntropyLoss, some(-100)),
    "a class ignored": (lambda: nn.CrossEntropyLoss(ignore_index=1), Y),
    "a large number ignored": (lambda: nn.CrossEntropyLoss(ignore_index=255), some(255)),
    "function": (lambda: F.cross_entropy, some(-100)),
    "smoothed": (lambda: nn.CrossEntropyLoss(label_smoothing=0.2), some(-100)),
    "weighted": (lambda: nn.CrossEntropyLoss(WEIGHT.double()), Y),
    "weighted, smoothed": (lambda: nn.CrossEntropyLoss(WEIGHT.double(), label_smoothing=0.1), Y),
    "all": (lambda: nn.CrossEntropyLoss(WEIGHT.double(), ignore_index=7, label_smoothing=0.1), some(7)),
    "partial": (lambda: partial(F.cross_entropy, weight=WEIGHT.double(), ignore_index=-1), some(-1)),
    "likelihood": (lambda: nn.NLLLoss(WEIGHT.double(), ignore_index=-1), some(-1)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_one_client_has_torchs_loss_and_gradient(name: str) -> None:
    """The client has more samples than are computed at once; minibatches are means of their own."""
    make, y = LOSSES[name]
    net = module(nn.LogSoftmax(-1)) if name == "likelihood" else module()
    task = Task.from_arrays(net, X, y, X[:50], y[:50], clients=1, loss=make(), dtype=torch.float64)
    w, everyone = task.objective.start, torch.zeros(1, dtype=torch.int64)
    value, gradient = reference(task, make(), task.x, task.y)
    scores = task.evaluate(w, torch.ones(1))
    assert scores["train_loss"] == pytest.approx(value, rel=1e-12)
    assert scores["test_loss"] == pytest.approx(reference(task, make(), X[:50], y[:50])[0], rel=1e-12)
    full = DataOracle(task, everyone, Draw.seeded(0), None)
    torch.testing.assert_close(full.full(w[None])[0], gradient, rtol=1e-10, atol=1e-12)
    oracle = DataOracle(task, everyone, Draw.seeded(0).fold(everyone), 7)
    x, y, _ = oracle.minibatch(7, torch.float64)
    expected = reference(task, make(), x[0], y[0])[1]
    torch.testing.assert_close(oracle.batch(w[None])[0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["all", "weighted", "ignored"])
def test_curvature_is_that_of_torchs_loss(name: str) -> None:
    make, y = LOSSES[name]
    task = Task.from_arrays(module(), X, y, clients=1, loss=make(), dtype=torch.float64)
    w, v = task.objective.start, DRAW.fold("v").normal(task.objective.layout.size, torch.float64)

    def loss(w: Tensor) -> Tensor:
        outputs = functional_call(task.objective.module, task.objective.layout.tensors(w), (task.x,))
        found: Tensor = make()(outputs, task.y)
        return found

    expected = grad(lambda w: grad(loss)(w) @ v)(w)
    oracle = DataOracle(task, torch.zeros(1, dtype=torch.int64), Draw.seeded(0), None)
    torch.testing.assert_close(oracle.curvature(w[None], v[None])[0], expected, rtol=1e-8, atol=1e-10)


def test_several_targets_per_sample_are_one_mean_as_in_torch() -> None:
    """Ten positions of which some are ignored, as in a language model: samples count as their targets do."""
    x = DRAW.fold("tokens").normal(40 * 10 * D, torch.float64).reshape(40, 10, D)
    y = torch.where(torch.arange(400) % 7 < 3, -100, torch.arange(400) % C).reshape(40, 10)
    y[3] = -100

    class PerToken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).movedim(-1, 1)  # classes second, as torch has them

    loss = nn.CrossEntropyLoss(WEIGHT.double())
    task = Task.from_arrays(PerToken(D, C), x, y, clients=1, loss=loss, dtype=torch.float64)
    value, gradient = reference(task, loss, task.x, task.y)
    assert task.evaluate(task.objective.start, torch.ones(1))["train_loss"] == pytest.approx(value, rel=1e-12)
    oracle = DataOracle(task, torch.zeros(1, dtype=torch.int64), Draw.seeded(0), None)
    torch.testing.assert_close(oracle.batch(task.objective.start[None])[0], gradient)


def test_ignored_samples_change_nothing_anywhere() -> None:
    """Each client has its own samples, or those and ignored ones; all scores and the model are the same."""
    kept = torch.arange(N) % 5 >= 2
    clients = torch.arange(N) % 4
    runs = []
    for rows in (kept, torch.ones(N, dtype=torch.bool)):
        y = some(-100)[rows]
        task = Task.from_arrays(
            *(module(), X[rows], y, X[rows], y),
            partition=clients[rows],
            loss=nn.CrossEntropyLoss(),
            dtype=torch.float64,
        )
        assert task.classes == C
        method = FedCOMGATE(batch="full", tau=3)
        runs.append(Simulation(task, method, "int", rounds=3, device="cpu"))
        assert np.sum(task.label_counts()) == int(kept.sum())
    for ours, theirs in zip(runs[0].run(), runs[1].run(), strict=True):
        for key in ("train_loss", "test_loss", "test_accuracy", "worst_client_accuracy"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-9), key
    ours, theirs = (run.clients() for run in runs)
    assert [row["accuracy"] for row in ours] == pytest.approx([row["accuracy"] for row in theirs])
    details = [run.task.details(run.server.w) for run in runs]
    assert details[0].confusion == details[1].confusion
    assert details[0].client_accuracy == pytest.approx(details[1].client_accuracy)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_clients_and_batches_with_nothing_to_learn_from_are_zero(weight: Any, smoothing: float) -> None:
    y = torch.where(torch.arange(N) < N // 2, -100, Y)
    halves = [torch.arange(N // 2), torch.arange(N // 2, N)]
    loss = nn.CrossEntropyLoss(weight, label_smoothing=smoothing)
    task = Task.from_arrays(module(), X, y, partition=halves, loss=loss)
    w, both = task.objective.start.expand(2, -1), torch.arange(2)
    for batch in (5, None):
        g = DataOracle(task, both, Draw.seeded(0).fold(both), batch).batch(w)
        assert torch.equal(g[0], torch.zeros_like(g[0]))
        assert float(g[1].norm()) > 0
    simulation = Simulation(task, FedAvg(tau=2, batch=3), rounds=2, device="cpu")
    last = simulation.run()[-1]
    rows = simulation.clients()
    assert (rows[0]["train_loss"], rows[0]["accuracy"]) == (0.0, None)
    assert last["train_loss"] == pytest.approx(rows[1]["train_loss"] / 2)
    assert last["worst_client_accuracy"] == rows[1]["accuracy"]
    assert task.details(simulation.server.w).client_accuracy[0] is None


def test_a_loss_that_is_recognised_has_the_bits_of_the_same_loss_written_out() -> None:
    trained = []
    for loss in (nn.CrossEntropyLoss(), lambda o, t: F.cross_entropy(o, t)):
        task = Task.from_arrays(module(), X, Y, clients=6, loss=loss)
        simulation = Simulation(task, FedAvg(tau=3, epochs=None, batch=9), rounds=2, device="cpu")
        simulation.run()
        trained.append(simulation.server.w)
    assert torch.equal(*trained)


def test_weights_inside_a_function_would_cancel_and_are_warned_of() -> None:
    def weighted(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, weight=WEIGHT)

    with pytest.warns(UserWarning, match=r"mean of their losses.*torch.nn.CrossEntropyLoss\(weight="):
        Task.from_arrays(module(), X, Y, clients=4, loss=weighted)
    with pytest.warns(UserWarning, match="the first 8 samples"):
        Task.from_arrays(module(), X, Y, clients=4, loss=nn.CrossEntropyLoss(reduction="sum"))


def test_what_nobody_would_train_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
            return self.scale * F.cross_entropy(outputs, y)

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(D, C))
            self.all = [self.weight]

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.all[0]

    hidden = Scaled()
    for loss in (hidden, lambda outputs, y: hidden(outputs, y)):
        with pytest.raises(ConfigError, match=r"'scale'|is not read as a parameter"):
            Task.from_arrays(module(), X, Y, clients=4, loss=loss)
    with pytest.raises(ConfigError, match="such as one in a Python list"):
        Task.from_arrays(Listed(), X, Y, clients=4)
    Task.from_arrays(module(), X, Y, clients=4, loss=Scaled().requires_grad_(False))


def test_labels_beyond_the_outputs_are_refused_before_the_first_round() -> None:
    with pytest.raises(ConfigError, match="labels go up to 3, but for one sample the module returns"):
        Task.from_arrays(module(), X, Y + 1, clients=4, loss=nn.CrossEntropyLoss())


def test_shares_of_classes_as_targets_are_torchs_mean() -> None:
    soft = F.one_hot(Y, C).double() * 0.8 + 0.2 / C
    loss = nn.CrossEntropyLoss(WEIGHT.double())
    task = Task.from_arrays(module(), X, soft, clients=1, loss=loss, dtype=torch.float64)
    value, gradient = reference(task, loss, task.x, task.y)
    assert task.evaluate(task.objective.start, torch.ones(1))["train_loss"] == pytest.approx(value, rel=1e-12)
    oracle = DataOracle(task, torch.zeros(1, dtype=torch.int64), Draw.seeded(0), None)
    torch.testing.assert_close(oracle.full(task.objective.start[None])[0], gradient)


def test_a_task_with_class_weights_travels_and_stays_the_users() -> None:
    loss = nn.CrossEntropyLoss(WEIGHT)
    task = Task.from_arrays(module(), X, Y, clients=2, loss=loss, dtype=torch.float64)
    assert loss.weight is WEIGHT
    w, p = task.objective.start, torch.full((2,), 0.5)
    assert pickle.loads(pickle.dumps(task)).evaluate(w, p) == task.evaluate(w, p)


# Answers of yes or no

YES = (X[:, :2] > 0).double()


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("loss", "end"),
    [
        (nn.BCEWithLogitsLoss(), nn.Identity()),
        (F.binary_cross_entropy_with_logits, nn.Identity()),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), nn.Identity()),
        (nn.BCELoss(), nn.Sigmoid()),
        (F.binary_cross_entropy, nn.Sigmoid()),
    ],
    ids=["logits", "function", "weighted", "shares", "function of shares"],
)
def test_answers_of_yes_or_no_have_an_accuracy(loss: Any, end: nn.Module, whole: bool) -> None:
    y = YES[:, :1].long() if whole else YES[:, :1]
    net = nn.Sequential(nn.Linear(D, 1), end)
    task = Task.from_arrays(net, X, y, X[:50], y[:50], clients=3, loss=loss)
    simulation = Simulation(task, FedAvg(eta=1.0, tau=5), rounds=10, device="cpu")
    last = simulation.run()[-1]
    trained = simulation.module()(X[:50].float()).detach()
    threshold = 0.5 if isinstance(end, nn.Sigmoid) else 0.0
    assert last["test_accuracy"] == pytest.approx(
        float(((trained > threshold) == (y[:50] > 0.5)).float().mean())
    )
    assert last["test_accuracy"] > 0.9
    assert {"test_r2", "test_rmse"}.isdisjoint(last)
    assert last["worst_client_accuracy"] == min(row["accuracy"] for row in simulation.clients())


def test_of_several_labels_the_accuracy_is_the_share_that_is_right() -> None:
    net = nn.Linear(D, 2, bias=False)
    net.weight.data = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1.0, 0]])  # the first answer is right
    task = Task.from_arrays(net, X, YES, X, YES, clients=2, loss=nn.BCEWithLogitsLoss())
    scores = task.evaluate(task.objective.start, torch.full((2,), 0.5))
    lucky = ((X[:, 2] > 0) == (X[:, 1] > 0)).double().mean()
    assert scores["test_accuracy"] == pytest.approx(0.5 + 0.5 * float(lucky))


def test_one_number_per_answer_will_do() -> None:
    net = nn.Sequential(nn.Linear(D, 1), nn.Flatten(0))
    task = Task.from_arrays(net, X, YES[:, 0], X, YES[:, 0], clients=2, loss=nn.BCEWithLogitsLoss())
    outputs = task.objective.outputs(task.objective.start, task.test_x)
    expected = float(((outputs > 0) == (YES[:, 0] > 0)).double().mean())
    assert task.evaluate(task.objective.start, torch.ones(2))["test_accuracy"] == pytest.approx(expected)


def test_a_regression_is_still_one() -> None:
    task = Task.from_arrays(nn.Linear(D, 2), X, YES, X, YES, clients=2, loss=nn.MSELoss())
    scores = task.evaluate(task.objective.start, torch.ones(2))
    assert scores["test_accuracy"] is None
    assert scores["test_r2"] is not None
