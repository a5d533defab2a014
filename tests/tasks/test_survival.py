"""Losses of whole batches, Cox's among them, the C-index, and scores on clients' own test samples."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedcom
from fedcom import ConfigError, DataError, FedAvg, FedCOMGATE, Int, Simulation, Task, concordance_index, cox
from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle

SIZES = (3, 9, 20)
DRAW = Draw.seeded(3)
N, D = sum(SIZES), 4
GROUPS = np.repeat(["west", "east", "north"], SIZES)
X = DRAW.normal(N * D, torch.float64).reshape(N, D)
TIME = 1.0 + DRAW.fold("time").integers(12, N)  # whole days, so that many are alike
Y = torch.stack([TIME, (DRAW.fold("event").uniform(N, torch.float64) < 0.6).double()], 1)


def by_hand(risk: Tensor, y: Tensor) -> Tensor:
    """Cox's loss as its definition says it, sample by sample."""
    terms = [
        torch.logsumexp(risk[y[:, 0] >= y[i, 0]], 0) - risk[i] if y[i, 1] else 0 * risk[i]
        for i in range(len(risk))
    ]
    return torch.stack(terms).mean()


def survival(**settings: Any) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = nn.Linear(D, 1).double()
    return Task.from_arrays(module, X, Y, groups=GROUPS, loss=cox, dtype="float64", **settings)


def test_cox_on_two_samples_is_as_computed_by_hand() -> None:
    risk, half = torch.tensor([0.3, 1.1]), torch.full((2,), 0.5)
    first = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    want = 0.5 * (math.log(math.exp(0.3) + math.exp(1.1)) - 0.3)  # the last one is at risk alone: log 1
    assert cox(risk, first, half) == pytest.approx(want)
    assert cox(risk, torch.tensor([[1.0, 0.0], [2.0, 0.0]]), half) == 0.0  # nobody had the event


def test_full_gradients_of_unequal_clients_are_those_of_each_alone() -> None:
    task = survival()
    w = task.objective.start + 0.1 * DRAW.fold("w").normal(3 * 5, torch.float64).reshape(3, 5)
    clients = torch.arange(3)
    oracle = DataOracle(task, clients, Draw.seeded(0).fold(clients), None)
    found, curved = oracle.full(w), oracle.curvature(w, torch.ones_like(w))
    for j, size in enumerate(task.sizes.tolist()):
        rows = slice(int(task.offsets[j]), int(task.offsets[j]) + size)
        own = w[j].clone().requires_grad_()
        loss = by_hand(task.x[rows] @ own[:D] + own[D], task.y[rows])
        (g,) = torch.autograd.grad(loss, own, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), own)
        torch.testing.assert_close(found[j], g.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(curved[j], h, rtol=1e-12, atol=1e-12)
        assert task.evaluate_clients(w[j])[j]["train_loss"] == pytest.approx(float(loss.detach()), rel=1e-12)
    scores = task.evaluate(w[0], torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64))
    each = [row["train_loss"] for row in task.evaluate_clients(w[0])]
    assert scores["train_loss"] == pytest.approx(0.2 * each[0] + 0.3 * each[1] + 0.5 * each[2], rel=1e-12)


@pytest.mark.parametrize("settings", [{"batch": 4}, {"batch": 4, "epochs": 1}, {"batch": "full", "tau": 2}])
def test_clients_side_by_side_and_one_by_one_agree_with_codecs_too(settings: dict[str, Any]) -> None:
    runs = [
        Simulation(
            survival(), FedCOMGATE(eta=0.1, **settings), Int(bits=4), rounds=3, device="cpu", chunk=chunk
        )
        for chunk in (None, 1)
    ]
    rows = [run.run()[-1] for run in runs]
    torch.testing.assert_close(runs[0].server.w, runs[1].server.w, rtol=1e-12, atol=1e-12)
    assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-12)
    again = pickle.loads(pickle.dumps(survival()))
    assert again.objective.survival


def test_minibatches_are_the_risk_sets() -> None:
    task = survival()
    clients = torch.tensor([2])
    oracle = DataOracle(task, clients, Draw.seeded(4).fold(clients), 5)
    x, y, _ = oracle.minibatch(5, torch.float64)
    w = task.objective.start.clone().requires_grad_()
    (want,) = torch.autograd.grad(by_hand(x[0] @ w[:D] + w[D], y[0]), w)
    torch.testing.assert_close(oracle.batch(w.detach().unsqueeze(0))[0], want, rtol=1e-12, atol=1e-12)


