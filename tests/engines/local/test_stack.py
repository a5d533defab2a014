"""Runs played in step, groups of clients and threads do not change the results."""

import platform
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcom import Links, Simulation, Task
from fedcom.algorithms import ALGORITHMS, FedAvg, FedCOM, FedCOMGATE, FedNova, Scaffold
from fedcom.algorithms.local_optimisers import (
    AdamWSteps,
    LocalOptimiser,
    LocalStep,
    MomentumSteps,
    MuonSteps,
    PlainSteps,
)
from fedcom.algorithms.optimisers import Momentum
from fedcom.codecs import Auto, Dithered, Int, LowRank, Peaks, RandK, Rotated, TopK
from fedcom.engines.local.eager import EagerEngine, Rehearsal
from fedcom.engines.local.groups import Groups, clients_per_core
from fedcom.engines.local.threads import map_on_threads
from fedcom.engines.simulation import in_step
from fedcom.engines.stacks import runs_that_fit, stack_runs
from fedcom.engines.state.placement import numbers_per_step
from fedcom.errors import ConfigError, Diverged
from fedcom.rounds.cohort import Ranking
from fedcom.rounds.round import play
from fedcom.tasks.models import Lenet
from fedcom.vectors import Vectors
from tests.conftest import after, close, mlp_task, quadratic_task


def digits(seed: int = 0) -> Task:
    torch.manual_seed(seed)
    x, y = torch.randn(240, 12), torch.randint(0, 4, (240,))
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    return Task.from_arrays(module, x, y, x[:20], y[:20], clients=8, seed=seed)


@pytest.mark.covers(1)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_runs_in_step_give_the_results_of_single_runs(name: str, participation: float) -> None:
    kind = ALGORITHMS[name]
    tau = {} if "tau" in kind.fixed else {"tau": 2}

    def make(seed: int) -> Simulation:
        gamma = {} if "gamma" in kind.fixed else {"gamma": 1.0 + seed}
        algorithm = kind(eta=0.02 * (seed + 1), **gamma, **tau)
        return Simulation(
            mlp_task(seed=seed), algorithm, rounds=3, participation=participation, seed=seed, device="cpu"
        )

    stacked = [make(seed) for seed in range(3)]
    engine = stack_runs(stacked)
    for _ in range(3):
        engine.step()
    for seed, run in enumerate(stacked):
        single = make(seed)
        for _ in range(3):
            single.step()
        assert torch.allclose(run.server.w, single.server.w, rtol=1e-12, atol=1e-14)
        assert run.ledger.as_dict() == single.ledger.as_dict()
        assert run.q == pytest.approx(single.q, rel=1e-9, abs=1e-12)
        for mine, other in zip(run.client_states(), single.client_states(), strict=True):
            assert torch.allclose(mine, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["fedgate", "fedcomgate", "fedcomgate-exact", "scaffold"])
@pytest.mark.parametrize("first", [0.0, 0.9])
def test_runs_in_step_may_differ_in_momentum(name: str, first: float) -> None:
    def make(momentum: float) -> Simulation:
        method = ALGORITHMS[name](eta=0.02, gamma=1.0, tau=3, server=Momentum(momentum))
        return Simulation(mlp_task(), method, rounds=4, participation=0.5, device="cpu")

    stacked = [make(momentum) for momentum in (first, 0.0, 0.5)]
    engine = stack_runs(stacked)
    for _ in range(4):
        engine.step()
    for run in stacked:
        single = make(run.algorithm.server.kept)
        for _ in range(4):
            single.step()
        assert close(run.server.w, single.server.w)
        for mine, other in zip(run.client_states(), single.client_states(), strict=True):
            assert close(mine, other)


LOCAL = [
    MomentumSteps(keep=True),
    MomentumSteps(nesterov=True, clip=0.1, mu=0.5),
    AdamWSteps(keep=True, correction="outside"),
    MuonSteps(correction="outside"),
]


