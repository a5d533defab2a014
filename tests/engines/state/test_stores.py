"""Clients' state: the same bits wherever it is kept, rows only for clients that took part, early errors."""

import errno
import gc
import os
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedcom import ALGORITHMS, ConfigError, Diverged, FedAvg, FedCOMGATE, Links, Simulation, Storage, TopK
from fedcom.engines.local.threads import map_on_threads
from fedcom.engines.state import placement
from fedcom.engines.state.parking import HostParking, leave_in_place
from fedcom.engines.state.rows import Rows
from fedcom.engines.state.stores import ClientStore, PrefetchedStore, SparseStore
from fedcom.errors import StorageError
from fedcom.rounds.round import Work
from tests.conftest import after, mlp_task

STATEFUL = [
    "feddyn",
    "fedgate",
    "fedcomgate",
    "fedcomgate-exact",
    "vrl-sgd",
    "scaffold",
    "scaffold-m",
    "scallion",
    "scafcom",
    "qsparse",
    "econtrol",
    "diana",
    "vr-diana",
    "diloco",
    "muloco",
    "sparseloco",
]
ROW = 66 * 8  # bytes of one vector of the small task
HOMES = [("disk", 0.3, PrefetchedStore), ("disk", 0.0, SparseStore), ("memory", 0.0, SparseStore)]


def method(name: str) -> Any:
    steps = {} if name.endswith("diana") else {"tau": 2}
    return ALGORITHMS[name](eta=0.05, batch=5, **steps)


def state(simulation: Simulation) -> list[Tensor]:
    return [simulation.server.w, *simulation.client_states(), *simulation.client_memory().values()]


def same(a: Simulation, b: Simulation) -> bool:
    return all(torch.equal(x, y) for x, y in zip(state(a), state(b), strict=True))


@pytest.mark.covers(1)
@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("home", "share", "kind"), HOMES)
def test_where_state_is_kept_changes_no_bit(
    name: str, participation: float, home: Any, share: float, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"participation": participation, "rounds": 6, "chunk": 2}
    on_device = after(mlp_task(), method(name), **options)
    monkeypatch.setattr(placement, "_STATE_SHARE", share)
    other = after(mlp_task(), method(name), storage=Storage(home), **options)
    assert type(on_device.engine.store) is ClientStore
    assert type(other.engine.store) is kind
    assert (other.engine.park is leave_in_place) == (share > 0)
    assert same(on_device, other)
    some = torch.tensor([4, 1])
    assert all(
        torch.equal(a, b[some])
        for a, b in zip(other.client_states(some), on_device.client_states(), strict=True)
    )


def test_every_method_with_state_is_in_that_test() -> None:
    stores = {name: after(mlp_task(), method(name), rounds=0).engine.store for name in ALGORITHMS}
    assert {name for name, store in stores.items() if not store.empty} == set(STATEFUL)


