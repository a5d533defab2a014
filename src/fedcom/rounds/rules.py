"""An algorithm over given links: what goes through which codec, what is kept, and what is refused."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.errors import ConfigError
from fedcom.rounds import stages
from fedcom.rounds.stages import Pipeline
from fedcom.traffic.links import Links, Memory
from fedcom.vectors import Layout, Vectors

Measure = Callable[[Tensor, Tensor], Tensor]  # of what was heard and what was meant, one number per client


def relative_error(heard: Tensor, meant: Tensor) -> Tensor:
    """|Q(x) - x|^2 / |x|^2, zero for the zero vector."""
    size = meant.square().sum(-1)
    return (heard - meant).square().sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)


class Kept(NamedTuple):
    """What the server keeps between rounds: the algorithm's state, and what a lossy downlink dropped."""

    server: Any
    residual: Vectors


@dataclass(frozen=True)
class Rules:
    """An algorithm over given links, for a model of some layout and so many clients.

    Args:
        measure: how far what was heard is from what was meant; where damping asks for it, clients send it.
    """

    algorithm: Algorithm
    links: Links
    layout: Layout
    clients: int
    sampled: int
    measure: Measure = relative_error

    def __post_init__(self) -> None:
        check(self.algorithm, self.links, self.clients, self.sampled)
        codecs = [codec for codec, _ in self.links.uplinks(torch.arange(self.clients))]
        for codec in (*codecs, self.links.downlink):
            codec.variance(self.layout)  # a codec that cannot serve this model says so before round 0

    @cached_property
    def uplink(self) -> Pipeline:
        """The stages of what clients send."""
        return stages.uplink(self.links, memory_of(self.algorithm, self.links), self.layout, self.clients)

    @cached_property
    def downlink(self) -> Pipeline:
        """The stages of the mean as the server sends it."""
        return stages.downlink(self.links, self.layout, self.clients)

    @property
    def replay(self) -> bool:
        """Whether clients repeat the server's step themselves, so that only the mean goes down."""
        if self.algorithm.option is not None:
            return self.algorithm.option == "I"
        return self.algorithm.feedback and self.sampled == self.clients

    @property
    def tells_mean(self) -> bool:
        """Whether the mean goes down after the round."""
        return self.algorithm.feedback or self.uplink.needs_mean or self.replay

    @property
    def measured(self) -> bool:
        """Whether clients send their measured q, for the server to set alpha from it."""
        codec = self.links.uplink
        wanted = self.algorithm.smoothing() == "auto" and not self.uplink.contracts
        return wanted and codec.unbiased and not codec.lossless

    def alpha(self, q: Tensor) -> float | Tensor:
        """How far tracking or shifts move this round: one number for all clients, or their sum drifts."""
        setting = self.algorithm.smoothing()
        if setting != "auto":
            return setting
        if self.measured:
            return 1 / (1 + q)
        # Tracking on a biased codec without memory is an error feedback of its own and needs no damping;
        # with one, a coordinate sent every 1/kept rounds would move delta that many times too far.
        return self.links.uplink.kept(self.layout) if self.uplink.contracts else 1.0

    def first_kept(self, w: Tensor) -> Kept:
        """What the server keeps before round 0."""
        carried = self.algorithm.uploads if self.tells_mean and self.downlink.remembers else ()
        return Kept(self.algorithm.init_server(w), {name: torch.zeros_like(w) for name in carried})

    def first_row(self, w: Tensor) -> tuple[Any, Vectors]:
        """What a client keeps before it first takes part: the algorithm's state, and empty memories."""
        remembered = self.algorithm.uploads if self.uplink.remembers else ()
        return self.algorithm.init_client(w), {name: torch.zeros_like(w) for name in remembered}


def memory_of(algorithm: Algorithm, links: Links) -> Memory:
    """What clients do with what their codec drops: as the links say, or the method's own way."""
    own: Memory = algorithm.uplink.get("memory", "none")
    return own if links.uplink_memory is None else links.uplink_memory


def check(algorithm: Algorithm, links: Links, clients: int, sampled: int) -> None:
    """Refuse an algorithm, codecs and numbers of clients that do not go together."""
    a, m, n, memory = algorithm, clients, sampled, memory_of(algorithm, links)
    if a.compresses is not None and not links.uplink.lossless:
        raise twin(a, f"got uplink {links.uplink.name!r}")
    if a.compresses is not None and memory != "none":
        raise twin(a, f"got uplink.memory {memory!r}")
    if a.feedback and n < 2:
        raise ConfigError(
            f"{a.name} tracks differences between clients and needs two per round; got {n} of {m}"
        )
    if a.option == "I" and n < m:
        raise ConfigError(f"option I replays the server's step and needs full participation; got {n} of {m}")
    if not (links.downlink.lossless or a.feedback or a.option == "I" or memory == "paper"):
        raise ConfigError(
            f"a downlink codec compresses the mean, but {a.name} sends the model down, which travels dense; "
            "set algorithm.option=I (full participation) to send the mean instead"
        )
    if not links.downlink.lossless and links.downlink_memory == "none":
        warnings.warn(
            f"downlink {links.downlink.name!r} without memory: what it drops is lost, which leaves an error "
            "floor; downlink.memory=error-feedback keeps it",
            stacklevel=2,
        )
    if links.budgets is not None and len(links.budgets) != m:
        raise ConfigError(
            f"budgets and bandwidths need one number per client ({m}); got {len(links.budgets)}"
        )
    if not isinstance(a.tau, int) and len(a.tau) != m:
        raise ConfigError(f"tau needs one number, or one per client ({m}); got {len(a.tau)}")


def twin(algorithm: Algorithm, got: str) -> ConfigError:
    """The error for a codec on a method that has none, naming the one that does."""
    return ConfigError(
        f"{algorithm.name} sends its updates uncompressed; its twin with a codec is {algorithm.compresses} "
        f"(algorithm.name={algorithm.compresses}); {got}"
    )
