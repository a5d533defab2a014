"""Where clients' work waits until the mean of the round is known: left in place, on the host or on disk."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedcom.engines.state.rows import Rows
from fedcom.rounds.round import Work

Waiting = Callable[[], Work]  # gives the work back
Parking = Callable[[slice, Work], Waiting]  # takes the work of some rows


def leave_in_place(rows: slice, work: Work) -> Waiting:
    """Leave work where it is."""
    return lambda: work


class HostParking:
    """Keeps the work of a round's clients on the host until it is asked for.

    Args:
        clients: how many take part in a round.
        folder: of the file that holds the work; None: in memory.
    """

    def __init__(self, clients: int, folder: Path | None) -> None:
        self._clients, self._folder = clients, folder
        self._fields: list[Rows] = []

    def __call__(self, rows: slice, work: Work) -> Waiting:
        """Copy the work of some rows to the host."""
        tensors = _tensors(work)
        if not self._fields:
            self._fields = [Rows(x[0], x.dtype, self._clients, self._folder) for x in tensors]
        for field, x in zip(self._fields, tensors, strict=True):
            field.reserve(self._clients)
            for i, row in enumerate(x):
                field.write(rows.start + i, row)
        shape = _like(work, [x.new_empty((0, *x.shape[1:])) for x in tensors])  # without rows: frees memory
        return partial(self._back, rows.start, len(work.q), shape)

    def _back(self, start: int, count: int, shape: Work) -> Work:
        """The work of some rows, read back."""
        pairs = zip(self._fields, _tensors(shape), strict=True)
        return _like(shape, [self._stack(field, like, start, count) for field, like in pairs])

    @staticmethod
    def _stack(field: Rows, like: Tensor, start: int, count: int) -> Tensor:
        out = torch.empty((count, *like.shape[1:]), dtype=like.dtype)
        for i, row in enumerate(out):
            field.read(start + i, row)
        return out.to(like.device)


def _tensors(work: Work) -> list[Tensor]:
    """The stacked vectors of some work; not its q, which is small."""
    return [*work.state, *work.memory.values(), *work.meant.values(), *work.sent.values()]


def _like(work: Work, tensors: list[Tensor]) -> Work:
    """Work with other tensors in the order of `_tensors`."""
    new = iter(tensors)
    return work._replace(
        state=type(work.state)(*(next(new) for _ in work.state)),
        memory={name: next(new) for name in work.memory},
        meant={name: next(new) for name in work.meant},
        sent={name: next(new) for name in work.sent},
    )