@pytest.mark.parametrize("local", LOCAL)
def test_runs_in_step_share_a_local_optimiser(local: LocalOptimiser) -> None:
    def make(seed: int, local: LocalOptimiser = local) -> Simulation:
        method = FedCOMGATE(eta=0.01 * (seed + 1), gamma=1.0, tau=3, local=local)
        return Simulation(mlp_task(seed=seed), method, rounds=3, participation=0.5, seed=seed, device="cpu")

    stacked = [make(seed) for seed in range(2)]
    engine = stack_runs(stacked)
    for _ in range(3):
        engine.step()
    for seed, run in enumerate(stacked):
        single = after(mlp_task(seed=seed), run.algorithm, rounds=3, participation=0.5, seed=seed)
        assert close(run.server.w, single.server.w, 1e-11)
        for name, x in single.client_memory().items():
            assert close(run.client_memory()[name], x, 1e-11)
    with pytest.raises(ConfigError, match="must share one local optimiser"):
        stack_runs([make(0), make(1, MomentumSteps(momentum=0.5))])


@dataclass(frozen=True)
class TwiceMu(MomentumSteps):
    """Steps that a stranger wrote, with a use of mu of their own."""

    def taken(self, w: Tensor, g: Tensor, start: Tensor, moments: Vectors, at: LocalStep) -> Any:
        return self.step(w, g + 2 * self.mu * (w - start), moments, at)


