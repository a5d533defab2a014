"""What an algorithm is: the paper's equations on flat vectors, the same for one client and for a stack.

The base class is local SGD; every other method overrides what its paper changes. The order of a round is in
fedcom/rounds/round.py. Compression happens between `upload` and `client_step`, so `client_step` is given what
the client meant to send, what the server heard of it, and the mean over all clients.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from fedcom import settings
from fedcom.algorithms.local_optimisers import PLAIN_STEPS, LocalOptimiser, LocalStep
from fedcom.algorithms.optimisers import PLAIN, ServerOptimiser
from fedcom.algorithms.schedules import factor, schedule_of
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors, descend

AutoRate = Literal["auto"]


Line = TypeVar("Line", bound=Callable[..., Any])


def has_loop(name: str) -> Callable[[Line], Line]:
    """Say that a line of a method has a compiled loop of the same bits in rounds/loops.py.

    A class that overrides the line does not have the loop any more.
    """

    def mark(line: Line) -> Line:
        line.loop = name  # type: ignore[attr-defined]
        return line

    return mark


class Oracle(Protocol):
    """Gradients at one local step, all that an algorithm can see of the data.

    w has one row per client, and so has the gradient.
    """

    def at(self, step: int) -> "Oracle":
        """The oracle of another local step."""

    def batch(self, w: Tensor) -> Tensor:
        """The minibatch gradient at w; the same minibatch every time in one step."""

    def full(self, w: Tensor) -> Tensor:
        """The gradient of the client's whole loss at w."""


class Round(NamedTuple):
    """The public facts of one round."""

    eta: float | Tensor  # the local rate of this round: path/tau; a column if the rows are of several runs
    tau: float | Tensor  # the nominal number of local steps; a column if rows are of runs that differ in it
    path: float | Tensor  # the weights of a client's gradients in w - w_j, summed; a column if clients differ
    share: float | Tensor  # the weight of the sampled clients among all: n/m for uniform weights
    coin: float | Tensor = 0.0  # one random number in [0, 1) that all clients of this round share
    alpha: float | Tensor = 1.0  # how far tracking or shifts move; set once the server has all messages
    q: float | Tensor = 0.0  # measured by clients, the mean of the coarsest budget; zero if nobody told
    mu: float | Tensor = 0.0  # the share of earlier directions in the server's step: its momentum
    rate: float | Tensor = 0.0  # the size of a local step: eta, unless steps have momentum
    gamma: float | Tensor = 1.0  # the global rate of this round
    number: float | Tensor = 0.0  # of this round, from 0; a column if the rows are of several runs
    rounds: int = 0  # how many the run has; 0: not known
    pull: float | Tensor | None = None  # mu of `local`; a column if rows are of runs that differ in it


class Stateless(NamedTuple):
    """The state of a client that keeps nothing."""


