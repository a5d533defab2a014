"""Stages around a codec: clipping and memory, each with a part before the codec and parts after it.

    x -> clip -> memory -> codec -> (wire) -> contraction -> memory -> clip -> what the server hears

A stage changes a vector before the codec (`before`) and what came out of the codec (`after`; sender and
receiver both do this). A stage that remembers updates its memory once it knows what the server heard
(`remember`), and again once it knows the mean of the round (`settle`). Noise and masks would be further
stages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.traffic.links import Links, Memory
from fedcom.vectors import Layout


class Units(NamedTuple):
    """What an uploaded vector is multiplied by to be in other units."""

    model: float | Tensor  # in those of the model
    memory: float | Tensor  # in those in which its memory is kept


@dataclass(frozen=True)
class Stage:
    """A stage that changes nothing; other stages override what they change.

    In every method `memory` is what the client remembers of one uploaded vector, and `units` are that
    vector's. Only a stage that `remembers` changes the memory.

    Attributes:
        remembers: whether clients keep a vector between rounds for this stage.
        needs_mean: whether clients must hear the mean of the round for this stage.
        needs_contraction: whether the stage needs a contraction: E|Q(x) - x|^2 < |x|^2.
    """

    remembers: ClassVar[bool] = False
    needs_mean: ClassVar[bool] = False
    needs_contraction: ClassVar[bool] = False

    def before(self, x: Tensor, memory: Tensor, units: Units) -> Tensor:
        """What this stage passes on towards the codec."""
        return x

    def after(self, heard: Tensor, units: Units) -> Tensor:
        """What sender and receiver make of what came out of the codec."""
        return heard

    def remember(self, x: Tensor, passed: Tensor, heard: Tensor, memory: Tensor, units: Units) -> Tensor:
        """The sender's new memory.

        Args:
            x: what the stage was given.
            passed: what it passed on.
            heard: what came back from the codec, in the units of `passed`.
        """
        return memory

    def settle(self, memory: Tensor, mean: Tensor, units: Units) -> Tensor:
        """The sender's memory once it knows the mean of what the server heard."""
        return memory

    def unheard(self, memory: Tensor, missing: Tensor, units: Units) -> Tensor:
        """The sender's memory once it knows that the receiver left out some of what it heard."""
        return memory


@dataclass(frozen=True)
class Clip(Stage):
    """Scales longer vectors down to norm `bound`, in the model's units."""

    bound: float

    def before(self, x: Tensor, memory: Tensor, units: Units) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(units.model * x, dim=-1, keepdim=True)
        return x * (self.bound / norm).clamp(max=1)


@dataclass(frozen=True)
class _Remembering(Stage):
    """Adds what is remembered to the next message; in units of its own, so that eta may decay."""

    remembers: ClassVar[bool] = True

    def before(self, x: Tensor, memory: Tensor, units: Units) -> Tensor:
        return units.memory * x + memory

    def after(self, heard: Tensor, units: Units) -> Tensor:
        return heard / units.memory


@dataclass(frozen=True)
class ErrorFeedback(_Remembering):
    """Remembers what the codec dropped."""

    needs_contraction: ClassVar[bool] = True

    def remember(self, x: Tensor, passed: Tensor, heard: Tensor, memory: Tensor, units: Units) -> Tensor:
        return passed - heard

    def unheard(self, memory: Tensor, missing: Tensor, units: Units) -> Tensor:
        return memory + units.memory * missing


@dataclass(frozen=True)
class DecayedFeedback(ErrorFeedback):
    """Remembers what the codec dropped, and forgets a twentieth of it each round, as SparseLoCo does."""

    kept: ClassVar[float] = 0.95

    def before(self, x: Tensor, memory: Tensor, units: Units) -> Tensor:
        return units.memory * x + self.kept * memory


@dataclass(frozen=True)
class PaperMemory(_Remembering):
    """The paper's rule as printed: nu += u_j/m - mean u, with u = eta D (docs/decisions/memories.md).

    Args:
        clients: m, the number of clients.
    """

    clients: int

    needs_mean: ClassVar[bool] = True

    def remember(self, x: Tensor, passed: Tensor, heard: Tensor, memory: Tensor, units: Units) -> Tensor:
        return memory + units.memory * x / self.clients

    def settle(self, memory: Tensor, mean: Tensor, units: Units) -> Tensor:
        return memory - units.memory * mean