@pytest.mark.parametrize(
    ("method", "local", "mus"),
    [
        (FedAvg(epochs=2, batch=4, average="models"), MomentumSteps(clip=0.5), (0.0, 0.3, 2.0)),
        (Scaffold(tau=3, gamma=1.0), AdamWSteps(correction="outside"), (0.3, 0.0, 2.0)),
        (FedCOMGATE(tau=3, gamma=1.0), PlainSteps(), (0.1, 0.3, 2.0)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_runs_in_step_may_differ_in_mu(method: Any, local: LocalOptimiser, mus: tuple[float, ...]) -> None:
    sizes = [12, 7, 9], [8] * 3, [3, 30, 4]

    def make(seed: int, mu: float) -> Simulation:
        own = replace(method, local=replace(local, mu=mu))
        return Simulation(mlp_task(sizes=sizes[seed], seed=seed), own, rounds=3, seed=seed, device="cpu")

    stacked = [make(seed, mu) for seed, mu in enumerate(mus)]
    engine = stack_runs(stacked)
    for _ in range(3):
        engine.step()
    for seed, run in enumerate(stacked):
        single, other = make(seed, mus[seed]), make(seed, 1.0)
        for _ in range(3):
            single.step()
            other.step()
        assert close(run.server.w, single.server.w, 1e-12)
        assert not close(run.server.w, other.server.w, 1e-4)
    same = [make(seed, mus[0]) for seed in range(3)]  # where mu is a number for all
    engine = stack_runs(same)
    for _ in range(3):
        engine.step()
    assert torch.equal(same[0].server.w, stacked[0].server.w)


def test_runs_in_step_of_a_stranger_or_of_plain_steps_share_their_mu() -> None:
    for one, other in ((TwiceMu(mu=0.1), TwiceMu(mu=0.2)), (PlainSteps(), PlainSteps(mu=0.2))):
        runs = [Simulation(mlp_task(), FedAvg(tau=2, local=x), rounds=1, device="cpu") for x in (one, other)]
        with pytest.raises(ConfigError, match="but for its mu"):
            stack_runs(runs)


@pytest.mark.parametrize(
    "codec", [Dithered(q=0.1), Rotated(2.0), Peaks(2.0), TopK(0.2), RandK(0.3)], ids=lambda c: c.name
)
def test_each_run_of_a_stack_is_billed_its_own_bytes(codec: Any) -> None:
    runs = [
        Simulation(
            mlp_task(seed=s), FedCOMGATE(tau=2, gamma=1.0), Links(codec), rounds=2, seed=s, device="cpu"
        )
        for s in range(3)
    ]
    engine = stack_runs(runs)
    engine.step()
    engine.step()
    for seed, run in enumerate(runs):
        single = after(mlp_task(seed=seed), FedCOMGATE(tau=2, gamma=1.0), Links(codec), rounds=2, seed=seed)
        assert run.ledger.total("uplink") == single.ledger.total("uplink")


@pytest.mark.parametrize(
    "algorithm", [FedCOM(tau=3), FedCOMGATE(tau=3, gamma=1.0), Scaffold(tau=3, gamma=1.0)]
)
def test_groups_of_any_size_give_the_same_bits_on_a_cpu(algorithm: Any) -> None:
    whole = after(digits(), algorithm, Links(Int(8)), rounds=4, chunk=8)
    for chunk in (1, 3):
        cut = after(digits(), algorithm, Links(Int(8)), rounds=4, chunk=chunk)
        assert torch.equal(cut.server.w, whole.server.w)
        assert cut.ledger.as_dict() == whole.ledger.as_dict()


def test_threads_give_the_same_bits_and_are_used() -> None:
    algorithm = FedCOMGATE(tau=3, gamma=1.0)
    one_thread = after(digits(), algorithm, rounds=3, chunk=1)
    two_threads = Simulation(digits(), algorithm, rounds=3, device="cpu", chunk=1)
    engine = two_threads.engine
    assert isinstance(engine, EagerEngine)
    engine.groups = Groups(1, workers=2)
    seen, work = set(), engine.group_work
    engine.group_work = lambda *a: (seen.add(threading.get_ident()), work(*a))[1]  # type: ignore[method-assign]
    for _ in range(3):
        two_threads.step()
    assert threading.get_ident() not in seen
    assert torch.equal(two_threads.server.w, one_thread.server.w)


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_leave_torch_as_it_was(workers: int) -> None:
    def seen(_: int) -> bool:
        return bool(torch.backends.mkldnn.enabled)

    before = seen(0)
    on_arm = platform.machine() in ("aarch64", "arm64")
    assert list(map_on_threads(seen, [0, 1, 2], workers)) == [before and not on_arm] * 3
    with pytest.raises(ZeroDivisionError):
        list(map_on_threads(lambda item: 1 // item, [1, 0, 2], workers))
    assert seen(0) == before


def test_threads_have_groups_of_like_size() -> None:
    for workers, sizes in ((1, [2, 3, 3]), (2, [2, 2, 2, 2]), (8, [1] * 8)):
        groups = Groups(3, workers).cut(8)
        assert [rows.stop - rows.start for rows in groups] == sizes
        assert [row for rows in groups for row in range(rows.start, rows.stop)] == list(range(8))


def test_clients_whose_steps_are_large_are_computed_one_by_one() -> None:
    """Where groups change the bits, by a rule that knows no clock."""
    module = nn.Sequential(nn.Linear(12, 1024), nn.LayerNorm(1024), nn.Linear(1024, 4))
    task = Task.from_arrays(module, torch.randn(48, 12), torch.randint(0, 4, (48,)), clients=24)
    assert not task.objective.same_in_any_stack
    per_sample = 12 + 1024 + 1024 + 4 + 4  # what goes in, and what each part and the whole give
    for batch, size in ((1, 8), ((1 << 23) // per_sample, 8), ((1 << 23) // per_sample + 1, 1)):
        method = FedAvg(tau=1, batch=batch)
        assert numbers_per_step(task, method) == batch * per_sample
        assert clients_per_core(task, method, task.objective.start, 24) == size


def test_a_step_on_all_samples_is_as_large_as_a_block_of_them() -> None:
    module = nn.Sequential(nn.Linear(12, 4), nn.LayerNorm(4))
    task = Task.from_arrays(module, torch.randn(600, 12), torch.randint(0, 4, (600,)), clients=2)
    method, per_sample = FedAvg(tau=1, batch="full"), 12 + 4 + 4 + 4
    assert numbers_per_step(task, method) == 256 * per_sample
    task.objective.microbatch = 10
    assert numbers_per_step(task, method) == 10 * per_sample


def test_one_run_of_a_stack_may_diverge() -> None:
    runs = [
        Simulation(digits(), FedCOM(tau=3, eta=eta, decay=1.0), rounds=40, device="cpu")
        for eta in (0.05, 1e6)
    ]
    engine = stack_runs(runs)
    for _ in range(40):
        engine.step()
    assert runs[0].row()["train_loss"] < 2
    with pytest.raises(Diverged, match=r"eta=1e\+06"):
        runs[1].row()


UNEQUAL = [
    (FedAvg(epochs=2, batch=4, weights="size", local=MomentumSteps(mu=0.5)), None),
    (FedNova(epochs=2, batch=4, weights="size", local=MomentumSteps(keep=True)), None),
    (Scaffold(epochs=2, batch=4, gamma=1.0, local=MomentumSteps(correction="outside")), None),
    (FedCOMGATE(tau=(1, 4, 2, 2, 3, 1), batch=4, gamma=1.0, eta=0.02), Rotated(2.0)),
]


@pytest.mark.parametrize(("method", "codec"), UNEQUAL, ids=lambda x: getattr(x, "name", ""))
def test_runs_whose_clients_differ_in_steps_are_played_in_step(
    method: Any, codec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [12, 7, 9, 12, 5, 8], [8] * 6, [3, 30, 4, 9, 2, 11]

    def make(seed: int, participation: float = 1.0) -> Simulation:
        task, links = mlp_task(sizes=sizes[seed], seed=seed), None if codec is None else Links(codec)
        given = {"participation": participation, "seed": seed, "network": "lte", "device": "cpu"}
        return Simulation(task, method, links, rounds=3, **given)

    for participation in (1.0, 0.5) if codec is not None else (1.0,):
        stacked = [make(seed, participation) for seed in range(3)]
        engine = stack_runs(stacked)
        for _ in range(2):
            engine.step()
        for seed, run in enumerate(stacked):
            with monkeypatch.context() as patch:  # a client that has taken its steps is masked instead
                patch.setattr(Ranking, "of", lambda steps: None)
                single = make(seed, participation)
                for _ in range(2):
                    single.step()
            assert close(run.server.w, single.server.w, 1e-11)
            assert run.ledger.as_dict() == single.ledger.as_dict()
            ours, theirs = (r.row()["modelled_seconds"] for r in (run, single))
            assert ours == pytest.approx(theirs, rel=1e-9)
            for mine, other in zip(run.client_states(), single.client_states(), strict=True):
                assert close(mine, other, 1e-10)
            for name, x in single.client_memory().items():
                assert close(run.client_memory()[name], x, 1e-10)


def test_engines_that_need_a_gpu_are_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="the device is a CPU"):
        Simulation(digits(), FedCOM(), device="cpu", engine="graph").step()
    with pytest.raises(ConfigError, match="did you mean 'eager'"):
        Simulation(digits(), FedCOM(), device="cpu", engine="eagre")


def test_a_cpu_gains_nothing_from_stacking() -> None:
    assert runs_that_fit(Simulation(digits(), FedCOM(), device="cpu")) == 1


def test_a_rehearsal_leaves_no_trace() -> None:
    simulation = after(digits(), FedCOMGATE(tau=2, gamma=1.0), rounds=2)
    assert isinstance(simulation.engine, EagerEngine)
    before = (
        simulation.server.w.clone(),
        simulation.client_states().delta.clone(),
        simulation.ledger.as_dict(),
    )
    play(Rehearsal(simulation.engine))
    assert torch.equal(simulation.server.w, before[0])
    assert torch.equal(simulation.client_states().delta, before[1])
    assert simulation.ledger.as_dict() == before[2]


SENT = [
    *(Links(codec) for codec in (Int(8), Rotated(2.0), Peaks(0.5), Dithered(q=0.1), TopK(0.2))),
    *(Links(codec) for codec in (Dithered(bits=4.0), LowRank(2, 8.0), Auto(bits=5.0), Auto(q=0.5))),
    *(Links(codec, correlated=True) for codec in (Int(2), Dithered(q=0.5))),
]


@pytest.mark.gpu
@pytest.mark.parametrize("links", SENT, ids=lambda links: f"{links.uplink.name} {links.correlated}")
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_replayed_round_has_the_bits_of_a_played_one(links: Links, participation: float) -> None:
    runs = [
        Simulation(
            digits(),
            FedCOMGATE(tau=3, gamma=1.0),
            links,
            rounds=6,
            device="cuda",
            engine=engine,
            participation=participation,
        )
        for engine in ("eager", "graph")
    ]
    for run in runs:
        list(run.run())
    eager, graph = runs
    assert graph.engine.refused is None  # type: ignore[attr-defined]
    assert torch.equal(eager.server.w, graph.server.w)
    assert eager.ledger.as_dict() == graph.ledger.as_dict()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALGORITHMS)
def test_compiled_rounds_agree_with_eager_ones(name: str) -> None:
    kind = ALGORITHMS[name]
    tau = {} if "tau" in kind.fixed else {"tau": 3}
    runs = [
        Simulation(digits(), kind(eta=0.02, gamma=1.0, **tau), rounds=5, device="cuda", engine=engine)
        for engine in ("eager", "compiled")
    ]
    for run in runs:
        list(run.run())
    assert torch.allclose(runs[0].server.w, runs[1].server.w, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compiled"])
@pytest.mark.parametrize("tau", [3, (1, 3, 2, 4, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("local", LOCAL)
def test_recorded_rounds_with_a_local_optimiser_agree_with_eager_ones(
    local: LocalOptimiser, tau: Any, engine: str
) -> None:
    algorithm = FedCOMGATE(eta=0.01, gamma=1.0, tau=tau, local=local)
    runs = [
        Simulation(digits(), algorithm, rounds=5, participation=0.5, device="cuda", engine=one)
        for one in ("eager", engine)
    ]
    for run in runs:
        list(run.run())
    assert runs[1].engine.refused is None  # type: ignore[attr-defined]
    assert torch.allclose(runs[0].server.w, runs[1].server.w, rtol=1e-3, atol=1e-3)
    if engine == "graph":
        assert torch.equal(runs[0].server.w, runs[1].server.w)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 20, "participation": 0.5, "weight_decay": 0.1},
        {"tau": (1, 3, 2, 4, 1, 2, 3, 4)},
        {"epochs": 1, "batch": 16},
        {"batch": 200},  # more than the kernels take
        {"batch": "full"},
    ],
    ids=str,
)
def test_compiled_local_steps_agree_with_eager_ones(settings: dict[str, Any]) -> None:
    of_run = {name: settings.pop(name) for name in ("participation",) if name in settings}
    algorithm = FedCOMGATE(eta=0.02, gamma=1.0, **({} if "epochs" in settings else {"tau": 3}) | settings)
    runs = [
        Simulation(digits(), algorithm, rounds=5, device="cuda", engine=engine, **of_run)
        for engine in ("eager", "compiled")
    ]
    for run in runs:
        list(run.run())
    assert torch.allclose(runs[0].server.w, runs[1].server.w, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_stacked_convolutional_runs_with_epochs_agree_with_a_cpu() -> None:
    def made(sizes: list[int]) -> Task:
        torch.manual_seed(sum(sizes))
        x, y = torch.rand(sum(sizes), 3, 16, 16, dtype=torch.float64), torch.randint(0, 3, (sum(sizes),))
        owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        module = Lenet().module((3, 16, 16), 3)
        return Task.from_arrays(module, x, y, x, y, partition=owners, dtype="float64").augmented()

    tasks = [made(sizes) for sizes in ([30, 7, 9], [12, 12, 12], [3, 64, 20])]
    local = MomentumSteps(correction="outside")
    method = Scaffold(epochs=2, batch=8, gamma=1.0, weights="size", average="models", local=local)
    ends = {}
    for device in ("cpu", "cuda"):
        runs = [Simulation(task, method, rounds=4, device=device) for task in tasks]
        engine = stack_runs(runs)
        for _ in range(4):
            engine.step()
        ends[device] = [run.server.w.cpu() for run in runs]
    assert engine.refused is None  # type: ignore[attr-defined]
    for mine, other in zip(ends["cuda"], ends["cpu"], strict=True):
        assert close(mine, other, 1e-10)


def test_runs_in_step_that_all_diverge_end() -> None:
    """Runs of a stack are looked at when a row is due; when none is left, nothing is played on."""
    runs = [Simulation(quadratic_task(), FedAvg(eta=1e30), rounds=40, seed=seed) for seed in (0, 1)]
    stack_runs(runs)
    played = list(in_step(dict(enumerate(runs)), lambda done: done == 20))
    assert [(i, type(end)) for i, end in played] == [(0, Diverged), (1, Diverged)]
    assert runs[0].round == 20
