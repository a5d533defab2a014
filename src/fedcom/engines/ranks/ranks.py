"""The processes of one job, and how they talk: parcels of named tensors and facts, over torch.distributed."""

import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fedcom.errors import ConfigError, RankLost
from fedcom.vectors import Vectors

# Who started the processes: the variables of a process's rank, of how many there are, and of its number on
# its machine.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # mpirun (Open MPI)
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # mpirun (MPICH)
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun, not the script around it
)
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID")  # what names a job
c10d: Any = dist  # whose stubs do not name its stores
TIMEOUT = 1800.0  # seconds without a word from another rank
_NO_MEMORY = r"out of memory|failed to cuda (host )?[cm]?alloc"  # in nccl's own words
_FOREVER = timedelta(days=365)  # a rank that ends is noticed at once all the same


class Parcel(NamedTuple):
    """What one rank sends to another."""

    facts: dict[str, Any]  # what JSON can hold
    tensors: Vectors


@dataclass(frozen=True)
class Ranks:
    """This process among those of its job.

    Args:
        rank: its number; 0 leads.
        size: how many there are.
        local: its number on its machine.
    """

    rank: int
    size: int
    local: int = 0

    def block(self, clients: int) -> range:
        """The clients that this rank computes."""
        return range(self.rank * clients // self.size, (self.rank + 1) * clients // self.size)

    def send(self, to: int, facts: Mapping[str, Any], tensors: Vectors | None = None) -> None:
        """Send a parcel to one rank."""
        data = _packed(facts, tensors or {})
        with _lost_ranks_named():
            dist.send(torch.tensor([len(data)]), to)
            dist.send(data, to)

    def receive(self, sender: int) -> Parcel:
        """Wait for a parcel from one rank."""
        with _lost_ranks_named():
            dist.recv(size := torch.empty(1, dtype=torch.int64), sender)
            dist.recv(data := torch.empty(int(size), dtype=torch.uint8), sender)
        return _unpacked(data)

    def tell(self, facts: Mapping[str, Any], tensors: Vectors | None = None) -> None:
        """Send a parcel to all other ranks, which wait for it in `hear`."""
        data = _packed(facts, tensors or {})
        with _lost_ranks_named():
            dist.broadcast(torch.tensor([len(data)]), self.rank)
            dist.broadcast(data, self.rank)

    def hear(self, teller: int = 0) -> Parcel:
        """Wait for a parcel that a rank sends to all others."""
        with _lost_ranks_named():
            dist.broadcast(size := torch.empty(1, dtype=torch.int64), teller)
            dist.broadcast(data := torch.empty(int(size), dtype=torch.uint8), teller)
        return _unpacked(data)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over ranks of a tensor that each rank has; it may be written over.

        GPUs add by nccl where each rank has one of its own, else by way of the host.
        """
        with _lost_ranks_named():
            group = _gpu_group(self) if x.is_cuda else None
            total = x if group else on_host(x)
            dist.all_reduce(total, group=group)
            return total

    def meet(self) -> None:
        """Wait until all ranks have come here, however long they work by themselves."""
        others = range(1, self.size) if self.rank == 0 else range(1)
        turns: list[Any] = [dist.irecv, dist.isend]
        with _lost_ranks_named():
            for turn in turns if self.rank == 0 else reversed(turns):
                for other in others:
                    turn(torch.zeros(1), other).wait(_FOREVER)

    def agree(self, word: str) -> list[str]:
        """What every rank says, in the order of ranks; all ranks say something."""
        if self.rank:
            self.send(0, {"word": word})
            found: list[str] = self.hear().facts["words"]
            return found
        words = [word, *(self.receive(rank).facts["word"] for rank in range(1, self.size))]
        self.tell({"words": words})
        return words

    def own_gpu(self) -> torch.device:
        """The GPU of this rank: the one that has its number on its machine, or one that it shares."""
        return torch.device("cuda", self.local % torch.cuda.device_count())


ALONE = Ranks(0, 1)
_here = ALONE
_needed = False  # whether all ranks are doing something, or were when an error came
_apart = False  # whether each rank works by itself
_shares = 0  # how often ranks have worked by themselves
_kept: Any = None  # where torchrun keeps what outlives its processes
_meeting: Any = None  # where ranks found one another's addresses; they also count there


def here() -> Ranks:
    """This process among those that play a run together; alone unless `join` found others."""
    return ALONE if _apart else _here


def job() -> Ranks:
    """This process among those of its job, also while each works by itself."""
    return _here


@contextmanager
def apart() -> Iterator[None]:
    """Let each rank work by itself on what it claims; at the end all wait for one another."""
    global _apart, _shares
    _shares += 1
    with needing_all_ranks():
        _apart = True
        try:
            yield
        finally:
            _apart = False
        _here.meet()


def claim(name: str) -> bool:
    """Whether this rank is the first to claim something that ranks share out."""
    with _lost_ranks_named():
        return bool(_meeting.add(f"share-{_shares}-{name}", 1) == 1)


def join(environment: Mapping[str, str] | None = None) -> Ranks:
    """Meet the other processes that torchrun, mpirun or srun has started, if any."""
    global _here, _meeting
    found, env = find(environment), os.environ if environment is None else environment
    if found.size > 1 and _here is ALONE:
        seconds = _patience(env)
        with _lost_ranks_named():
            _meeting = _store(env, found, seconds)
            dist.init_process_group(
                "gloo", store=_meeting, rank=found.rank, world_size=found.size, timeout=seconds
            )
        _here = found
    return _here


def leave() -> None:
    """Part from the other processes; rank 0 tells them that all is done.

    In the middle of something that all do together it does not: the others notice that this process ends.
    """
    global _here
    if _here is ALONE or _needed:
        return
    with suppress(RankLost):
        if _here.rank == 0:
            _here.tell({"do": "end"})
    _gpu_group.cache_clear()
    dist.destroy_process_group()
    _here = ALONE


@contextmanager
def needing_all_ranks() -> Iterator[None]:
    """Do something that needs all ranks."""
    global _needed
    _needed = True
    yield
    _needed = False  # not if an error ended it


@cache
def _gpu_group(ranks: Ranks) -> Any:
    """The ranks as nccl knows them; None if two of them share a GPU, which nccl refuses."""
    mine = torch.cuda.get_device_properties(torch.cuda.current_device())
    gpus = ranks.agree(f"{socket.gethostname()} {getattr(mine, 'uuid', ranks.own_gpu())}")
    shared = len(set(gpus)) < ranks.size
    return None if shared else dist.new_group(backend="nccl", timeout=_patience(os.environ))


def find(environment: Mapping[str, str] | None = None) -> Ranks:
    """What the environment says of this process and the others of its job."""
    env = os.environ if environment is None else environment
    for rank, size, local in LAUNCHERS:
        if rank in env and size in env:
            return Ranks(*(int(_number(env, name)) for name in (rank, size, local)))
    return ALONE


def _number(env: Mapping[str, str], name: str, default: float = 0) -> float:
    """A number that the environment gives."""
    try:
        return float(env.get(name, default))
    except ValueError:
        raise ConfigError(f"{name}={env[name]!r} in the environment is not a number; unset it") from None


def restarted() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def remember(name: str, word: str) -> None:
    """Keep a word for the processes that torchrun starts if these fail; elsewhere nothing is kept."""
    if _kept is not None:
        with _lost_ranks_named():
            _kept.set(name, word)


def recall(name: str) -> str | None:
    """The word that processes kept which failed before; None if there is none."""
    with _lost_ranks_named():
        known = restarted() and _kept is not None and _kept.check([name])
        return _kept.get(name).decode() if known else None


def _patience(env: Mapping[str, str]) -> timedelta:
    """How long to wait for a word from another rank."""
    return timedelta(seconds=_number(env, "FEDCOM_TIMEOUT", TIMEOUT))


def _store(env: Mapping[str, str], ranks: Ranks, seconds: timedelta) -> Any:
    """Where the ranks find one another's addresses: a server that is named, or a file on this machine."""
    global _kept
    attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    address, port = meeting_place(env)
    if address is not None:
        torchrun_serves = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        server = _server(address, port, ranks, ranks.rank == 0 and not torchrun_serves, seconds)
        _kept = c10d.PrefixStore("fedcom", server) if torchrun_serves else None
        return c10d.PrefixStore(f"fedcom-{attempt}", server)
    job = next((env[name] for name in _JOBS if name in env), None)
    if job is None:
        raise ConfigError(
            "RANK and WORLD_SIZE speak of several processes, but MASTER_ADDR does not say where they meet; "
            "start them with torchrun, or unset RANK"
        )
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{job}-{env.get('SLURM_STEP_ID', '')}")
    return c10d.FileStore(str(Path(tempfile.gettempdir()) / f"fedcom-{os.getuid()}-{name}"), ranks.size)


def _server(address: str, port: int, ranks: Ranks, serves: bool, seconds: timedelta) -> Any:
    """The server where ranks meet, on rank 0 unless torchrun has one.

    torch waits for ever for one that takes a connection and says nothing, so a thread waits for it.
    """
    found: Future[Any] = Future()

    def connect() -> None:
        try:
            found.set_result(c10d.TCPStore(address, port, ranks.size, serves, seconds))
        except RuntimeError as error:
            found.set_exception(error)

    Thread(target=connect, daemon=True).start()
    try:
        return found.result(seconds.total_seconds() + 1)  # torch's own words come first, if it has any
    except TimeoutError:
        raise RankLost(
            f"{address}:{port} takes connections but is not where the processes of this run meet: another "
            "program may listen there; choose another MASTER_PORT"
        ) from None
    except RuntimeError as error:
        if serves and "EADDRINUSE" in str(error):
            raise ConfigError(f"another program listens on port {port}; choose another MASTER_PORT") from None
        raise


def meeting_place(env: Mapping[str, str]) -> tuple[str | None, int]:
    """The address that is given, or else the first machine of a Slurm step, and a port."""
    port = int(_number(env, "MASTER_PORT", 20000 + _number(env, "SLURM_JOB_ID", 9500) % 20000))
    if "MASTER_ADDR" in env:
        return env["MASTER_ADDR"], port
    first = re.match(r"([^,\[]+)(?:\[(\d+))?", env.get("SLURM_STEP_NODELIST", ""))
    return (first[1] + (first[2] or ""), port) if first else (None, port)


def on_host(x: Tensor) -> Tensor:
    """A tensor on the host: itself, or a copy of one on a GPU in memory that the GPU writes to directly."""
    return torch.empty_like(x, device="cpu", pin_memory=True).copy_(x) if x.is_cuda else x


@contextmanager
def _lost_ranks_named() -> Iterator[None]:
    """Say plainly that another process is gone or silent; too little memory is told as such."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if re.search(_NO_MEMORY, str(error), re.IGNORECASE):
            raise torch.OutOfMemoryError(str(error)) from error
        lines = re.sub(
            r"^\[[^\]]*\] *", "", str(error).strip()
        ).splitlines()  # without the place in gloo's code
        first = lines[0] if lines else type(error).__name__
        raise RankLost(
            f"another process of this run ended or did not answer in time ({first[:200]})"
        ) from error


def _packed(facts: Mapping[str, Any], tensors: Vectors) -> Tensor:
    from safetensors.torch import save

    plain = {name: x.detach().contiguous() for name, x in tensors.items()}
    data = save(plain, {"facts": json.dumps(facts), "names": json.dumps(list(plain))})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Parcel:
    from safetensors.torch import load

    raw = data.numpy().tobytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    found = load(raw)
    return Parcel(json.loads(header["facts"]), {name: found[name] for name in json.loads(header["names"])})
