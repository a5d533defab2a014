"""Checkpoints of a simulation: a run that goes on from one ends with the same bits as an undisturbed run."""

import copy
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedcom import (
    ALGORITHMS,
    ConfigError,
    FedAvg,
    Identity,
    Int,
    Links,
    Network,
    Rotated,
    Simulation,
    Storage,
    Task,
    TopK,
)
from fedcom.algorithms.base import Oracle, Round
from fedcom.algorithms.local_optimisers import AdamWSteps, LocalOptimiser, LocalStep, MomentumSteps, MuonSteps
from fedcom.engines.base import Engine
from fedcom.engines.description import described
from fedcom.engines.stacks import stack_runs
from fedcom.errors import StorageError
from fedcom.saving.series import Series
from fedcom.vectors import Vectors
from tests.conftest import close, mlp_task, quadratic_task

CLIENTS, ROUNDS, STOP = 8, 9, 6
SAVED = (2, 3, 5)  # rounds after which a checkpoint is begun; the next rounds are played while it is written
LINKS: dict[str, Links | None] = {
    "fedcomgate": Links(Int(4)),
    "fedcomgate-exact": Links(Rotated(6.0), Rotated(8.0)),
    "fedpaq": Links(TopK(0.1), uplink_memory="error-feedback"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "sampled": {"participation": 0.25},
    "disk": {"participation": 0.25, "storage": Storage("disk")},
    "network": {
        "participation": 0.25,
        "storage": Storage("memory", "bfloat16"),
        "network": Network.preset("lte"),
    },
}


def algorithm(name: str, **changes: Any) -> Any:
    steps = {} if name.endswith("diana") else {"tau": 2}
    return ALGORITHMS[name](**{"eta": 0.05, "batch": 4, **steps, **changes})


@cache
def small_task(
    dtype: torch.dtype = torch.float32, shift: float = 0.0, width: int = 6, sizes: tuple[int, ...] = ()
) -> Task:
    """Three classes among eight clients; the model is drawn from seed 0."""
    own = mlp_task(CLIENTS, sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))
    owner = torch.arange(CLIENTS).repeat_interleave(own.sizes)
    data = (own.x + shift, own.y, own.test_x, own.test_y)
    return Task.from_arrays(module, *data, groups=owner, partition="natural", dtype=dtype, model_seed=0)


