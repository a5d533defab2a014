"""What an algorithm is: the paper's equations on flat vectors, written once for one client or a stack.

The base is local SGD; every other method overrides what its paper changes. The order of a round is in
fedcom/rounds/round.py. Compression sits between `upload` and `client_step`, so that a client knows what it
meant to say, what the server heard of it, and what the mean over all clients was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from fedcom import settings
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors, descend

Auto = Literal["auto"]


class Oracle(Protocol):
    """Gradients at one local step: all that an algorithm may ask of data.

    w holds one row per client, and so does what comes back.
    """

    def at(self, step: int) -> "Oracle":
        """The oracle of another local step."""

    def batch(self, w: Tensor) -> Tensor:
        """The minibatch gradient at w; the same minibatch however often it is asked."""

    def full(self, w: Tensor) -> Tensor:
        """The gradient of the client's whole loss at w."""


class Round(NamedTuple):
    """The public facts of one round."""

    eta: float | Tensor  # the local rate of this round; a column where rows belong to several runs
    tau: float  # the nominal number of local steps
    path: float | Tensor  # the sum of a client's step sizes, eta * tau_j; a column where they differ
    share: float | Tensor  # the weight of the sampled clients among all: n/m for uniform weights
    coin: float | Tensor = 0.0  # one number in [0, 1) that all clients of this round share
    alpha: float | Tensor = 1.0  # how far tracking or shifts move; known once all messages are in


class Stateless(NamedTuple):
    """A client that keeps nothing."""


class Server(NamedTuple):
    """A server that keeps the model alone."""

    w: Tensor


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Local SGD; fields are the hyper-parameters every method has.

    Args:
        eta: local rate of round 0; round r uses eta * decay^r.
        gamma: global rate.
        tau: local steps: one number for all clients, or one number per client.
        epochs: passes over a client's own data; where given, it decides the local steps instead of tau.
        batch: minibatch size, or "full".
        decay: what eta is multiplied by after every round.
        weights: of the clients in the mean: "uniform" or by "size".
        weight_decay: this times w is added to every gradient.
        option: what goes down. "I": the mean alone, clients repeat the server's step (full participation);
            "II": the server's vectors. None: I at full participation for methods that need the mean, else II.
    """

    eta: float = 0.05
    gamma: float = 1.0
    tau: int | tuple[int, ...] = 10
    epochs: int | None = None
    batch: int | Literal["full"] = 50
    decay: float = 0.99
    weights: Literal["uniform", "size"] = "uniform"
    weight_decay: float = 0.0
    option: Literal["I", "II"] | None = None

    name: ClassVar[str]
    uplink: ClassVar[Mapping[str, Any]] = {"name": "identity"}  # the default codec, and memory if any
    compresses: ClassVar[str | None] = None  # None: it may; else the name of the method that does
    uploads: ClassVar[tuple[str, ...]] = ("D",)  # the names of the vectors that go up
    feedback: ClassVar[bool] = False  # must clients hear the mean after the round?
    uses_meant: ClassVar[bool] = False  # does client_step look at what the client meant?
    fixed: ClassVar[Mapping[str, Any]] = {}  # hyper-parameters the method does not leave open

    def __post_init__(self) -> None:
        settings.check(self)
        for key, value in self.fixed.items():
            if getattr(self, key) != value:
                raise ConfigError(f"{self.name} fixes {key} at {value}; got {getattr(self, key)}")
        taus = (self.tau,) if isinstance(self.tau, int) else self.tau
        checks = {
            "eta": self.eta > 0,
            "gamma": self.gamma > 0,
            "tau": min(taus, default=0) >= 1,
            "epochs": self.epochs is None or self.epochs >= 1,
            "batch": self.batch == "full" or self.batch >= 1,
            "decay": 0 < self.decay <= 1,
            "weight_decay": self.weight_decay >= 0,
        }
        rules = {"decay": "in (0, 1]", "weight_decay": "zero or more", "eta": "above 0", "gamma": "above 0"}
        for key, holds in checks.items():
            if not holds:
                raise ConfigError(f"{key} must be {rules.get(key, '1 or more')}; got {getattr(self, key)}")

    def init_server(self, w: Tensor) -> Any:
        """The server's state before round 0."""
        return Server(w)

    def init_client(self, w: Tensor) -> Any:
        """A client's state before it first takes part; w gives its shape."""
        return Stateless()

    def broadcast(self, server: Any) -> Vectors:
        """What clients must know of the server to begin a round."""
        return {"w": server.w}

    def begin(self, client: Any, down: Vectors, oracle: Oracle, rnd: Round) -> Any:
        """What a client does before its local steps."""
        return client

    def local_step(self, w: Tensor, client: Any, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        """One of the tau local steps."""
        return descend(w, rnd.eta, oracle.batch(w))

    def upload(self, client: Any, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        """What the client means to say: D = (w - w_j)/eta, scaled to tau steps where it did others."""
        return {"D": rnd.tau * (down["w"] - w) / rnd.path}

    def server_step(self, server: Any, mean: Vectors, rnd: Round) -> Any:
        """The server's update from the mean of what it heard."""
        return server._replace(w=server.w - rnd.eta * self.gamma * mean["D"])

    def client_step(self, client: Any, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round) -> Any:
        """The client's update once the round is known.

        Args:
            meant: what `upload` returned, before clipping, memory and codec; empty unless `uses_meant` is
                set, since keeping it until the round ends costs memory.
            sent: what the server heard of this client.
            mean: the mean of what it heard of all.
        """
        return client

    def smoothing(self) -> float | Auto:
        """The setting behind Round.alpha: a number, or "auto" for one from this round's measured q."""
        return 1.0

    def unit(self, vector: str, rnd: Round) -> float | Tensor:
        """What turns an uploaded vector into the units its memory is kept in: the model's, by default."""
        return rnd.eta
