"""What surrounds a codec: stages in a row, each with a part before the codec and parts after it.

    x -> clip -> memory -> codec -> (wire) -> contraction -> memory -> clip -> what the server hears

A stage changes a vector on its way to the codec (`before`), and what came through on its way back (`after`,
which sender and receiver do alike). A stage that remembers updates what the client keeps once it knows what
was heard (`keep`), and again once the mean of the round is known (`settle`). Noise and masks would be further
stages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.traffic.links import Links, Memory
from fedcom.vectors import Layout

Unit = float | Tensor  # what turns a vector into the model's units


@dataclass(frozen=True)
class Stage:
    """Changes nothing; the others override what they change.

    `kept` is what the client remembers of one uploaded vector; only a stage that `remembers` changes it.
    """

    remembers: ClassVar[bool] = False  # whether clients keep a vector for it between rounds
    needs_mean: ClassVar[bool] = False  # whether clients must hear the mean of the round for it
    contracts: ClassVar[bool] = False  # whether what is heard must be nearer to what was meant than nothing

    def before(self, x: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        """What goes on towards the codec."""
        return x

    def after(self, heard: Tensor, unit: Unit) -> Tensor:
        """What sender and receiver make of what came through the codec."""
        return heard

    def keep(self, x: Tensor, meant: Tensor, heard: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        """What the sender keeps: x came in, `meant` was handed on, `heard` came back."""
        return kept

    def settle(self, kept: Tensor, mean: Tensor, unit: Unit) -> Tensor:
        """What the sender keeps once it knows the mean of what the server heard."""
        return kept


@dataclass(frozen=True)
class Clip(Stage):
    """Scales a vector down to a largest norm, in the model's units."""

    bound: float

    def before(self, x: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(unit * x, dim=-1, keepdim=True)
        return x * (self.bound / norm).clamp(max=1)


@dataclass(frozen=True)
class ErrorFeedback(Stage):
    """Adds what was dropped to the next message; kept in the model's units, so that eta may decay."""

    remembers: ClassVar[bool] = True
    contracts: ClassVar[bool] = True

    def before(self, x: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        return unit * x + kept

    def after(self, heard: Tensor, unit: Unit) -> Tensor:
        return heard / unit

    def keep(self, x: Tensor, meant: Tensor, heard: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        return meant - heard


@dataclass(frozen=True)
class PaperMemory(Stage):
    """The rule as the paper prints it: nu += u_j/m - mean u, with u = eta D (docs/decisions/memories.md)."""

    clients: int

    remembers: ClassVar[bool] = True
    needs_mean: ClassVar[bool] = True

    def before(self, x: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        return unit * x + kept

    def after(self, heard: Tensor, unit: Unit) -> Tensor:
        return heard / unit

    def keep(self, x: Tensor, meant: Tensor, heard: Tensor, kept: Tensor, unit: Unit) -> Tensor:
        return kept + unit * x / self.clients

    def settle(self, kept: Tensor, mean: Tensor, unit: Unit) -> Tensor:
        return kept - unit * mean


class Sent(NamedTuple):
    """What became of one vector: as the server hears it, what is kept, and both ends of the codec."""

    heard: Tensor
    kept: Tensor
    into_codec: Tensor
    out_of_codec: Tensor


@dataclass(frozen=True)
class Pipeline:
    """The stages of one direction, in a row, around its codec.

    Args:
        contraction: what comes out of the codec is multiplied by this, if a stage wants a contraction.
    """

    stages: tuple[Stage, ...] = ()
    contraction: float | None = None

    @classmethod
    def of(cls, stages: tuple[Stage, ...], codec: Codec, layout: Layout) -> "Pipeline":
        """Stages around a codec; an unbiased codec of any q is a contraction once divided by 1 + q."""
        wanted = codec.unbiased and any(stage.contracts for stage in stages)
        return cls(stages, codec.kept(layout) if wanted else None)

    @property
    def remembers(self) -> bool:
        """Whether clients keep a vector for it between rounds."""
        return any(stage.remembers for stage in self.stages)

    @property
    def needs_mean(self) -> bool:
        """Whether clients must hear the mean of a round for it."""
        return any(stage.needs_mean for stage in self.stages)

    @property
    def contracts(self) -> bool:
        """Whether a stage wants a contraction."""
        return any(stage.contracts for stage in self.stages)

    def send(self, x: Tensor, kept: Tensor, unit: Unit, codec: Callable[[Tensor], Tensor]) -> Sent:
        """Pass a vector through all stages and the codec, and back again."""
        way = [x]
        for stage in self.stages:
            way.append(stage.before(way[-1], kept, unit))
        out = heard = self._contracted(codec(way[-1]))
        for stage, came, went in reversed(list(zip(self.stages, way, way[1:], strict=False))):
            kept = stage.keep(came, went, heard, kept, unit)
            heard = stage.after(heard, unit)
        return Sent(heard, kept, way[-1], out)

    def hear(self, decoded: Tensor, unit: Unit) -> Tensor:
        """What a receiver makes of a decoded message: the same that `send` says was heard."""
        heard = self._contracted(decoded)
        for stage in reversed(self.stages):
            heard = stage.after(heard, unit)
        return heard

    def settle(self, kept: Tensor, mean: Tensor, unit: Unit) -> Tensor:
        """What the sender keeps once the mean is known."""
        for stage in self.stages:
            kept = stage.settle(kept, mean, unit)
        return kept

    def _contracted(self, heard: Tensor) -> Tensor:
        return heard if self.contraction is None else self.contraction * heard


_MEMORIES: Mapping[Memory, Callable[[int], tuple[Stage, ...]]] = {
    "none": lambda clients: (),
    "error-feedback": lambda clients: (ErrorFeedback(),),
    "paper": lambda clients: (PaperMemory(clients),),
}


def uplink(links: Links, memory: Memory, layout: Layout, clients: int) -> Pipeline:
    """The stages of what clients send."""
    clip = () if links.clip is None else (Clip(links.clip),)
    return Pipeline.of((*clip, *_MEMORIES[memory](clients)), links.uplink, layout)


def downlink(links: Links, layout: Layout, clients: int) -> Pipeline:
    """The stages of the mean as the server sends it; what loses nothing has nothing to remember."""
    memory: Memory = "none" if links.downlink.lossless else links.downlink_memory
    return Pipeline.of(_MEMORIES[memory](clients), links.downlink, layout)
