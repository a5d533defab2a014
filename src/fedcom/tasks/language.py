"""Small models of text: of sequences of tokens [samples, T] they make a score per token [samples, T, V].

They are written in plain tensor operations, so that the models of many clients are computed side by side.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcom.errors import ConfigError
from fedcom.tasks.adapters import whole_weight
from fedcom.tasks.model import Model


class GruLayer(nn.Module):
    """Gated recurrent units, as torch.nn.GRU defines them; torch.vmap cannot take several of torch's own.

    Args:
        fan_in: how many numbers come in at each place.
        width: how many units there are.
    """

    def __init__(self, fan_in: int, width: int) -> None:
        super().__init__()
        self.inputs, self.state = nn.Linear(fan_in, 3 * width), nn.Linear(width, 3 * width)
        bound = 1 / math.sqrt(width)
        for p in self.parameters():
            nn.init.uniform_(p, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """The state after each place [samples, T, width]."""
        given = self.inputs(x), whole_weight(self.state, x.dtype), self.state.bias.to(x.dtype)
        if torch.compiler.is_compiling():  # it cannot take gradients of a function in its own way
            return _states(*given)
        states: Tensor = _Recurrence.apply(*given)  # type: ignore[no-untyped-call]
        return states


class _Recurrence(torch.autograd.Function):
    """`_states`, with a gradient that is computed for all places at once as far as can be.

    Above all that of the weights, which would otherwise be added to memory once per place.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(moved: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return _states(moved, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        moved, weight, bias, states = ctx.saved_tensors
        before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
        r, z, n, h_new = _gates(moved, before, weight, bias)
        # What enters r, z and h_new changes by these, times the change of the state after them.
        into_n = (1 - z) * (1 - n * n)
        shares = torch.stack([into_n * h_new * r * (1 - r), (before - n) * z * (1 - z), into_n * r], -2)
        change, changes, parts = torch.zeros_like(above[:, 0]), list[Tensor](), list[Tensor]()
        for up, share, keep in reversed(list(zip(*(x.unbind(1) for x in (above, shares, z)), strict=True))):
            change = change + up
            changes.append(change)
            parts.append((change.unsqueeze(-2) * share).flatten(-2))
            change = change * keep + parts[-1] @ weight
        part, all_changes = (torch.stack(own[::-1], 1) for own in (parts, changes))
        gates = part[..., : 2 * z.shape[-1]]
        below = torch.cat([gates, all_changes * into_n], -1)
        flat = part.flatten(0, 1)
        return below, flat.mT @ before.flatten(0, 1), flat.sum(0)


def _states(moved: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The states of gated recurrent units, place by place, from what comes in at all places."""
    h = torch.zeros_like(moved[:, 0, : weight.shape[1]])
    states: list[Tensor] = []  # torch.compile does not know list[Tensor]()
    for x in moved.unbind(1):
        _, z, n, _ = _gates(x, h, weight, bias)
        h = n + z * (h - n)
        states.append(h)
    return torch.stack(states, 1)


def _gates(x: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gates reset and update, the new state proposed, and the part of it that reset scales."""
    width = h.shape[-1]
    from_h = F.linear(h, weight, bias)
    r, z = torch.sigmoid(x[..., : 2 * width] + from_h[..., : 2 * width]).chunk(2, -1)
    h_new = from_h[..., 2 * width :]
    return r, z, torch.tanh(x[..., 2 * width :] + r * h_new), h_new


class TransformerLayer(nn.Module):
    """Causal attention, then a layer of four times the width, each on what is normalised and added to it.

    Args:
        width: how many numbers stand for a token.
        heads: of attention.
        rotary: whether queries and keys are turned by their place.
    """

    def __init__(self, width: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What stands for each token, with what is known of those before it [samples, T, width]."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
            for part in self.attend(self.before(x)).chunk(3, -1)
        )
        if self.rotary:
            q, k = turned(q), turned(k)
        places = torch.arange(x.shape[-2], device=x.device)
        later = places.unsqueeze(0) > places.unsqueeze(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
        x = x + self.join((scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2))
        wide: Tensor = self.narrow(F.gelu(self.widen(self.after(x))))
        return x + wide


def turned(x: Tensor) -> Tensor:
    """Pairs of numbers turned by an angle that grows with their place (rotary positions, Su et al. 2021).

    Args:
        x: [..., T, an even number].
    """
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=x.dtype)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype).unsqueeze(-1) * 10000 ** (
        -steps / half
    )
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class TextModule(nn.Module):
    """An embedding, some layers, and a score for each token of the vocabulary.

    Args:
        vocabulary: how many tokens there are.
        embed: how many numbers stand for a token.
        layers: from [samples, T, embed] to [samples, T, width].
        places: how many places have an embedding of their own that is added to the token's; 0: none.
        tied: whether the scores' weights are those of the embedding.
        norm: whether what the layers make is normalised first.
    """

    def __init__(
        self,
        vocabulary: int,
        embed: int,
        layers: list[nn.Module],
        width: int,
        *,
        places: int = 0,
        tied: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embed)
        self.places = nn.Parameter(0.02 * torch.randn(places, embed)) if places else None
        self.context = places or None  # how many tokens it can see
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.head = nn.Linear(width, vocabulary)
        if tied:
            nn.init.normal_(self.tokens.weight, std=1 / math.sqrt(embed))
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next token at each place [samples, T, vocabulary]."""
        h = self.tokens(x)
        if self.places is not None:
            if x.shape[-1] > len(self.places):
                raise ValueError(
                    f"sequences of {x.shape[-1]} tokens, but there are {len(self.places)} places"
                )
            h = h + self.places[: x.shape[-1]]
        scores: Tensor = self.head(self.norm(self.layers(h)))
        return scores


@dataclass(frozen=True)
class Gru(Model):
    """Gated recurrent units on an embedding of characters or tokens, for text.

    Args:
        embed: how many numbers stand for a token.
        hidden: the units of each layer.
        layers: how many.
    """

    embed: int = 64
    hidden: int = 256
    layers: int = 1

    name: ClassVar[str] = "gru"

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self.name, embed=self.embed, hidden=self.hidden, layers=self.layers)

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        _length(self.name, shape)
        widths = [self.embed, *[self.hidden] * self.layers]
        layers: list[nn.Module] = [GruLayer(*pair) for pair in pairwise(widths)]
        return TextModule(classes, self.embed, layers, self.hidden)


@dataclass(frozen=True)
class Transformer(Model):
    """A small causal transformer, normalised before each part, for text.

    Args:
        width: how many numbers stand for a token.
        heads: of attention.
        layers: how many.
        positions: "rotary": queries and keys are turned by their place; "learned": places have embeddings.
        tied: whether the scores' weights are those of the embedding.
    """

    width: int = 128
    heads: int = 4
    layers: int = 2
    positions: Literal["rotary", "learned"] = "rotary"
    tied: bool = False

    name: ClassVar[str] = "transformer"

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self.name, width=self.width, heads=self.heads, layers=self.layers)
        if self.width % (2 * self.heads):
            raise ConfigError(
                f"the width of a transformer is split among its heads, an even number each; got "
                f"width={self.width}, heads={self.heads}"
            )

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        length, rotary = _length(self.name, shape), self.positions == "rotary"
        layers: list[nn.Module] = [
            TransformerLayer(self.width, self.heads, rotary) for _ in range(self.layers)
        ]
        places = 0 if rotary else length
        return TextModule(classes, self.width, layers, self.width, places=places, tied=self.tied, norm=True)


def _positive(name: str, **sizes: int) -> None:
    for key, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name} needs {key} of 1 or more; got {size}")


def _length(name: str, shape: tuple[int, ...]) -> int:
    """The length of a sequence, or a ConfigError if samples are none."""
    if len(shape) != 1:
        raise ConfigError(
            f"{name} is for text, sequences of whole numbers; one sample has shape {shape}; set "
            "data.name=shakespeare, or data.name=text with data.path"
        )
    return shape[0]
