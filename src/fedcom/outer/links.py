"""How workers exchange messages: each sends its own to every other, as bytes of their exact number.

Before a message goes its length, in 8 bytes; after all of them a byte for each: whether it could be read.
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Timer
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fedcom.errors import ConfigError, RankLost

c10d: Any = dist  # whose stubs do not name its stores
QUIET = 60  # seconds to wait for a worker without a word


def start(backend: str = "gloo", timeout: float = 1800.0) -> None:
    """Set torch.distributed up as torchrun says, also after torchrun has started the processes again.

    torch.distributed.init_process_group by itself then finds the addresses of the processes that ended.
    Without torchrun a process is alone, and nothing is set up.

    Args:
        backend: of the groups that the training itself uses.
        timeout: seconds to wait for another process.
    """
    env, wait = os.environ, timedelta(seconds=timeout)
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in env]
    if len(missing) == 4:
        return
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not set; start the processes with torchrun")
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    serves = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    server = c10d.TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), size, serves, wait)
    store = c10d.PrefixStore(f"fedcom-outer-{env.get('TORCHELASTIC_RESTART_COUNT', 0)}", server)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)


class Links:
    """The workers of a run, as one of their processes sees them.

    Alone, if torch.distributed is not set up. A site is one or more processes with the same parameters, or
    with shards of them. Its first process exchanges messages with those of other sites and hands them on;
    of shards, every process exchanges its own.

    Args:
        per_site: processes of a site, which have consecutive ranks.
        sharded: whether each of them holds shards.
        timeout: seconds that a message may take.
        ranks: of the processes of the run, this one's among them, where others have runs of their own; all
            processes tell theirs at once. None: all processes are of one run.

    Attributes:
        process: the number of this process among those of the run.
        number: of its site.
        leads: whether this process exchanges messages with other sites.
        sites: how many there are.
        sent: bytes this process has sent to other sites.
        received: bytes it has received from them.
    """

    def __init__(
        self, per_site: int, sharded: bool, timeout: float, ranks: Sequence[int] | None = None
    ) -> None:
        self.sent = self.received = 0
        self._ranks = ranks
        self._peers: dist.ProcessGroup | None = None
        self._site: dist.ProcessGroup | None = None  # where one process exchanges messages for all
        self._whole_site: dist.ProcessGroup | None = None
        alone = not (dist.is_available() and dist.is_initialized())
        everyone = [0] if alone else list(range(dist.get_world_size()))
        own = everyone if ranks is None else list(ranks)
        rank, size = 0 if alone else own.index(dist.get_rank()), len(own)
        if per_site < 1 or size % per_site:
            raise ConfigError(f"per_site must divide the {size} processes; got {per_site}")
        self.process = rank
        self.number, self.sites = rank // per_site, size // per_site
        self._inside = rank % per_site
        self.leads = sharded or self._inside == 0 or self.sites == 1
        if alone:
            return
        wait = timedelta(seconds=timeout)
        for run in [everyone] if ranks is None else _told_by_all(own, wait):
            for i in range(per_site if sharded else 1):  # groups are made by all processes together
                group = dist.new_group(run[i::per_site], timeout=wait, backend="gloo")
                self._peers = group if run == own and self.leads and self._inside == i else self._peers
            for first in range(0, len(run), per_site) if per_site > 1 else ():
                group = dist.new_group(run[first : first + per_site], timeout=wait, backend="gloo")
                here = run == own and self.number == first // per_site
                self._whole_site = group if here else self._whole_site
        self._site = None if sharded else self._whole_site

    def exchange(self, message: bytes) -> list[memoryview]:
        """The messages of all sites in order, this one's own among them."""
        if self.sites == 1:
            return [memoryview(message)]
        found = self._swapped(message, self._others, self._others) if self.leads else {}
        return self._inside_site([found[i] for i in sorted(found)], self.sites)

    def collect(self, message: bytes) -> list[memoryview]:
        """Send the message to the first site; there, the messages of all sites in order, else none."""
        if self.sites == 1 or not self.leads:
            return [memoryview(message)] if self.leads else []
        with self._by_leader():
            found = self._swapped(message, *(((), self._others) if self.number == 0 else ((0,), ())))
        return [found[i] for i in sorted(found)] if self.number == 0 else []

    def spread(self, message: bytes) -> memoryview:
        """The message of the first site, on all processes of all sites."""
        if self.sites == 1:
            return memoryview(message)
        first, found = self.number == 0, dict[int, memoryview]()
        if self.leads:
            with self._by_leader():
                found = self._swapped(message, *((self._others, ()) if first else ((), (0,))))
        return self._inside_site([found[0]] if self.leads else [], 1)[0]

    def agree(self, good: Sequence[bool]) -> list[bool]:
        """What all sites say yes to, of as many questions as there are sites."""
        if self.sites == 1:
            return list(good)
        own = torch.tensor(good, dtype=torch.uint8, device="cpu")
        if self.leads:
            boxes = {i: torch.empty_like(own) for i in self._others}
            self._swap(own, self._others, boxes)
            own = torch.stack([own, *boxes.values()]).amin(0)
        with _blaming("another process of this site"):
            return [bool(x) for x in self._told(own)]

    def least(self, word: int) -> int:
        """The least of the whole numbers that this site's processes give."""
        least = torch.tensor([word], device="cpu")
        if self._whole_site is not None:
            with _blaming("another process of this site"):
                dist.all_reduce(least, dist.ReduceOp.MIN, self._whole_site)
        return int(least)

    def gather(self, word: int) -> list[int]:
        """A whole number of every site: the least that one of its processes gives."""
        if self.sites == 1:
            return [word]
        least = torch.tensor([word], device="cpu")
        found = [torch.zeros_like(least) for _ in range(self.sites)]
        with _blaming("another worker"):
            if self._site is not None:
                dist.all_reduce(least, dist.ReduceOp.MIN, self._site)
            if self._peers is not None:
                dist.all_gather(found, least, self._peers)
            return self._told(torch.cat(found)).tolist()

    def hand(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrite tensors with those of another site, on all processes."""
        for x in tensors:
            there = x.cpu()
            with _blaming("another worker"):
                if self._peers is not None:
                    dist.broadcast(there, dist.get_global_rank(self._peers, source), self._peers)
                x.copy_(self._told(there))

    def _told(self, x: Tensor) -> Tensor:
        """What the first process of the site has, overwritten on its others."""
        if self._site is not None:
            dist.broadcast(x, dist.get_global_rank(self._site, 0), self._site)
        return x

    @property
    def _others(self) -> list[int]:
        return [i for i in range(self.sites) if i != self.number]

    @contextmanager
    def _by_leader(self) -> Iterator[None]:
        """Inside, a worker that loses the leader is told that this need not be the one to blame."""
        try:
            yield
        except RankLost as error:
            if self.number == 0:
                raise
            raise RankLost(f"{error}; it is the leader, and says if it has lost another worker") from error

    def _who(self, i: int) -> str:
        """What an error calls a site."""
        return f"worker {i}" if self._ranks is None else f"process {self._ranks[i]}"

    def _swapped(self, message: bytes, to: Sequence[int], heard: Sequence[int]) -> dict[int, memoryview]:
        """Send a message to some sites, and hear others'; by site, this one's own among them."""
        told = {i: torch.zeros(1, dtype=torch.int64, device="cpu") for i in heard}
        self._swap(torch.tensor([len(message)], device="cpu"), to, told)
        boxes = {i: torch.empty(int(n), dtype=torch.uint8, device="cpu") for i, n in told.items()}
        own = torch.frombuffer(bytearray(message or b"-"), dtype=torch.uint8)[: len(message)]
        self._swap(own, to, boxes)
        return {i: _bytes(box) for i, box in {**boxes, self.number: own}.items()}

    def _swap(self, own: Tensor, to: Sequence[int], boxes: Mapping[int, Tensor]) -> None:
        """Send a tensor to some sites, and overwrite boxes with what others send; bytes are counted."""
        peers, work = self._peers, list[tuple[int, Any]]()
        assert peers is not None
        for i, box in boxes.items():
            with _blaming(self._who(i)):
                work.append((i, dist.irecv(box, dist.get_global_rank(peers, i), peers)))
        for i in to:
            with _blaming(self._who(i)):
                work.append((i, dist.isend(own, dist.get_global_rank(peers, i), peers)))
        with _telling() as awaited:
            for i, each in work:
                awaited[0] = self._who(i)
                with _blaming(awaited[0]):
                    each.wait()
        self.sent += len(to) * own.nbytes
        self.received += sum(box.nbytes for box in boxes.values())

    def _inside_site(self, found: list[memoryview], count: int) -> list[memoryview]:
        """So many messages that the site's first process heard, on all its processes."""
        if self._site is None:
            return found
        with _blaming("another process of this site"):
            counts = [len(m) for m in found] if self.leads else [0] * count
            lengths = self._told(torch.tensor(counts, device="cpu"))
            whole = torch.empty(int(lengths.sum()), dtype=torch.uint8, device="cpu")
            if self.leads:
                whole = torch.frombuffer(bytearray(b"".join(found)), dtype=torch.uint8)
            return [_bytes(part) for part in torch.split(self._told(whole), lengths.tolist())]


def _told_by_all(own: list[int], wait: timedelta) -> list[list[int]]:
    """All runs, as ranks, when each process tells its own; on all processes in the same order."""
    group = dist.new_group(timeout=wait, backend="gloo")  # it stays: others may still need this process in it
    mask = torch.zeros(dist.get_world_size(), dtype=torch.uint8, device="cpu")
    mask[own] = 1
    masks = [torch.empty_like(mask) for _ in mask]
    with _blaming("another process"):
        dist.all_gather(masks, mask, group)
    told = [x.nonzero().flatten().tolist() for x in masks]
    for rank, run in enumerate(told):
        for other in run:
            if told[other] != run:
                raise ConfigError(
                    f"process {rank} is to exchange with {run}, process {other} with {told[other]}; give all "
                    "processes of a group this group"
                )
    return sorted(run for rank, run in enumerate(told) if rank == run[0])


@contextmanager
def _telling() -> Iterator[list[str]]:
    """Inside, a warning comes after a minute, with the worker whose name is in the list."""
    awaited = [""]

    def tell() -> None:
        warnings.warn(
            f"{awaited[0]} has not answered for {QUIET} seconds; has it ended without finish()?",
            stacklevel=2,
        )

    timer = Timer(QUIET, tell)
    timer.daemon = True
    timer.start()
    try:
        yield awaited
    finally:
        timer.cancel()


@contextmanager
def _blaming(who: str) -> Iterator[None]:
    """Inside, an error of torch.distributed says who did not answer."""
    try:
        yield
    except RuntimeError as error:
        said = re.sub(r"^\[[^\]]*\] *", "", str(error).strip()).splitlines()
        why = said[0][:200] if said else type(error).__name__
        raise RankLost(f"{who} ended or did not answer in time ({why})") from error


def _bytes(x: Tensor) -> memoryview:
    return memoryview(x.numpy().data)
