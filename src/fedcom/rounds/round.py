"""One round, as every engine runs it. This file alone has its order.

    begin     the server's vectors go down                              broadcast
    work      local steps, upload, stages and codec of every client     client_work
    collect   the weighted mean of what was heard                       Mean
    hear      the mean goes down, and the server takes its step         server_work
    finish    clients update what they keep, knowing the mean           client_finish

`play` is that order; the functions below are its parts. An engine decides where the parts run: on stacked
clients, threads, a GPU, other processes or real devices.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedcom.algorithms.base import Oracle, Round
from fedcom.codecs import Identity
from fedcom.draws import Draw
from fedcom.rounds.cohort import Steps
from fedcom.rounds.rules import Kept, Rules
from fedcom.traffic.channel import Channel
from fedcom.vectors import Layout, Vectors

_SCALAR = "q"  # the measured q, one number per message, where damping needs it
_DENSE = Identity()

B = TypeVar("B")
W = TypeVar("W")
M = TypeVar("M")
H = TypeVar("H")


class Players(Protocol[B, W, M, H]):
    """How an engine does each part of a round, for one run or for several in step."""

    def begin(self) -> B:
        """What clients start from: the facts of the round, and what they were sent."""

    def work(self, begun: B) -> Iterator[W]:
        """What groups of clients did, in the order of the clients."""

    def collect(self, begun: B, works: Iterator[W]) -> M:
        """The mean of all they sent."""

    def hear(self, begun: B, mean: M) -> H:
        """What the server made of it."""

    def finish(self, heard: H) -> None:
        """Update what the clients keep."""


def play(players: Players[B, W, M, H]) -> H:
    """One round."""
    begun = players.begin()
    mean = players.collect(begun, players.work(begun))
    heard = players.hear(begun, mean)
    players.finish(heard)
    return heard


def facts(
    eta: float | Tensor, tau: float, share: float | Tensor, coin: float | Tensor, alpha: float | Tensor = 1.0
) -> Round:
    """What everyone knows of a round; see Round."""
    return Round(eta, tau, eta * tau, share, coin, alpha)


def coin(draw: Draw) -> Tensor:
    """The number in [0, 1) that all clients of a round share; draw: the round's own."""
    return draw.fold("coin").uniform(1, torch.float64)


def broadcast(rules: Rules, server: Any, channel: Channel, draw: Draw, first: bool) -> Vectors:
    """Send what clients need to begin; nothing but the first time where they replay the server's steps."""
    vectors = rules.algorithm.broadcast(server)
    if rules.replay and not first:
        return vectors
    return {
        name: channel.send(name, x, rules.layout, _DENSE, draw, rules.sampled) for name, x in vectors.items()
    }


class Call(NamedTuple):
    """What some clients begin a round with."""

    clients: Tensor  # their numbers
    state: Any  # what the algorithm keeps of each
    memory: Vectors  # what their link's memory keeps of each
    down: Vectors
    oracle: Oracle
    steps: Steps
    rnd: Round
    draw: Draw  # one key per client


class Work(NamedTuple):
    """What some clients did in a round and have not yet committed."""

    state: Any
    memory: Vectors
    meant: Vectors  # what `upload` returned, where the algorithm will want it again
    sent: Vectors  # what the server hears of it
    q: Tensor  # |Q(x) - x|^2 / |x|^2 of each client, the mean over its vectors


def client_work(rules: Rules, call: Call, channel: Channel) -> Work:
    """Local steps, upload, stages and codec of some clients."""
    algorithm, rnd = rules.algorithm, call.rnd
    if call.steps.each is not None:
        rnd = rnd._replace(path=rnd.eta * call.steps.each.to(rules.layout.dtype))
    state = algorithm.begin(call.state, call.down, call.oracle, rnd)
    w = call.down["w"].expand(len(call.clients), -1)
    for c in range(call.steps.most):
        moved = algorithm.local_step(w, state, call.down, call.oracle.at(c), rnd)
        w = moved if call.steps.each is None else torch.where(c < call.steps.each, moved, w)
    meant = algorithm.upload(state, call.down, w, rnd)
    memory, sent, errors = {}, {}, []
    for name, x in meant.items():
        through = _through(rules, name, call.clients, channel, call.draw.fold("uplink", name))
        became = rules.uplink.send(x, call.memory.get(name, x[..., :0]), algorithm.unit(name, rnd), through)
        sent[name], memory[name] = became.heard, became.kept
        lossless = rules.links.uplink.lossless
        errors.append(
            x.new_zeros(len(x)) if lossless else rules.measure(became.out_of_codec, became.into_codec)
        )
    q = torch.stack(errors).mean(0)
    return Work(
        state,
        memory if rules.uplink.remembers else {},
        meant if algorithm.uses_meant else {},
        sent,
        _send_scalars(q, channel, call.draw) if rules.measured else q,
    )


