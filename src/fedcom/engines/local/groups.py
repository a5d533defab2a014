"""Which clients are computed at once: groups of rows, one after the other; on a CPU one group per thread."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.draws import Draw
from fedcom.engines.local.threads import map_on_threads, one_thread
from fedcom.engines.state.placement import clients_that_fit, numbers_per_step
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task
from fedcom.vectors import descend

Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW, _MANY = 8, 32  # clients per group that are tried
_LARGE = 1 << 25  # bytes of a stacked vector; above them large groups are slower in all but gradients
_HEAVY = 1 << 23  # numbers in one client's step, from which on stacks are slower
_WORTH = 1.05  # a larger group may take so many times as long per step, since it saves time elsewhere


@dataclass(frozen=True)
class Groups:
    """How rows are cut into groups.

    Args:
        size: the most clients in a group.
        workers: threads, each of which computes one group at a time.
    """

    size: int
    workers: int = 1

    @classmethod
    def of(
        cls, task: Task, algorithm: Algorithm, w: Tensor, sampled: int, chunk: int | None, one_run: bool
    ) -> "Groups":
        """Groups that fit in memory and suit the processor.

        Args:
            w: the model, on the device that computes.
            sampled: clients of a run that take part in a round.
            chunk: the size; None: the one that suits.
            one_run: whether the stack holds a single run; the clients of several runs are one group.
        """
        workers = 1 if w.is_cuda else torch.get_num_threads()
        fit = clients_that_fit(task, algorithm, w)
        if chunk is None and not w.is_cuda:
            most = min(max(1, fit // workers), -(-sampled // workers))
            chunk = clients_per_core(task, algorithm, w, most)
        return cls(chunk or fit, workers if one_run else 1)

    def cut(self, rows: int) -> list[slice]:
        """The rows of each group: all threads get equally many groups, and groups are of like size."""
        parts = min(rows, self.workers * -(-rows // (self.workers * self.size)))
        return [slice(*pair) for pair in pairwise(i * rows // parts for i in range(parts + 1))]

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Apply a function to every item, on all threads; results in order."""
        return map_on_threads(work, items, self.workers)


def clients_per_core(task: Task, algorithm: Algorithm, w: Tensor, most: int) -> int:
    """The group size that is quickest, measured; by a rule where the size would change the results' bits.

    Args:
        w: the model.
        most: the largest size allowed.
    """
    few, many = min(_FEW, most), min(_MANY, most, _LARGE // w.nbytes)
    if few == 1 or not task.objective.same_in_any_stack:
        return 1 if few > 1 and numbers_per_step(task, algorithm) >= _HEAVY else few
    sizes = sorted({1, few, max(few, many)})
    with one_thread():  # all sizes in turn: other programs may slow the processor for a while
        turns = [[_seconds(task, algorithm, w, size) / size for size in sizes] for _ in range(3)]
    shortest = [min(seconds) for seconds in zip(*turns, strict=True)]
    return max(size for size, each in zip(sizes, shortest, strict=True) if each <= _WORTH * min(shortest))


def _seconds(task: Task, algorithm: Algorithm, w: Tensor, clients: int) -> float:
    """A local step of some clients, after one to warm up, in processor time."""
    some = torch.arange(clients) + (task.held.start if task.held else 0)
    stack, oracle = w.repeat(clients, 1), DataOracle.of(task, some, Draw.seeded(0).fold(some), algorithm)
    for step in range(2):
        started = time.thread_time()
        for rows, place, g in oracle.at(step).pieces(stack):
            descend(stack[rows, place], algorithm.local_rate(0), g, out=stack[rows, place])
    return time.thread_time() - started
