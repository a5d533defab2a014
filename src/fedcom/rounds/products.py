"""Adapters that are averaged as products: the mean of B_j A_j, which is not that of B_j times that of A_j.

What the means of B and A miss is added to the frozen weights of the layers, the base, which the server keeps
once. Clients begin a round from B and A and send how far they went, b_j and a_j, so that B_j = B - b_j:

    mean(B_j A_j) = B A - B mean(a) - mean(b) A + mean(b_j a_j)

FedEx-LoRA adds s (mean(B_j A_j) - mean(B_j) mean(A_j)) = s (mean(b_j a_j) - mean(b) mean(a)) to the base.
FLoRA adds all of s (mean(B_j A_j)), and the adapters start anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedcom.vectors import Layout

NAME = "products"  # of their mean, beside the means of what clients send


@dataclass(frozen=True)
class Products:
    """The layers whose adapters are averaged as products.

    Args:
        layout: of what is trained.
        layers: their names; the adapter of one is NAME.lora_A and NAME.lora_B in the layout.
        scale: s, how many times adapters count.
        restarts: whether adapters start anew after each round (FLoRA).
    """

    layout: Layout
    layers: tuple[str, ...]
    scale: float
    restarts: bool

    @cached_property
    def _places(self) -> list[tuple[slice, slice, int]]:
        """Where A and B of each layer lie in the flat vector, and their rank."""
        layout, ends, found = self.layout, 0, dict[str, tuple[slice, tuple[int, ...]]]()
        for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
            found[name], ends = (slice(ends, ends + size), shape), ends + size
        pairs = ((found[f"{name}.lora_A"], found[f"{name}.lora_B"]) for name in self.layers)
        return [(a, b, shape[0]) for (a, shape), (b, _) in pairs]

    def _factors(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """B [..., outputs, rank] and A [..., rank, inputs] of each layer, in vectors like the model."""
        for a, b, rank in self._places:
            yield x[..., b].reshape(*x.shape[:-1], -1, rank), x[..., a].reshape(*x.shape[:-1], rank, -1)

    def nbytes(self, clients: int) -> int:
        """The bytes by which all of a round learn what is added to the base.

        That is the factors of all clients, or what is added itself, whichever is shorter.
        """
        sizes = [(b.stop - b.start, a.stop - a.start, rank) for a, b, rank in self._places]
        numbers: int = sum(min(clients * (b + a), (b // rank) * (a // rank)) for b, a, rank in sizes)
        return numbers * self.layout.itemsize

    @cached_property
    def base_bytes(self) -> int:
        """The bytes of the base."""
        return self.nbytes(clients=2**62)

    def blank(self, w: Tensor) -> Tensor:
        """Zeros for the mean of the products."""
        return w.new_zeros(self.base_bytes // self.layout.itemsize)

    def added(self, total: Tensor | None, p: Tensor, x: Tensor) -> Tensor:
        """A sum with the weighted products of some clients' vectors, those of all layers one after the other.

        On a CPU client by client, so that groups of any size give the same bits.
        """
        if x.is_cuda:
            weighted = ((p[:, None, None] * b, a) for b, a in self._factors(x))
            more = torch.cat([torch.einsum("nor,nri->oi", b, a).flatten() for b, a in weighted])
            return more if total is None else total + more
        total = self.blank(x) if total is None else total
        for weight, row in zip(p.tolist(), x, strict=True):
            total.add_(self.product(row), alpha=weight)
        return total

    def product(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """B A of each layer, one after the other; y: the vector that A is taken from, if it is another."""
        other = x if y is None else y
        pairs = zip(self._factors(x), self._factors(other), strict=True)
        return torch.cat([(b @ a).flatten() for (b, _), (_, a) in pairs])

    def change(self, w: Tensor, moved: Tensor, products: Tensor) -> Tensor:
        """What is added to the base after a round.

        Args:
            w: the model before the round.
            moved: the mean of how far clients went, w - w_j.
            products: the mean of the products of that.
        """
        if not self.restarts:
            return self.scale * (products - self.product(moved))
        crossed = self.product(w, moved) + self.product(moved, w)
        return self.scale * (self.product(w) - crossed + products)

    def anew(self, w: Tensor, start: Tensor) -> Tensor:
        """The model after a round, its adapters as they first were."""
        if not self.restarts:
            return w
        w = w.clone()
        for a, b, _ in self._places:
            for place in (a, b):
                w[..., place] = start[..., place]
        return w
