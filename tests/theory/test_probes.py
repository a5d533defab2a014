"""Estimates beside the truth, on problems where it is known."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedcom.algorithms import FedAvg, FedCOMGATE
from fedcom.cli import app
from fedcom.codecs import Identity, RandK
from fedcom.config import Config
from fedcom.draws import Draw
from fedcom.runs.prepare import build_task
from fedcom.tasks.task import Task
from fedcom.theory import Prober, probe
from fedcom.theory.spectrum import extremes
from fedcom.traffic.links import Links


def task_of(**sections: object) -> Task:
    return build_task(Config.of(sections))[0]


@pytest.mark.parametrize("d", [1, 2, 9, 40])
def test_ends_of_spectra_are_found(d: int) -> None:
    draw = Draw.seeded(d).fold(torch.arange(5))
    a = draw.normal(d * d, torch.float64).reshape(5, d, d)
    a = a + a.mT
    v = draw.fold("start").normal(d, torch.float64)
    found = extremes(lambda v: torch.einsum("mij,mj->mi", a, v), v, 40, tolerance=0)
    truth = torch.linalg.eigvalsh(a)
    assert torch.allclose(found.high, truth[:, -1], rtol=0.02)
    assert torch.allclose(found.low, truth[:, 0], rtol=0.02)
    assert bool((found.high <= truth[:, -1] + 1e-9).all())  # never too large
    few = extremes(lambda v: torch.einsum("mij,mj->mi", a, v), v, 4, tolerance=0)
    gap = (truth - few.high.unsqueeze(-1)).abs().amin(-1)
    assert bool((gap <= few.high_error + 1e-9).all())  # an eigenvalue is where it is said to be


def test_one_matrix_that_is_seen_whole_does_not_disturb_the_others() -> None:
    a = torch.stack([torch.eye(6) * 3, torch.diag(torch.arange(1.0, 7.0))])
    found = extremes(lambda v: torch.einsum("mij,mj->mi", a, v), torch.ones(2, 6), 6, tolerance=0)
    assert found.high.tolist() == pytest.approx([3, 6], rel=1e-4)
    assert found.low.tolist() == pytest.approx([3, 1], rel=1e-4)


@pytest.mark.parametrize(("dim", "L", "mu"), [(20, 0.5, 0.05), (50, 7.0, 0.1), (3, 100.0, 100.0)])
def test_sharpness_of_quadratics(dim: int, L: float, mu: float) -> None:
    task = task_of(model={"name": "quadratic", "dim": dim, "L": L, "mu": mu})
    found = Prober(task, FedCOMGATE()).sharpness()
    assert found.clients.value == pytest.approx(L, rel=0.01)
    assert found.each.tolist() == pytest.approx([L] * 20, rel=0.1)
    assert found.mean.value == pytest.approx(L, rel=0.1)  # every client has L and mu at the same places
    assert found.least.value == pytest.approx(mu, rel=0.1)


def logistic_truth(task: Task, w: torch.Tensor) -> torch.Tensor:
    """The Hessian of each client's loss, by autograd alone."""
    found = []
    for client in range(task.clients):
        rows = slice(int(task.offsets[client]), int(task.offsets[client] + task.sizes[client]))

        def loss(w: torch.Tensor, rows: slice = rows) -> torch.Tensor:
            outputs = task.objective.outputs(w, task.x[rows])
            return task.objective.losses(outputs, task.y[rows]).mean()

        found.append(torch.func.jacrev(torch.func.grad(loss))(w))
    return torch.stack(found)


def test_sharpness_of_logistic_regression() -> None:
    task = task_of(
        data={"name": "digits", "clients": 5}, model={"name": "logistic"}, run={"dtype": "float64"}
    )
    w = Draw.seeded(3).normal(task.objective.start.numel(), torch.float64) * 0.1
    prober = Prober(task, FedAvg(weights="size"), w)
    found, truth = prober.sharpness(), logistic_truth(task, w)
    mean = torch.einsum("m,mij->ij", task.sizes.double() / task.sizes.sum(), truth)
    top = torch.linalg.eigvalsh(truth)[:, -1]
    assert torch.allclose(found.each, top, rtol=0.1)
    assert found.mean.value == pytest.approx(float(torch.linalg.eigvalsh(mean)[-1]), rel=0.1)
    some = Prober(task, FedAvg(weights="size"), w, samples=128).sharpness()
    assert some.clients.value == pytest.approx(found.clients.value, rel=0.25)
    decayed = Prober(task, FedAvg(weights="size", weight_decay=2.0), w).sharpness()
    assert decayed.mean.value == pytest.approx(found.mean.value + 2, rel=0.05)


