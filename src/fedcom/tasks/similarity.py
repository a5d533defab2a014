"""How similar clients are: the cosines between their gradients at one model."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task

_MOST = 2**27  # numbers held at once: for large models, the gradients of fewer clients are compared


def chosen_clients(task: Task, d: int, clients: int = 20) -> Tensor:
    """Some of the clients on which a model is evaluated, evenly spaced.

    Args:
        d: the number of parameters; for a large model fewer clients are chosen.
        clients: how many, at most.
    """
    shown = torch.arange(task.clients) if task.shown is None else task.shown.cpu()
    k = min(clients, len(shown), max(1, _MOST // d))
    return shown[torch.arange(k) * len(shown) // k]


def similarity(task: Task, w: Tensor, clients: int = 20) -> Tensor:
    """Cosines [k, k] between the full gradients at w of `chosen_clients`; zero where a gradient is zero.

    Args:
        clients: how many, at most.
    """
    picked = chosen_clients(task, w.numel(), clients).to(w.device)
    draw = Draw.seeded(0)
    oracles = (DataOracle(task, one, draw.fold(one), None) for one in torch.split(picked, 1))
    g = torch.cat([normalize(oracle.full(w.reshape(1, -1)), dim=-1) for oracle in oracles])
    return (g @ g.T).clamp(-1, 1)
