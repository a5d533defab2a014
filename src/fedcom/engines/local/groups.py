"""How many clients a core of a CPU computes at once: one, or several stacked, whichever proves quicker."""

import math
import time

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.engines.local.threads import alone
from fedcom.tasks.task import Task

_FEW, _MANY = 8, 32
_LARGE = 1 << 25  # bytes of a stacked vector beyond which many are slower in all but gradients
_WORTH = 1.05  # times a gradient's time: what larger stacks save elsewhere


def clients_a_core(task: Task, algorithm: Algorithm, w: Tensor, most: int) -> int:
    """The quickest of a few sizes, at most so many; measured where no bit of a run depends on it."""
    few, many = min(_FEW, most), min(_MANY, most, _LARGE // w.nbytes)
    if few == 1 or not task.objective.same_in_any_stack:
        return few
    b = min(task.longest, algorithm.batch if isinstance(algorithm.batch, int) else task.longest)
    best, shortest = 1, math.inf
    with alone():
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
