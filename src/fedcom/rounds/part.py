"""A part of the model: some of its tensors, which are trained and sent in a round while the others stay.

A round of a part is a round of a smaller model. What is kept has the length of the whole model: a part of it
is taken out before, and put back after.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedcom.algorithms.base import Oracle
from fedcom.errors import ConfigError
from fedcom.vectors import Layout

Held = TypeVar("Held")


@dataclass(frozen=True)
class Part:
    """Some tensors of a model.

    Args:
        whole: the layout of the model.
        names: of the tensors.
    """

    whole: Layout
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if absent := set(self.names) - set(self.whole.names):
            raise ConfigError(f"{min(absent)} is to be trained in turn, and is no trainable parameter")

    @cached_property
    def layout(self) -> Layout:
        """The layout of the part, its tensors in the order of the model's."""
        kept = [
            (name, s)
            for name, s in zip(self.whole.names, self.whole.shapes, strict=True)
            if name in self.names
        ]
        return Layout(tuple(name for name, _ in kept), tuple(s for _, s in kept), self.whole.dtype)

    @cached_property
    def _places(self) -> dict[torch.device, Tensor]:
        pieces = zip(self.whole.names, self.whole.split(torch.arange(self.whole.size)), strict=True)
        return {torch.device("cpu"): torch.cat([piece for name, piece in pieces if name in self.names])}

    def _place(self, device: torch.device) -> Tensor:
        """Where the part's coordinates are in the model."""
        if device not in self._places:
            self._places[device] = self._places[torch.device("cpu")].to(device)
        return self._places[device]

    def of(self, held: Held) -> Held:
        """The part of a vector, or of all vectors in a dictionary or named tuple; what is none stays."""
        found: Held = _mapped(held, self._taken)
        return found

    def _taken(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != (self.whole.size,):
            return x
        return x.index_select(-1, self._place(x.device))

    def into(self, held: Held, new: Held) -> Held:
        """What is held, with a new part."""
        found: Held = _mapped(held, self._put, new)
        return found

    def _put(self, x: Tensor, new: Tensor) -> Tensor:
        if x.shape[-1:] != (self.whole.size,):
            return new
        return x.index_copy(-1, self._place(x.device), new)

    def oracle(self, oracle: Oracle, w: Tensor) -> "PartOracle":
        """Gradients of the part.

        Args:
            w: the whole model: one row per client, or one vector that all have.
        """
        return PartOracle(oracle, self, w)


@dataclass(frozen=True)
class Turn(Part):
    """A part that is trained in turn with others.

    Args:
        turns: the names of the tensors of all of them.
        number: which of them it is.
    """

    turns: tuple[tuple[str, ...], ...] = ()
    number: int = 0

    def steps(self, taken: Tensor) -> Tensor:
        """How many steps the part has taken: a column, or one per coordinate if these differ.

        Args:
            taken: how many steps each client took in each turn [clients, turns].
        """
        turns = [[i for i, turn in enumerate(self.turns) if name in turn] for name in self.layout.names]
        own = [torch.stack([taken[..., i] for i in found]).sum(0).unsqueeze(-1) for found in turns]
        if all(found == turns[0] for found in turns):
            return own[0]
        pairs = zip(own, self.layout.sizes, strict=True)
        return torch.cat([one.expand(*one.shape[:-1], size) for one, size in pairs], -1)

    def stepped(self, taken: Tensor, more: Tensor) -> Tensor:
        """The same count after a round of the part.

        Args:
            more: how many steps each client took in it [clients, 1].
        """
        return taken + pad(more, (self.number, len(self.turns) - 1 - self.number))


@dataclass(frozen=True)
class PartOracle:
    """Gradients of a part of the model; the rest stays at its value from the round's beginning."""

    inner: Any
    part: Part
    w: Tensor

    def at(self, step: int) -> "PartOracle":
        """The oracle of another local step."""
        return PartOracle(self.inner.at(step), self.part, self.w)

    def some(self, rows: Tensor | slice) -> "PartOracle":
        """The oracle of some of the clients."""
        w = self.w[rows] if self.w.dim() > 1 else self.w
        return PartOracle(self.inner.some(rows), self.part, w)

    def batch(self, w: Tensor) -> Tensor:
        """The minibatch gradient at w."""
        g: Tensor = self.inner.batch(self._whole(w))
        return self.part.of(g)

    def full(self, w: Tensor) -> Tensor:
        """The gradient of the client's whole loss at w."""
        g: Tensor = self.inner.full(self._whole(w))
        return self.part.of(g)

    def _whole(self, w: Tensor) -> Tensor:
        return self.part.into(self.w.expand(*w.shape[:-1], -1), w)


def _mapped(held: Any, change: Any, *others: Any) -> Any:
    """A function of a tensor, or of each tensor of a dictionary or named tuple, and of those like it."""
    if isinstance(held, Tensor):
        return change(held, *others)
    if isinstance(held, dict):
        return {name: _mapped(x, change, *(other[name] for other in others)) for name, x in held.items()}
    return type(held)(*(_mapped(x, change, *rest) for x, *rest in zip(held, *others, strict=True)))
