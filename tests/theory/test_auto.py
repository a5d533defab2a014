"""Rates from a task's sharpness: the rules by hand, and runs of all methods that do not diverge."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedcom import Simulation, Task
from fedcom.algorithms import ALGORITHMS, FedAdam, FedAvg, FedCOM, FedCOMGATE, FedGATE
from fedcom.algorithms.optimisers import Adam, Momentum, Nesterov
from fedcom.codecs import Int, Rotated
from fedcom.config import Config
from fedcom.errors import ConfigError
from fedcom.runs.prepare import build_task, prepare
from fedcom.theory import auto
from fedcom.theory.probes import Estimate, Sharpness
from fedcom.traffic.links import Links


def sharp(clients: float, mean: float, least: float) -> Sharpness:
    each = torch.tensor([clients])
    return Sharpness(each, Estimate(clients), Estimate(mean), Estimate(least))


def test_rates_by_hand() -> None:
    rough = sharp(10, 2, -1)
    found = auto.rates(rough, 10, tracks=True)
    assert (found.eta, found.gamma) == (0.05, 3.07)  # 2/(1 - 0.9^10)
    assert auto.rates(rough, 2, tracks=True, noise=9.0).gamma == pytest.approx(2 / (1 - 0.81) / 10, abs=0.01)
    plain = auto.rates(rough, 10, tracks=False)
    assert (plain.eta, plain.gamma) == (0.2, pytest.approx(2 / (1 - 0.6**10), abs=0.01))
    convex = auto.rates(sharp(10, 2, 0.1), 10, tracks=False)
    assert (convex.eta, convex.gamma) == (0.1, pytest.approx(1 / (1 - 0.8**10), abs=0.01))
    one = auto.rates(rough, 1, tracks=False, noise=1.0)
    assert (one.eta, one.gamma) == (0.25, 1.0)  # 1/(L (1 + q/n))
    assert auto.rates(rough, 10, tracks=True, eta=0.001).gamma == 4.0
    assert auto.rates(rough, 10, tracks=True, gamma=1.0).eta == 0.05
    large = auto.rates(
        rough, 10, tracks=True, gamma=4.0
    )  # eta makes room for it: 1 - (1 - 2/4)^(1/10), over L
    assert large.eta == pytest.approx(0.067 / 2, abs=1e-4)
    assert auto.server_step(large.eta * 2, 10, 4.0) == pytest.approx(2, abs=0.01)


def test_rates_with_momentum_by_hand() -> None:
    rough, heavy = sharp(10, 2, -1), Momentum(0.9)
    times = 19**0.5  # the root of (1 + mu)/(1 - mu)
    plain = auto.rates(rough, 10, tracks=False, server=heavy)
    assert (plain.eta, plain.gamma) == (0.2, pytest.approx(times * 2 / (1 - 0.6**10), abs=0.01))
    assert "4.4 times as far" in plain.why
    coarse = auto.rates(rough, 10, tracks=False, noise=1.0, server=heavy)
    assert coarse.gamma == pytest.approx(plain.gamma / 2, abs=0.01)
    few = auto.rates(rough, 10, tracks=False, server=heavy, share=0.1)
    assert few.gamma == pytest.approx((1 + 18 * 0.01) ** 0.5 * 2 / (1 - 0.6**10), abs=0.01)
    slow = auto.rates(rough, 10, tracks=True, slowly=True, server=heavy)
    assert (slow.eta, slow.gamma) == (0.1, pytest.approx(times * 2 / (1 - 0.8**10), abs=0.01))
    assert auto.rates(rough, 10, tracks=True, eta=0.001, server=heavy).gamma == pytest.approx(
        4 * times, abs=0.1
    )
    one = auto.rates(rough, 1, tracks=False, server=heavy)
    assert (one.eta, one.gamma) == (0.5, pytest.approx(times, abs=0.01))
    given = auto.rates(rough, 1, tracks=False, server=heavy, gamma=2.0)
    assert given.eta == pytest.approx(times / 2 / 2, abs=0.01)
    for tracks, tau, noise in ((True, 10, 0.0), (False, 10, 3.0), (False, 1, 1.0)):  # no momentum is none
        for gamma in (None, 8.0):
            without = auto.rates(rough, tau, tracks=tracks, noise=noise, gamma=gamma)
            assert auto.rates(
                rough, tau, tracks=tracks, noise=noise, gamma=gamma, server=Momentum(0.0), share=0.3
            ) == (without)


@pytest.mark.parametrize("method", ["fedavg", "fedcomgate-exact", "scallion", "scafcom", "diana"])
def test_no_method_diverges_with_momentum(method: str) -> None:
    """SCALLION and SCAFCOM average by themselves: with momentum they lag twice, and steps must be short."""
    made = quick(method, {}, rounds=25, eval_every=5)
    heavy = replace(made, algorithm=replace(made.algorithm, server=Momentum()))
    losses = [row["train_loss"] for row in prepare(heavy, "cpu")[0].run()]
    assert losses[-1] < losses[0]
    assert max(losses) < 1.01 * losses[0]


def test_gamma_is_idle_with_an_adaptive_server_and_bounds_no_eta() -> None:
    rough = sharp(10, 2, -1)
    for gamma in (None, 100.0):
        found = auto.rates(rough, 10, tracks=False, noise=50.0, gamma=gamma, server=Adam())
        assert (found.eta, found.gamma) == (0.2, gamma or 1.0)
    for method in (FedAdam(eta="auto"), FedAvg(eta="auto", gamma="auto", server="yogi")):  # type: ignore[arg-type]
        made = replace(quick("fedavg", {}), algorithm=replace(method, batch=20))
        simulation, _ = prepare(made, "cpu")
        assert simulation.algorithm.gamma == 1.0
        assert isinstance(simulation.algorithm.eta, float)


@pytest.mark.parametrize("server", [Momentum(0.5), Momentum(0.9), Nesterov(0.5), Nesterov(0.9)])
def test_the_reach_of_an_optimiser_is_what_happens(server: Momentum) -> None:
    """On a quadratic of curvature 1: steps below twice the reach die out, longer ones grow."""
    for share, grows in ((0.98, False), (1.02, True)):
        w = torch.ones(1, dtype=torch.float64)
        moments = server.init(w)
        for _ in range(1500):
            w, moments = server.step(w, moments, w, share * 2 * server.reach, 1.0)
        assert (float(w.abs()) > 1) == grows


def test_tracking_dies_out_below_two_and_not_above() -> None:
    for tau in (1, 2, 3, 10, 50):
        for x in (0.01, 0.5, 1.0, 1.9, 1.999):
            assert abs(auto.echo(x, tau)) <= 1, (x, tau)
    for tau in (2, 4, 10):
        assert abs(auto.echo(2.05, tau)) > 1, tau


@pytest.mark.parametrize(("x", "grows"), [(1.8, False), (2.2, True)])
def test_the_rule_of_two_is_what_happens(x: float, grows: bool) -> None:
    """Tracking on quadratics: delta feeds on itself if eta times a client's sharpness exceeds 2."""
    table = {
        "model": {"name": "quadratic", "L": 1.0, "mu": 1.0, "dim": 4, "samples": 1},
        "data": {"clients": 6},
        "algorithm": {"name": "fedgate", "eta": x, "gamma": 1e-6, "tau": 4, "batch": "full", "decay": 1.0},
        "run": {"dtype": "float64"},
    }
    simulation, _ = prepare(Config.of(table), "cpu")
    sizes = []
    for _ in range(30):
        simulation.step()
        sizes.append(float(simulation.client_states().delta.norm()))
    assert (sizes[-1] > 10 * sizes[2]) == grows