@pytest.mark.parametrize("batch", [1, 8])
def test_noise_of_minibatches(batch: int) -> None:
    quadratic = task_of(model={"name": "quadratic", "sigma": 2.0, "dim": 30, "samples": 64})
    found = Prober(quadratic, FedAvg(batch=batch)).noise()
    assert found.value == pytest.approx(2 / batch**0.5, rel=0.1)
    assert found.below < 0.2 * found.value
    assert Prober(quadratic, FedAvg(batch="full")).noise().value == 0
    digits = task_of(data={"name": "digits", "clients": 5}, model={"name": "logistic"})
    w = digits.objective.start.expand(5, -1)
    truth = []
    for client in range(5):  # the gradient of each sample by itself
        own = torch.tensor([client])
        rows = [
            digits.objective.gradients(w[:1], *digits.samples(own, torch.tensor([[i]])), torch.ones(1, 1))
            for i in range(int(digits.sizes[client]))
        ]
        truth.append(torch.cat(rows).var(0, correction=0).sum())
    sigma = float(torch.stack(truth).mean().sqrt()) / batch**0.5
    assert Prober(digits, FedAvg(batch=batch)).noise(16).value == pytest.approx(sigma, rel=0.2)


def test_a_codecs_q_and_the_noise_of_a_mean() -> None:
    task = task_of(model={"name": "quadratic", "dim": 64, "spread": 3.0})
    prober = Prober(task, FedCOMGATE())
    x = prober.updates(0.1, 3)
    q, gap = prober.codec(Links(RandK(0.25)), x, draws=64)
    assert q.value == pytest.approx(3, rel=0.1)
    mean = float(x.mean(0).square().sum())
    truth = 3 * (float(x.square().sum(-1).mean()) / 20 - mean) / mean
    assert gap.value == pytest.approx(truth, abs=gap.below + gap.above)
    assert prober.codec(Links(Identity()), x) == ((0, 0, 0), (0, 0, 0))


def test_clients_that_are_alike_have_no_dissimilarity() -> None:
    data = {"name": "digits", "clients": 4, "partition": "iid"}
    alike, other = (
        probe(task_of(data={**data, **own}), FedCOMGATE(), Links(Identity()), samples=32)
        for own in ({}, {"partition": "classes", "classes_per_client": 1})
    )
    assert 4 * alike.dissimilarity.value < other.dissimilarity.value
    assert other.q.value == 0
    assert other.samples == 32


def test_probes_do_not_depend_on_the_order_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(data={"name": "digits", "clients": 6}, model={"name": "logistic"})
    one = Prober(task, FedAvg(), samples=16).sharpness()
    monkeypatch.setattr("fedcom.theory.probes._NUMBERS", 1)  # one client at a time
    two = Prober(task, FedAvg(), samples=16).sharpness()
    assert torch.allclose(one.each, two.each, rtol=1e-3)
    assert two.mean.value == pytest.approx(one.mean.value, rel=1e-3)


def test_the_command_prints_constants_and_advice() -> None:
    more = ["model.name=quadratic", "uplink.name=randk", "uplink.ratio=0.25", "--quiet"]
    args = ["probe", "algorithm.name=fedcomgate", *more]
    found = json.loads(CliRunner().invoke(app, [*args, "--json"]).stdout)
    assert found["constants"]["L, mean"]["value"] == pytest.approx(0.5, rel=0.1)
    assert found["constants"]["q"]["value"] == pytest.approx(3, rel=0.1)
    assert found["rates"]["eta"] == pytest.approx(1)
    text = CliRunner().invoke(app, args).stdout
    assert "above 4 here" in text
    assert "q/n = 0.15 on the mean of 20" in text
    assert "2 is the limit" in text
    assert "38 is the limit" in CliRunner().invoke(app, ["probe", *more]).stdout  # what run would play


def test_probed_rates_are_those_of_the_clients_optimiser() -> None:
    """With momentum 0.9 that is kept a gradient counts ten times in the steps; AdamW's steps are no sums."""
    args = ["probe", "algorithm.name=fedcomgate", "model.name=quadratic", "--quiet", "--json"]

    def found(*more: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(CliRunner().invoke(app, [*args, *more]).stdout)
        return answer

    plain, heavy = found(), found("local.name=momentum", "local.keep=true")
    assert heavy["rates"]["eta"] == pytest.approx(0.1 * plain["rates"]["eta"], rel=0.01)
    assert heavy["rates"]["gamma"] == pytest.approx(plain["rates"]["gamma"], rel=0.01)
    assert f"auto would take eta = {heavy['rates']['eta']:g}" in heavy["advice"][0]
    own = found("algorithm.name=fedavg", "local.name=adamw")
    assert own["rates"] is None
    assert "auto has no rates for local adamw" in own["advice"][0]
