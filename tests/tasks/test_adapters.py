"""Adapters: what is trained, sent, kept and shared; a round of each method by hand; engines and codecs."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedcom import (
    AdamWSteps,
    ConfigError,
    FedAvg,
    FedCM,
    FedCOM,
    FedCOMGATE,
    Identity,
    Int,
    Links,
    PlainSteps,
    Qsparse,
    Simulation,
    Task,
    TopK,
    lora,
    record,
    save_peft,
)
from fedcom.config import Config, read
from fedcom.config.methods import alone
from fedcom.draws import Draw
from fedcom.engines.stacks import stack_runs
from fedcom.tasks.adapters import adapted_layers, kept, load_kept, merged
from fedcom.tasks.language import Gru, Transformer
from fedcom.tasks.objective import Objective
from tests.cli.test_cli import Command, command
from tests.conftest import close
from tests.engines.remote.clients import deployed

__all__ = ["command"]  # a fixture
METHODS = ("lora", "ffa", "rolora", "fedex", "flora", "het")
RANKS = {"het": {"ranks": (1, 2)}}  # of the two clients
RANK, ALPHA, SCALE = 2, 3.0, 1.5


def halves(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance, the mean over samples."""
    return 0.5 * ((outputs - targets) ** 2).sum() / len(targets)


def numbers(name: str, *shape: int) -> Tensor:
    return Draw.seeded(7).fold(name).normal(int(torch.tensor(shape).prod()), torch.float64).reshape(shape)


