"""Synthetic(alpha, beta): one random linear classifier a client (Li et al. 2020, FedProx, section 5.1)."""

import math

import torch
from torch import Tensor

from fedcom.data.dataset import Dataset
from fedcom.draws import Draw
from fedcom.errors import ConfigError

FEATURES, CLASSES = 60, 10
SMALLEST, LARGEST = 50, 5000


def synthetic(clients: int, alpha: float, beta: float, seed: int) -> Dataset:
    """The task; alpha is the variance of the clients' mean weight u, beta that of their mean input B.

    As in the paper u is one number a client, so it adds the same to every class and the argmax cancels it:
    alpha moves W and b but no label. Clients differ by W, b and v, which are drawn anew for each.
    """
    if clients < 1:
        raise ConfigError(f"synthetic needs at least one client; got {clients}")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < math.inf:
            raise ConfigError(f"synthetic's {name} is a variance, so 0 or more; got {value}")
    root = Draw.seeded(seed).fold("synthetic")
    owned = [client_samples(root.fold(k), alpha, beta) for k in range(clients)]
    held = [max(1, len(y) // 10) for _, y in owned]  # samples are independent: any tenth will do
    parts = [(x[h:], y[h:], x[:h], y[:h]) for (x, y), h in zip(owned, held, strict=True)]
    x, y, test_x, test_y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    groups = torch.repeat_interleave(torch.tensor([len(part[1]) for part in parts]))
    return Dataset("synthetic", x, y, test_x, test_y, CLASSES, groups)


def client_samples(draw: Draw, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """One client's x and y, a pure function of its draw: y = argmax(W x + b), x ~ N(v, diag(j^-1.2))."""

    def normal(purpose: str, n: int) -> Tensor:
        return draw.fold(purpose).normal(n, torch.float64)

    n = SMALLEST + min(int(torch.exp(4.0 + 2.0 * normal("size", 1))), LARGEST - SMALLEST)
    u = math.sqrt(alpha) * normal("u", 1)
    B = math.sqrt(beta) * normal("B", 1)
    W = u + normal("W", CLASSES * FEATURES).view(CLASSES, FEATURES)
    b = u + normal("b", CLASSES)
    v = B + normal("v", FEATURES)
    sigma = torch.arange(1, FEATURES + 1, dtype=torch.float64) ** -0.6
    x = v + sigma * normal("x", n * FEATURES).view(n, FEATURES)
    return x.to(torch.float32), torch.argmax(x @ W.T + b, dim=-1)
