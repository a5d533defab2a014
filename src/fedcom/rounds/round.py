"""One round, as every engine runs it: clients' work, the server's work, and what clients do after it.

down  = broadcast(server)                                 the server's vectors, dense
sent  = client_work(...)     local steps, upload, codec   for every sampled client
mean  = server_work(...)     the weighted mean, downlink codec, server_step
client_finish(...)           client_step, once the mean is known
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round
from fedcom.codecs import Codec, Identity
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.tasks.oracle import Oracle
from fedcom.traffic.channel import Channel
from fedcom.traffic.links import Links
from fedcom.vectors import Layout, Vectors

_SCALAR = "q"  # the measured q, one number a message, where damping needs it
_DENSE = Identity()


class Steps(NamedTuple):
    """How many local steps clients take: the most, and a column of one number each where they differ."""

    most: int
    each: Tensor | None = None


class Work(NamedTuple):
    """What some clients did in a round and have not yet committed."""

    client: Any
    memory: Vectors
    sent: Vectors
    q: Tensor  # |Q(x) - x|^2 / |x|^2 of each client, the mean over its vectors


class Heard(NamedTuple):
    """What the server made of a round, as the clients hear it."""

    server: Any
    residual: Vectors  # what a lossy downlink dropped
    mean: Vectors
    rnd: Round


def relative_error(heard: Tensor, meant: Tensor) -> Tensor:
    """|Q(x) - x|^2 / |x|^2, zero for the zero vector."""
    size = meant.square().sum(-1)
    return (heard - meant).square().sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)


@dataclass(frozen=True)
class Rules:
    """An algorithm over given links: what goes through which codec, and what is refused."""

    algorithm: Algorithm
    links: Links
    layout: Layout
    clients: int
    sampled: int
    error: Callable[[Tensor, Tensor], Tensor] = relative_error

    def __post_init__(self) -> None:
        check(self.algorithm, self.links, self.clients, self.sampled)
        for codec, _ in self.links.uplinks(torch.arange(self.clients)):
            codec.variance(self.layout)  # a codec that cannot serve this model says so before round 0

    @property
    def replay(self) -> bool:
        """Whether clients repeat the server's step themselves, so that only the mean goes down."""
        if self.algorithm.option is not None:
            return self.algorithm.option == "I"
        return self.algorithm.feedback and self.sampled == self.clients

    @property
    def tells_mean(self) -> bool:
        """Whether the mean goes down after the round."""
        return self.algorithm.feedback or self.algorithm.memory == "paper" or self.replay

    @property
    def measured(self) -> bool:
        """Whether clients send their measured q, for the server to set alpha from it."""
        a, uplink = self.algorithm, self.links.uplink
        wanted = a.smoothing() == "auto" and a.memory != "error-feedback"
        return wanted and uplink.unbiased and not uplink.lossless

    def alpha(self, q: Tensor) -> float | Tensor:
        """How far tracking or shifts move this round: one number for all clients, or their sum drifts."""
        setting = self.algorithm.smoothing()
        if setting != "auto":
            return setting
        if self.measured:
            return 1 / (1 + q)
        # Tracking on a biased codec without memory is an error feedback of its own and needs no damping;
        # with one, a coordinate sent every 1/kept rounds would move delta that many times too far.
        return self.links.uplink.kept(self.layout) if self.algorithm.memory == "error-feedback" else 1.0


def check(algorithm: Algorithm, links: Links, clients: int, sampled: int) -> None:
    """Refuse an algorithm, codecs and numbers of clients that do not go together."""
    a, m, n = algorithm, clients, sampled
    if a.compresses is not None and not links.uplink.lossless:
        raise twin(a, f"got uplink {links.uplink.name!r}")
    if a.feedback and n < 2:
        raise ConfigError(
            f"{a.name} tracks differences between clients and needs two a round; got {n} of {m}"
        )
    if a.option == "I" and n < m:
        raise ConfigError(f"option I replays the server's step and needs full participation; got {n} of {m}")
    if not (links.downlink.lossless or a.feedback or a.option == "I" or a.memory == "paper"):
        raise ConfigError(
            f"a downlink codec compresses the mean, but {a.name} sends the model down, which travels dense; "
            "set algorithm.option=I (full participation) to send the mean instead"
        )
    if not (links.downlink.lossless or links.downlink_memory):
        warnings.warn(
            f"downlink {links.downlink.name!r} without memory: what it drops is lost, which leaves an error "
            "floor; downlink.memory=error-feedback keeps it",
            stacklevel=2,
        )
    if links.budgets is not None and len(links.budgets) != m:
        raise ConfigError(f"budgets and bandwidths need one number a client ({m}); got {len(links.budgets)}")
    if not isinstance(a.tau, int) and len(a.tau) != m:
        raise ConfigError(f"tau needs one number, or one a client ({m}); got {len(a.tau)}")


def twin(algorithm: Algorithm, got: str) -> ConfigError:
    """The error for a codec on a method that has none, naming the one that does."""
    return ConfigError(
        f"{algorithm.name} sends its updates uncompressed; its twin with a codec is {algorithm.compresses} "
        f"(algorithm.name={algorithm.compresses}); {got}"
    )


