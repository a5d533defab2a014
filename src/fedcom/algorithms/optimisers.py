"""How the server steps along the direction of a round: plainly, with momentum, or adaptively.

A method names the direction d of a round as clients heard it (`Algorithm.server_direction`), in the units of
a gradient summed over tau local steps. SGD steps by eta gamma d. Momentum averages directions, so that gamma
means the same with and without it, and a codec's noise is averaged with them:

    v <- mu v + (1 - mu) d,   w <- w - eta gamma v

The adaptive ones (Reddi et al., 2021, Algorithm 2) see the change Delta = eta d that clients made to the
model, and have a rate of their own; gamma is not used:

    m <- beta1 m + (1 - beta1) Delta,   w <- w - rate m / (sqrt(v) + tau)

What an optimiser keeps is one vector per moment, on the server, and on clients that repeat its step.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedcom import settings
from fedcom.errors import ConfigError
from fedcom.plain import pick
from fedcom.registry import Registry, derived_from
from fedcom.vectors import Vectors

_SHARES = ("momentum", "beta1", "beta2")


class Optimiser:
    """What the optimisers of the server and of clients share: a name or a table stands for one.

    Attributes:
        name: what a config calls it.
        section: of a config, which says which one it is.
    """

    name: ClassVar[str]
    section: ClassVar[str]

    @classmethod
    def registry(cls) -> Registry[Any]:
        """All of its kind, by name."""
        raise NotImplementedError

    @classmethod
    def of_plain(cls, given: Any) -> Any:
        """The optimiser that a name, a class or a table with a name stands for; anything else as it is."""
        if isinstance(given, type) and issubclass(given, cls):
            return given()
        table = {"name": given} if isinstance(given, str) else given
        if isinstance(table, dict) and "name" not in table:
            named = ", ".join(f"{key!r}: {value!r}" for key, value in {"name": "momentum", **table}.items())
            raise ConfigError(f"{cls.section} needs a name, as in {{{named}}}; it may be {cls.choices()}")
        return pick(cls.registry(), table, cls.section) if isinstance(table, dict) else given

    @classmethod
    def choices(cls) -> str:
        """The names there are, in words."""
        return " or ".join(map(repr, cls.registry().names()))


@dataclass(frozen=True)
class ServerOptimiser(Optimiser):
    """What the server does with the direction of a round.

    Attributes:
        uses_gamma: whether gamma scales its step.
    """

    section: ClassVar[str] = "server"
    uses_gamma: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settings.check(self)
        for key, value in vars(self).items():
            if key in _SHARES and not 0 <= value < 1:
                raise ConfigError(f"{key} must be in [0, 1); got {value}")
            if key in ("rate", "tau") and value <= 0:
                raise ConfigError(f"{key} must be above 0; got {value}")

    @classmethod
    def registry(cls) -> Registry[Any]:
        return OPTIMISERS

    @property
    def plain(self) -> bool:
        """Whether the step is the method's own, with which no optimiser interferes."""
        return type(self).step is ServerOptimiser.step

    @property
    def kept(self) -> float:
        """The share of the earlier directions in a step: mu, or beta1; 0: each round stands for itself."""
        return 0.0

    @property
    def reach(self) -> float:
        """How many times as long as SGD's a step may be on a quadratic before it is unstable."""
        return 1.0

    def init(self, w: Tensor) -> Vectors:
        """The moments before round 0, by name; w gives the shape."""
        return {}

    def step(
        self, w: Tensor, moments: Vectors, direction: Tensor, eta: float | Tensor, gamma: float
    ) -> tuple[Tensor, Vectors]:
        """The model and the moments after a step along a direction."""
        return w - eta * gamma * direction, {}


@dataclass(frozen=True)
class SGD(ServerOptimiser):
    """The step as the method has it: eta gamma times the direction."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Momentum(ServerOptimiser):
    """Heavy ball, normalised: v = mu v + (1 - mu) direction, and a step of eta gamma v.

    Args:
        momentum: mu, the share of v that each round keeps.
    """

    momentum: float = 0.9

    name: ClassVar[str] = "momentum"

    @property
    def kept(self) -> float:
        return self.momentum

    @property
    def reach(self) -> float:
        return (1 + self.momentum) / (1 - self.momentum)

    def init(self, w: Tensor) -> Vectors:
        return {"momentum": torch.zeros_like(w)}

    def step(
        self, w: Tensor, moments: Vectors, direction: Tensor, eta: float | Tensor, gamma: float
    ) -> tuple[Tensor, Vectors]:
        v = self.momentum * moments["momentum"] + (1 - self.momentum) * direction
        return w - eta * gamma * self._along(v, direction), {"momentum": v}

    def _along(self, v: Tensor, direction: Tensor) -> Tensor:
        return v


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Nesterov's momentum, normalised: a step of eta gamma (mu v + (1 - mu) direction), with the new v."""

    name: ClassVar[str] = "nesterov"

    @property
    def reach(self) -> float:
        return super().reach / (1 + 2 * self.momentum)

    def _along(self, v: Tensor, direction: Tensor) -> Tensor:
        return self.momentum * v + (1 - self.momentum) * direction


@dataclass(frozen=True)
class Adagrad(ServerOptimiser):
    """FedAdagrad: v = v + Delta^2.

    Args:
        rate: how far a step goes where Delta is large beside tau.
        beta1: the share of m that each round keeps.
        tau: what is added to sqrt(v): the larger, the less adaptive; v begins at tau^2.
    """

    rate: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    name: ClassVar[str] = "adagrad"
    uses_gamma: ClassVar[bool] = False

    @property
    def kept(self) -> float:
        return self.beta1

    def init(self, w: Tensor) -> Vectors:
        return {"momentum": torch.zeros_like(w), "square": torch.full_like(w, self.tau**2)}

    def step(
        self, w: Tensor, moments: Vectors, direction: Tensor, eta: float | Tensor, gamma: float
    ) -> tuple[Tensor, Vectors]:
        delta = eta * direction
        m = self.beta1 * moments["momentum"] + (1 - self.beta1) * delta
        v = self._square(moments["square"], delta * delta)
        return w - self.rate * m / (v.sqrt() + self.tau), {"momentum": m, "square": v}

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


@dataclass(frozen=True)
class Adam(Adagrad):
    """FedAdam: v = beta2 v + (1 - beta2) Delta^2, without bias correction.

    Args:
        rate: how far a step goes where Delta is large beside tau.
        beta1: the share of m that each round keeps.
        beta2: the share of v that each round keeps.
        tau: what is added to sqrt(v): the larger, the less adaptive; v begins at tau^2.
    """

    beta1: float = 0.9
    beta2: float = 0.99

    name: ClassVar[str] = "adam"

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """FedYogi: v = v - (1 - beta2) Delta^2 sign(v - Delta^2), which grows and shrinks slowly."""

    name: ClassVar[str] = "yogi"

    def _square(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


PLAIN = SGD()
OPTIMISERS: Registry[type[ServerOptimiser]] = Registry(
    "server optimiser",
    "fedcom.server_optimisers",
    {kind.name: kind for kind in (SGD, Momentum, Nesterov, Adam, Yogi, Adagrad)},
    derived_from(ServerOptimiser),
)
