"""Who takes part in a run: how many clients each round, with what weight and for how many local steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.draws import Draw
from fedcom.errors import ConfigError


class Ranking(NamedTuple):
    """Clients in the order of their local steps, most first."""

    counts: tuple[int, ...]  # the steps of each, in that order
    order: Tensor  # the row of each
    places: Tensor  # where each row is in that order

    @classmethod
    def of(cls, per_client: Tensor) -> "Ranking":
        """The ranking of rows by a column of their steps, which is read from the device."""
        steps, device = per_client.flatten().tolist(), per_client.device
        order = sorted(range(len(steps)), key=lambda row: -steps[row])
        rows = torch.tensor(order)
        return cls(tuple(steps[row] for row in order), rows.to(device), rows.argsort().to(device))

    def stretches(self, most: int) -> list[tuple[int, int]]:
        """Until which step how many clients step, those of the most steps first.

        Args:
            most: steps that any client takes.
        """
        counts = [min(count, most) for count in self.counts]
        return [(end, sum(count >= end for count in counts)) for end in sorted(set(counts))]


class Steps(NamedTuple):
    """How many local steps clients take."""

    most: int  # the largest number of any client
    per_client: Tensor | None = None  # a column, one number per client; None: all take the most
    ranking: Ranking | None = None  # of the same clients, if it is known on the host

    def of(self, clients: Tensor, ranking: Ranking | None = None) -> "Steps":
        """The steps of some clients.

        Args:
            ranking: theirs, if it is known already; on a CPU it is found.
        """
        if self.per_client is None:
            return self
        own = self.per_client[clients]
        return Steps(self.most, own, ranking if own.is_cuda else Ranking.of(own))

    @classmethod
    def joined(cls, several: Sequence["Steps"], clients: int) -> "Steps":
        """The steps of the clients of several runs, those of the first run first.

        Args:
            clients: how many each run has.
        """
        most = max(steps.most for steps in several)
        if all(steps.per_client is None and steps.most == most for steps in several):
            return cls(most)
        device = next((s.per_client.device for s in several if s.per_client is not None), None)
        columns = [
            torch.full((clients, 1), s.most, device=device) if s.per_client is None else s.per_client
            for s in several
        ]
        return cls(most, torch.cat(columns))


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
        """The clients of a run with the given settings.

        Args:
            sizes: the number of training samples of each client.
            participation: the share of clients that takes part in each round.
        """
        m = len(sizes)
        p = sizes.double() if algorithm.weights == "size" else torch.ones_like(sizes).double()
        return cls(m, sample_size(participation, m), p / p.sum(), *local_steps(algorithm, sizes))

    def sample(self, draw: Draw, round_index: int) -> Tensor:
        """The numbers of the clients that take part in a round, in increasing order.

        Args:
            draw: the run's key.
        """
        m, n = self.clients, self.sampled
        return torch.arange(m) if n == m else draw.fold(round_index, "sample").subset(m, n).sort().values


def sample_size(participation: float, clients: int) -> int:
    """n, the number of clients sampled in each round: participation * clients, rounded down."""
    n = math.floor(participation * clients + 1e-9) if 0 < participation <= 1 else 0
    if n < 1:
        raise ConfigError(
            "participation must be in (0, 1] and sample at least one client; "
            f"got {participation} of {clients} clients"
        )
    return n


def local_steps(algorithm: Algorithm, sizes: Tensor) -> tuple[Steps, float]:
    """The local steps of each client, and tau, the nominal number: the mean over clients.

    Args:
        sizes: the number of training samples of each client.
    """
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
    """The weights of the sampled clients scaled to sum to one, and what they summed to before: their share.

    Args:
        p: the weights of the sampled clients among all clients.
    """
    share = p.sum(-1)
    return p / share.unsqueeze(-1), share