def broadcast(rules: Rules, server: Any, channel: Channel, draw: Draw, first: bool) -> Vectors:
    """Send what clients need to begin; nothing but the first time where they replay the server's steps."""
    vectors = rules.algorithm.broadcast(server)
    if rules.replay and not first:
        return vectors
    return {
        name: channel.send(name, x, rules.layout, _DENSE, draw, rules.sampled) for name, x in vectors.items()
    }


def client_work(
    rules: Rules, client: Any, memory: Vectors, down: Vectors, oracle: Oracle, steps: Steps,
    rnd: Round, channel: Channel, draw: Draw,
) -> Work:  # fmt: skip
    """Local steps, upload and compression of a stack of clients."""
    algorithm = rules.algorithm
    client = algorithm.begin(client, down, oracle, rnd)
    w = down["w"].expand(len(oracle.clients), -1)
    for c in range(steps.most):
        moved = algorithm.local_step(w, client, down, oracle.at(c), rnd)
        w = moved if steps.each is None else torch.where(c < steps.each, moved, w)
    sent, kept, errors = {}, {}, []
    for name, x in algorithm.upload(client, down, w, rnd).items():
        spoken = _speak(rules, name, x, memory.get(name), rnd, _Uplink(rules, oracle.clients, channel, draw))
        sent[name], kept[name], error = spoken
        errors.append(error)
    q = torch.stack(errors).mean(0)
    return Work(client, kept, sent, _send_scalars(q, channel, draw) if rules.measured else q)


class _Uplink(NamedTuple):
    """How some clients reach the server: each through the codec its budget allows."""

    rules: Rules
    clients: Tensor
    channel: Channel
    draw: Draw

    def send(self, name: str, x: Tensor) -> Tensor:
        """What the server hears of a stack of vectors."""
        draw, heard = self.draw.fold("uplink", name), torch.empty_like(x)
        for codec, rows in self.rules.links.uplinks(self.clients):
            if len(rows) == len(x):
                return self.channel.send(name, x, self.rules.layout, codec, draw)
            own = Draw(draw.key[rows])
            heard[rows] = self.channel.send(name, x[rows], self.rules.layout, codec, own, rows=rows)
        return heard


def _speak(
    rules: Rules, name: str, x: Tensor, nu: Tensor | None, rnd: Round, uplink: _Uplink
) -> tuple[Tensor, Tensor, Tensor]:
    """Send one vector of each client: what the server hears, the memory so far, and the measured q."""
    codec = rules.links.uplink
    if nu is None:
        heard = uplink.send(name, x)
        return heard, x[..., :0], x.new_zeros(len(x)) if codec.lossless else rules.error(heard, x)
    unit = rules.algorithm.unit(name, rnd)
    meant = unit * x + nu
    heard = uplink.send(name, meant)
    if rules.algorithm.memory == "error-feedback":
        heard = _contract(codec, heard, rules.layout)
        nu = meant - heard
    else:
        nu = nu + unit * x / rules.clients  # the paper's rule; client_finish takes the mean off
    return heard / unit, nu, rules.error(heard, meant)


def server_work(
    rules: Rules, server: Any, residual: Vectors, mean: Vectors, q: Tensor, rnd: Round,
    channel: Channel, draw: Draw,
) -> Heard:  # fmt: skip
    """Send the mean down where clients need it, and take the server's step with what they hear."""
    rnd = rnd._replace(alpha=rules.alpha(q))
    if rules.measured:
        channel.send(_SCALAR, q.reshape(1), Layout.vector(1, q.dtype), _DENSE, draw, rules.sampled)
    if rules.tells_mean:
        mean, residual = _send_mean(rules, mean, residual, rnd, channel, draw)
    return Heard(rules.algorithm.server_step(server, mean, rnd), residual, mean, rnd)


def client_finish(rules: Rules, work: Work, heard: Heard) -> tuple[Any, Vectors]:
    """The clients' state and memory after the round."""
    client = rules.algorithm.client_step(work.client, work.sent, heard.mean, heard.rnd)
    memory = work.memory
    if rules.algorithm.memory == "paper":
        unit = rules.algorithm.unit
        memory = {name: nu - unit(name, heard.rnd) * heard.mean[name] for name, nu in memory.items()}
    return client, memory


def _send_mean(
    rules: Rules, mean: Vectors, residual: Vectors, rnd: Round, channel: Channel, draw: Draw
) -> tuple[Vectors, Vectors]:
    """The mean as clients hear it, and what the downlink codec dropped, kept in the model's units."""
    codec, heard, dropped = rules.links.downlink, {}, {}
    carry = rules.links.downlink_memory and not codec.lossless
    for name, x in mean.items():
        unit = rules.algorithm.unit(name, rnd)
        meant = unit * x + residual.get(name, 0) if carry else x
        own = draw if codec.lossless else draw.fold("downlink", name)
        got = channel.send(name, meant, rules.layout, codec, own, rules.sampled)
        if carry:
            got = _contract(codec, got, rules.layout)
            dropped[name] = meant - got
        heard[name] = got / unit if carry else got
    return heard, dropped


def _contract(codec: Codec, heard: Tensor, layout: Layout) -> Tensor:
    """A memory wants a contraction: an unbiased Q of any q is one once divided by 1 + q."""
    return codec.kept(layout) * heard if codec.unbiased else heard


def _send_scalars(q: Tensor, channel: Channel, draw: Draw) -> Tensor:
    column = channel.send(_SCALAR, q.unsqueeze(-1), Layout.vector(1, q.dtype), _DENSE, draw)
    return column.squeeze(-1)
