"""Where clients' state lives between rounds: one row a client, in memory."""

from typing import Any

import torch
from torch import Tensor

from fedcom.vectors import Vectors


class ClientStore:
    """Rows of every tensor a client keeps; only the sampled rows are moved."""

    def __init__(self, clients: int, state: Any, memory: Vectors) -> None:
        self._kind = type(state)
        self._state = [_rows(clients, field) for field in state]
        self._memory = {name: _rows(clients, nu) for name, nu in memory.items()}

    def take(self, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients, stacked."""
        state = self._kind(*(field[clients] for field in self._state))
        return state, {name: nu[clients] for name, nu in self._memory.items()}

    def put(self, clients: Tensor, state: Any, memory: Vectors) -> None:
        """Write some clients' rows back."""
        for field, value in zip(self._state, state, strict=True):
            field[clients] = value
        for name, nu in self._memory.items():
            nu[clients] = memory[name]


def _rows(clients: int, row: Tensor) -> Tensor:
    """The first row, once for each client."""
    return torch.empty((clients, *row.shape), dtype=row.dtype, device=row.device).copy_(row)