def linear_task(method: str) -> Task:
    """Two clients with three samples each, and one layer of 4 inputs and 3 outputs."""
    base = nn.Linear(4, 3).double()
    with torch.no_grad():
        base.weight.copy_(numbers("weight", 3, 4))
        base.bias.copy_(numbers("bias", 3))
    module = lora(nn.Sequential(base), RANK, ALPHA, method=method, **RANKS.get(method, {}))  # type: ignore[arg-type]
    with torch.no_grad():  # as after some rounds
        dict(module.named_parameters())["0.lora_B"].copy_(numbers("B", 3, RANK))
    assert torch.equal(base.weight.detach(), numbers("weight", 3, 4))
    x, y = numbers("x", 6, 4), numbers("y", 6, 3)
    parts = [range(3), range(3, 6)]
    return Task.from_arrays(module, x, y, partition=parts, loss=halves, dtype="float64")


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_by_hand(method: str) -> None:
    task, eta = linear_task(method), 0.02
    run = Simulation(task, FedAvg(eta=eta, tau=2, batch="full", decay=1), rounds=2, device="cpu")
    layer = dict(adapted_layers(run.module()))["0"]
    w0, bias = numbers("weight", 3, 4), numbers("bias", 3)
    first = a, b = layer.lora_A.detach().clone(), layer.lora_B.detach().clone()
    assert a.abs().max() <= 0.5
    assert a.std() > 0.1
    for number in range(2):
        trains_a = method in ("lora", "fedex", "flora", "het") or (method == "rolora" and number == 1)
        trains_b = method != "rolora" or number == 0
        ends = []
        for j in range(2):
            x, y = numbers("x", 6, 4)[3 * j : 3 * j + 3], numbers("y", 6, 3)[3 * j : 3 * j + 3]
            aj, bj = a, b
            if method == "het" and j == 0:
                aj, bj = a * torch.tensor([[1.0], [0.0]]), b * torch.tensor([1.0, 0.0])
            for _ in range(2):
                miss = x @ (w0 + SCALE * bj @ aj).T + bias - y
                g = miss.T @ x / 3  # of the layer's whole weight
                step_a, step_b = SCALE * bj.T @ g, SCALE * g @ aj.T
                aj, bj = aj - trains_a * eta * step_a, bj - trains_b * eta * step_b
            ends.append((aj, bj))
        a, b = (ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2
        if method == "het":  # the second row and column are the second client's alone
            a, b = torch.stack([a[0], ends[1][0][1]]), torch.stack([b[:, 0], ends[1][1][:, 1]], 1)
        mean = (ends[0][1] @ ends[0][0] + ends[1][1] @ ends[1][0]) / 2
        if method == "fedex":
            w0 = w0 + SCALE * (mean - b @ a)
        if method == "flora":
            w0, a, b = w0 + SCALE * mean, *first
        run.step()
        layer = dict(adapted_layers(run.module()))["0"]
        assert close(layer.lora_A.detach(), a)
        assert close(layer.lora_B.detach(), b)
        assert close(layer.weight.detach(), w0)
    assert torch.equal(task.objective.module[0].weight, numbers("weight", 3, 4))  # type: ignore[index]
    sent = {"ffa": 2 * 6, "rolora": 6 + 8, "het": 7 + 14}.get(method, 2 * 14)  # of each client, on average
    books: Any = run.ledger.as_dict()["uplink"]
    assert books["numbers"] == {"D": 2 * sent}
    assert books["total"] == 2 * 8 * sent + books["vectors"]["D"]["header"]
    if method in ("fedex", "flora"):  # 12 numbers are fewer than the factors of two clients, 2 * 14
        told = run.ledger.as_dict()["downlink"]["vectors"]  # type: ignore[index]
        assert told["base"]["factors"] == 2 * 2 * 8 * 12
        assert ("D" in told) == (method == "fedex")


@pytest.mark.parametrize("also", [(), ("0.bias",)])
def test_kept_moments_of_a_half_know_its_own_steps(also: tuple[str, ...]) -> None:
    """As torch.optim.AdamW, which steps a tensor only where it has a gradient."""
    base = nn.Sequential(nn.Linear(4, 3)).double()
    with torch.no_grad():
        base[0].weight.copy_(numbers("weight", 3, 4))
    module = lora(base, RANK, ALPHA, also=also, method="rolora")
    x, y = numbers("x", 6, 4), numbers("y", 6, 3)
    parts = [range(3), range(3, 6)]
    task = Task.from_arrays(module, x, y, partition=parts, loss=halves, dtype="float64")
    method = FedAvg(eta=0.05, tau=(2, 3), batch="full", decay=1, local=AdamWSteps(keep=True))
    run = Simulation(task, method, rounds=5, device="cpu")

    twins = [copy.deepcopy(module) for _ in parts]
    optimisers = [torch.optim.AdamW(twin.parameters(), lr=0.05, weight_decay=0.01) for twin in twins]
    server = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
    for number in range(5):
        trained = [name for name in server if name == "0.bias" or name.endswith("BA"[number % 2])]
        ends = []
        for j, (twin, optimiser) in enumerate(zip(twins, optimisers, strict=True)):
            own = dict(twin.named_parameters())
            for name, p in server.items():
                own[name].data.copy_(p)
            for _ in range(2 + j):
                twin.zero_grad()
                halves(twin(x[3 * j : 3 * j + 3]), y[3 * j : 3 * j + 3]).backward()
                for name in server.keys() - trained:
                    own[name].grad = None
                optimiser.step()
            ends.append({name: own[name].detach().clone() for name in server})
        moved = {n: [2.5 / (2 + j) * (end[n] - server[n]) for j, end in enumerate(ends)] for n in server}
        server = {n: server[n] + (moved[n][0] + moved[n][1]) / 2 for n in server}
        run.step()
        ours = dict(run.module().named_parameters())
        assert all(close(ours[name].detach(), p) for name, p in server.items()), number


def small_task(method: str, **more: Any) -> Task:
    draw = Draw.seeded(1)
    x, y = draw.fold("x").normal(40 * 5, torch.float64).reshape(40, 5), draw.fold("y").integers(3, 40)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        base = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    module = lora(base, RANK, also="2.bias", method=method, **more)  # type: ignore[arg-type]
    return Task.from_arrays(module, x, y, x[:9], y[:9], clients=5, dtype="float64")


CASES: dict[str, tuple[Any, Any]] = {
    "tracking, both ways coded": (FedCOMGATE(eta=0.01, tau=2, batch=4), Links(Int(4), Int(6))),
    "memory": (Qsparse(eta=0.1, tau=2, batch=4), Links(TopK(0.3), uplink_memory="error-feedback")),
    "adam on both sides": (
        FedAvg(eta=0.01, tau=2, batch=4, server="adam", local=AdamWSteps(keep=True)),  # type: ignore[arg-type]
        None,
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.thorough] * (case == "memory")) for case in CASES]
)
def test_turns_are_the_same_in_every_engine(case: str, tmp_path: Path) -> None:
    """In groups of any size, two runs in step, from a checkpoint, and with real clients."""
    task, (method, links) = small_task("rolora"), CASES[case]
    settings: dict[str, Any] = {"algorithm": method, "links": links, "rounds": 5, "participation": 0.8}

    def new(**changes: Any) -> Simulation:
        return Simulation(task, device="cpu", **{**settings, **changes})

    whole, single, kept = new(chunk=5), new(chunk=1), new(chunk=5)
    pair = [new(), new(seed=1)]
    stack_runs(pair)
    there, _ = deployed(task, settings, tmp_path)
    before = whole.server.w.clone()
    for number in range(5):
        for run in (whole, single, pair[0], there):
            run.step()
        if number < 2:
            kept.step()
        names = set(task.objective.turns[number % 2])
        split = task.objective.layout.split
        pieces = zip(task.objective.layout.names, split(before), split(whole.server.w), strict=True)
        assert all(torch.equal(old, new) for name, old, new in pieces if name not in names)
        before = whole.server.w.clone()
        for run in (single, pair[0], there):
            assert close(run.server.w, whole.server.w, 1e-9)
    kept.save(tmp_path / "saved")
    back = Simulation.load(tmp_path / "saved", task)
    back.run()
    assert torch.equal(back.server.w, whole.server.w)
    assert back.ledger.as_dict() == whole.ledger.as_dict()
    encoded = new(links=Links(**{**vars(whole.rules.links), "encode": True}))
    encoded.run()
    for way in ("uplink", "downlink"):
        assert encoded.ledger.total(way) == whole.ledger.total(way)  # type: ignore[arg-type]
    assert not torch.equal(whole.server.w, task.objective.start)


