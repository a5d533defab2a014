"""Clients' state between rounds, one row per client: on the model's device, on the host or on disk."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor

from fedcom import settings
from fedcom.engines.state.rows import Rows
from fedcom.vectors import Vectors, overwrite

State = tuple[Tensor, ...]  # what an algorithm keeps: a named tuple of tensors
Sampler = Callable[[int], Tensor]  # from a round's index to the clients that take part in it


@dataclass(frozen=True)
class Storage:
    """Where clients' state is to be kept.

    Args:
        home: "memory"; "disk", a file that disappears with the process; "auto": where there is room.
        dtype: "model": that of the model; "bfloat16": rows are rounded to it at the end of each round.
        folder: of the file; None: the system's folder for temporary files.
    """

    home: Literal["auto", "memory", "disk"] = "auto"
    dtype: Literal["model", "bfloat16"] = "model"
    folder: str | Path | None = None

    def __post_init__(self) -> None:
        settings.check(self)

    def row_dtype(self, row: Tensor) -> torch.dtype:
        """The dtype in which a row is kept."""
        return torch.bfloat16 if self.dtype == "bfloat16" and row.is_floating_point() else row.dtype


class ClientStore:
    """A row for every client, on the model's device.

    An engine calls `open` before a round, `take` and `put` for each group of its rows, and `commit` after it.

    Args:
        sampled: how many clients take part in a round.
        state: of one client, before it first takes part.
        memory: of one client, before it first takes part.
        storage: how rows are kept.

    Attributes:
        everyone: whether all clients take part in every round.
    """

    def __init__(
        self, clients: int, sampled: int, state: State, memory: Vectors, storage: Storage | None = None
    ) -> None:
        self._shape(clients, sampled, state, memory, storage or Storage())
        self._rows = [_rows(clients, row, dtype) for row, dtype in self._fields]

    def _shape(self, clients: int, sampled: int, state: State, memory: Vectors, storage: Storage) -> None:
        self.clients, self.sampled, self.everyone = clients, sampled, sampled == clients
        self._kind, self._names = type(state), tuple(memory)
        self._fields = [(row, storage.row_dtype(row)) for row in (*state, *memory.values())]

    @property
    def width(self) -> int:
        """Bytes of a client's row."""
        return sum(row.numel() * dtype.itemsize for row, dtype in self._fields)

    def known(self) -> Tensor:
        """The numbers of the clients that have a row, on the host."""
        return torch.arange(0 if self.empty else self.clients)

    def rows(self, clients: Tensor) -> list[Tensor]:
        """Copies of what is kept of some clients, one tensor per field, on the host, between rounds."""
        return [field[clients.to(field.device)].cpu() for field in self._rows]

    def fill(self, clients: Tensor, fields: Sequence[Tensor]) -> None:
        """Set what is kept of some clients, before the first round, to what `rows` gave."""
        for field, value in zip(self._rows, fields, strict=True):
            field[clients.to(field.device)] = value.to(field.device)

    @property
    def empty(self) -> bool:
        """Whether clients keep nothing."""
        return not self._fields

    def open(self, round_index: int, sampler: Sampler) -> None:
        """Prepare for a round."""

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients, stacked.

        Args:
            rows: where they are among the sampled clients.
            clients: where they are among all clients.
        """
        where = rows if self.everyone else clients
        return self.as_state([field[where] for field in self._rows])

    def put(self, rows: slice, clients: Tensor, state: State, memory: Vectors) -> None:
        """Write the state and memory of some clients back; `take` explains rows and clients."""
        new = self._flat(state, memory)
        if self.everyone:  # `take` gave views
            overwrite([field[rows] for field in self._rows], new)
            return
        for field, value in zip(self._rows, new, strict=True):
            field[clients] = value.to(field.dtype)

    def commit(self) -> None:
        """Make a round final."""

    def peek(self, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of any clients, stacked, between rounds."""
        return self.as_state([field[clients.to(field.device)] for field in self._rows])

    def as_state(self, fields: Sequence[Tensor]) -> tuple[Any, Vectors]:
        """Stacked fields as the algorithm's state and the memory."""
        back = [x.to(row.device, row.dtype) for x, (row, _) in zip(fields, self._fields, strict=True)]
        state = len(back) - len(self._names)
        return self._kind(*back[:state]), dict(zip(self._names, back[state:], strict=True))

    def _flat(self, state: State, memory: Vectors) -> list[Tensor]:
        return [*state, *(memory[name] for name in self._names)]


