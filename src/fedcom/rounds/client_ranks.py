"""Adapters whose rank differs by client: each has the first columns of B and the first rows of A.

A client begins a round from that part of the model, the rest of its adapters being zero, so that gradients of
the rest are zero too. It sends its part alone. The mean of each coordinate is over the clients that have it.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedcom.rounds.part import Part
from fedcom.vectors import Layout, Vectors


@dataclass(frozen=True)
class RankPart(Part):
    """The part of a model that clients of one rank have.

    Args:
        layers: the names of those with adapters.
    """

    layers: tuple[str, ...] = ()
    rank: int = 1

    def _cut(self, name: str, x: Tensor) -> Tensor:
        """What is kept of one of the model's tensors."""
        layer, _, which = name.rpartition(".")
        if layer not in self.layers or which not in ("lora_A", "lora_B"):
            return x
        return x[: self.rank] if which == "lora_A" else x[:, : self.rank]

    @cached_property
    def _kept(self) -> list[Tensor]:
        """The places of what is kept of each tensor, in its own shape."""
        places = self.whole.tensors(torch.arange(self.whole.size))
        return [self._cut(name, x) for name, x in places.items()]

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.whole.names, tuple(tuple(x.shape) for x in self._kept), self.whole.dtype)

    @cached_property
    def _places(self) -> dict[torch.device, Tensor]:
        return {torch.device("cpu"): torch.cat([x.flatten() for x in self._kept])}


@dataclass(frozen=True)
class ClientRanks:
    """The ranks of all clients.

    Args:
        layout: of the model.
        layers: the names of those with adapters.
        ranks: one per client.
        weights: p_j, of each client in the mean.
    """

    layout: Layout
    layers: tuple[str, ...]
    ranks: tuple[int, ...]
    weights: Tensor = field(compare=False, repr=False)

    @classmethod
    def of(
        cls, layout: Layout, layers: tuple[str, ...], ranks: tuple[int, ...], weights: Tensor
    ) -> "ClientRanks":
        """The ranks of as many clients as there are weights, dealt to them in turn."""
        return cls(layout, layers, tuple(ranks[j % len(ranks)] for j in range(len(weights))), weights)

    @cached_property
    def parts(self) -> dict[int, RankPart]:
        """The part of each rank there is."""
        names = self.layout.names
        return {rank: RankPart(self.layout, names, self.layers, rank) for rank in sorted(set(self.ranks))}

    def groups(self, clients: Tensor) -> list[tuple[RankPart, Tensor]]:
        """The parts of some clients, each with the positions in `clients` of those that have it."""
        own = torch.tensor(self.ranks)[clients.cpu()]
        rows = [(part, (own == rank).nonzero()[:, 0]) for rank, part in self.parts.items()]
        return [(part, some.to(clients.device)) for part, some in rows if len(some)]

    def begin(self, down: Vectors, clients: Tensor) -> Vectors:
        """What each of some clients has of the vectors that were sent down, one row per client."""
        return {name: self._had(x.expand(len(clients), -1), clients) for name, x in down.items()}

    def _had(self, x: Tensor, clients: Tensor) -> Tensor:
        had = torch.zeros_like(x)
        for part, rows in self.groups(clients):
            had[rows] = part.into(had[rows], part.of(x[rows]))
        return had

    def spread(self, sent: Tensor) -> Tensor:
        """Messages, each coordinate over the share of the clients' weights that have it."""
        return sent * self._factors.to(sent)

    @cached_property
    def _factors(self) -> Tensor:
        share, p = torch.zeros(self.layout.size, dtype=torch.float64), self.weights.double().cpu()
        for part, rows in self.groups(torch.arange(len(self.ranks))):
            more = p[rows].sum().expand(part.layout.size)
            share = share + part.into(torch.zeros_like(share), more)
        return torch.where(share > 0, 1 / share, 0.0)  # what no client has stays as it is