def _through(
    rules: Rules, name: str, clients: Tensor, channel: Channel, draw: Draw
) -> Callable[[Tensor], Tensor]:
    """The way of one vector of each client to the server, each through the codec its budget allows."""

    def send(x: Tensor) -> Tensor:
        heard = torch.empty_like(x)
        for codec, rows in rules.links.uplinks(clients):
            if len(rows) == len(x):
                return channel.send(name, x, rules.layout, codec, draw)
            heard[rows] = channel.send(name, x[rows], rules.layout, codec, Draw(draw.key[rows]), rows=rows)
        return heard

    return send


def _send_scalars(q: Tensor, channel: Channel, draw: Draw) -> Tensor:
    column = channel.send(_SCALAR, q.unsqueeze(-1), Layout.vector(1, q.dtype), _DENSE, draw)
    return column.squeeze(-1)


class Mean:
    """The weighted mean of what clients sent, added up as their messages come."""

    def __init__(self) -> None:
        self.vectors: Vectors = {}

    def add(self, p: Tensor, sent: Vectors) -> None:
        """Add one message and its weight, or a stack of messages with one weight each."""
        for name, x in sent.items():
            rows, weights = (x, p) if x.dim() > 1 else (x.unsqueeze(0), p.reshape(1))
            self.vectors[name] = _weighted(self.vectors.get(name), weights, rows)


def _weighted(mean: Tensor | None, p: Tensor, x: Tensor) -> Tensor:
    """A sum of rows added to one; on a CPU row by row, so that no grouping changes a bit of it."""
    if x.is_cuda:
        return p @ x if mean is None else mean + p @ x
    mean = torch.zeros_like(x[0]) if mean is None else mean
    for weight, row in zip(p.tolist(), x, strict=True):
        mean.add_(row, alpha=weight)
    return mean


class Heard(NamedTuple):
    """What the server made of a round: what it keeps, and what the clients hear."""

    kept: Kept
    mean: Vectors
    rnd: Round


def server_work(
    rules: Rules, kept: Kept, mean: Vectors, q: Tensor, rnd: Round, channel: Channel, draw: Draw
) -> Heard:
    """Send the mean down where clients need it, and take the server's step with what they hear.

    Args:
        q: the mean over clients of their measured q; a column where servers of several runs are stacked.
    """
    rnd, residual = rnd._replace(alpha=rules.alpha(q)), kept.residual
    if rules.measured:
        channel.send(
            _SCALAR, q if q.dim() else q.reshape(1), Layout.vector(1, q.dtype), _DENSE, draw, rules.sampled
        )
    if rules.tells_mean:
        mean, residual = _send_mean(rules, mean, residual, rnd, channel, draw)
    return Heard(Kept(rules.algorithm.server_step(kept.server, mean, rnd), residual), mean, rnd)


def _send_mean(
    rules: Rules, mean: Vectors, residual: Vectors, rnd: Round, channel: Channel, draw: Draw
) -> tuple[Vectors, Vectors]:
    """The mean as clients hear it, and what the downlink's memory keeps."""
    codec, heard, dropped = rules.links.downlink, {}, {}
    for name, x in mean.items():
        own = draw if codec.lossless else draw.fold("downlink", name)

        def through(x: Tensor, name: str = name, own: Draw = own) -> Tensor:
            return channel.send(name, x, rules.layout, codec, own, rules.sampled)

        kept = residual.get(name, x[..., :0])
        became = rules.downlink.send(x, kept, rules.algorithm.unit(name, rnd), through)
        heard[name], dropped[name] = became.heard, became.kept
    return heard, dropped if rules.downlink.remembers else {}


def client_finish(rules: Rules, work: Work, heard: Heard) -> tuple[Any, Vectors]:
    """The clients' state and memory after the round."""
    rnd, unit = heard.rnd, rules.algorithm.unit
    state = rules.algorithm.client_step(work.state, work.meant, work.sent, heard.mean, rnd)
    memory = work.memory
    if rules.uplink.needs_mean:
        settle = rules.uplink.settle
        memory = {name: settle(nu, heard.mean[name], unit(name, rnd)) for name, nu in memory.items()}
    return state, memory