def test_ranks_by_client_are_the_same_in_every_engine(tmp_path: Path) -> None:
    """In groups of any size, with real clients, from a checkpoint and encoded; and what cannot be."""
    task = small_task("het", ranks=(1, 2))
    method = FedCOM(eta=0.01, tau=2, batch=4, local=AdamWSteps(keep=True), server="momentum")  # type: ignore[arg-type]
    settings: dict[str, Any] = {"algorithm": method, "links": Int(4), "rounds": 4, "participation": 0.8}

    def new(**changes: Any) -> Simulation:
        return Simulation(task, device="cpu", **{**settings, **changes})

    whole, single, kept = new(chunk=4), new(chunk=1), new(chunk=4)
    encoded = new(links=Links(Int(4), encode=True))
    there, _ = deployed(task, settings, tmp_path)
    for number in range(4):
        for run in (whole, single, encoded, there, *([kept] if number < 2 else [])):
            run.step()
    for run in (single, encoded, there):
        assert close(run.server.w, whole.server.w, 1e-9)
        assert run is there or run.ledger.total("uplink") == whole.ledger.total("uplink")
    kept.save(tmp_path / "saved")
    back = Simulation.load(tmp_path / "saved", task)
    back.run()
    assert torch.equal(back.server.w, whole.server.w)
    lone = Simulation(small_task("het", ranks=(2,)), device="cpu", **settings)
    plain = Simulation(small_task("lora"), device="cpu", **settings)
    for run in (lone, plain):
        run.run()
    assert close(lone.server.w, plain.server.w, 1e-12), "all of the largest rank is plain lora"
    assert lone.ledger.total("uplink") > whole.ledger.total("uplink")
    for wrong, said in (
        ({"algorithm": FedCOMGATE(eta=0.1), "links": None}, "fedcomgate as set keeps something"),
        ({"links": Links(TopK(0.3), uplink_memory="error-feedback")}, "fedcom as set keeps something"),
        ({"links": Links(Int(4), budgets=(4,) * 5)}, "leave uplink.budgets"),
    ):
        with pytest.raises(ConfigError, match=said):
            new(**wrong)
    with pytest.raises(ConfigError, match="cannot be played in step if clients differ in budgets or ranks"):
        stack_runs([new(), new(seed=1)])
    for ranks, adapter in ((None, "het"), ((1, 3), "het"), ((1, 2), "lora")):
        with pytest.raises(ConfigError, match="het"):
            small_task(adapter, ranks=ranks)


