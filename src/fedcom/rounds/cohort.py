"""Who takes part in a run: how many clients each round, with what weight and for how many local steps."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.draws import Draw
from fedcom.errors import ConfigError


class Steps(NamedTuple):
    """How many local steps clients take: the most, and a column with each client's where they differ."""

    most: int
    each: Tensor | None = None


@dataclass(frozen=True)
class Cohort:
    """The clients of a run.

    Args:
        clients: m, how many there are.
        sampled: n, how many take part in a round.
        weights: p_j, the weight of each client in the objective and in the mean; they sum to one.
        steps: the local steps of each client.
        tau: the nominal number of local steps.
    """

    clients: int
    sampled: int
    weights: Tensor
    steps: Steps
    tau: float

    @classmethod
    def of(cls, algorithm: Algorithm, sizes: Tensor, participation: float) -> "Cohort":
        """Clients with so many samples each, a share of whom takes part in every round."""
        m = len(sizes)
        p = sizes.double() if algorithm.weights == "size" else torch.ones_like(sizes).double()
        return cls(m, sample_size(participation, m), p / p.sum(), *local_steps(algorithm, sizes))

    def sample(self, draw: Draw, turn: int) -> Tensor:
        """The clients of a round, in order; draw: the run's own."""
        m, n = self.clients, self.sampled
        return torch.arange(m) if n == m else draw.fold(turn, "sample").subset(m, n).sort().values


def sample_size(participation: float, clients: int) -> int:
    """n, the number of clients sampled each round."""
    n = math.floor(participation * clients + 1e-9) if 0 < participation <= 1 else 0
    if n < 1:
        raise ConfigError(
            f"participation must be in (0, 1] and sample a client; got {participation} of {clients} clients"
        )
    return n


def local_steps(algorithm: Algorithm, sizes: Tensor) -> tuple[Steps, float]:
    """How many local steps clients with so many samples take, and the nominal number, tau."""
    tau = algorithm.tau
    if algorithm.epochs is not None:
        b = int(sizes.max()) if algorithm.batch == "full" else algorithm.batch
        steps = algorithm.epochs * ((sizes + b - 1) // b)
    elif isinstance(tau, int):
        return Steps(tau), tau
    else:
        steps = torch.tensor(tau, device=sizes.device)
    most, mean = int(steps.max()), float(steps.double().mean())
    return Steps(most, None if mean == most else steps.unsqueeze(-1)), mean


def mean_weights(p: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of sampled clients in their mean, which sum to one, and their share among all clients."""
    share = p.sum(-1)
    return p / share.unsqueeze(-1), share