def test_several_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = after(mlp_task(), FedCOMGATE(tau=2), chunk=6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for share in (0.3, 0.0):
        monkeypatch.setattr(placement, "_STATE_SHARE", share)
        assert same(whole, after(mlp_task(), FedCOMGATE(tau=2), chunk=1, storage=Storage("disk")))


@pytest.mark.parametrize("home", ["memory", "disk"])
def test_bfloat16_rounds_rows_and_nothing_else(home: Any) -> None:
    algorithm, links = FedCOMGATE(tau=2), Links(TopK(0.3), uplink_memory="error-feedback")
    options = {"rounds": 4, "participation": 0.5}
    exact = after(mlp_task(), algorithm, links, **options)
    rounded = after(mlp_task(), algorithm, links, storage=Storage(home, "bfloat16"), **options)
    reference = after(mlp_task(), algorithm, links, storage=Storage("memory", "bfloat16"), **options)
    assert same(rounded, reference)
    for a, b in zip(state(exact)[1:], state(rounded)[1:], strict=True):
        assert b.dtype == torch.float64
        assert torch.equal(b, b.bfloat16().double())
        assert not torch.equal(a, b)
    one = [
        after(mlp_task(), algorithm, links, rounds=1, storage=Storage(home, d)) for d in ("model", "bfloat16")
    ]
    for a, b in zip(state(one[0]), state(one[1]), strict=True):
        assert ((a - b).abs() <= 2.0**-8 * a.abs()).all()


State = namedtuple("State", ["a", "b"])
rounds = st.integers(1, 4).flatmap(
    lambda n: st.lists(
        st.lists(st.integers(0, 8), min_size=n, max_size=n, unique=True), min_size=1, max_size=9
    )
)


@pytest.mark.parametrize("kind", [SparseStore, PrefetchedStore])
@pytest.mark.parametrize("on_disk", [False, True])
@given(samples=rounds, planned=st.integers(0, 9))
def test_a_store_is_a_dictionary_of_the_clients_that_took_part(
    kind: type[SparseStore],
    on_disk: bool,
    samples: list[list[int]],
    planned: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    first, nu = State(torch.full((3,), 0.5), torch.ones(1)), {"D": torch.zeros(2)}
    folder = tmp_path_factory.getbasetemp() if on_disk else None
    store = kind(9, len(samples[0]), first, nu, planned=planned, folder=folder)
    model: dict[int, float] = {}

    def sampler(round_index: int) -> Tensor:
        return torch.tensor(samples[round_index % len(samples)])

    for i, clients in enumerate(samples):
        store.open(i, sampler)
        store.open(i, sampler)  # a second time changes nothing
        for row, client in enumerate(clients):
            rows, number = slice(row, row + 1), torch.tensor([client])
            (a, b), memory = store.take(rows, number)
            assert a[0].tolist() == [0.5 + model.get(client, 0)] * 3
            store.put(rows, number, State(a + i, b + i), {"D": memory["D"] - i})
        store.commit()
        model |= {client: model.get(client, 0) + i for client in clients}
        assert len(store.known()) == len(model)
    (a, b), memory = store.peek(torch.arange(9))
    added = torch.tensor([float(model.get(client, 0)) for client in range(9)])
    assert torch.equal(a, (0.5 + added)[:, None].expand(9, 3))
    assert torch.equal(b, 1 + added[:, None])
    assert torch.equal(memory["D"], -added[:, None].expand(9, 2))


def test_only_clients_that_took_part_have_a_row() -> None:
    simulation = Simulation(
        mlp_task(clients=60), FedCOMGATE(tau=1), rounds=2, participation=0.1, device="cpu"
    )  # at most 12 of 60 can take part, so that no memory is set aside for all
    store = simulation.engine.store
    assert isinstance(store, PrefetchedStore)
    seen = set()
    for _ in range(2):
        seen |= set(simulation.sample().tolist())
        simulation.step()
    assert len(store.known()) == len(seen) <= 12
    moved = simulation.client_states().delta.any(-1).nonzero()[:, 0].tolist()
    assert set(moved) == seen
    for _ in range(10):  # more rounds than were planned for
        simulation.step()
    assert len(store.known()) > 12


@pytest.mark.parametrize(
    ("rounds", "dtype", "needed"),
    [(1, "model", 3 * ROW), (50, "model", 6 * ROW), (50, "bfloat16", 6 * ROW // 4)],
)
def test_a_disk_that_is_too_small_is_refused_before_round_0(
    rounds: int, dtype: Any, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    options = {"rounds": rounds, "participation": 0.5, "device": "cpu"}
    storage = Storage("disk", dtype, tmp_path)
    monkeypatch.setattr(placement.shutil, "disk_usage", lambda folder: usage(0, 0, needed - 1))
    with pytest.raises(
        ConfigError, match=re.escape(f"need {needed:,} bytes in {tmp_path}, where {needed - 1:,}")
    ):
        Simulation(mlp_task(), FedCOMGATE(), storage=storage, **options)  # type: ignore[arg-type]
    Simulation(mlp_task(), FedAvg(), storage=storage, **options)  # type: ignore[arg-type]  # which keeps nothing
    monkeypatch.setattr(placement.shutil, "disk_usage", lambda folder: usage(0, 0, needed))
    Simulation(mlp_task(), FedCOMGATE(), storage=storage, **options)  # type: ignore[arg-type]


def test_if_memory_is_too_small_the_disk_is_used_or_an_error_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "free_bytes", lambda device: 6 * ROW - 1)
    with pytest.raises(ConfigError, match=r"3,168 bytes, and 3,167 are free in memory; use run.store=disk"):
        Simulation(mlp_task(), FedCOMGATE(), storage=Storage("memory"), device="cpu")
    store = Simulation(mlp_task(), FedCOMGATE(), device="cpu").engine.store
    assert isinstance(store, SparseStore)
    assert store._stored[0]._folder is not None


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.store_folder .*absent is not a folder"):
        Simulation(
            mlp_task(), FedCOMGATE(), storage=Storage("disk", folder=tmp_path / "absent"), device="cpu"
        )


def test_a_disk_that_fills_up_raises_an_error_and_does_not_kill_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    simulation = Simulation(
        mlp_task(), FedCOMGATE(tau=1), storage=Storage("disk", folder=tmp_path), device="cpu"
    )
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StorageError, match="the disk is full; free some space or choose another place"):
        simulation.step()


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_on_a_gpu_a_prefetched_store_gives_the_bits_of_rows_for_all(
    engine: Any, participation: float
) -> None:
    runs = []
    for home in ("auto", "disk"):
        options: Any = {"participation": participation, "engine": engine, "storage": Storage(home)}
        runs.append(Simulation(mlp_task(), FedCOMGATE(tau=2), rounds=8, device="cuda", **options))
        for _ in range(8):
            runs[-1].step()
    assert [type(run.engine.store) for run in runs] == [ClientStore, PrefetchedStore]
    assert same(*runs)


def open_files(folder: Path) -> int:
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(os.readlink(link).startswith(str(folder)) for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's list of open files")
@pytest.mark.parametrize("eta", [0.05, 1e308])
def test_nothing_is_left_behind_however_a_run_ends(eta: float, tmp_path: Path) -> None:
    storage = Storage("disk", folder=tmp_path)
    simulation = Simulation(mlp_task(), FedCOMGATE(eta=eta, tau=3), rounds=6, storage=storage, device="cpu")
    try:
        list(simulation.run())
        assert eta < 1
    except Diverged:
        assert eta > 1
    assert list(tmp_path.iterdir()) == []  # the file has no name, even while it exists
    del simulation
    gc.collect()
    assert open_files(tmp_path) == 0


def test_rows_are_read_back_whatever_was_planned(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        rows = Rows(torch.zeros(1000), torch.float32, 2, folder)
        values = torch.arange(5000.0).view(5, 1000)
        rows.reserve(5)
        for i in (4, 0, 3, 1, 2):
            rows.write(i, values[i])
        out = torch.empty(5, 1000)
        for i in range(5):
            rows.read(i, out[i])
        assert torch.equal(out, values)


def test_parked_work_comes_back_as_it_was(tmp_path: Path) -> None:
    before = State(torch.randn(3, 4), torch.randn(3, 1))
    memory, meant, sent = ({"D": torch.randn(3, 4)} for _ in range(3))
    work = Work(before, memory, meant, sent, torch.randn(3))
    back = HostParking(5, tmp_path)(slice(2, 5), work)()
    assert all(torch.equal(a, b) for a, b in zip(back.state, before, strict=True))
    for mine, other in ((back.memory, memory), (back.meant, meant), (back.sent, sent)):
        assert torch.equal(mine["D"], other["D"])
    assert torch.equal(back.q, work.q)


def test_results_come_in_order_and_do_not_pile_up() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item**2

    results = map_on_threads(work, range(50), 2)
    assert next(results) == 0
    assert len(begun) <= 5
    assert list(results) == [i**2 for i in range(1, 50)]
