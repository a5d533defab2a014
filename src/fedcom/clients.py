"""Where clients' state lives between rounds: one row a client, in memory."""

from typing import Any

import torch
from torch import Tensor

from fedcom.vectors import Vectors


class ClientStore:
    """Rows of every tensor a client keeps; only the sampled rows are moved."""

    def __init__(self, clients: int, state: Any, memory: Vectors) -> None:
        self._kind = type(state)
        self.clients = clients
        self._state = [_rows(clients, field) for field in state]
        self._memory = {name: _rows(clients, nu) for name, nu in memory.items()}

    @property
    def empty(self) -> bool:
        """Whether clients keep nothing."""
        return not self._state and not self._memory

    def take(self, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients, stacked."""
        state = self._kind(*(self._some(field, clients) for field in self._state))
        return state, {name: self._some(nu, clients) for name, nu in self._memory.items()}

    def put(self, clients: Tensor, state: Any, memory: Vectors) -> None:
        """Write some clients' rows back."""
        pairs = [*zip(self._state, state, strict=True), *((nu, memory[n]) for n, nu in self._memory.items())]
        for field, value in pairs:
            if len(clients) == self.clients:
                field.copy_(value)  # of itself, where a compiled method has written in place
            else:
                field[clients] = value

    def _some(self, rows: Tensor, clients: Tensor) -> Tensor:
        """The rows of some clients, in order; all of them are not copied."""
        return rows if len(clients) == self.clients else rows[clients]


def _rows(clients: int, row: Tensor) -> Tensor:
    """The first row, once for each client."""
    return torch.empty((clients, *row.shape), dtype=row.dtype, device=row.device).copy_(row)