def without_time(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def bits(simulation: Simulation) -> tuple[list[Tensor], list[Tensor], str]:
    """All that a run has come to: what the server keeps, what clients keep, and the ledger."""
    side, state, memory = (
        simulation.state.server_side,
        simulation.client_states(),
        simulation.client_memory(),
    )
    kept = [*state, *memory.values()]
    return list(side.tensors().values()), kept, json.dumps(simulation.ledger.as_dict())


def same(a: Simulation, b: Simulation) -> bool:
    (server_a, clients_a, ledger_a), (server_b, clients_b, ledger_b) = bits(a), bits(b)
    pairs = [*zip(server_a, server_b, strict=True), *zip(clients_a, clients_b, strict=True)]
    return ledger_a == ledger_b and all(torch.equal(x, y) for x, y in pairs)


def broken_off(simulation: Simulation, folder: Path) -> list[dict[str, Any]]:
    """Play a run to round 6 with four checkpoints; returns the rows before the last one."""
    rows = []
    for row in simulation.rows(lambda done: simulation.save(folder, wait=False) if done in SAVED else None):
        if simulation.round == STOP:
            break
        rows.append(row)
    simulation.save(folder)
    return rows


def check(folder: Path, task: Task, name: str, links: Links | None, **settings: Any) -> None:
    """A run that is broken off and loaded ends like an undisturbed one."""
    how = settings.pop("algorithm", {})
    settings = {"rounds": ROUNDS, "device": "cpu", **settings}
    whole = Simulation(task, algorithm(name, **how), links, **settings)
    expected = without_time(list(whole.run()))
    rows = broken_off(Simulation(task, algorithm(name, **how), links, **settings), folder)
    loaded = Simulation.load(folder, task, device=settings["device"])
    assert loaded.round == STOP
    assert without_time([*rows, *loaded.run()]) == expected
    assert same(whole, loaded)


@pytest.mark.parametrize("local", [MomentumSteps(), AdamWSteps(keep=True, clip=0.5), MuonSteps(keep=True)])
def test_a_loaded_run_has_the_moments_of_its_clients(tmp_path: Path, local: LocalOptimiser) -> None:
    how = {"local": local, "eta": 0.01, "tau": (1, 2, 3, 4) * 2}
    links = Links(TopK(0.1), uplink_memory="error-feedback")
    check(tmp_path, small_task(), "fedpaq", links, algorithm=how, **SETTINGS["disk"])


class FirstModel(NamedTuple):
    first: Tensor


class Anchored(FedAvg):
    """Pulls local steps to the very first model, which each client keeps."""

    name: ClassVar[str] = "anchored"

    def init_client(self, w: Tensor) -> FirstModel:
        return FirstModel(w)

    def gradient(self, w: Tensor, client: FirstModel, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        return oracle.batch(w) + (w - client.first)


@dataclass(frozen=True)
class AnchoredSteps(LocalOptimiser):
    """The same as a local optimiser."""

    name: ClassVar[str] = "anchored"

    def init(self, w: Tensor) -> Vectors:
        return {"first": w}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        return w - at.eta * (g + (w - moments["first"])), moments


def test_clients_of_a_loaded_run_may_begin_from_the_first_model(tmp_path: Path) -> None:
    task, rates = small_task(torch.float64), {"eta": 0.05, "tau": 2, "batch": 4}
    ends = []
    for method in (Anchored(**rates), FedAvg(**rates, local=AnchoredSteps(keep=True))):
        settings: dict[str, Any] = {"rounds": ROUNDS, "participation": 0.25, "storage": Storage("disk")}
        whole, part = (Simulation(task, method, device="cpu", **settings) for _ in range(2))
        whole.run()
        broken_off(part, tmp_path / str(len(ends)))
        loaded = Simulation.load(tmp_path / str(len(ends)), task, algorithm=method, device="cpu")
        loaded.run()
        assert same(whole, loaded)
        ends.append(whole.server.w)
    assert close(*ends)


@pytest.mark.covers(1)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["fedcomgate", "fedcomgate-exact", "fedpaq", "scaffold", "diana"])
def test_a_loaded_run_ends_with_the_same_bits(tmp_path: Path, name: str, settings: str) -> None:
    check(tmp_path, small_task(), name, LINKS.get(name), **SETTINGS[settings])


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph", "compiled"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["fedcomgate", "fedcomgate-exact", "fedpaq", "scaffold"])
def test_so_does_one_on_a_gpu(tmp_path: Path, name: str, settings: str, engine: str) -> None:
    given = {**SETTINGS[settings], "device": "cuda", "engine": engine}
    check(tmp_path, small_task(), name, LINKS.get(name), **given)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_so_does_every_method(tmp_path: Path, name: str) -> None:
    check(tmp_path, quadratic_task(CLIENTS), name, None, **SETTINGS["sampled"])


@pytest.mark.parametrize(
    ("links", "settings"),
    [
        (Links(Int(4), encode=True), {"participation": 0.5}),
        (Links(TopK(0.1), Rotated(2.0), first="seed"), {"participation": 0.25, "algorithm": {"option": "I"}}),
        (
            Links(Int(4), TopK(0.2), first="seed", downlink_memory="error-feedback"),
            {"participation": 0.25, "algorithm": {"option": "I"}, "network": Network.preset("3g")},
        ),
        (Links(Int(4), budgets=tuple(2.0 + j % 3 for j in range(CLIENTS)), clip=1.0), {"participation": 0.5}),
        (Links(Int(4), correlated=True), {"eval_every": 3, "chunk": 2}),
    ],
)
def test_so_does_a_run_with_other_links(tmp_path: Path, links: Links, settings: dict[str, Any]) -> None:
    check(tmp_path, small_task(torch.float64), "fedcomgate", links, **settings)


def test_the_disk_holds_two_checkpoints_and_few_rows(tmp_path: Path) -> None:
    broken_off(Simulation(small_task(), algorithm("fedcomgate"), rounds=ROUNDS, participation=0.25), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["00000005.json", "00000006.json"]
    saved = Series(tmp_path).latest()
    assert saved is not None
    assert saved.facts["engine"]["round"] == STOP


def test_a_checkpoint_whose_codec_made_other_messages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(arguments: Any) -> dict[str, Any]:
        """What a version of fedcom wrote whose top-k had plain indices and no chunks."""
        facts = described(arguments)
        del facts["codecs"]["uplink"]["chunk"]
        return facts

    monkeypatch.setattr("fedcom.engines.simulation.described", earlier)
    Simulation(small_task(), algorithm("fedpaq"), LINKS["fedpaq"], rounds=1, device="cpu").save(tmp_path)
    with pytest.raises(ConfigError, match="an earlier version of fedcom, whose topk had no chunk"):
        Simulation.load(tmp_path, small_task(), device="cpu")


def test_a_loaded_run_may_be_longer(tmp_path: Path) -> None:
    task, links = small_task(), LINKS["fedpaq"]
    settings: dict[str, Any] = {"participation": 0.25, "eval_every": 4, "device": "cpu"}
    longer = Simulation(task, algorithm("fedpaq"), links, rounds=13, **settings)
    expected = without_time(list(longer.run()))
    shorter = Simulation(task, algorithm("fedpaq"), links, rounds=STOP, **settings)
    rows = list(shorter.run())
    assert [row["round"] for row in rows] == [0, 4, 6]
    shorter.save(tmp_path)
    loaded = Simulation.load(tmp_path, task, rounds=13, device="cpu")
    more = list(loaded.run())
    assert [row["round"] for row in more] == [8, 12, 13]
    assert without_time(rows[:2] + more) == expected
    assert same(longer, loaded)


def test_other_data_or_another_model_is_refused(tmp_path: Path) -> None:
    broken_off(Simulation(small_task(), algorithm("fedcomgate"), rounds=ROUNDS), tmp_path)
    with pytest.raises(ConfigError, match="other data"):
        Simulation.load(tmp_path, small_task(shift=0.001))
    for other in (small_task(width=7), small_task(torch.float64)):
        with pytest.raises(ConfigError, match="other parameters"):
            Simulation.load(tmp_path, other)


def test_a_folder_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no whole checkpoint"):
        Simulation.load(tmp_path / "none", small_task())
    assert Simulation(small_task(), algorithm("fedavg")).restore(tmp_path / "none") is False


def test_saving_twice_at_one_round_is_saving_once(tmp_path: Path) -> None:
    """The second call must not replace files that the first checkpoint needs."""
    simulation = Simulation(small_task(), algorithm("fedcomgate"), rounds=ROUNDS, participation=0.25)
    for _ in range(4):
        simulation.step()
        for _ in range(3):
            simulation.save(tmp_path, wait=False)
    simulation.save(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["00000003.json", "00000004.json"]
    assert same(Simulation.load(tmp_path, small_task()), simulation)


def test_a_simulation_cannot_be_pickled_and_says_what_can(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"use simulation\.save\(path\)"):
        pickle.dumps(Simulation(small_task(), algorithm("fedavg")))


@pytest.mark.parametrize("copied", [lambda task: pickle.loads(pickle.dumps(task)), copy.deepcopy])
@pytest.mark.parametrize("made", [small_task, mlp_task, quadratic_task])
def test_a_copy_of_a_task_trains_to_the_same_bits(copied: Any, made: Any) -> None:
    task = made()
    before, after = (
        Simulation(each, algorithm("fedcomgate"), rounds=3, device="cpu") for each in (task, copied(task))
    )
    assert without_time(list(before.run())) == without_time(list(after.run()))
    assert same(before, after)
    assert copied(task).checksum == task.checksum


def stacked(tasks: Sequence[Task]) -> tuple[Engine, list[Simulation]]:
    made = [
        Simulation(task, algorithm("fedcomgate", eta=0.02 + 0.01 * i), rounds=ROUNDS, seed=i, device="cpu")
        for i, task in enumerate(tasks)
    ]
    return stack_runs(made), made


def test_runs_played_in_step_are_saved_together(tmp_path: Path) -> None:
    tasks = [mlp_task(CLIENTS, seed=seed) for seed in range(3)]
    whole, runs = stacked(tasks)
    for _ in range(ROUNDS):
        whole.step()
    engine, _ = stacked(tasks)
    for _ in range(STOP):
        engine.step()
        engine.save(series := Series(tmp_path), {"note": "mine"})
        series.wait()
    again, resumed = stacked(tasks)
    saved = Series(tmp_path).latest()
    assert saved is not None
    assert saved.facts["note"] == "mine"
    again.restore(saved)
    assert again.round == STOP
    for _ in range(ROUNDS - STOP):
        again.step()
    assert all(same(a, b) for a, b in zip(runs, resumed, strict=True))
    with pytest.raises(ConfigError, match="cannot be saved by itself"):
        resumed[0].save(tmp_path)


def test_links_that_are_not_kept_by_name_are_given(tmp_path: Path) -> None:
    """A codec of the user's own is not in the registry, so `load` is given it."""

    @dataclass(frozen=True)
    class Mine(Identity):
        """A codec that nobody registered."""

        name: ClassVar[str] = "mine"
        id: ClassVar[int] = 240

    task, links = small_task(), Links(Mine())
    whole = Simulation(task, algorithm("fedavg"), links, rounds=ROUNDS)
    list(whole.run())
    broken_off(Simulation(task, algorithm("fedavg"), links, rounds=ROUNDS), tmp_path)
    loaded = Simulation.load(tmp_path, task, algorithm("fedavg"), links)
    list(loaded.run())
    assert same(whole, loaded)
