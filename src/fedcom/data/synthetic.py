"""Synthetic(alpha, beta): one random linear classifier per client (Li et al. 2020, FedProx, section 5.1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.data.dataset import Dataset, Population
from fedcom.draws import Draw
from fedcom.errors import ConfigError

FEATURES, CLASSES = 60, 10
SMALLEST, LARGEST = 50, 5000  # samples of a client
LAID_OUT = 1000  # with more clients than this, samples are by default drawn when they are needed
SHOWN = 500  # clients of a population on which a model is evaluated


@dataclass(frozen=True)
class Synthetic:
    """The data as a function of seed and client.

    As in the paper u is one number per client. It adds the same to every class, so alpha changes W and b but
    no label. Clients differ in W, b and v, which are drawn for each.

    Args:
        alpha: the variance of the clients' mean weight u.
        beta: the variance of the clients' mean input B.
    """

    alpha: float
    beta: float
    seed: int

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"synthetic's {name} is a variance, so 0 or more; got {value}")

    def dataset(self, clients: int) -> Dataset:
        """All samples of some number of clients, with one group per client."""
        if clients < 1:
            raise ConfigError(f"synthetic needs at least one client; got {clients}")
        return self.laid_out(torch.arange(clients))

    def population(self, clients: int) -> Population:
        """The same clients and samples, drawn when needed; a model is evaluated on 500 of the clients."""
        chosen = Draw.seeded(self.seed).fold("shown").subset(clients, min(clients, SHOWN)).sort().values
        total = self.total(torch.arange(clients))
        return Population(self.laid_out(chosen), chosen, total - _test_size(total), self.samples)

    def laid_out(self, clients: Tensor) -> Dataset:
        """All samples of some clients; the first tenth of each client's are test samples."""
        total, parts = self.total(clients), []
        for client, n, held in zip(clients.unbind(), total.tolist(), _test_size(total).tolist(), strict=True):
            x, y = (tensor[0] for tensor in self._draw(client.reshape(1), torch.arange(n).unsqueeze(0)))
            parts.append((x[held:], y[held:], x[:held], y[:held]))
        x, y, test_x, test_y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        groups = torch.repeat_interleave(total - _test_size(total))
        return Dataset("synthetic", x, y, test_x, test_y, CLASSES, groups)

    def samples(self, clients: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples of some clients.

        Args:
            position: among each client's training samples, one row per client.
        """
        return self._draw(clients, position + _test_size(self.total(clients)).unsqueeze(-1))

    def total(self, clients: Tensor) -> Tensor:
        """How many samples each client has, test samples included."""
        size = torch.exp(4.0 + 2.0 * self._normal(clients, "size", 1)).squeeze(-1)
        return SMALLEST + size.to(torch.int64).clamp(max=LARGEST - SMALLEST)

    def _draw(self, clients: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Samples by place, test samples first: y = argmax(W x + b), x ~ N(v, diag(j^-1.2))."""
        u = math.sqrt(self.alpha) * self._normal(clients, "u", 1)
        B = math.sqrt(self.beta) * self._normal(clients, "B", 1)
        W = (u + self._normal(clients, "W", CLASSES * FEATURES)).reshape(-1, CLASSES, FEATURES)
        b = u + self._normal(clients, "b", CLASSES)
        v = B + self._normal(clients, "v", FEATURES)
        feature = torch.arange(FEATURES, device=place.device)
        sigma = (feature + 1).double() ** -0.6
        noise = self._normal(clients, "x", (place.unsqueeze(-1) * FEATURES + feature).flatten(1))
        x = v.unsqueeze(1) + sigma * noise.reshape(*place.shape, FEATURES)
        return x.to(torch.float32), torch.argmax(torch.baddbmm(b.unsqueeze(1), x, W.mT), dim=-1)

    def _normal(self, clients: Tensor, purpose: str, n: int | Tensor) -> Tensor:
        root = Draw.seeded(self.seed, clients.device).fold("synthetic")
        return root.fold(clients).fold(purpose).normal(n, torch.float64)


def _test_size(total: Tensor) -> Tensor:
    """How many samples of each client are for testing: a tenth, at least one."""
    return (total // 10).clamp(min=1)
