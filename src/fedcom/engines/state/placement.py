"""What fits in a device's memory: how many stacked clients at once, and where their state is kept."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedcom.algorithms import Algorithm
from fedcom.engines.state.parking import Park, Parking, stay
from fedcom.engines.state.rows import full
from fedcom.engines.state.stores import ClientStore, PrefetchedStore, SparseStore, Storage
from fedcom.errors import ConfigError
from fedcom.rounds.rules import Rules
from fedcom.tasks.task import Task

_COPIES = 10  # flat vectors alive at once a client: model, gradient, state, message and what makes them
_SHARE = 0.4  # of the free memory; the rest is for data, stored state and torch itself
_STATE_SHARE = 0.3  # of the free memory, for the state of clients between rounds
_HOST = torch.device("cpu")


class Crowd(NamedTuple):
    """Who takes part: all clients, those of a round, and those of all rounds, at most."""

    clients: int
    sampled: int
    ever: int

    @classmethod
    def of(cls, clients: int, sampled: int, rounds: int | None) -> "Crowd":
        """So many clients, of whom some are sampled in each of some rounds; None: nobody knows how many."""
        return cls(clients, sampled, clients if rounds is None else min(clients, max(1, rounds) * sampled))


class Plan(NamedTuple):
    """Where clients' state goes, and where a round's work waits."""

    sparse: type[SparseStore] | None = None  # rows for those who take part; None: rows for all, on the device
    folder: Path | None = None  # of the rows' file; None: in memory
    parked: bool = False  # whether work has to make room while it waits
    parked_in: Path | None = None


def clients_that_fit(task: Task, algorithm: Algorithm, w: Tensor) -> int:
    """As many clients as a share of the free memory holds, at least one."""
    batch = task.longest if algorithm.batch == "full" else algorithm.batch
    a_sample = task.x[0].numel() + _activations(task, w)
    a_client = w.element_size() * (_COPIES * w.numel() + 3 * batch * a_sample)
    return max(1, int(_SHARE * free_bytes(w.device) / a_client))


def plan_store(crowd: Crowd, rules: Rules, w: Tensor, storage: Storage) -> Plan:
    """Where there is room: on the device, else the host, else on disk. Refuses what fits nowhere."""
    state, nu = rules.first_row(w)
    row = [*state, *nu.values()]
    nbytes = sum(storage.kept(x).itemsize * x.numel() for x in row)
    vectors = len(rules.algorithm.uploads) * (2 if rules.algorithm.uses_meant else 1)
    work = sum(x.nbytes for x in row) + vectors * w.nbytes
    all_come = w.is_cuda or crowd.ever == crowd.clients  # else rows may wait for their clients
    fits = all_come and nbytes * crowd.clients <= _STATE_SHARE * free_bytes(w.device)
    roomy = crowd.sampled * (nbytes + work) <= _STATE_SHARE * min(map(free_bytes, (w.device, _HOST)))
    if not row:
        return Plan()
    stays = fits and storage.home != "disk"
    sparse = None if stays else PrefetchedStore if roomy else SparseStore
    folder = None if stays else _folder(storage, nbytes * crowd.ever)
    return Plan(sparse, folder, not roomy, None if roomy else _folder(storage, crowd.sampled * work))


def make_store(crowd: Crowd, rules: Rules, w: Tensor, storage: Storage) -> tuple[ClientStore, Parking]:
    """Room for clients' state, and for a round's work, as planned."""
    plan, kept = plan_store(crowd, rules, w, storage), (*crowd[:2], *rules.first_row(w), storage)
    store = (
        ClientStore(*kept)
        if plan.sparse is None
        else plan.sparse(*kept, planned=crowd.ever, folder=plan.folder)
    )
    return store, Park(crowd.sampled, plan.parked_in) if plan.parked else stay


def _folder(storage: Storage, needed: int) -> Path | None:
    """The folder of the rows' file; None where they stay in memory."""
    free = free_bytes(_HOST)
    if storage.home == "memory" and needed > free:
        raise ConfigError(
            f"clients' state may need {needed:,} bytes, and {free:,} are free in memory; use run.store=disk"
        )
    if storage.home == "memory" or (storage.home == "auto" and needed <= _STATE_SHARE * free):
        return None
    folder = Path(storage.folder or tempfile.gettempdir())
    if not folder.is_dir():
        raise ConfigError(f"run.store_folder {folder} is not a folder; make it, or choose another")
    if needed > shutil.disk_usage(folder).free:
        raise full(folder, needed)
    return folder


def free_bytes(device: torch.device) -> int:
    """What a device has left."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:  # what caches hold is free as well, though the system does not count it so
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _activations(task: Task, w: Tensor) -> int:
    """Numbers the module makes of one sample on its way."""
    counts: list[int] = []

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())
        if isinstance(output, Tensor) and isinstance(module, nn.Conv2d):  # compiled, a table of patches
            counts.append(output.numel() // module.out_channels * module.weight[0].numel())

    hooks = [module.register_forward_hook(count) for module in task.objective.module.modules()]
    with torch.no_grad():
        task.objective.outputs(w, task.x[:1])
    for hook in hooks:
        hook.remove()
    return sum(counts)