class Server(NamedTuple):
    """The state of a server that keeps only the model."""

    w: Tensor


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Local SGD, and the hyper-parameters that every method has.

    In every method `server` and `client` are their states: named tuples of tensors. With a stack of clients,
    each tensor of a client's state has one row per client. `down` holds the vectors that clients were sent at
    the start of the round, by name, and `rnd` the facts of the round. States are replaced, never changed in
    place.

    Args:
        eta: local rate of round 0; round r uses eta * decay^r. "auto": a number from the sharpness of the
            clients' losses, set before round 0 (docs/theory.md).
        gamma: global rate, or "auto".
        eta_schedule: how eta changes from round to round, in place of decay: constant, decay, cosine, warmup,
            step or a class of yours, with settings in brackets, as in warmup(rounds=10, then=cosine).
        gamma_schedule: the same for gamma; None: it stays.
        tau: local steps: one number for all clients, or one number per client.
        epochs: passes over a client's data; if given, it sets the number of local steps instead of tau.
        batch: minibatch size, or "full". Samples are drawn with replacement, so a batch may be larger than a
            client's data; with epochs they are not, and a client's last batch may be short.
        decay: eta is multiplied by this after every round; 1: eta stays. By round 1000 of the default, eta is
            4e-5 of what it was.
        weights: of the clients in the mean: "uniform", whatever their sizes, or by "size" of their data.
        weight_decay: this times w is added to every gradient.
        server: how the server steps along the direction of a round: an optimiser, or its name.
        local: how clients step along their gradients: an optimiser, or its name.
        average: what the mean is of where clients take different numbers of steps. None: of D scaled to tau
            steps, so that each counts by its weight alone; "models": of their models, as McMahan et al. have
            it, so that those that take more steps move it further (docs/decisions/unequal-steps.md).
        option: what the server sends. "I": only the mean, and clients repeat the server's step; those that
            missed rounds catch up. "II": its vectors. None: I for methods that need the mean if all clients
            take part or the downlink is lossy, else II.

    Attributes:
        name: what a config calls the method.
        uplink: the default codec and its settings, and the default memory if there is one.
        compresses: None: the method accepts any codec; else the name of the method that does.
        uploads: the names of the vectors that clients send.
        numbers: the names of single numbers that clients send beside them, uncompressed.
        needs_mean: whether clients must be sent the mean after the round.
        uses_meant: whether client_step uses what the client meant.
        remembers: whether the method itself keeps what the codec dropped; other memories are refused.
        tracks: whether local steps are corrected by what the client kept of earlier rounds.
        averages: whether the direction of a round is a running mean over rounds already.
        averages_models: whether the method can have average="models"; a class that derives from one that can
            and has an `upload` of its own must say it again.
        fixed: hyper-parameters that cannot be changed, and their values.
    """

    eta: float | AutoRate = 0.05
    gamma: float | AutoRate = 1.0
    tau: int | tuple[int, ...] = 10
    epochs: int | None = None
    batch: int | Literal["full"] = 50
    decay: float = 0.99
    eta_schedule: str | None = None
    gamma_schedule: str | None = None
    weights: Literal["uniform", "size"] = "uniform"
    weight_decay: float = 0.0
    server: ServerOptimiser = PLAIN
    local: LocalOptimiser = PLAIN_STEPS
    average: Literal["models"] | None = None
    option: Literal["I", "II"] | None = None

    name: ClassVar[str]
    uplink: ClassVar[Mapping[str, Any]] = {"name": "identity"}
    compresses: ClassVar[str | None] = None
    uploads: ClassVar[tuple[str, ...]] = ("D",)
    numbers: ClassVar[tuple[str, ...]] = ()
    corrects_downlink: ClassVar[bool] = False  # does the server make up for what a lossy downlink drops?
    needs_mean: ClassVar[bool] = False
    uses_q: ClassVar[bool] = False  # does client_step look at the measured q?
    uses_meant: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    tracks: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    averages_models: ClassVar[bool] = False
    fixed: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        settings.check(self)
        for key, value in self.fixed.items():
            if getattr(self, key) != value:
                raise ConfigError(f"{self.name} fixes {key} at {value}; got {getattr(self, key)}")
        if self.epochs is not None and self.tau != type(self).tau:
            raise ConfigError(
                f"epochs sets the local steps, so tau={self.tau} would have no effect; leave one out"
            )
        taus = (self.tau,) if isinstance(self.tau, int) else self.tau
        checks = {
            "eta": self.eta == "auto" or self.eta > 0,
            "gamma": self.gamma == "auto" or self.gamma > 0,
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
        said, sends = (_first(type(self), name) for name in ("averages_models", "upload"))
        if self.average == "models" and not (self.averages_models and said <= sends):
            raise ConfigError(
                f"{self.name} learns from D per step, so the mean cannot be of models; leave average out, "
                "or use fedavg, fedcom, fedadam or scaffold"
            )
        self._check_schedules()

    def _check_schedules(self) -> None:
        for text in filter(None, (self.eta_schedule, self.gamma_schedule)):
            schedule_of(text)
        if self.eta_schedule is not None:
            if self.decay not in (type(self).decay, 1.0):
                raise ConfigError(
                    f"eta_schedule takes the place of decay, so decay={self.decay} would have no effect; "
                    f"leave one out, or write eta_schedule=decay(rate={self.decay})"
                )
            object.__setattr__(self, "decay", 1.0)
        if self.gamma_schedule is not None and "gamma" in self.fixed:
            raise ConfigError(f"{self.name} fixes gamma at {self.fixed['gamma']}; leave gamma_schedule out")
        if self.gamma_schedule is not None and not self.server.uses_gamma:
            raise ConfigError(
                f"server {self.server.name} has a rate of its own, so gamma_schedule would change nothing"
            )

    def local_rate(self, round_index: int) -> float:
        """eta of a round, without the factor of `eta_schedule`."""
        return _settled("eta", self.eta) * self.decay**round_index

    @property
    def global_rate(self) -> float:
        """gamma, as a number; in server_step, that of the round."""
        return _settled("gamma", self.gamma)

    def rates(self, round_index: int, rounds: int) -> tuple[float, float]:
        """eta and gamma of a round, by their schedules.

        Args:
            rounds: how many the run has.
        """
        eta, gamma = self.local_rate(round_index), self.global_rate
        if self.eta_schedule is not None:
            eta *= factor(self.eta_schedule, round_index, rounds)
        if self.gamma_schedule is not None:
            gamma *= factor(self.gamma_schedule, round_index, rounds)
        return eta, gamma

    def at_gamma(self, gamma: float | Tensor) -> Self:
        """The same method with the gamma of a round, which may be a tensor; itself without a schedule."""
        if self.gamma_schedule is None:
            return self
        twin = copy.copy(self)
        object.__setattr__(twin, "gamma", gamma)
        return twin

    def init_server(self, w: Tensor) -> Any:
        """The server's state before round 0; w is the initial model."""
        return Server(w)

    def init_client(self, w: Tensor) -> Any:
        """A client's state before it first takes part; w gives the shape."""
        return Stateless()

    def broadcast(self, server: Any) -> Vectors:
        """The vectors that clients need to begin a round, by name."""
        return {"w": server.w}

    def replica(self, server: Any) -> Vectors:
        """The vectors that clients need to repeat the server's step, by name."""
        return self.broadcast(server)

    def begin(self, client: Any, down: Vectors, oracle: Oracle, rnd: Round) -> Any:
        """The client's state when its local steps begin."""
        return client

    def local_step(self, w: Tensor, client: Any, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        """The client's model after one more local step; w is its model before.

        With another local optimiser than plain SGD it is not used: that one steps along `gradient`.
        """
        return descend(w, rnd.eta, self.gradient(w, client, down, oracle, rnd))

    def gradient(self, w: Tensor, client: Any, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        """Along which a local step goes from w."""
        return self.direction(oracle.batch(w), client, down)

    def optimised_step(
        self,
        w: Tensor,
        moments: Vectors,
        client: Any,
        down: Vectors,
        oracle: Oracle,
        rnd: Round,
        at: LocalStep,
    ) -> tuple[Tensor, Vectors]:
        """The client's model and its optimiser's moments after one more local step by `local`."""
        if self.local.correction == "inside":
            g = self.gradient(w, client, down, oracle, rnd)
            return self.local.taken(w, g, down["w"], moments, at)
        w, moments = self.local.taken(w, oracle.batch(w), down["w"], moments, at)
        for correction in self.corrections(client, down):
            w = descend(w, -at.mean, correction)
        return w, moments

    def direction(self, g: Tensor, client: Any, down: Vectors) -> Tensor:
        """What a local step subtracts eta times, given the minibatch gradient; each coordinate by itself."""
        for correction in self.corrections(client, down):
            g = g - correction
        return g

    def corrections(self, client: Any, down: Vectors) -> tuple[Tensor, ...]:
        """What every local step of a round takes from the gradient, one after the other.

        A method that changes its steps by this alone, and not `direction` or `local_step`, gets the quickest
        of them: kernels on a GPU and, if it is one vector per client, compiled loops on a CPU.
        """
        return ()

    def upload(self, client: Any, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        """What the client means to send: D = (w - w_j)/eta, scaled to tau steps if it took another number.

        With average="models" it is not scaled.

        Args:
            w: the client's model after its local steps.
        """
        if self.average == "models":
            return {"D": (down["w"] - w) / rnd.eta}
        return {"D": rnd.tau * (down["w"] - w) / rnd.path}

    def measure(self, vectors: Vectors, rnd: Round) -> Vectors:
        """The `numbers` that the client sends beside its vectors, each in one column.

        The server averages them as it does vectors, and finds their mean in `mean` by their names.

        Args:
            vectors: what `upload` returned, clipped; before memory and codec.
        """
        return {}

    def largest_number(self, number: str, longest: Mapping[str, float], rnd: Round) -> float:
        """The largest size of a number of an honest client; the server of real clients cuts it to that.

        Args:
            number: its name in `numbers`.
            longest: how long each of the client's vectors may be, in the model's units.
        """
        return math.inf

    def server_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        """Along which the server steps, as clients heard it; in the units of D."""
        return mean["D"]

    def mean_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        """The mean of how far clients went, in the units of D, along which statistics of BatchNorm move."""
        return self.server_direction(server, mean, rnd)

    def server_step(self, server: Any, mean: Vectors, rnd: Round) -> Any:
        """The server's state after the round; mean is that of what the server heard.

        With another optimiser than SGD its w is not used: that one steps along `server_direction`.
        """
        step = rnd.eta * self.global_rate * self.server_direction(server, mean, rnd)
        return server._replace(w=server.w - step)

    def reply(self, server: Any, mean: Vectors, rnd: Round) -> Vectors:
        """What the server sends down after a round through a lossy downlink: by default the mean.

        Args:
            mean: of what the server heard.
        """
        return mean

    def settle_server(self, server: Any, mean: Vectors, heard: Vectors, rnd: Round) -> Any:
        """The server's state after its step, knowing what clients heard through a lossy downlink.

        Args:
            mean: of what the server heard.
            heard: what clients heard of the reply, which the server's step was taken with.
        """
        return server

    def client_step(self, client: Any, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round) -> Any:
        """The client's state after the round.

        Args:
            meant: what `upload` returned, before clipping, memory and codec; empty unless `uses_meant` is
                set, since keeping it until the round ends costs memory.
            sent: what the server heard of this client.
            mean: the mean of what the server heard of all clients.
        """
        return client

    def smoothing(self) -> float | AutoRate:
        """The setting for Round.alpha: a number, or "auto" to compute it from this round's measured q."""
        return 1.0

    def fastest_tracking(self, rnd: Round) -> float | Tensor:
        """The most that corrections may move in a round where "auto" decides: a tenth of what v does.

        With momentum mu the server goes on by itself for 1/(1 - mu) rounds, and corrections that follow each
        round at once drive an oscillation (docs/decisions/server-momentum.md). A client that takes part in
        a share of the rounds may move by as much more in each. Without momentum: 1.
        """
        tenth = 10 * rnd.share
        limit = (1 - rnd.mu) / (tenth.clamp(min=1) if isinstance(tenth, Tensor) else max(1.0, tenth))
        if isinstance(rnd.mu, Tensor):  # of the runs of a stack, some may have none
            return torch.where(rnd.mu > 0, limit, 1.0)
        return limit if rnd.mu else 1.0

    def unit(self, vector: str, rnd: Round) -> float | Tensor:
        """The factor that turns an uploaded vector into the model's units, in which norms are bounded.

        With gamma 1 the server's step moves the model by the factor times the mean of the vector.

        Args:
            vector: its name in `uploads`.
        """
        return rnd.eta

    def memory_unit(self, vector: str, rnd: Round) -> float | Tensor:
        """The factor that turns an uploaded vector into the units in which a memory of it is kept.

        They are those of what the vector is added to, so that a memory stays right while eta decays.
        """
        return self.unit(vector, rnd)


def smaller(a: float | Tensor, b: float | Tensor) -> float | Tensor:
    """The smaller of two numbers, on their device."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b.to(a.dtype))
    if isinstance(a, Tensor):
        return a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)


def _first(kind: type, name: str) -> int:
    """How far up among a class and those it derives from the one is that says what `name` is."""
    return next(i for i, cls in enumerate(kind.__mro__) if name in vars(cls))


def _settled(name: str, rate: float | AutoRate) -> float:
    if rate == "auto":
        raise ConfigError(f"{name} is still auto; fedcom.theory.settle makes it a number for a task")
    return rate
