"""Very many clients: their data is a function, and a round costs as much as the clients that take part."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcom import ConfigError, FedAvg, FedCOMGATE, Objective, Simulation, Storage, Task, load, split
from fedcom.config import Config, read
from fedcom.data import synthetic
from fedcom.data.synthetic import Synthetic
from fedcom.draws import Draw
from fedcom.engines.state.stores import PrefetchedStore
from fedcom.runs import prepare as prepare_module
from fedcom.runs.prepare import build_task, prepare
from fedcom.runs.run import execute
from fedcom.tasks.models import Mlp

SMALL = ["data.name=synthetic", "model.hidden=4", "algorithm.tau=1", "algorithm.batch=5"]
STATUS = Path("/proc/self/statm")


def config(*overrides: str) -> Config:
    return Config.of(read(None, [*SMALL, *overrides]))


def tasks(clients: int) -> tuple[Task, Task]:
    """Two tasks on the same data: drawn when needed, and held in memory."""
    objective = Objective(Mlp(hidden=(6,)).module((60,), 10))
    data = load("synthetic", clients=clients, seed=4)
    parts = split("natural", data.y, data.groups, clients, Draw.seeded(0))
    people = Synthetic(0.5, 0.5, 4).population(clients)
    return Task.drawn(objective, people), Task.build(objective, data, parts)


LAZY, LAID_OUT = tasks(8)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.data())
def test_drawn_samples_are_those_in_memory_for_any_clients_and_positions(
    clients: list[int], data: st.DataObject
) -> None:
    b = data.draw(st.integers(1, 4))
    position = torch.tensor(
        [[data.draw(st.integers(0, 5000)) for _ in range(b)] for _ in clients]
    )  # past a client's last sample both repeat the last
    for mine, theirs in zip(
        *(t.samples(torch.tensor(clients), position) for t in (LAZY, LAID_OUT)), strict=True
    ):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("batch", [7, "full"])
def test_a_run_on_drawn_samples_is_the_run_on_samples_in_memory(batch: int) -> None:
    runs = [
        Simulation(
            task, FedCOMGATE(tau=2, batch=batch, weights="size"), participation=0.5, device="cpu", chunk=chunk
        )
        for task in (LAZY, LAID_OUT)
        for chunk in (1, 3, 4)
    ]
    for simulation in runs:
        for _ in range(3):
            simulation.step()
    assert all(torch.equal(simulation.server.w, runs[0].server.w) for simulation in runs)
    rows = [simulation.row() | {"seconds": 0} for simulation in runs]
    assert all(row == pytest.approx(rows[0], rel=1e-12) for row in rows)


def test_a_model_is_evaluated_on_the_clients_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "SHOWN", 3)
    people = Synthetic(0.5, 0.5, 4).population(8)
    task = Task.drawn(LAZY.objective, people)
    assert len(people.shown) == 3
    w, p = LAZY.objective.start, torch.linspace(1, 2, 8, dtype=torch.float64)
    losses = [
        LAZY.objective.losses(LAZY.objective.outputs(w, x), y).double().mean()
        for x, y in zip(*(torch.split(t, LAZY.sizes.tolist()) for t in (LAZY.x, LAZY.y)), strict=True)
    ]
    chosen = people.shown
    expected = (torch.stack(losses) * p)[chosen].sum() / p[chosen].sum()
    assert task.evaluate(w, p)["train_loss"] == pytest.approx(float(expected), rel=1e-6)
    assert [sum(counts) for counts in task.label_counts()] == task.sizes[chosen].tolist()


def test_a_million_clients_cost_as_much_as_the_sampled_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(synthetic, "SHOWN", 20)
    before = resident()
    settings = (
        "data.clients=1000000",
        "run.participation=0.0001",
        "run.rounds=2",
        "run.store=disk",
        f"run.store_folder={tmp_path}",
    )
    simulation, filled = prepare(config(*settings), "cpu")
    assert filled.data.lazy
    assert simulation.task.clients == 10**6
    for _ in range(2):
        simulation.step()
    store = simulation.engine.store
    assert isinstance(store, PrefetchedStore)
    assert len(store.known()) <= 200
    assert simulation.row()["uplink_bytes_total"] > 0
    assert resident() - before < 300 * 2**20  # its samples would be 70 GB, its state 2 GB


def resident() -> int:
    return 4096 * int(STATUS.read_text().split()[1]) if STATUS.exists() else 0


def test_samples_are_drawn_for_many_clients_or_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert build_task(config("data.clients=6"))[0].source is None
    task, filled = build_task(config("data.clients=6", "data.lazy=true"))
    assert task.source is not None
    assert build_task(filled)[0].clients == 6
    monkeypatch.setattr(prepare_module, "LAID_OUT", 5)
    assert build_task(config("data.clients=5"))[0].source is None
    assert build_task(config("data.clients=6"))[0].source is not None
    for unless in ("data.lazy=false", "data.partition=iid"):
        assert build_task(config("data.clients=6", unless))[0].source is None
    for wrong in ("data.partition=iid", "data.name=digits"):
        with pytest.raises(ConfigError, match=r"data.lazy draws the samples of data.name=synthetic"):
            build_task(config("data.lazy=true", wrong))


def test_the_run_folder_lists_the_clients_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "SHOWN", 5)
    execute(config("data.clients=40", "data.lazy=true", "run.rounds=1"), tmp_path, device="cpu", quiet=True)
    partition = json.loads((tmp_path / "partition.json").read_text())
    assert partition["clients"] == 40
    assert len(partition["shown"]) == len(partition["sizes"]) == len(partition["label_counts"]) == 5
    assert [sum(counts) for counts in partition["label_counts"]] == partition["sizes"]


def test_the_config_says_where_state_is_kept(tmp_path: Path) -> None:
    assert config().run.storage == Storage()
    told = config("run.store=disk", "run.store_dtype=bfloat16", f"run.store_folder={tmp_path}")
    assert told.run.storage == Storage("disk", "bfloat16", str(tmp_path))
    with pytest.raises(ConfigError, match=r"run.store must be 'auto' or 'memory' or 'disk'; got 'tape'"):
        config("run.store=tape")


def test_a_task_on_the_right_device_is_not_copied() -> None:
    simulation = Simulation(LAID_OUT, FedAvg(), device="cpu")
    assert simulation.task is LAID_OUT
    simulation.step()
    assert torch.equal(LAID_OUT.objective.start, Simulation(LAID_OUT, FedAvg(), device="cpu").server.w)
