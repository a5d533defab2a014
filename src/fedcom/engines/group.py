"""How many clients a core of a CPU computes at once: one, or a few stacked, whichever proves quicker."""

import time

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.task import Task

_STACKED = 8


def clients_a_core(task: Task, algorithm: Algorithm, w: Tensor, most: int) -> int:
    """The quicker of one and a few, at most so many; measured where no bit of a run depends on it."""
    few = min(_STACKED, most)
    if few == 1 or not task.objective.same_in_any_stack:
        return few
    b = min(task.longest, algorithm.batch if isinstance(algorithm.batch, int) else task.longest)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = {size: _seconds(task, w, size, b) / size for size in (1, few)}
    finally:
        torch.set_num_threads(before)
    return min(seconds, key=lambda size: seconds[size])


def _seconds(task: Task, w: Tensor, clients: int, b: int) -> float:
    """The shortest of three gradients of some clients."""
    x, y = task.samples(torch.arange(clients), torch.arange(b).expand(clients, -1))
    stack, weight, times = w.repeat(clients, 1), w.new_full((clients, b), 1 / b), []
    for _ in range(3):
        started = time.perf_counter()
        task.objective.gradients(stack, x, y, weight)
        times.append(time.perf_counter() - started)
    return min(times)
