"""Where the work of a round waits until the mean is known: in memory, or where there is room for it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedcom.engines.state.rows import Pages
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
        self._pages: list[Pages] = []

    def __call__(self, rows: slice, work: Work) -> Waiting:
        """Move the work of some rows out of the way."""
        flat = _flat(work)
        if not self._pages:
            self._pages = [Pages(x[0], x.dtype, self._clients, self._folder) for x in flat]
        for page, x in zip(self._pages, flat, strict=True):
            page.reserve(self._clients)
            for i, row in enumerate(x):
                page.write(rows.start + i, row)
        shape = work._replace(
            client=type(work.client)(*map(_none_of, work.client)),
            memory={name: _none_of(x) for name, x in work.memory.items()},
            sent={name: _none_of(x) for name, x in work.sent.items()},
        )
        return partial(self._back, rows.start, len(work.q), shape)

    def _back(self, start: int, count: int, shape: Work) -> Work:
        """The work of some rows, as it was."""
        pairs = zip(self._pages, _flat(shape), strict=True)
        back = iter([self._stack(page, like, start, count) for page, like in pairs])
        return shape._replace(
            client=type(shape.client)(*(next(back) for _ in shape.client)),
            memory={name: next(back) for name in shape.memory},
            sent={name: next(back) for name in shape.sent},
        )

    @staticmethod
    def _stack(page: Pages, like: Tensor, start: int, count: int) -> Tensor:
        out = torch.empty((count, *like.shape[1:]), dtype=like.dtype)
        for i, row in enumerate(out):
            page.read(start + i, row)
        return out.to(like.device)


def _flat(work: Work) -> list[Tensor]:
    return [*work.client, *work.memory.values(), *work.sent.values()]


def _none_of(x: Tensor) -> Tensor:
    """No rows of a stack, and no hold on its memory."""
    return x.new_empty((0, *x.shape[1:]))