def quick(method: str, uplink: dict[str, Any], **run: Any) -> Config:
    rates = {"eta": "auto", **({} if "gamma" in ALGORITHMS[method].fixed else {"gamma": "auto"})}
    up = {"uplink": uplink} if uplink else {}
    algorithm = {"name": method, "batch": 20, **rates}
    model = {"name": "mlp", "hidden": [32]}
    return Config.of({"data": {"name": "digits"}, "model": model, "algorithm": algorithm, "run": run, **up})


CODECS: dict[str, dict[str, Any]] = {
    "identity": {"name": "identity"},
    "int 8": {"name": "int", "bits": 8},
    "1 bit": {"name": "rotated", "bits": 1},
    "0.25 bit": {"name": "rotated", "bits": 0.25},
}
CELLS = [
    (method, codec)
    for method in ALGORITHMS
    if ALGORITHMS[method].local.linear  # else steps have a length of their own, and rates are not found
    for codec in CODECS
    if (codec == "identity") <= ("memory" not in ALGORITHMS[method].uplink)
    if codec == "identity" or ALGORITHMS[method].compresses is None
]


@pytest.mark.covers(1)
@pytest.mark.parametrize(("method", "codec"), CELLS, ids=lambda x: x)
def test_no_method_diverges_at_auto_rates(method: str, codec: str) -> None:
    uplink = {} if ALGORITHMS[method].compresses else CODECS[codec]
    simulation, _ = prepare(quick(method, uplink, rounds=12, eval_every=4), "cpu")
    rows = list(simulation.run())
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert rows[-1]["test_accuracy"] > 0.5


# G returns to all clients with its noise, (1 - alpha)^2 (1 + q/n) > 1 of it here, and H keeps all of it.
ECHO = ("fedcm", "scaffold-m", "feddyn")
# Their server's rate is given and not auto's, and with a q of 43 the model wanders about at it.
WANDERS = ("fedadam", "fedyogi")
FEW = [cell for cell in CELLS if "0.25" in cell[1] and cell[0] not in ECHO + WANDERS]


@pytest.mark.parametrize(
    ("method", "codec"),
    [*FEW[::3], *(pytest.param(*x, marks=pytest.mark.thorough) for x in FEW if x not in FEW[::3])],
    ids=lambda x: x,
)
def test_nor_with_few_clients_that_differ(method: str, codec: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 10)
    y = (x @ torch.randn(10, 4) + 0.5 * torch.randn(500, 4)).argmax(1)
    module = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    task = Task.from_arrays(module, x, y, clients=10, partition="dirichlet", alpha=0.3)
    config = quick(method, CODECS[codec])
    simulation = Simulation(task, config.algorithm, config.links, device="cpu", rounds=40, participation=0.4)
    losses = simulation.run()["train_loss"]
    assert losses[-1] < 0.95 * losses[0]
    assert max(losses) < 1.5 * losses[0]


