"""How many clients a core of a CPU computes at once: one, or several stacked, whichever proves quicker."""

import math
import time

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.engines.threads import alone
from fedcom.task import Task

_SIZES = (1, 8, 32)
_UNMEASURED = 8


def clients_a_core(task: Task, algorithm: Algorithm, w: Tensor, most: int) -> int:
    """The quickest of a few sizes, at most so many; measured where no bit of a run depends on it."""
    sizes = sorted({min(size, most) for size in _SIZES})
    if len(sizes) == 1 or not task.objective.same_in_any_stack:
        return min(_UNMEASURED, most)
    b = min(task.longest, algorithm.batch if isinstance(algorithm.batch, int) else task.longest)
    best, shortest = 1, math.inf
    with alone():
        for size in sizes:
            seconds = _seconds(task, w, size, b) / size
            if seconds >= shortest:
                break
            best, shortest = size, seconds
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