@pytest.mark.parametrize("case", ["pull", "clip", "direction"])
def test_what_a_client_lacks_neither_pulls_nor_counts(case: str) -> None:
    """Of the model, of the direction of FedCM, in the norm of a message and in q."""
    task, eta, tau, mu, bound, alpha = linear_task("het"), 0.02, 3, 0.0, 1e9, 1.0
    method, links = FedAvg(eta=eta, tau=tau, batch="full", decay=1), Links(Identity())
    if case == "pull":
        mu, method = 0.5, replace(method, local=PlainSteps(mu=0.5))
    if case == "clip":
        bound, links = 0.1, Links(Identity(), clip=0.1)
    if case == "direction":
        alpha, method = 0.3, FedCM(eta=eta, tau=tau, batch="full", decay=1, alpha=0.3)
    run = Simulation(task, method, links, rounds=2, device="cpu")
    w, weight = task.objective.start, torch.full((1, 3), 1 / 3, dtype=torch.float64)
    whole, direction = task.objective.layout.tensors(torch.ones(len(w)).double()), torch.zeros_like(w)
    whole["0.lora_A"][1], whole["0.lora_B"][:, 1] = 0, 0
    has = [torch.cat([x.flatten() for x in whole.values()]), torch.ones_like(w)]
    for _ in range(2):
        moved = torch.zeros_like(w)
        for j in range(2):
            end = start = has[j] * w
            for _ in range(tau):
                x, y = task.x[None, 3 * j : 3 * j + 3], task.y[None, 3 * j : 3 * j + 3]
                g = task.objective.gradients(end[None], x, y, weight)[0]
                end = end - eta * has[j] * (alpha * g + (1 - alpha) * direction + mu * (end - start))
            moved += (start - end) * min(1.0, bound / float((start - end).norm()))
        moved /= sum(has)
        w, direction = w - moved, moved / (eta * tau)
        run.step()
        assert close(run.server.w, w, 1e-12)
    coded = Simulation(task, FedCOM(eta=eta, tau=tau, batch="full"), Int(8), rounds=1, device="cpu")
    assert coded.run()[-1]["q"] < 0.01


def test_a_rank_that_no_client_has_stays_as_it_was() -> None:
    """There may be more ranks than clients."""
    module = lora(nn.Sequential(nn.Linear(4, 3)), 4, method="het", ranks=(1, 2, 4))
    task = Task.from_arrays(module, torch.ones(8, 4), torch.arange(8) % 3, clients=2)
    run = Simulation(task, FedAvg(eta=0.1, tau=1, batch=2), rounds=1, device="cpu")
    run.run()
    before, after = (
        task.objective.layout.tensors(w)["0.lora_A"] for w in (task.objective.start, run.server.w)
    )
    assert torch.equal(after[2:], before[2:])
    assert bool(run.server.w.isfinite().all())


@pytest.mark.parametrize("method", ["fedex", "flora"])
def test_a_base_that_changes_is_the_run_s_own(method: str, tmp_path: Path) -> None:
    """Groups, checkpoints, several layers of all kinds, 16 bits, and what cannot be."""
    draw = Draw.seeded(2)
    x, y = draw.fold("x").integers(9, 60).reshape(20, 3), draw.fold("y").integers(4, 20)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Embedding(9, 6), nn.Conv1d(3, 4, 2), nn.Flatten(), nn.Linear(20, 4)
    module = lora(nn.Sequential(*layers), 2, 2.0, layers=("0", "1", "3"), method=method)  # type: ignore[arg-type]
    task = Task.from_arrays(module, x, y, clients=5, dtype="float64")
    algorithm = FedAvg(eta=0.1, tau=2, batch=3)

    def new(**changes: Any) -> Simulation:
        settings = {"rounds": 4, "device": "cpu", "participation": 0.8, "chunk": 5, **changes}
        return Simulation(task, algorithm, **settings)  # type: ignore[arg-type]

    whole, single, half = new(), new(chunk=2), new()
    before = whole.module()
    for _ in range(2):
        half.step()
    half.save(tmp_path)
    whole.run()
    single.run()
    back = Simulation.load(tmp_path, task)
    back.run()
    again = whole.replaced()
    assert torch.equal(again.module()[3].weight, before[3].weight)  # type: ignore[index]
    for run, same in ((single, torch.equal), (back, torch.equal)):
        for p, q in zip(run.module().parameters(), whole.module().parameters(), strict=True):
            assert same(p, q) if run is back else close(p.detach(), q.detach(), 1e-9)
    flat = merged(whole.module())
    with torch.no_grad():
        assert close(flat(x), whole.module()(x), 1e-10)
        if method == "flora":  # all that was learnt is in the base
            assert torch.equal(whole.server.w, task.objective.start)
            assert not close(flat(x), before(x), 1e-3)
    assert whole.results[-1]["train_loss"] < whole.results[0]["train_loss"]
    assert {f"{i}.weight" for i in (0, 1, 3)} < {*kept(whole.module())}
    narrow = nn.Sequential(*layers).bfloat16()
    small = lora(narrow, 2, 2.0, layers=("0", "1", "3"), method=method)  # type: ignore[arg-type]
    run = Simulation(Task.from_arrays(small, x, y, clients=5), algorithm, rounds=2, device="cpu")
    run.run()
    assert run.state.server_side.base["weights"].dtype == torch.float32
    assert {p.dtype for p in merged(run.module()).parameters()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="merged"):
        save_peft(whole.module(), tmp_path / "peft")
    with pytest.raises(ConfigError, match="real clients"):
        deployed(task, {"algorithm": algorithm, "links": None}, tmp_path)
    with pytest.raises(ConfigError, match="play each run by itself"):
        stack_runs([new(), new(seed=1)])
    if method == "flora":
        with pytest.raises(ConfigError, match="start anew"):
            Simulation(task, FedCOMGATE())