def test_a_loss_without_curvature_is_refused() -> None:
    x, y = torch.randn(12, 3), torch.randn(12, 1)
    task = Task.from_arrays(torch.nn.Linear(3, 1), x, y, clients=2, loss=torch.nn.functional.l1_loss)
    with pytest.raises(ConfigError, match=r"which is 0 at the first model: .* give eta, such as 0.05"):
        Simulation(task, FedCOMGATE(eta="auto"), device="cpu")
    assert Simulation(task, FedCOMGATE(eta=0.1, gamma="auto"), device="cpu").algorithm.gamma == 4


def test_tiny_features_are_named_as_a_reason_for_a_loss_without_curvature() -> None:
    """Of mean squares of a linear model the curvature is 2 x^2: here 2e-16."""
    x, y, module = torch.full((12, 1), 1e-8), torch.randn(12, 1), torch.nn.Linear(1, 1, bias=False)
    task = Task.from_arrays(module, x, y, clients=2, loss=torch.nn.functional.mse_loss)
    with pytest.raises(
        ConfigError, match=r"which is 2e-16 at the first model: .* scale features that are tiny"
    ):
        Simulation(task, FedCOMGATE(eta="auto"), device="cpu")


def test_where_nothing_can_be_learnt_tracking_does_no_harm() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(300, 6), torch.randint(0, 3, (300,))
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    task = Task.from_arrays(module, x, y, clients=10)
    for gamma in ("auto", 4.0):
        algorithm = FedCOMGATE(eta="auto", gamma=gamma)  # type: ignore[arg-type]
        losses = Simulation(task, algorithm, Links(Int(8)), device="cpu", rounds=10).run()["train_loss"]
        assert max(losses) < 1.1 * losses[0]


def test_rates_are_settled_once_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    simulation, config = prepare(quick("fedcomgate", {}), "cpu")
    assert config.algorithm == simulation.algorithm
    assert isinstance(config.algorithm.eta, float)
    assert "sharpest client" in (simulation.why_rates or "")
    again, _ = prepare(config, "cpu")
    assert again.algorithm == simulation.algorithm
    assert again.why_rates is None
    with pytest.raises(ConfigError, match="still auto"):
        FedAvg(eta="auto").local_rate(0)


def test_the_library_settles_them_too() -> None:
    task, _ = build_task(quick("fedavg", {}))
    simulation = Simulation(task, FedCOMGATE(eta="auto", gamma="auto", batch=20), Links(Int(8)), device="cpu")
    coarse = Simulation(
        task, FedCOMGATE(eta="auto", gamma="auto", batch=20), Links(Rotated(0.05)), device="cpu"
    )
    assert coarse.algorithm.eta == simulation.algorithm.eta
    assert coarse.algorithm.global_rate < simulation.algorithm.global_rate  # as q/n is larger
    given = Simulation(task, FedGATE(eta="auto", gamma=2.0, batch=20), device="cpu")
    assert given.algorithm.gamma == 2.0


def test_rates_do_not_depend_on_what_was_measured_of_the_task_before() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    task = Task.from_arrays(module, torch.randn(400, 20), torch.arange(400) % 4, clients=4)
    small, whole = (FedCOM(eta="auto", gamma="auto", batch=batch) for batch in (2, "full"))
    alone, _ = auto.settle(replace(task), small, Links(Int(1)))
    auto.settle(task, whole, Links(Int(1)))
    assert auto.settle(task, small, Links(Int(1)))[0] == alone


def test_scaling_the_data_scales_the_rates() -> None:
    x, y = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    found = []
    for scale in (1.0, 100.0):
        torch.manual_seed(0)
        task = Task.from_arrays(torch.nn.Linear(5, 3, bias=False), scale * x, y, clients=4)
        w = task.objective.start / scale  # the same outputs
        task = replace(task, objective=task.objective)
        task.objective.start = w
        found.append(Simulation(task, FedAvg(eta="auto", gamma="auto"), device="cpu").algorithm)
    assert found[0].local_rate(0) == pytest.approx(1e4 * found[1].local_rate(0), rel=0.02)
    assert found[0].gamma == pytest.approx(found[1].gamma, rel=0.02)


def test_auto_is_the_default_for_data_that_is_not_known() -> None:
    assert Config.of({"data": {"name": "mnist"}}).algorithm.eta == 0.05
    own = {"data": {"name": "tests.plugins:blobs"}}
    assert Config.of(own).algorithm.eta == "auto"
    assert Config.of({"data": {"path": "mine.npz"}}).algorithm.eta == "auto"
    assert Config.of({**own, "algorithm": {"eta": 0.3}}).algorithm.eta == 0.3
    local = Config.of({**own, "algorithm": {"name": "local-sgd"}}).algorithm
    assert (local.eta, local.gamma) == ("auto", 1.0)
