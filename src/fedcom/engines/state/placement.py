"""What fits in a device's memory: how many stacked clients at once, and where their state is kept."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedcom.algorithms import Algorithm
from fedcom.engines.state.parking import HostParking, Parking, leave_in_place
from fedcom.engines.state.stores import ClientStore, PrefetchedStore, SparseStore, Storage
from fedcom.errors import ConfigError
from fedcom.rounds.rules import Rules
from fedcom.tasks.dropout import Masks
from fedcom.tasks.oracle import full_block
from fedcom.tasks.suitable import arguments, sharing
from fedcom.tasks.task import Task

_COPIES = 10  # flat vectors alive at once per client: model, gradient, state, message and intermediate ones
_SHARE = 0.4  # of the free memory; the rest is for data, stored state and torch itself
_STATE_SHARE = 0.3  # of the free memory, for the state of clients between rounds
_HOST = torch.device("cpu")


class ClientCounts(NamedTuple):
    """How many clients there are, and how many take part."""

    clients: int
    sampled: int  # in a round
    ever_sampled: int  # in any round, at most

    @classmethod
    def of(cls, clients: int, sampled: int, rounds: int | None) -> "ClientCounts":
        """The numbers for a run of some rounds; None: it is not known how many."""
        return cls(clients, sampled, clients if rounds is None else min(clients, max(1, rounds) * sampled))


class Plan(NamedTuple):
    """Where clients' state is kept, and where a round's work waits."""

    sparse: type[SparseStore] | None = None  # rows for clients that take part; None: for all, on the device
    folder: Path | None = None  # of the rows' file; None: in memory
    parked: bool = False  # whether work is moved to the host while it waits
    parked_in: Path | None = None  # folder of that work's file; None: in memory


def clients_that_fit(task: Task, algorithm: Algorithm, w: Tensor) -> int:
    """How many clients can be computed at once in a share of the free memory; at least one.

    Args:
        w: the model, on the device that computes.
    """
    copies = _COPIES + len(algorithm.local.init(w[:1]))
    per_client = w.element_size() * (copies * w.numel() + 3 * numbers_per_step(task, algorithm))
    return max(1, int(_SHARE * free_bytes(w.device) / per_client))


def numbers_per_step(task: Task, algorithm: Algorithm) -> int:
    """How many numbers one client's samples are, and the module computes from them, in a forward pass.

    Of its samples those that are computed at once.
    """
    batch = full_block(task) if algorithm.batch == "full" else algorithm.batch
    batch = min(batch, task.objective.microbatch or batch)
    return batch * (task.x[0].numel() + _activations(task))


def plan_store(counts: ClientCounts, rules: Rules, w: Tensor, storage: Storage) -> Plan:
    """Where there is room for clients' state: on the device, else the host, else the disk.

    Raises a ConfigError if there is room nowhere.
    """
    state, memory = rules.init_client(w)
    row = [*state, *memory.values()]
    nbytes = sum(storage.row_dtype(x).itemsize * x.numel() for x in row)
    vectors = len(rules.algorithm.uploads) * (2 if rules.algorithm.uses_meant else 1)
    work = sum(x.nbytes for x in row) + vectors * w.nbytes
    # On a CPU rows for all clients are set aside only if all of them may take part.
    for_all = w.is_cuda or counts.ever_sampled == counts.clients
    fits = for_all and nbytes * counts.clients <= _STATE_SHARE * free_bytes(w.device)
    roomy = counts.sampled * (nbytes + work) <= _STATE_SHARE * min(map(free_bytes, (w.device, _HOST)))
    if not row:
        return Plan()
    on_device = fits and storage.home != "disk"
    sparse = None if on_device else PrefetchedStore if roomy else SparseStore
    folder = None if on_device else _folder(storage, nbytes * counts.ever_sampled)
    return Plan(sparse, folder, not roomy, None if roomy else _folder(storage, counts.sampled * work))


def make_store(
    counts: ClientCounts, rules: Rules, w: Tensor, storage: Storage
) -> tuple[ClientStore, Parking]:
    """The store for clients' state and the parking for a round's work, as `plan_store` decides."""
    plan, arguments = plan_store(counts, rules, w, storage), (*counts[:2], *rules.init_client(w), storage)
    store = (
        ClientStore(*arguments)
        if plan.sparse is None
        else plan.sparse(*arguments, planned=counts.ever_sampled, folder=plan.folder)
    )
    return store, HostParking(counts.sampled, plan.parked_in) if plan.parked else leave_in_place


def _folder(storage: Storage, needed: int) -> Path | None:
    """The folder of a file for the bytes needed; None: they stay in memory."""
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
    if needed > (room := shutil.disk_usage(folder).free):
        raise ConfigError(
            f"clients' state may need {needed:,} bytes in {folder}, where {room:,} are free; choose another "
            "run.store_folder, fewer rounds or clients per round, or run.store_dtype=bfloat16"
        )
    return folder


def free_bytes(device: torch.device) -> int:
    """How much memory a device has free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:  # MemAvailable also counts what caches hold and can give back
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _activations(task: Task) -> int:
    """How many numbers the module computes from one sample in a forward pass; of 16 bits, half as many."""
    counts: list[int] = []

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.nbytes // task.objective.layout.itemsize)
        if isinstance(output, Tensor) and isinstance(module, nn.Conv2d):  # the table of patches, if compiled
            counts.append(output.numel() // module.out_channels * module.weight[0].numel())

    whole = sharing(task.objective.computed).cpu()  # a GPU would load kernels for this alone
    for module in whole.modules():
        module.register_forward_hook(count)
    with torch.no_grad(), Masks(None):
        args, named = arguments(whole, task.x[:1].cpu(), task.x.dtype, task.objective.several)
        whole(*args, **named)
    return sum(counts)
