"""A store of one rank's clients, asked by the numbers that clients and rows have in the whole run."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedcom.engines.state.stores import ClientStore, Sampler, State
from fedcom.vectors import Vectors


class BlockStore:
    """A store for some of the clients; see ClientStore.

    Args:
        store: for as many clients as there are in the block.
        block: their numbers.

    Attributes:
        rows_now: where they are among the clients sampled in the round that is open.
    """

    def __init__(self, store: ClientStore, block: range) -> None:
        self._store, self.block = store, block
        self.rows_now = range(0)
        self.empty, self.width = store.empty, store.width

    def mine(self, clients: Tensor) -> Tensor:
        """Which of some clients are in the block."""
        return (clients >= self.block.start) & (clients < self.block.stop)

    def open(self, round_index: int, sampler: Sampler) -> None:
        """Prepare for a round."""
        sample = sampler(round_index)
        first, last = (int((sample < edge).sum()) for edge in (self.block.start, self.block.stop))
        self.rows_now = range(first, last)
        self._store.open(round_index, lambda index: self._own(sampler(index)))

    def take(self, rows: slice, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients, stacked."""
        return self._store.take(self._shifted(rows), clients - self.block.start)

    def put(self, rows: slice, clients: Tensor, state: State, memory: Vectors) -> None:
        """Write the state and memory of some clients back."""
        self._store.put(self._shifted(rows), clients - self.block.start, state, memory)

    def commit(self) -> None:
        """Make a round final."""
        self._store.commit()

    def known(self) -> Tensor:
        """The numbers of the clients in the block that have a row."""
        return self._store.known() + self.block.start

    def rows(self, clients: Tensor) -> list[Tensor]:
        """Copies of what is kept of some clients of the block."""
        return self._store.rows(clients - self.block.start)

    def fill(self, clients: Tensor, fields: Sequence[Tensor]) -> None:
        """Set what is kept of those of some clients that are in the block."""
        mine = self.mine(clients)
        self._store.fill(clients[mine] - self.block.start, [field[mine] for field in fields])

    def as_state(self, fields: Sequence[Tensor]) -> tuple[Any, Vectors]:
        """Stacked fields as the algorithm's state and the memory."""
        return self._store.as_state(fields)

    def _own(self, sample: Tensor) -> Tensor:
        return sample[self.mine(sample)] - self.block.start

    def _shifted(self, rows: slice) -> slice:
        return slice(rows.start - self.rows_now.start, rows.stop - self.rows_now.start)
