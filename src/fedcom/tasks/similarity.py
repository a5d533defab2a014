"""How alike clients are: the cosines between their gradients at one model."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task

_MOST = 2**27  # numbers held at once; the gradients of larger models are those of fewer clients


def chosen(task: Task, d: int, clients: int = 20) -> Tensor:
    """At most so many of the clients a model is evaluated on, evenly spaced; fewer of a large model."""
    shown = torch.arange(task.clients) if task.shown is None else task.shown.cpu()
    k = min(clients, len(shown), max(1, _MOST // d))
    return shown[torch.arange(k) * len(shown) // k]


def similarity(task: Task, w: Tensor, clients: int = 20) -> Tensor:
    """Cosines between the full gradients at w of the `chosen` clients, k x k; zero beside no gradient."""
    picked = chosen(task, w.numel(), clients).to(w.device)
    oracles = (DataOracle(task, client, Draw.seeded(0), None) for client in torch.split(picked, 1))
    g = torch.cat([normalize(oracle.full(w.reshape(1, -1)), dim=-1) for oracle in oracles])
    return (g @ g.T).clamp(-1, 1)