class Delivery(NamedTuple):
    """What became of one vector that was sent."""

    heard: Tensor  # the vector as the receiver hears it
    memory: Tensor  # what the sender remembers of it
    out_of_codec: Tensor


@dataclass(frozen=True)
class Pipeline:
    """The stages of one direction, in order, around its codec.

    Args:
        stages: the one furthest from the codec first.
        contraction: what comes out of the codec is multiplied by this, a column if clients differ; None: by
            nothing.
    """

    stages: tuple[Stage, ...] = ()
    contraction: float | Tensor | None = None

    @classmethod
    def of(cls, stages: tuple[Stage, ...], codec: Codec, layout: Layout) -> "Pipeline":
        """Stages around a codec.

        If a stage needs a contraction, what an unbiased codec sends is divided by 1 + q.
        """
        wanted = codec.unbiased and any(stage.needs_contraction for stage in stages)
        return cls(stages, codec.kept(layout) if wanted else None)

    @property
    def remembers(self) -> bool:
        """Whether the sender keeps a vector between rounds."""
        return any(stage.remembers for stage in self.stages)

    @property
    def needs_mean(self) -> bool:
        """Whether clients must hear the mean of the round."""
        return any(stage.needs_mean for stage in self.stages)

    @property
    def needs_contraction(self) -> bool:
        """Whether a stage needs a contraction."""
        return any(stage.needs_contraction for stage in self.stages)

    def before(self, x: Tensor, memory: Tensor, units: Units) -> list[Tensor]:
        """A vector as each stage is given it, in order; the last one goes into the codec.

        Args:
            memory: what the sender remembers of this vector.
        """
        passed = [x]
        for stage in self.stages:
            passed.append(stage.before(passed[-1], memory, units))
        return passed

    def after(self, passed: Sequence[Tensor], decoded: Tensor, memory: Tensor, units: Units) -> Delivery:
        """What became of a vector, once its message was decoded.

        Args:
            passed: what `before` returned.
            memory: what `before` was given.
        """
        out = heard = self._contracted(decoded)
        for stage, before, after in reversed(list(zip(self.stages, passed, passed[1:], strict=False))):
            memory = stage.remember(before, after, heard, memory, units)
            heard = stage.after(heard, units)
        return Delivery(heard, memory, out)

    def hear(self, decoded: Tensor, units: Units) -> Tensor:
        """What a receiver makes of a decoded message: the same vector as in the sender's Delivery."""
        heard = self._contracted(decoded)
        for stage in reversed(self.stages):
            heard = stage.after(heard, units)
        return heard

    def settle(self, memory: Tensor, mean: Tensor, units: Units) -> Tensor:
        """The sender's memory once it knows the mean."""
        for stage in self.stages:
            memory = stage.settle(memory, mean, units)
        return memory

    def unheard(self, memory: Tensor, missing: Tensor, units: Units) -> Tensor:
        """The sender's memory once it knows that the receiver left out some of what it heard."""
        for stage in self.stages:
            memory = stage.unheard(memory, missing, units)
        return memory

    def _contracted(self, heard: Tensor) -> Tensor:
        return heard if self.contraction is None else self.contraction * heard


_MEMORIES: Mapping[Memory, Callable[[int], tuple[Stage, ...]]] = {
    "none": lambda clients: (),
    "error-feedback": lambda clients: (ErrorFeedback(),),
    "decayed-feedback": lambda clients: (DecayedFeedback(),),
    "paper": lambda clients: (PaperMemory(clients),),
}


def uplink(links: Links, memory: Memory, layout: Layout, clients: int) -> Pipeline:
    """The stages of what clients send."""
    clip = () if links.clip is None else (Clip(links.clip),)
    return Pipeline.of((*clip, *_MEMORIES[memory](clients)), links.uplink, layout)


def downlink(links: Links, memory: Memory, layout: Layout, clients: int) -> Pipeline:
    """The stages of the mean that the server sends; a lossless codec needs no memory."""
    memory = "none" if links.downlink.lossless else memory
    return Pipeline.of(_MEMORIES[memory](clients), links.downlink, layout)
