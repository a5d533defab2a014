"""How many stacked clients fit in a device's memory."""

import os

import torch
from torch import Tensor, nn

from fedcom.algorithms import Algorithm
from fedcom.task import Task

_COPIES = 10  # flat vectors alive at once a client: model, gradient, state, message and what makes them
_SHARE = 0.4  # of the free memory; the rest is for data, stored state and torch itself


def clients_that_fit(task: Task, algorithm: Algorithm, w: Tensor) -> int:
    """As many clients as a share of the free memory holds, at least one."""
    batch = task.longest if algorithm.batch == "full" else algorithm.batch
    a_sample = task.x[0].numel() + _activations(task, w)
    a_client = w.element_size() * (_COPIES * w.numel() + 3 * batch * a_sample)
    return max(1, int(_SHARE * _free_bytes(w.device) / a_client))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _activations(task: Task, w: Tensor) -> int:
    """Numbers the module makes of one sample on its way."""
    counts: list[int] = []

    def count(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())

    hooks = [module.register_forward_hook(count) for module in task.objective.module.modules()]
    with torch.no_grad():
        task.objective.outputs(w, task.x[:1])
    for hook in hooks:
        hook.remove()
    return sum(counts)