class SparseStore(ClientStore):
    """Rows on the host, only for clients that have taken part, in the order in which they first did.

    Args:
        planned: how many will take part, at most.
        folder: of the rows' file; None: in memory.
    """

    def __init__(
        self,
        clients: int,
        sampled: int,
        state: State,
        memory: Vectors,
        storage: Storage | None = None,
        planned: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._shape(clients, sampled, state, memory, storage or Storage())
        self._stored = [Rows(row, dtype, planned, folder) for row, dtype in self._fields]
        self._slots: dict[int, int] = {}
        self._sample: list[int] = []
        self._round, self._lock = -1, Lock()

    def known(self) -> Tensor:
        return torch.tensor([] if self.empty else list(self._slots), dtype=torch.int64)

    def rows(self, clients: Tensor) -> list[Tensor]:
        return self._gather(clients.tolist())

    def fill(self, clients: Tensor, fields: Sequence[Tensor]) -> None:
        self._write(fields, self._enter(clients.tolist()))

    def open(self, round_index: int, sampler: Sampler) -> None:
        if round_index != self._round:
            self._sample, self._round = sampler(round_index).tolist(), round_index

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        return self.as_state(self._gather(self._sample[rows]))

    def put(self, rows: slice, clients: Tensor, state: State, memory: Vectors) -> None:
        self._write(self._flat(state, memory), self._enter(self._sample[rows]))

    def peek(self, clients: Tensor) -> tuple[Any, Vectors]:
        return self.as_state(self._gather(clients.tolist()))

    def _enter(self, clients: Sequence[int]) -> list[int]:
        """The slots of some clients; a client that has none yet is given the next one."""
        with self._lock:
            slots = [self._slots.setdefault(client, len(self._slots)) for client in clients]
            for stored in self._stored:
                stored.reserve(len(self._slots))
        return slots

    def _gather(self, clients: Sequence[int]) -> list[Tensor]:
        fields = self._windows(len(clients))
        self._read(fields, [(i, self._slots.get(client)) for i, client in enumerate(clients)])
        return fields

    def _windows(self, rows: int, pinned: bool = False) -> list[Tensor]:
        return [torch.empty((rows, *x.shape), dtype=dtype, pin_memory=pinned) for x, dtype in self._fields]

    def _read(self, fields: Sequence[Tensor], slots: Sequence[tuple[int, int | None]]) -> None:
        """Fill rows of the fields from slots; a row without a slot gets the initial state."""
        for field, stored, (initial, _) in zip(fields, self._stored, self._fields, strict=True):
            for i, slot in slots:
                if slot is None:
                    field[i].copy_(initial)
                else:
                    stored.read(slot, field[i])

    def _write(self, fields: Sequence[Tensor], slots: Sequence[int]) -> None:
        for field, stored in zip(fields, self._stored, strict=True):
            for i, slot in enumerate(slots):
                stored.write(slot, field[i])


class PrefetchedStore(SparseStore):
    """A sparse store with the rows of a round in a window of memory.

    A thread writes the last round's window back and reads the next round's while the present one computes.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_gpu = any(row.is_cuda for row, _ in self._fields)
        self._now, self._next = (self._windows(self.sampled, self._on_gpu) for _ in range(2))
        self._on_device = [x.to(row.device) for x, (row, _) in zip(self._now, self._fields, strict=True)]
        self._present, self._coming = dict[int, int](), list[int]()
        self._thread = ThreadPoolExecutor(1, "fedcom-rows", lambda: torch.set_num_threads(1))
        self._reading = self._writing = self._thread.submit(lambda: None)

    def open(self, round_index: int, sampler: Sampler) -> None:
        if round_index == self._round:
            return
        clients = sampler(round_index).tolist()
        if clients != self._coming:
            self._fetch(clients)
        self._reading.result()
        for i, client in enumerate(clients):
            if client in self._present:  # rows that the last round used, which the thread did not read
                for new, old in zip(self._next, self._now, strict=True):
                    new[i] = old[self._present[client]]
        self._now, self._next, self._round = self._next, self._now, round_index
        self._present = {client: i for i, client in enumerate(clients)}
        self._move(self._on_device, self._now)
        self._fetch(sampler(round_index + 1).tolist())

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        return self.as_state([field[rows] for field in self._on_device])

    def put(self, rows: slice, clients: Tensor, state: State, memory: Vectors) -> None:
        overwrite([field[rows] for field in self._on_device], self._flat(state, memory))

    def commit(self) -> None:
        self._writing.result()  # the round before last's, long done: raises its error, if any
        self._move(self._now, self._on_device)
        self._writing = self._thread.submit(self._write, self._now, self._enter(list(self._present)))

    def _gather(self, clients: Sequence[int]) -> list[Tensor]:
        self._writing.result()
        return super()._gather(clients)

    def _fetch(self, clients: list[int]) -> None:
        """Let the thread read the rows of a round, except those that the present round uses."""
        self._coming = clients
        slots = [(i, self._slots.get(c)) for i, c in enumerate(clients) if c not in self._present]
        self._reading = self._thread.submit(self._read, self._next, slots)

    def _move(self, there: list[Tensor], here: list[Tensor]) -> None:
        """Copy the window to the GPU or back; on a CPU there is nothing to copy."""
        if not self._on_gpu:
            self._on_device = self._now
            return
        for new, old in zip(there, here, strict=True):
            new.copy_(old)


def _rows(clients: int, row: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of the initial row for each client."""
    return torch.empty((clients, *row.shape), dtype=dtype, device=row.device).copy_(row)
