"""An algorithm over given links: what is sent through which codec, and what is kept."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round, smaller
from fedcom.errors import ConfigError
from fedcom.rounds import returned, stages
from fedcom.rounds.client_ranks import ClientRanks
from fedcom.rounds.local import STEPS
from fedcom.rounds.part import Turn
from fedcom.rounds.products import NAME as PRODUCTS
from fedcom.rounds.products import Products
from fedcom.rounds.stages import Pipeline, Units
from fedcom.rounds.together import (
    check,
    check_products,
    check_ranks,
    default_downlink_memory,
    memory_of,
    names,
)
from fedcom.traffic.links import Links
from fedcom.vectors import Layout, Vectors, apart, handfuls

OWN = "own"  # the name of what stays with a client among what it remembers
_LOCAL = "local "  # before the name of such a moment among what a client remembers
TAKEN = _LOCAL + STEPS  # the name of how many steps it took with them, in each turn
Measure = Callable[[Tensor, Tensor], Tensor]  # (heard, meant) to an error, one number per client


def relative_error(heard: Tensor, meant: Tensor) -> Tensor:
    """|Q(x) - x|^2 / |x|^2, one number per client; zero for the zero vector."""
    if meant.dim() == 2 and not meant.is_cuda:
        some = handfuls(*meant.shape)
        return torch.cat([_relative_error(heard[rows], meant[rows]) for rows in some])
    return _relative_error(heard, meant)


def _relative_error(heard: Tensor, meant: Tensor) -> Tensor:
    size, wrong = (meant * meant).sum(-1), heard - meant  # a square would be another kernel to load
    return (wrong * wrong).sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)


class ServerSide(NamedTuple):
    """What the server keeps between rounds."""

    state: Any  # the algorithm's
    memory: Vectors  # what a lossy downlink dropped, by vector
    moments: Vectors  # what its optimiser keeps, by name
    base: Vectors = {}  # noqa: RUF012  # the frozen weights that change, and the first model, if they do

    def tensors(self) -> Vectors:
        """All of it, by name."""
        parts = {"memory": self.memory, "moment": self.moments, "base": self.base}
        found = {f"{part}.{name}": x for part, held in parts.items() for name, x in held.items()}
        return {**self.state._asdict(), **found}

    def with_tensors(self, found: Vectors) -> "ServerSide":
        """The same with other tensors, by the names that `tensors` has."""
        state = type(self.state)(*(found[name] for name in self.state._fields))
        memory = {name: found[f"memory.{name}"] for name in self.memory}
        moments = {name: found[f"moment.{name}"] for name in self.moments}
        return ServerSide(state, memory, moments, {name: found[f"base.{name}"] for name in self.base})


@dataclass(frozen=True)
class Rules:
    """An algorithm over given links, for a model and a number of clients.

    Args:
        layout: of the model.
        clients: m, how many there are.
        sampled: n, how many take part in a round.
        measure: how far what was heard is from what was meant; clients send it where damping needs it.
        seed: from which the first model was drawn; None: it cannot be drawn again.
        own: coordinates that stay with each client, as it first has them; None: there are none.
        statistics: how many of the last coordinates, of w or of `own`, are statistics.
        whole: the layout of w and `own`; None: that of w.
        turns: the names of the tensors that are trained and sent in the first round, the second and so on,
            from the beginning again after the last; empty: all in every round.
        part: what is trained and sent in the round that these rules are for; None: the whole model.
        repeats: whether clients repeat the server's step; None: method and links decide.
        products: the adapters that are averaged as products, if any.
        ranks: the ranks of clients' adapters, if they differ.
    """

    algorithm: Algorithm
    links: Links
    layout: Layout
    clients: int
    sampled: int
    measure: Measure = relative_error
    seed: int | None = None
    own: Tensor | None = field(default=None, compare=False)
    statistics: int = 0
    whole: Layout | None = None
    turns: tuple[tuple[str, ...], ...] = ()
    part: Turn | None = None
    repeats: bool | None = None
    products: Products | None = None
    ranks: ClientRanks | None = None

    def __post_init__(self) -> None:
        check(self.algorithm, self.links, self.clients, self.sampled)
        if self.own is not None and type(self.algorithm).begin is not Algorithm.begin:
            raise ConfigError(
                f"{self.algorithm.name} keeps models of its own, which lack what stays with each client; "
                "choose another method, or batch_norm frozen or averaged"
            )
        if self.products is not None:
            check_products(self.algorithm, self.uplink.remembers, self.products.restarts)
        if (self.turns or self.products or self.ranks) and (self.statistics or self.own is not None):
            raise ConfigError(
                "adapters that take turns, differ in rank or are averaged as products need batch_norm "
                "frozen; set it, or choose adapter lora or ffa"
            )
        if self.ranks is not None:
            check_ranks(self.algorithm, self.links, self.uplink.remembers)
        if self.links.first == "seed" and self.seed is None:
            raise ConfigError(
                "downlink.first=seed needs a model that is drawn from a seed: leave run.init out or set "
                "downlink.first=dense; in the library give the task its model_seed"
            )
        codecs = [codec for codec, _ in self.links.uplinks(torch.arange(self.clients))]
        for codec in (*codecs, self.links.downlink):
            for turn in self.by_turn or (self,):
                codec.variance(turn.compressed)  # raises now, before round 0, if it cannot serve this model
        for part in self.ranks.parts.values() if self.ranks else ():
            self.links.uplink.variance(part.layout)

    @cached_property
    def compressed(self) -> Layout:
        """The layout of what goes through lossy codecs: all but statistics, which travel as they are."""
        sent, n = self.layout, len(self.layout.names)
        left = 0 if self.own is not None else self.statistics
        while left > 0:
            n -= 1
            left -= sent.sizes[n]
        return sent if n == len(sent.names) else Layout(sent.names[:n], sent.shapes[:n], sent.dtype)

    @cached_property
    def by_turn(self) -> tuple["Rules", ...]:
        """The rules of each turn; empty without turns."""
        parts = [Turn(self.layout, names, self.turns, i) for i, names in enumerate(self.turns)]
        turn = replace(self, turns=(), repeats=self.clients_repeat_step, whole=None) if parts else self
        return tuple(replace(turn, layout=part.layout, part=part) for part in parts)

    def at(self, round_index: int) -> "Rules":
        """The rules of a round; they differ from these if parts of the model are trained in turn."""
        return self.by_turn[round_index % len(self.turns)] if self.turns else self

    @cached_property
    def alone(self) -> "Rules":
        """The same rules for a model that is nothing but the part."""
        return replace(self, part=None)

    def units(self, vector: str, rnd: Round) -> Units:
        """The units of an uploaded vector."""
        return Units(self.algorithm.unit(vector, rnd), self.algorithm.memory_unit(vector, rnd))

    @cached_property
    def uplink(self) -> Pipeline:
        """The stages around what clients send."""
        return stages.uplink(self.links, memory_of(self.algorithm, self.links), self.compressed, self.clients)

    def uplink_of(self, clients: Tensor) -> Pipeline:
        """The stages around what some clients send: each contracts by what its own codec needs."""
        if self.links.budgets is None or self.uplink.contraction is None:
            return self.uplink
        kept = self._kept[clients.cpu()].to(clients.device, self.layout.dtype)
        return replace(self.uplink, contraction=kept.unsqueeze(-1))

    @cached_property
    def _kept(self) -> Tensor:
        """The share of x that a message of each client carries, by the promise of its codec."""
        kept = torch.empty(self.clients, dtype=torch.float64)
        for codec, rows in self.links.uplinks(torch.arange(self.clients)):
            kept[rows] = codec.kept(self.compressed)
        return kept

    @cached_property
    def downlink(self) -> Pipeline:
        """The stages around the mean that the server sends."""
        memory = self.links.downlink_memory or default_downlink_memory(self.algorithm, self.links.downlink)
        return stages.downlink(self.links, memory, self.compressed, self.clients)

    @property
    def first_seed(self) -> int | None:
        """The seed that travels in place of the first model; None: the model does."""
        return self.seed if self.links.first == "seed" else None

    @property
    def corrects_downlink(self) -> bool:
        """Whether the algorithm makes up for what the downlink drops."""
        return self.algorithm.corrects_downlink and not self.links.downlink.lossless

    @property
    def tells_q_down(self) -> bool:
        """Whether clients are told the error of the mean that they hear, on which alpha then depends."""
        return self.sends_mean_down and self.corrects_downlink and self.links.downlink.unbiased

    @property
    def clients_repeat_step(self) -> bool:
        """Whether clients repeat the server's step themselves, so that only the mean goes down."""
        if self.repeats is not None:
            return self.repeats
        if self.algorithm.option is not None:
            return self.algorithm.option == "I"
        if self.turns or self.products is not None:
            return True  # means are shorter than the model, or the base changes, which is told like a mean
        if self.sampled == self.clients:
            return self.algorithm.needs_mean
        return not self.links.downlink.lossless  # the same

    @property
    def catches_up(self) -> bool:
        """Whether clients that missed rounds are sent what they missed."""
        return self.clients_repeat_step and self.sampled < self.clients

    @property
    def sends_mean_down(self) -> bool:
        """Whether the mean goes down after the round; not if adapters start anew, and all is in the base."""
        if self.products is not None and self.products.restarts:
            return False
        return self.algorithm.needs_mean or self.uplink.needs_mean or self.clients_repeat_step

    @property
    def sends_q(self) -> bool:
        """Whether clients send their measured q, from which the server sets alpha."""
        return (self.damps or self.algorithm.uses_q) and not self.links.uplink.lossless

    @property
    def damps(self) -> bool:
        """Whether alpha follows the measured q."""
        wanted = self.algorithm.smoothing() == "auto" and not self.uplink.needs_contraction
        return wanted and self.links.uplink.unbiased

    def coarsest_q(self, q: Tensor, clients: Tensor) -> Tensor:
        """The q that alpha follows: the mean over clients, or the largest mean over those of one budget.

        Args:
            q: measured by each client, in the last axis.
            clients: their numbers.
        """
        if self.links.budgets is None:
            return q.mean(-1)
        return torch.stack([q[..., rows].mean(-1) for _, rows in self.links.uplinks(clients)]).amax(0)

    def alpha(self, q: Tensor, rnd: Round, q_down: Tensor | None = None) -> float | Tensor:
        """How far tracking or shifts move this round.

        It is one number for all clients: with different ones the sum over clients would drift.

        Args:
            q: what clients measured, as `coarsest_q` gives it.
            q_down: the server's, if it makes up for what an unbiased downlink drops: what it makes up in a
                round must be less than what it drops.
        """
        if self.damps and not self.links.uplink.lossless:
            alpha: float | Tensor = 1 / (1 + q) if q_down is None else 1 / (1 + q + q_down)
        else:
            undamped = self._undamped()
            alpha = undamped if q_down is None else undamped / (1 + q_down)
        algorithm = self.algorithm
        if not (algorithm.server.kept and algorithm.tracks and algorithm.smoothing() == "auto"):
            return alpha
        return smaller(alpha, algorithm.fastest_tracking(rnd))

    def _undamped(self) -> float:
        """How far tracking or shifts move where the measured q does not decide it."""
        setting = self.algorithm.smoothing()
        if setting != "auto":
            return setting
        # Without a memory, tracking on a biased codec acts as error feedback and needs no damping. With a
        # memory, a coordinate that is sent every 1/kept rounds would move delta 1/kept times too far.
        # One alpha serves all clients, so it is that of the client with the coarsest codec.
        return float(self._kept.min()) if self.uplink.needs_contraction else 1.0

    def init_server(self, w: Tensor) -> ServerSide:
        """What the server keeps before round 0: the algorithm's state, empty memories and first moments."""
        remembered = self.algorithm.uploads if self.sends_mean_down and self.downlink.remembers else ()
        state = returned.begun(self.algorithm, "init_server", self.algorithm.init_server(w), ("w",))
        if self.corrects_downlink:
            returned.tracked(self.algorithm, w, state)
        state = type(state)(*apart(state))  # engines write it tensor by tensor
        memory = {name: torch.zeros_like(w) for name in remembered}
        server = self.algorithm.server
        return ServerSide(state, memory, returned.moments(server, server.init(state.w)))

    def server_step(self, side: ServerSide, mean: Vectors, rnd: Round) -> ServerSide:
        """What the server keeps after its step, except the memory.

        Args:
            mean: of what the server heard, as clients hear it.
        """
        if self.part is not None:
            return self.part.into(side, self.alone.server_step(self.part.of(side), mean, rnd))
        algorithm, before = self.algorithm.at_gamma(rnd.gamma), side.state
        server = algorithm.server
        direction = None if server.plain else returned.direction(algorithm, before, mean, rnd)
        state = returned.stepped(algorithm, "server_step", before, algorithm.server_step(before, mean, rnd))
        moments = side.moments
        if direction is not None:
            after = server.step(before.w, moments, direction, rnd.eta, algorithm.global_rate)
            w, moments = returned.optimised(server, before.w, moments, after)
            state = state._replace(w=w)
        last = self.statistics if self.own is None else 0
        if last and names(algorithm, "server_step", "server_direction"):  # they become the clients' mean
            went = algorithm.mean_direction(before, mean, rnd)
            averaged = before.w[..., -last:] - rnd.eta * went[..., -last:]
            state = state._replace(w=torch.cat((state.w[..., :-last], averaged), -1))
        return side._replace(state=state, moments=moments)

    def blank_mean(self, w: Tensor) -> Vectors:
        """Zeros for the mean of all that clients send.

        Args:
            w: the model; only its shape, dtype and device matter.
        """
        w = w if self.part is None else self.part.of(w)
        vectors = {name: torch.zeros_like(w) for name in self.algorithm.uploads}
        products = {} if self.products is None else {PRODUCTS: self.products.blank(w)}
        return {**vectors, **{name: w.new_zeros(1) for name in self.algorithm.numbers}, **products}

    def replica(self, side: ServerSide) -> Vectors:
        """The vectors that clients need to repeat the server's step, by name."""
        vectors = self.algorithm.replica(side.state)
        returned.replicated(self.algorithm, vectors, side.moments)
        return {**vectors, **{f"server {name}": x for name, x in side.moments.items()}}

    def replicated(self, vectors: Vectors) -> ServerSide:
        """What clients that repeat the server's step know of it.

        Args:
            vectors: as in a replica, or in a broadcast of the first round.
        """
        side = self.init_server(vectors["w"])
        known = {name: x for name, x in vectors.items() if name in side.state._fields}
        moments = {name: vectors.get(f"server {name}", x) for name, x in side.moments.items()}
        return side._replace(state=side.state._replace(**known), moments=moments)

    def init_client(self, w: Tensor) -> tuple[Any, Vectors]:
        """What a client keeps before it first takes part: the algorithm's state, and empty memories."""
        remembered = self.algorithm.uploads if self.uplink.remembers else ()
        state = returned.begun(self.algorithm, "init_client", self.algorithm.init_client(w))
        own = {} if self.own is None else {OWN: self.own.to(w.device)}
        local = self.algorithm.local
        moments = returned.moments(local, local.init(torch.cat((w, *own.values()))))
        turns = max(1, len(self.turns))  # what is not trained in a turn takes no steps in it
        kept = {**moments, STEPS: w.new_zeros(turns, dtype=torch.int64)} if moments else {}
        memory = {**{name: torch.zeros_like(w) for name in remembered}, **self.moments_kept(kept), **own}
        held = apart([w, *state, *memory.values()])[1:]  # what a client begins from stays when w is written
        return type(state)(*held[: len(state)]), dict(zip(memory, held[len(state) :], strict=True))

    def moments_in(self, memory: Vectors) -> Vectors:
        """What a client's optimiser keeps, out of all that the client remembers; empty: it begins anew."""
        found = memory.items() if self.algorithm.local.keep else ()
        return {name.removeprefix(_LOCAL): x for name, x in found if name.startswith(_LOCAL)}

    def moments_kept(self, moments: Vectors) -> Vectors:
        """What a client remembers of its optimiser: the moments if it is to keep them."""
        return {f"{_LOCAL}{name}": x for name, x in moments.items()} if self.algorithm.local.keep else {}
