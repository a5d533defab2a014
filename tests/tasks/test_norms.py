"""BatchNorm: statistics that stay, that are averaged, or that stay with each client."""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcom import (
    AdamWSteps,
    ConfigError,
    FedAvg,
    FedCOM,
    FedCOMGATE,
    Int,
    Links,
    MomentumSteps,
    Rotated,
    Simulation,
    Task,
    TopK,
    VRDiana,
)
from fedcom.algorithms import ALGORITHMS
from fedcom.config import Config
from fedcom.draws import Draw
from fedcom.engines.stacks import stack_runs
from fedcom.runs.prepare import build_task
from fedcom.tasks.objective import Objective
from fedcom.tasks.oracle import DataOracle
from tests.conftest import close
from tests.engines.remote.clients import deployed

SIZES = (6, 10, 11)
OWNERS = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
N = sum(SIZES)
Y = Draw.seeded(1).integers(3, N)
X = (Draw.seeded(2).normal(N * 16, torch.float64).reshape(N, 1, 4, 4) + Y.reshape(-1, 1, 1, 1)) * 2 + 1


def net() -> nn.Module:
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(
        *first, nn.Linear(12, 4, bias=False), nn.BatchNorm1d(4, momentum=0.3), nn.ReLU(), nn.Linear(4, 3)
    )


@cache
def task(choice: Any, module: Callable[[], nn.Module] = net) -> Task:
    return Task.from_arrays(
        module(), X, Y, X[:7], Y[:7], partition=OWNERS, dtype="float64", model_seed=0, batch_norm=choice
    )


def state(module: nn.Module, names: Sequence[str]) -> list[Tensor]:
    found = module.state_dict()
    return [found[name].clone() for name in names]


