"""Where clients' state lives between rounds, a row each: on the model's device, on the host or on disk."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor

from fedcom.engines.state.rows import Rows
from fedcom.vectors import Vectors

Sample = Callable[[int], Tensor]  # the clients of a round


@dataclass(frozen=True)
class Storage:
    """Where clients' state is to be kept.

    Args:
        home: "memory"; "disk", a mapped file that goes with the process; "auto": what fits.
        dtype: "model": as the model has it; "bfloat16": rounded to that whenever a round ends.
        folder: of the file; None: the system's own for temporary files.
    """

    home: Literal["auto", "memory", "disk"] = "auto"
    dtype: Literal["model", "bfloat16"] = "model"
    folder: str | Path | None = None

    def kept(self, row: Tensor) -> torch.dtype:
        """The dtype a row is kept in."""
        return torch.bfloat16 if self.dtype == "bfloat16" and row.is_floating_point() else row.dtype


class ClientStore:
    """A row of every client, on the model's device; where all take part nothing is moved.

    A round is: `open`, on the host; `take` and `put` of its rows, group by group; `commit`.
    """

    def __init__(
        self, clients: int, sampled: int, state: Any, memory: Vectors, storage: Storage | None = None
    ) -> None:
        self._shape(clients, sampled, state, memory, storage or Storage())
        self._rows = [_rows(clients, row, dtype) for row, dtype in self._fields]

    def _shape(self, clients: int, sampled: int, state: Any, memory: Vectors, storage: Storage) -> None:
        self.clients, self.sampled = clients, sampled
        self._kind, self._names = type(state), tuple(memory)
        self._fields = [(row, storage.kept(row)) for row in (*state, *memory.values())]

    @property
    def empty(self) -> bool:
        """Whether clients keep nothing."""
        return not self._fields

    def open(self, turn: int, sample: Sample) -> None:
        """Prepare for a round."""

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients, stacked; rows: where they are among the sampled."""
        where = rows if self.sampled == self.clients else clients
        return self._give([field[where] for field in self._rows])

    def put(self, rows: slice, clients: Tensor, state: Any, memory: Vectors) -> None:
        """Write some clients' rows back."""
        where = rows if self.sampled == self.clients else clients
        for field, value in zip(self._rows, self._flat(state, memory), strict=True):
            if value.data_ptr() != field[rows].data_ptr():  # a compiled method writes in place
                field[where] = value.to(field.dtype)

    def commit(self) -> None:
        """Make a round final."""

    def look(self, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of any clients, between rounds."""
        return self._give([field[clients.to(field.device)] for field in self._rows])

    def _give(self, fields: Sequence[Tensor]) -> tuple[Any, Vectors]:
        """Stacked rows as the algorithm knows them."""
        back = [x.to(row.device, row.dtype) for x, (row, _) in zip(fields, self._fields, strict=True)]
        state = len(back) - len(self._names)
        return self._kind(*back[:state]), dict(zip(self._names, back[state:], strict=True))

    def _flat(self, state: Any, memory: Vectors) -> list[Tensor]:
        return [*state, *(memory[name] for name in self._names)]


class SparseStore(ClientStore):
    """Rows of those alone who have taken part, in the order in which they first did, on the host.

    Args:
        planned: how many will take part, at most.
        folder: where the rows' file is; None: in memory.
    """

    def __init__(
        self, clients: int, sampled: int, state: Any, memory: Vectors, storage: Storage | None = None,
        planned: int = 0, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self._shape(clients, sampled, state, memory, storage or Storage())
        self._places = [Rows(row, dtype, planned, folder) for row, dtype in self._fields]
        self._slots: dict[int, int] = {}
        self._sample: list[int] = []
        self._turn, self._lock = -1, Lock()

    @property
    def taken_part(self) -> int:
        """How many clients have a row."""
        return len(self._slots)

    def open(self, turn: int, sample: Sample) -> None:
        if turn != self._turn:
            self._sample, self._turn = sample(turn).tolist(), turn

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        return self._gather(self._sample[rows])

    def put(self, rows: slice, clients: Tensor, state: Any, memory: Vectors) -> None:
        self._write(self._flat(state, memory), self._enter(self._sample[rows]))

    def look(self, clients: Tensor) -> tuple[Any, Vectors]:
        return self._gather(clients.tolist())

    def _enter(self, clients: Sequence[int]) -> list[int]:
        """The slots of some clients; who has none is given one."""
        with self._lock:
            slots = [self._slots.setdefault(client, len(self._slots)) for client in clients]
            for place in self._places:
                place.reserve(len(self._slots))
        return slots

    def _gather(self, clients: Sequence[int]) -> tuple[Any, Vectors]:
        fields = self._windows(len(clients))
        self._read(fields, [(i, self._slots.get(client)) for i, client in enumerate(clients)])
        return self._give(fields)

    def _windows(self, rows: int, pinned: bool = False) -> list[Tensor]:
        return [torch.empty((rows, *x.shape), dtype=dtype, pin_memory=pinned) for x, dtype in self._fields]

    def _read(self, fields: Sequence[Tensor], places: Sequence[tuple[int, int | None]]) -> None:
        """Fill rows from their slots; those who have none get the first row."""
        for field, place, (first, _) in zip(fields, self._places, self._fields, strict=True):
            for i, slot in places:
                if slot is None:
                    field[i].copy_(first)
                else:
                    place.read(slot, field[i])

    def _write(self, fields: Sequence[Tensor], slots: Sequence[int]) -> None:
        for field, place in zip(fields, self._places, strict=True):
            for i, slot in enumerate(slots):
                place.write(slot, field[i])


class PrefetchedStore(SparseStore):
    """A store whose rows of a round lie in a window; a thread writes the last one and reads the next."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_gpu = any(row.is_cuda for row, _ in self._fields)
        self._now, self._next = (self._windows(self.sampled, self._on_gpu) for _ in range(2))
        self._there = [x.to(row.device) for x, (row, _) in zip(self._now, self._fields, strict=True)]
        self._present, self._coming = dict[int, int](), list[int]()
        self._thread = ThreadPoolExecutor(1, "fedcom-rows", lambda: torch.set_num_threads(1))
        self._reading = self._writing = self._thread.submit(lambda: None)

    def open(self, turn: int, sample: Sample) -> None:
        if turn == self._turn:
            return
        clients = sample(turn).tolist()
        if clients != self._coming:
            self._fetch(clients)
        self._reading.result()
        for i, client in enumerate(clients):
            if client in self._present:  # the last round's own rows, which the thread did not read
                for new, old in zip(self._next, self._now, strict=True):
                    new[i] = old[self._present[client]]
        self._now, self._next, self._turn = self._next, self._now, turn
        self._present = {client: i for i, client in enumerate(clients)}
        self._move(self._there, self._now)
        self._fetch(sample(turn + 1).tolist())

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        return self._give([field[rows] for field in self._there])

    def put(self, rows: slice, clients: Tensor, state: Any, memory: Vectors) -> None:
        for field, value in zip(self._there, self._flat(state, memory), strict=True):
            field[rows] = value.to(field.dtype)

    def commit(self) -> None:
        self._writing.result()  # the round before last's, long done: only its error is of interest
        self._move(self._now, self._there)
        self._writing = self._thread.submit(self._write, self._now, self._enter(list(self._present)))

    def look(self, clients: Tensor) -> tuple[Any, Vectors]:
        self._writing.result()
        return super().look(clients)

    def _fetch(self, clients: list[int]) -> None:
        """Have the thread read the rows of a round, but for those the present round has in hand."""
        self._coming = clients
        places = [(i, self._slots.get(c)) for i, c in enumerate(clients) if c not in self._present]
        self._reading = self._thread.submit(self._read, self._next, places)

    def _move(self, there: list[Tensor], here: list[Tensor]) -> None:
        """Bring the window to the device or back; on a CPU it is there."""
        if not self._on_gpu:
            self._there = self._now
            return
        for new, old in zip(there, here, strict=True):
            new.copy_(old)


def _rows(clients: int, row: Tensor, dtype: torch.dtype) -> Tensor:
    """The first row, once for each client."""
    return torch.empty((clients, *row.shape), dtype=dtype, device=row.device).copy_(row)
