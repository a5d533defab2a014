"""Where the work of a round waits until the mean is known: in memory, or where there is room for it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedcom.engines.state.rows import Rows
from fedcom.rounds.round import Work

Waiting = Callable[[], Work]
Parking = Callable[[slice, Work], Waiting]


def stay(rows: slice, work: Work) -> Waiting:
    """Leave work where it is."""
    return lambda: work


class Park:
    """Keeps the work of so many clients on the host, or in a file in a folder, until it is asked for."""

    def __init__(self, clients: int, folder: Path | None) -> None:
        self._clients, self._folder = clients, folder
        self._places: list[Rows] = []

    def __call__(self, rows: slice, work: Work) -> Waiting:
        """Move the work of some rows out of the way."""
        tensors = _tensors(work)
        if not self._places:
            self._places = [Rows(x[0], x.dtype, self._clients, self._folder) for x in tensors]
        for place, x in zip(self._places, tensors, strict=True):
            place.reserve(self._clients)
            for i, row in enumerate(x):
                place.write(rows.start + i, row)
        shape = _like(work, [x.new_empty((0, *x.shape[1:])) for x in tensors])  # no hold on their memory
        return partial(self._back, rows.start, len(work.q), shape)

    def _back(self, start: int, count: int, shape: Work) -> Work:
        """The work of some rows, as it was."""
        pairs = zip(self._places, _tensors(shape), strict=True)
        return _like(shape, [self._stack(place, like, start, count) for place, like in pairs])

    @staticmethod
    def _stack(place: Rows, like: Tensor, start: int, count: int) -> Tensor:
        out = torch.empty((count, *like.shape[1:]), dtype=like.dtype)
        for i, row in enumerate(out):
            place.read(start + i, row)
        return out.to(like.device)


def _tensors(work: Work) -> list[Tensor]:
    """The stacked vectors of some work; its q is small and stays."""
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