@fedcom.batch_loss
def range_of(outputs: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """A stranger's loss of a batch: how far its outputs are apart, and their mean square error."""
    here = weight > 0
    low = torch.where(here, outputs[:, 0], torch.inf).min()
    high = torch.where(here, outputs[:, 0], -torch.inf).max()
    return high - low + (weight * (outputs[:, 0] - targets) ** 2).sum()


def test_a_batch_loss_of_ones_own_is_evaluated_on_all_samples_of_a_client() -> None:
    x, y = X[:, :1], X[:, 0]
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, 2.0)
    task = Task.from_arrays(module, x, y, x, y, groups=GROUPS, loss=range_of, dtype="float64")
    run = Simulation(task, FedAvg(eta=0.01, weights="size", batch=4), rounds=2, device="cpu")
    first = run.run()[0]
    assert first["test_loss"] == pytest.approx(float(2 * (x.max() - x.min()) + x.square().mean()), rel=1e-12)
    parts = [x[name == GROUPS] for name in ("east", "north", "west")]
    want = sum(len(p) / N * float(2 * (p.max() - p.min()) + p.square().mean()) for p in parts)
    assert first["train_loss"] == pytest.approx(want, rel=1e-12)
    assert first["test_r2"] == pytest.approx(
        1 - float(x.square().mean() / (x - x.mean()).square().mean()), rel=1e-12
    )


def test_the_c_index_is_lifelines() -> None:
    theirs = pytest.importorskip("lifelines.utils").concordance_index
    for seed in range(20):
        draw = Draw.seeded(seed)
        n = 2 + seed * 7
        risk = draw.integers(1 + n // 2, n).double()  # many are equal
        y = torch.stack(
            [draw.fold("t").integers(1 + n // 3, n).double(), draw.fold("e").integers(2, n).double()], 1
        )
        ours = concordance_index(risk.unsqueeze(1), y)
        try:
            want = theirs(y[:, 0].numpy(), -risk.numpy(), y[:, 1].numpy())
        except ZeroDivisionError:
            assert math.isnan(ours)
            continue
        assert abs(ours - want) < 1e-12


def test_a_module_with_several_outputs_is_refused_for_survival() -> None:
    with pytest.raises(ConfigError, match=r"one output per sample, and the module's are of shape \[2\]"):
        cox(torch.zeros(3, 2), torch.ones(3, 2), torch.full((3,), 1 / 3))
    y = np.stack([np.arange(6) + 1.0, np.ones(6)], 1)
    with pytest.raises(ConfigError, match="one output per sample"):
        Task.from_arrays(nn.Linear(2, 2), np.ones((6, 2)), y, loss=cox, clients=2, partition="iid")


def test_a_model_that_answers_nan_has_no_c_index() -> None:
    y = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 0.0]])
    assert math.isnan(concordance_index(torch.tensor([math.nan, 1.0, 2.0]), y))
    assert concordance_index(torch.tensor([math.inf, 2.0, 1.0]), y) == 1


def test_rows_have_the_c_index_and_how_clients_differ() -> None:
    other = Draw.seeded(8)
    test_x = other.normal(30 * D, torch.float64).reshape(30, D)
    test_y = torch.stack([1.0 + other.integers(50, 30), other.fold("e").integers(2, 30).double()], 1)
    owners = np.array(["north", "west", "east"] * 10)
    task = survival(test_x=test_x, test_y=test_y, test_groups=owners)
    row = Simulation(task, FedAvg(eta=0.1, batch=4), rounds=2, device="cpu").run()[-1]
    risk = task.objective.outputs(task.objective.start, test_x)
    first = task.evaluate(task.objective.start, torch.full((3,), 1 / 3))
    each = [
        concordance_index(risk[owners == name], test_y[owners == name]) for name in ("east", "north", "west")
    ]
    assert first["test_c_index"] == concordance_index(risk, test_y)
    assert first["client_mean"] == pytest.approx(sum(each) / 3)
    assert first["client_worst"] == min(each)
    assert first["client_spread"] == pytest.approx(float(np.std(each)))
    assert set(row) >= {"test_c_index", "client_mean", "client_worst", "client_spread"}
    held = task.held_out(0.3)
    assert held.test_sizes == (3, 6, 1)
    assert "client_mean" in held.evaluate(task.objective.start, torch.full((3,), 1 / 3))
    with pytest.warns(UserWarning, match="in no client's own: 30 of 'south'"):
        of_nobody = survival(test_x=test_x, test_y=test_y, test_groups=np.array(["south"] * 30))
    last = of_nobody.evaluate(task.objective.start, torch.full((3,), 1 / 3))
    assert last["test_c_index"] == first["test_c_index"]
    assert "client_mean" not in last


def test_targets_that_are_no_times_and_events_are_refused() -> None:
    module = nn.Linear(D, 1).double()
    for y in (Y[:, 0], Y * 2, Y[:, [0, 1, 1]]):
        with pytest.raises(DataError, match="not times and events"):
            Task.from_arrays(module, X, y, groups=GROUPS, loss=cox)
    with pytest.raises(ConfigError, match="must be one number"):
        Task.from_arrays(module, X, Y, clients=2, loss=fedcom.batch_loss(lambda outputs, y, weight: outputs))