def trained(
    module: nn.Module, of: Task, j: int, number: int, algorithm: Any, optimiser: Callable[[Any], Any]
) -> None:
    """What torch makes of a round of one client: an epoch of batches of 4, the last one shorter."""
    module.train()
    draw = Draw.seeded(0).fold(number).fold(torch.tensor([j]))
    oracle, steps = DataOracle.of(of, torch.tensor([j]), draw, algorithm), -(-SIZES[j] // 4)
    descent = optimiser(module.parameters())
    for c in range(steps):
        x, y, weight = oracle.at(c).minibatch(4, torch.float64)
        used = weight[0] > 0
        descent.zero_grad()
        F.cross_entropy(module(x[0][used]), y[0][used]).backward()
        descent.step()


NORMED = ("1.", "5.")  # how the names of BatchNorm's tensors begin
STATISTICS = [f"{layer}running_{what}" for layer in NORMED for what in ("mean", "var")]
OPTIMISERS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "sgd": ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1)),
    "momentum": ({"local": MomentumSteps(momentum=0.5)}, lambda p: torch.optim.SGD(p, 0.05, momentum=0.5)),
    "adamw": (
        {"local": AdamWSteps(weight_decay=0.1)},
        lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("how", OPTIMISERS)
@pytest.mark.parametrize("choice", ["averaged", "own"])
def test_two_rounds_are_those_of_torchs_own_layers(choice: str, how: str) -> None:
    """Each client trains torch's module; the server averages the models, and what clients own stays there."""
    of, (settings, optimiser) = task(choice), OPTIMISERS[how]
    algorithm = FedAvg(eta=0.05, epochs=1, batch=4, decay=1.0, average="models", **settings)
    simulation = Simulation(of, algorithm, rounds=2, device="cpu")
    names = [name for name in net().state_dict() if "num_batches" not in name]
    own = [n for n in names if n.startswith(NORMED)] if choice == "own" else []
    shared = [n for n in names if n not in own]
    clients, server = [net().double() for _ in SIZES], net().double()
    for number in range(2):
        for j, client in enumerate(clients):
            client.load_state_dict({n: server.state_dict()[n] for n in shared}, strict=False)
            trained(client, of, j, number, algorithm, optimiser)
        for name in shared:
            server.state_dict()[name].copy_(torch.stack([c.state_dict()[name] for c in clients]).mean(0))
        simulation.step()
        for mine, theirs in zip(state(simulation.module(), shared), state(server, shared), strict=True):
            assert close(mine, theirs, 1e-11)
    losses, row = [], simulation.row()
    for j, client in enumerate(clients):
        kept = simulation.module(client=j).eval()
        client.load_state_dict({n: server.state_dict()[n] for n in shared}, strict=False)
        for mine, theirs in zip(state(kept, names), state(client, names), strict=True):
            assert close(mine, theirs, 1e-11)
        with torch.no_grad():
            losses.append(float(F.cross_entropy(client.eval()(X[j == OWNERS]), Y[j == OWNERS])))
    assert row["train_loss"] == pytest.approx(sum(losses) / 3, rel=1e-10)
    assert [one["train_loss"] for one in simulation.clients()] == pytest.approx(losses, rel=1e-10)
    if choice == "own":  # the test samples are nobody's
        for name in own:
            server.state_dict()[name].copy_(torch.stack([c.state_dict()[name] for c in clients]).mean(0))
    for mine, theirs in zip(state(simulation.module(), names), state(server, names), strict=True):
        assert close(mine, theirs, 1e-11)
    with torch.no_grad():
        assert row["test_loss"] == pytest.approx(
            float(F.cross_entropy(server.eval()(X[:7]), Y[:7])), rel=1e-10
        )


class Twice(nn.Module):
    """Calls one BatchNorm for each of several views of a sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.last = nn.BatchNorm1d(16, momentum=0.6), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(sum(torch.tanh(self.norm(view)) for view in (x, x - 2, 3 * x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("choice", ["averaged", "own"])
def test_a_layer_that_is_called_several_times_moves_its_statistics_each_time(choice: Any) -> None:
    of = Task.from_arrays(Twice(), X, Y, clients=1, dtype="float64", batch_norm=choice)
    simulation = Simulation(of, FedAvg(eta=0.05, gamma=1.0, tau=3, batch="full", decay=1.0), device="cpu")
    simulation.step()
    module = Twice().double()
    descent = torch.optim.SGD(module.parameters(), 0.05)
    for _ in range(3):
        descent.zero_grad()
        F.cross_entropy(module(of.x), of.y).backward()
        descent.step()
    names = ["norm.running_mean", "norm.running_var", "norm.weight", "last.weight"]
    kept = simulation.module(client=0) if choice == "own" else simulation.module()
    for mine, theirs in zip(state(kept, names), state(module, names), strict=True):
        assert close(mine, theirs, 1e-11)


def test_a_layer_may_have_a_weight_and_no_bias() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    module[1].register_parameter("bias", None)
    of = Task.from_arrays(module, X, Y, clients=1, dtype="float64", batch_norm="averaged")
    weight, w = torch.full((1, N), 1 / N, dtype=torch.float64), of.objective.start
    found = of.objective.gradients(w[None], of.x[None], of.y[None], weight)[0]
    module.double()
    F.cross_entropy(module(of.x), of.y).backward()
    sent = torch.cat([p.grad.flatten() for p in module.parameters()])  # type: ignore[union-attr]
    assert close(found[: len(sent)], sent)


def test_statistics_have_no_curvature() -> None:
    """They move by their momentum, whatever eta."""
    objective = task("averaged").objective
    w, v = objective.start[None], torch.ones_like(objective.start[None])
    batch = X[None], Y[None], torch.full((1, N), 1 / N, dtype=torch.float64)
    found, last = objective.curvatures(w, v, *batch), objective.statistics
    assert not found[:, -last:].any()
    up, down = (objective.gradients(w + h * v, *batch) for h in (1e-5, -1e-5))
    assert close(found[:, :-last], ((up - down) / 2e-5)[:, :-last], 1e-4)


@pytest.mark.parametrize("name", ["fedcomgate", "fedadam", "scaffold", "feddyn", "fednova", "fedexp"])
def test_statistics_become_the_clients_mean_whatever_the_method(name: str) -> None:
    """After an epoch in which clients take different numbers of steps, whatever the rates of the server."""
    settings = {"eta": 0.05, "batch": 4, "epochs": 1, **({"alpha": 1e-9} if name == "feddyn" else {})}
    of, algorithm = task("averaged"), ALGORITHMS[name](**settings)
    simulation = Simulation(of, algorithm, "identity", rounds=1, device="cpu")
    simulation.step()
    clients = [net().double() for _ in SIZES]
    for j, client in enumerate(clients):
        trained(client, of, j, 0, algorithm, lambda p: torch.optim.SGD(p, 0.05))
    for mine, key in zip(state(simulation.module(), STATISTICS), STATISTICS, strict=True):
        mean = torch.stack([client.state_dict()[key] for client in clients]).mean(0)
        assert close(mine, mean, 1e-11 if name != "feddyn" else 1e-7), key


def test_every_engine_gives_the_same(tmp_path: Path) -> None:
    for choice, algorithm in (
        ("averaged", FedCOMGATE(eta=0.05, epochs=1, batch=4)),
        ("own", FedCOM(eta=0.05, tau=1, batch="full", local=AdamWSteps(keep=True))),
    ):
        of, folder = task(choice), tmp_path / f"{choice}-{algorithm.name}"
        given: dict[str, Any] = {"links": Links(Int(6)), "participation": 0.7, "seed": 2}

        def begun(
            given: Any = given, of: Task = of, algorithm: Any = algorithm, **changes: Any
        ) -> Simulation:
            return Simulation(of, algorithm, rounds=2, device="cpu", **{**given, **changes})

        whole = begun()
        whole.run()
        for other in (begun(chunk=1), begun(storage="disk")):
            other.run()
            assert close(other.server.w, whole.server.w)
        stacked = [begun(), begun(seed=3)]
        engine = stack_runs(stacked)
        for _ in range(2):
            engine.step()
        assert close(stacked[0].server.w, whole.server.w)
        saved, again = begun(), begun()
        saved.step()
        saved.save(folder / "saved")
        assert again.restore(folder / "saved")
        again.run()
        assert torch.equal(again.server.w, whole.server.w)
        kept, same = again.client_memory(), whole.client_memory()
        assert all(torch.equal(kept[name], x) for name, x in same.items())
        assert ("own" in same) == (choice == "own")
        alone = begun(chunk=1, links=Links(Int(6), encode=True))
        there, _ = deployed(of, {"algorithm": algorithm, "rounds": 2, **given}, folder / "remote")
        for _ in range(2):
            alone.step()
            there.step()
        assert torch.equal(alone.server.w, there.server.w)


def test_what_clients_own_is_never_sent() -> None:
    sent = {}
    for choice in ("frozen", "averaged", "own"):
        simulation = Simulation(task(choice), FedAvg(eta=0.05, tau=1, batch=4), rounds=1, device="cpu")
        simulation.run()
        sent[choice] = simulation.ledger.total("uplink") / len(SIZES)
        sent_model = task(choice).objective.loaded(simulation.server.w)
        before, after = (state(module, STATISTICS) for module in (net().double(), sent_model))
        moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        assert all(moved) if choice == "averaged" else not any(moved)
        affine = ["1.weight", "5.bias"]
        changed = zip(state(net().double(), affine), state(sent_model, affine), strict=True)
        assert all(not torch.equal(a, b) for a, b in changed) == (choice != "own")
    assert sent["averaged"] - sent["frozen"] == sent["frozen"] - sent["own"] == 8 * 2 * 7


@pytest.mark.parametrize("codec", [Rotated(0.5), TopK(0.05)], ids=lambda codec: codec.name)
def test_codecs_leave_statistics_with_which_a_model_can_be_evaluated(codec: Any) -> None:
    links = Links(codec, uplink_memory="error-feedback" if isinstance(codec, TopK) else None)
    algorithm = FedCOM(eta=0.2, tau=2, batch=6, gamma=1.0)
    simulation = Simulation(task("averaged"), algorithm, links, rounds=12, eval_every=12, device="cpu")
    first, last = simulation.run()
    assert last["train_loss"] < first["train_loss"]
    assert simulation.ledger.as_dict()["uplink"]["vectors"]["D statistics"]  # type: ignore[index]


class Block(nn.Module):
    """Two convolutions and a way around them, as in a ResNet."""

    def __init__(self, channels: int, out: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), norm(out)
        self.second, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), norm(out)
        around = (nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))
        self.around = nn.Sequential(*around) if stride > 1 else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.first(x)), inplace=True)
        return F.relu(self.norm2(self.second(h)) + self.around(x))


def resnet(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Module:
    torch.manual_seed(0)
    stem = (nn.Conv2d(1, 4, 3, 1, 1, bias=False), norm(4), nn.ReLU(inplace=True))
    blocks = (Block(4, 4, 1, norm), Block(4, 8, 2, norm))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("choice", ["frozen", "averaged", "own", "groups"])
def test_a_resnet_trains(choice: str) -> None:
    grouped = choice == "groups"
    module = resnet((lambda n: nn.GroupNorm(2, n)) if grouped else nn.BatchNorm2d)
    of = Task.from_arrays(module, X, Y, clients=3, batch_norm=None if grouped else choice)  # type: ignore[arg-type]
    run = Simulation(
        of, FedCOMGATE(eta=0.05, gamma=1.0, tau=2, batch=6), rounds=3, eval_every=3, device="cpu"
    )
    first, last = run.run()
    assert last["train_loss"] < first["train_loss"]
    assert list(run.module().state_dict()) == list(module.state_dict())


def test_what_cannot_work_says_why_and_what_to_do() -> None:
    class Own(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            some = self.norm(x.flatten(1)[:, :4].repeat(2, 1)[1:])  # one row less than twice the samples
            return self.last(x.flatten(1)) + some.mean()  # type: ignore[no-any-return]

    for module, choice, message in (
        (net(), None, "choose batch_norm: frozen, averaged or own"),
        (net(), "mean", "batch_norm must be frozen, averaged or own; got 'mean'"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16, momentum=None)), "averaged", "such as 0.1"),
        (nn.Sequential(nn.Flatten(), Own(16)), "own", "in a way of its own"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16)), "own", "all parameters are BatchNorm's"),
        (
            nn.Sequential(nn.InstanceNorm2d(1, affine=True, track_running_stats=True)),
            "averaged",
            "in a way of its own",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            Objective(module, batch_norm=choice)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keeps models of its own, which lack what stays with each client"):
        Simulation(task("own"), VRDiana(batch=4), device="cpu")
    of = Task.from_arrays(Odd(), X, Y, clients=3, batch_norm="averaged")
    with pytest.raises(ConfigError, match=r"given 11 rows for 6 samples; the samples must come first"):
        Simulation(of, FedAvg(batch=6), rounds=1, device="cpu").run()


def test_configs_choose_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "normed_nets.py").write_text(
        "from torch import nn\n"
        "def net(in_features, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, 8), "
        "nn.BatchNorm1d(8), nn.Linear(8, classes))\n"
        "def says(in_features, classes, batch_norm: bool = True):\n"
        "    assert batch_norm is True\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    table: dict[str, Any] = {"data": {"name": "digits", "clients": 4}, "run": {"rounds": 1}}
    config = Config.of({**table, "model": {"name": "normed_nets:net", "batch_norm": "own"}})
    assert build_task(config)[0].objective.batch_norm == "own"
    assert config.table()["model"]["batch_norm"] == "own"
    assert (
        build_task(Config.of({**table, "model": {"name": "normed_nets:says"}}))[0].objective.batch_norm
        is None
    )
    with pytest.raises(ConfigError, match="frozen"):
        Config.of({**table, "model": {"name": "mlp", "batch_norm": "mean"}})
    assert copy.deepcopy(task("own").objective).own is not None


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph", "compiled"])
@pytest.mark.parametrize("choice", ["averaged", "own"])
def test_a_gpu_gives_the_same_to_rounding(choice: str, engine: str) -> None:
    """With masks and statistics, and clients that take different numbers of steps."""

    def drops() -> nn.Module:
        return nn.Sequential(*net()[:4], nn.Dropout(0.3), *net()[4:])  # type: ignore[index]

    of = task(choice, drops)
    for algorithm in (
        FedCOMGATE(eta=0.05, epochs=1, batch=4),
        FedCOM(eta=0.05, tau=3, batch=4, local=AdamWSteps(keep=True)),
    ):
        here, there = (
            Simulation(of, algorithm, "identity", rounds=4, device=device, engine=name)
            for device, name in (("cpu", "eager"), ("cuda", engine))
        )
        rows = [simulation.run()[-1] for simulation in (here, there)]
        assert close(here.server.w, there.server.w.cpu(), 1e-9)
        assert rows[0]["train_loss"] == pytest.approx(rows[1]["train_loss"], rel=1e-8)