@pytest.mark.parametrize("method", ["fedex", "flora"])
def test_the_best_model_has_the_base_it_was_found_with(method: str, tmp_path: Path) -> None:
    """The one before round 1 has the fewest bytes; also after a checkpoint."""
    task = linear_task(method)
    algorithm = FedAvg(eta=0.02, tau=2, batch="full")
    run = Simulation(task, algorithm, rounds=3, device="cpu", best="uplink_bytes")
    first, rows = run.module(), run.rows()
    for _ in range(2):
        next(rows)
    run.save(tmp_path)
    back = Simulation.load(tmp_path, task)
    for one in (run, back):
        one.run()
        assert one.best.round == 0
        best, last = (dict(one.module(best).named_parameters()) for best in (True, False))
        assert all(torch.equal(p, best[name]) for name, p in first.named_parameters())
        assert not torch.equal(best["0.weight"], last["0.weight"])


def test_the_frozen_base_is_held_once(tmp_path: Path) -> None:
    """Copies for threads, devices and dtypes share it; 16 bits stay 16 bits; checkpoints do not hold it."""
    base = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 400), nn.Tanh(), nn.Linear(400, 50))
    module = lora(base.bfloat16(), 2, layers=("1", "3"))
    x = torch.arange(40).reshape(20, 2) % 50
    loss = nn.CrossEntropyLoss()

    def by_token(outputs: Tensor, targets: Tensor) -> Tensor:
        found: Tensor = loss(outputs.flatten(0, 1), targets.flatten())
        return found

    task = Task.from_arrays(module, x, x.flip(0), clients=4, loss=by_token)
    objective = task.objective
    assert objective.layout.size == 2 * (16 + 400 + 400 + 50)
    assert objective.start.dtype == torch.float32

    def places(module: nn.Module) -> list[int]:
        return [p.data_ptr() for p in module.parameters() if not p.requires_grad]

    owned = [p.data_ptr() for p in base.parameters()]
    twins = [
        objective.module,
        objective._module_of_this_thread(),
        Objective(objective.module, by_token).module,
    ]
    for twin in twins:
        assert places(twin) == owned
        assert {p.dtype for p in twin.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert all(p.requires_grad for p in base.parameters())
    run = Simulation(task, FedAvg(eta=0.02, tau=2, batch=4), rounds=3, device="cpu")
    rows = run.run()
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert [p.data_ptr() for p in base.parameters()] == owned
    run.save(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * run.server.w.nbytes + 8192


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compiled"])
@pytest.mark.parametrize("method", METHODS)
def test_recorded_rounds_agree_with_eager_ones(method: str, engine: str) -> None:
    algorithm, more = FedAvg(eta=0.05, tau=2, batch=4), {"ranks": (1, RANK)} if method == "het" else {}
    runs = [
        Simulation(small_task(method, **more), algorithm, rounds=6, engine=name, device="cuda")
        for name in ("eager", engine)
    ]
    for run in runs:
        run.run()
    # The host groups clients by rank, which a graph cannot.
    assert (runs[1].engine.refused is None) == (method != "het")  # type: ignore[attr-defined]
    for p, q in zip(runs[0].module().parameters(), runs[1].module().parameters(), strict=True):
        assert close(p.detach(), q.detach(), 1e-9)
    assert runs[0].ledger.as_dict() == runs[1].ledger.as_dict()


def test_runs_with_other_frozen_parameters_are_no_stack() -> None:
    runs = [Simulation(small_task("ffa"), FedAvg(), rounds=1, device="cpu") for _ in range(2)]
    with pytest.raises(ConfigError, match="share their frozen parameters"):
        stack_runs(runs)


@torch.no_grad()
def test_layers_of_every_kind_have_adapters() -> None:
    """They begin as they were; merged weights give the same outputs; the rest has no gradient."""
    torch.manual_seed(0)
    layers: dict[str, tuple[nn.Module, Tensor]] = {
        "linear": (nn.Linear(6, 4), torch.randn(5, 6)),
        "embedding": (nn.Embedding(9, 4, padding_idx=0), torch.arange(9).reshape(3, 3)),
        "conv1d": (nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), torch.randn(2, 3, 8)),
        "conv2d": (nn.Conv2d(3, 4, (2, 3), stride=2), torch.randn(2, 3, 8, 8)),
        "conv3d": (nn.Conv3d(2, 4, 2, dilation=2), torch.randn(2, 2, 5, 5, 5)),
    }
    for name, (layer, x) in layers.items():
        base = nn.ModuleDict({name: layer}).double()
        x = x.double() if x.is_floating_point() else x
        module = lora(base, 3, 5.0, layers=name)
        assert torch.equal(module[name](x), base[name](x)), name  # type: ignore[index]
        assert [n for n, p in module.named_parameters() if p.requires_grad] == [
            f"{name}.lora_A",
            f"{name}.lora_B",
        ]
        module[name].lora_B.normal_()  # type: ignore[index]
        flat = merged(module)
        assert {*dict(flat.named_parameters())} == {*dict(base.named_parameters())}
        assert close(flat[name](x), module[name](x)), name  # type: ignore[index]
        assert not close(flat[name](x), base[name](x), 1e-3), name  # type: ignore[index]
        assert type(flat[name]) is type(layer)  # type: ignore[index]


@torch.no_grad()
def test_adapters_count_wherever_a_layer_is_used(tmp_path: Path) -> None:
    """In evaluation torch's transformer layers read weights past them; a layer may have two names; the units
    of a GRU are computed from the weight of a layer that is not called."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    module = lora(nn.TransformerEncoder(layer, 2), 2, layers=("linear1", "linear2")).eval()
    for _, part in adapted_layers(module):
        part.lora_B.normal_()
    x, padding = torch.randn(3, 5, 8), torch.arange(5).expand(3, 5) > 2
    assert close(module(x), merged(module)(x), 1e-5)
    assert close(module(x), copy.deepcopy(module).train()(x), 1e-5)
    seen = module(x, src_key_padding_mask=padding)[:, :3]
    assert close(seen, copy.deepcopy(module).train()(x, src_key_padding_mask=padding)[:, :3], 1e-5)

    module = lora(Gru(embed=4, hidden=8).module((6,), 7).bfloat16(), 2, layers=("inputs", "state"))
    for _, part in adapted_layers(module):
        part.lora_B.normal_()
    x = torch.randint(7, (3, 6))
    for dtype in (torch.bfloat16, torch.float32):
        assert close(module.to(dtype)(x), merged(module)(x), 0.02)
    state = dict(adapted_layers(module))["layers.0.state"]
    before = module(x)
    state.lora_B.zero_()
    assert not close(module(x), before, 0.1)

    shared = nn.Linear(4, 4)
    module = lora(nn.Sequential(shared, nn.Tanh(), shared), 2)
    assert module[0] is module[2]
    assert [name for name, _ in module.named_parameters()] == ["0.weight", "0.bias", "0.lora_A", "0.lora_B"]
    assert lora(nn.Sequential(shared, nn.Tanh(), shared), 2, layers="2")[2].lora_B is not None  # type: ignore[index]
    module[0].lora_B.normal_()  # type: ignore[index, operator]
    x = torch.randn(3, 4)
    assert close(merged(module)(x), module(x), 1e-5)
    with pytest.raises(ConfigError, match="'2' has another name too, which peft's files cannot hold"):
        save_peft(module, tmp_path)


@pytest.mark.parametrize("method", ["fedex", "flora"])
def test_the_bases_of_layers_with_one_weight_change_apart(method: Any, tmp_path: Path) -> None:
    """As if the weight had been there twice; it may not be trained under either name."""
    torch.manual_seed(0)
    base = Transformer(width=8, heads=2, layers=1, tied=True).module((5,), 7)
    twice = copy.deepcopy(base)
    twice.head.weight = nn.Parameter(twice.head.weight.detach().clone())  # type: ignore[union-attr]
    x, ends = torch.randint(7, (12, 6)), list[nn.Module]()
    for module in (base, twice):
        adapted = lora(module, RANK, layers=("tokens", "head"), method=method)
        task = Task.from_arrays(adapted, x[:, :-1], x[:, 1:], clients=3)
        run = Simulation(task, FedAvg(eta=0.1, tau=2, batch=2), rounds=2, device="cpu")
        run.run()
        ends.append(merged(run.module()))
    for one, other in zip(*(end.parameters() for end in ends), strict=True):
        assert close(one, other, 1e-6)
    assert not close(ends[0].head.weight, ends[0].tokens.weight, 1e-3)  # type: ignore[arg-type, union-attr]
    with pytest.raises(ConfigError, match=rf"{method} changes .* 'head.weight' cannot be trained also"):
        lora(base, RANK, layers="head", also="tokens", method=method)


@pytest.mark.parametrize("adapter", [None, "fedex"])
def test_a_folder_holds_a_model_that_shares_parameters(adapter: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shared = nn.Linear(3, 3)
    module: nn.Module = nn.Sequential(shared, nn.Tanh(), shared)
    module = module if adapter is None else lora(module, 2, method=adapter)
    task = Task.from_arrays(module, torch.randn(8, 3), torch.arange(8) % 3, clients=2)
    run = Simulation(task, FedAvg(eta=0.1, tau=1, batch=2), rounds=1, device="cpu")
    record(run, tmp_path / "run", quiet=True)
    load_kept(module, load_file(tmp_path / "run" / "model.safetensors"))
    for p, q in zip(module.parameters(), run.module().parameters(), strict=True):
        assert torch.equal(p, q)


def test_what_is_kept_has_the_statistics_of_batchnorm() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    x, y = torch.randn(20, 4) + 1, torch.arange(20) % 3
    task = Task.from_arrays(lora(base, 2), x, y, clients=2, batch_norm="averaged")
    run = Simulation(task, FedAvg(eta=0.1, tau=2, batch=5), rounds=2, device="cpu")
    run.run()
    after, again = run.module().eval(), lora(base, 2).eval()
    state = kept(after)
    load_kept(again, state)
    assert torch.equal(again(x), after(x))
    statistics = {"1.running_mean", "1.running_var"}
    assert {*state} == {*statistics, *(f"{i}.lora_{which}" for i in (0, 2) for which in "AB")}
    load_kept(again, {key: x for key, x in state.items() if key not in statistics})  # as 0.2.0 wrote it
    with pytest.raises(RuntimeError, match="lora_A"):
        load_kept(again, {key: x for key, x in state.items() if key != "0.lora_A"})


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ("first.bias", "'first.bias' is trained beside the adapter"),
        ("scale", "'scale' is of a part"),
        ("last.weight", "'last.weight' is trained and has another name"),
        ("twin.weight", "'last.weight' is trained and has another name"),
    ],
)
def test_what_peft_cannot_hold_is_refused(also: str, said: str, tmp_path: Path) -> None:
    base = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("first", "last", "twin")})
    base["twin"].weight = base["last"].weight
    base.scale = nn.Parameter(torch.ones(3))
    with pytest.raises(ConfigError, match=said):
        save_peft(lora(base, 2, layers="first", also=also), tmp_path)
    with pytest.raises(ConfigError, match="cannot be trained also; got also=first"):
        lora(base, 2, layers="first", also=("first", also), method="fedex")


def test_peft_takes_all_names_that_end_as_that_of_a_part_which_is_saved(tmp_path: Path) -> None:
    base = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("first", "norm", "subnorm", "st", "out")})
    files = save_peft(lora(base, 2, layers="first", also="norm"), tmp_path)
    assert json.loads((files / "adapter_config.json").read_text())["modules_to_save"] == ["norm", "subnorm"]
    saved = load_file(files / "adapter_model.safetensors")
    assert torch.equal(saved["base_model.model.subnorm.weight"], base["subnorm"].weight)
    for also, whole in (("st", "first"), ("out", "lora_dropout")):
        with pytest.raises(ConfigError, match=f"'{also}' is saved, and what ends so is too, as '{whole}'"):
            save_peft(lora(base, 2, layers="first", also=also), tmp_path)
    for more in ({"dilation": 2}, {"padding_mode": "circular"}):
        line = nn.Sequential(nn.Conv1d(2, 2, 3, **more))
        with pytest.raises(ConfigError, match="layer '0' is a convolution with dilation"):
            save_peft(lora(line, 2, layers="0"), tmp_path)


@pytest.mark.parametrize("adapter", ["rolora", "fedex"])
def test_a_run_s_folder_holds_what_its_model_needs(adapter: str, tmp_path: Path, command: Command) -> None:
    """Adapters without a base that stays, and a config that says the same again."""
    settings = (f"model.adapter={adapter}", "adapter.rank=2", "adapter.layers=1", "model.hidden=8")
    rates = ("algorithm.name=fedcom", "algorithm.eta=0.02", "algorithm.gamma=1", "algorithm.tau=2")
    done = command("run", *settings, *rates, "run.rounds=2", "--out", "run", "--quiet", "--device", "cpu")
    assert done.code == 0, done.err
    names = {*load_file(tmp_path / "run" / "model.safetensors")}
    assert names == {"1.lora_A", "1.lora_B", *(["1.weight"] if adapter == "fedex" else [])}
    table = read(tmp_path / "run" / "config.toml")
    assert table["adapter"] == {"name": adapter, "rank": 2, "alpha": 16.0, "layers": ["1"], "also": []}
    assert json.loads(json.dumps(Config.of(table).table()))["adapter"] == table["adapter"]
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    scores = json.loads(command("evaluate", "run", "--device", "cpu").out)
    for key in ("train_loss", "test_loss", "test_accuracy"):
        assert scores[key] == pytest.approx(last[key], rel=1e-6)
    exported = command("export", "run", "--out", "peft")
    assert exported.code == (0 if adapter == "rolora" else 2), exported.err
    assert command("export", "run", "--out", "flat", "--merged").code == 0
    assert {*load_file(tmp_path / "flat" / "model.safetensors")} == {
        f"{i}.{kind}" for i in (1, 3) for kind in ("weight", "bias")
    }
    assert "no text" in command("generate", "run", "--prompt", "a").err


@pytest.mark.parametrize(
    "typed", ["adapter.layers=0,head", "adapter.layers=[0, head]", 'adapter.layers=[0,"head"]']
)
def test_names_of_layers_may_be_typed_with_commas_between(typed: str) -> None:
    adapter = Config.of(read(None, [typed, "adapter.also=norm"])).model.adapter
    assert adapter is not None
    assert (adapter.layers, adapter.also) == (("0", "head"), ("norm",))


def test_draws_depend_on_the_seed_and_the_name_alone() -> None:
    def first(seed: int, layers: str) -> Tensor:
        torch.rand(1)
        module = lora(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), 2, layers=layers, seed=seed)
        return dict(module.named_parameters())["1.lora_A"].detach()

    assert torch.equal(first(3, "1"), first(3, "*"))
    assert not torch.equal(first(3, "1"), first(4, "1"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": "nowhere"}, "layer 'nowhere' is not there"),
        ({"layers": "1"}, "layer '1' is a Tanh"),
        ({"layers": "2"}, "2 groups"),
        ({"layers": []}, "layers names no layer to adapt; leave it out"),
        ({"also": "nothing"}, "no parameter 'nothing'"),
        ({"rank": 0}, "rank must be 1 or more"),
        ({"alpha": -1}, "alpha must be above 0"),
        ({"method": "lorra"}, "name must be 'lora' or 'ffa'"),
    ],
)
def test_what_cannot_be_adapted_says_why(given: dict[str, Any], said: str) -> None:
    base = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Conv1d(4, 4, 3, groups=2))
    with pytest.raises(ConfigError, match=said):
        lora(base, **given)
    assert all(p.requires_grad for p in base.parameters())


def test_adapters_have_usual_rates_where_none_is_given() -> None:
    def found(*settings: str) -> tuple[Any, ...]:
        a = alone(None, ["model.adapter=lora", *settings]).algorithm
        return a.name, a.local.name, a.local.correction, a.eta, a.gamma, a.server.name

    assert found() == ("fedcom", "adamw", "inside", 1e-3, 1.0, "sgd")
    assert found("data.path=mine.csv")[3] == 1e-3, "and no auto rate, which is of B at zero"
    assert found("algorithm.name=fedcomgate") == ("fedcomgate", "adamw", "outside", 1e-3, 1.0, "sgd")
    assert found("algorithm.name=diloco")[1:4] == ("adamw", "inside", 1e-3)  # its own
    assert found("local.name=momentum", "algorithm.gamma=2")[1:5] == ("momentum", "inside", 0.01, 2)
    assert found("algorithm.eta=0.3")[1:4] == ("sgd", "inside", 0.3)
    assert found("local.name=adamw", "local.keep=true", "algorithm.eta=auto")[3] == "auto"
