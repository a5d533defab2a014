"""Which clients are computed at once: groups of rows, taken one after the other by the threads of a CPU."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.engines.local.threads import alone as one_thread
from fedcom.engines.local.threads import spread
from fedcom.engines.state.placement import clients_that_fit
from fedcom.tasks.task import Task

Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW, _MANY = 8, 32
_LARGE = 1 << 25  # bytes of a stacked vector beyond which many are slower in all but gradients
_WORTH = 1.05  # times a gradient's time: what larger stacks save elsewhere


@dataclass(frozen=True)
class Groups:
    """Groups of at most `size` clients, and how many threads compute one each."""

    size: int
    workers: int = 1

    @classmethod
    def of(
        cls, task: Task, algorithm: Algorithm, w: Tensor, sampled: int, chunk: int | None, alone: bool
    ) -> "Groups":
        """Groups that fit in memory and suit the processor.

        Args:
            w: the model, on the device where all is computed.
            sampled: clients of a run that take part in a round.
            chunk: the size, if it is given.
            alone: whether the stack holds one run; the clients of several are one group.
        """
        workers = 1 if w.is_cuda else torch.get_num_threads()
        fit = clients_that_fit(task, algorithm, w)
        if chunk is None and not w.is_cuda:
            most = min(max(1, fit // workers), -(-sampled // workers))
            chunk = clients_per_core(task, algorithm, w, most)
        return cls(chunk or fit, workers if alone else 1)

    def cut(self, rows: int) -> list[slice]:
        """The rows of each group: as many groups for each thread, of like size."""
        parts = min(rows, self.workers * -(-rows // (self.workers * self.size)))
        return [slice(*pair) for pair in pairwise(i * rows // parts for i in range(parts + 1))]

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Do something to every item, by all threads; results in order."""
        return spread(work, items, self.workers)


def clients_per_core(task: Task, algorithm: Algorithm, w: Tensor, most: int) -> int:
    """The quickest of a few sizes, at most so many; measured where no bit of a run depends on it."""
    few, many = min(_FEW, most), min(_MANY, most, _LARGE // w.nbytes)
    if few == 1 or not task.objective.same_in_any_stack:
        return few
    b = min(task.longest, algorithm.batch if isinstance(algorithm.batch, int) else task.longest)
    best, shortest = 1, math.inf
    with one_thread():
        for size in sorted({1, few, max(few, many)}):
            seconds = _seconds(task, w, size, b) / size
            if seconds > _WORTH * shortest:
                break
            best, shortest = size, min(seconds, shortest)
    return best


def _seconds(task: Task, w: Tensor, clients: int, b: int) -> float:
    """The shortest of three gradients of some clients."""
    x, y = task.samples(torch.arange(clients), torch.arange(b).expand(clients, -1))
    stack, weight, times = w.repeat(clients, 1), w.new_full((clients, b), 1 / b), []
    for _ in range(3):
        started = time.perf_counter()
        task.objective.gradients(stack, x, y, weight)
        times.append(time.perf_counter() - started)
    return min(times)
