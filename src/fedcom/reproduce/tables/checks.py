"""What a cell of the paper's tables states, and how it is measured: method, problem, factor and bound."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.codecs import CODECS
from fedcom.reproduce.tables.problems import Logistic, Problem, Quadratic, Wave
from fedcom.traffic.links import Links

DIM = 32
NOISE = 0.5**0.5  # sigma
SPREAD = 0.5
LARGEST, OCTAVES = 2.0, 9  # eta gamma tau L: from what gradient descent can take, so often halved

COLUMNS = {"quadratic": "strongly convex", "flat": "convex", "logistic": "convex", "wave": "nonconvex"}


class Shape(NamedTuple):
    """A quadratic's condition number, None for the setting's, and where its optimum lies."""

    kappa: float | None
    power: float


SHAPES = {"quadratic": Shape(None, 1.0), "flat": Shape(1e4, 0.0), "wave": Shape(None, 0.5)}


@dataclass(frozen=True)
class Setting:
    """One point: a method on a problem."""

    method: str
    objective: Literal["quadratic", "flat", "logistic", "wave"] = "quadratic"
    alike: bool = True  # homogeneous clients
    noisy: bool = False
    q: float = 0.0
    m: int = 4
    kappa: float = 32.0
    n: int = 128
    tau: int = 4
    batch: int = 4
    epsilon: float = 0.01

    def problem(self) -> Problem:
        """The clients' losses."""
        spread = 0.0 if self.alike else SPREAD
        if self.objective == "logistic":
            batch = self.batch if self.noisy else None
            return Logistic.of(self.m, DIM, self.n, spread=spread, batch=batch)
        kind = Wave if self.objective == "wave" else Quadratic
        shape = SHAPES[self.objective]
        sigma = NOISE if self.noisy else 0.0
        return kind.of(self.m, DIM, shape.kappa or self.kappa, power=shape.power, spread=spread, sigma=sigma)

    @property
    def linear(self) -> bool:
        """Whether the rate is linear."""
        return self.objective == "quadratic"

    @property
    def column(self) -> str:
        """The column of the tables the problem belongs to."""
        return COLUMNS[self.objective]

    def algorithm(self) -> Algorithm:
        """The method with its global rate; eta comes from the grid of steps."""
        kind, rate, _, own = METHODS[self.method]
        tau = 1 if ALGORITHMS[kind].fixed.get("tau") == 1 else self.tau
        gamma = {"1": 1.0, "m": float(self.m), "sqrt": math.sqrt(self.m * tau)}[rate]
        known = {"kept": 1 / (1 + self.q), "1/n": 1 / self.n}
        own = {key: known.get(value, value) for key, value in own.items()}
        return ALGORITHMS[kind](gamma=gamma, tau=tau, batch="full", decay=1.0, **own)

    def links(self) -> Links:
        """The codec whose q is the setting's: rand-k keeps d/(1+q) coordinates, and so does top-k."""
        name = METHODS[self.method].codec if self.q else "identity"
        return Links(CODECS[name](**({"ratio": 1 / (1 + self.q)} if self.q else {})))


class Way(NamedTuple):
    """A method as it is run: its name, global rate, codec and own settings."""

    name: str
    gamma: Literal["1", "m", "sqrt"]  # as the theorems have it: m, or the root of m tau; others fix it at 1
    codec: str = "identity"
    own: Mapping[str, Any] = {}  # "kept" stands for 1/(1 + q), "1/n" for itself


METHODS = {
    "fedcom": Way("fedcom", "m", "randk"),
    "fedpaq": Way("fedpaq", "1", "randk"),
    "qsparse": Way("qsparse", "1", "topk"),
    "local-sgd": Way("local-sgd", "1"),
    "fedcomgate": Way("fedcomgate", "sqrt", "randk", {"damping": 1.0}),
    "fedcomgate damped": Way("fedcomgate", "sqrt", "randk", {"damping": "kept"}),
    "fedgate": Way("fedgate", "sqrt"),
    "scaffold": Way("scaffold", "sqrt"),
    "vrl-sgd": Way("vrl-sgd", "1"),
    "diana": Way("diana", "1", "randk", {"shift_rate": "kept"}),
    "vr-diana": Way("vr-diana", "1", "randk", {"shift_rate": "kept", "refresh_probability": "1/n"}),
}

Formula = Callable[[Setting], float]


def _log(s: Setting) -> float:
    return math.log(1 / s.epsilon)


BOUNDS: dict[str, Formula] = {
    "κ(q/m + 1) log(1/ε)": lambda s: s.kappa * (s.q / s.m + 1) * _log(s),
    "κ(q + 1) log(1/ε)": lambda s: s.kappa * (s.q + 1) * _log(s),
    "κ log(1/ε)": lambda s: s.kappa * _log(s),
    "mκ log(1/ε)": lambda s: s.m * s.kappa * _log(s),
    "κ(q + 1)/√ε": lambda s: s.kappa * (s.q + 1) / math.sqrt(s.epsilon),
    "m + (q + 1)/(mε)": lambda s: s.m + (s.q + 1) / s.m / s.epsilon,
    "κ + κq/m + q": lambda s: s.kappa + s.kappa * s.q / s.m + s.q,
    "κ + κq/m + q + n": lambda s: s.kappa + s.kappa * s.q / s.m + s.q + s.n,
    "(1/ε)^(1/3)": lambda s: s.epsilon ** (-1 / 3),
    "1/ε": lambda s: 1 / s.epsilon,
    "m/ε": lambda s: s.m / s.epsilon,
    "1/ε^1.5": lambda s: s.epsilon**-1.5,
    "(q + 1)/ε": lambda s: (s.q + 1) / s.epsilon,
    "(q + 1)/ε^1.5": lambda s: (s.q + 1) * s.epsilon**-1.5,
    "(1 + q/m)/ε log(1/ε)": lambda s: (1 + s.q / s.m) / s.epsilon * _log(s),
    "(1 + q)/ε log(1/ε)": lambda s: (1 + s.q) / s.epsilon * _log(s),
    "1/ε log(1/ε)": lambda s: _log(s) / s.epsilon,
    "(1 + q/m)^½ (n^⅔ + q)/ε": lambda s: math.sqrt(1 + s.q / s.m) * (s.n ** (2 / 3) + s.q) / s.epsilon,
    "((1 + q/m)√n + q/√n)/ε": lambda s: ((1 + s.q / s.m) * s.n**0.5 + s.q * s.n**-0.5) / s.epsilon,
}
TAUS: dict[str, Formula] = {
    "(q + 1)/(m(q/m + 1)ε)": lambda s: (s.q + 1) / s.m / (s.q / s.m + 1) / s.epsilon,
    "(q + 1)/(mε)": lambda s: (s.q + 1) / s.m / s.epsilon,
    "((q/m)² + 1)/ε": lambda s: ((s.q / s.m) ** 2 + 1) / s.epsilon,
    "1/(mε)": lambda s: 1 / s.m / s.epsilon,
    "1/(m²ε)": lambda s: 1 / s.m**2 / s.epsilon,
    "1/(mε²)": lambda s: 1 / s.m / s.epsilon**2,
    "1/(m√ε)": lambda s: 1 / s.m / math.sqrt(s.epsilon),
    "1/(m(q + 1)√ε)": lambda s: 1 / s.m / (s.q + 1) / math.sqrt(s.epsilon),
    "(q + 1)²/(m(q/m + 1)²ε²)": lambda s: (s.q + 1) ** 2 / s.m / (s.q / s.m + 1) ** 2 / s.epsilon**2,
}
TAU_SCALE = 0.25  # the constant in front of the stated tau, which suits the noise used here


@dataclass(frozen=True)
class Check:
    """A bound of some tables, one of whose factors is varied.

    tau: as stated, with noise; None: fixed, without noise.
    """

    tables: tuple[int, ...]
    base: Setting
    factor: str
    values: tuple[float, ...]
    bound: str
    tau: str | None = None

    def settings(self) -> list[Setting]:
        """The points, in order."""
        whole = self.factor in ("m", "n")
        varied: list[dict[str, Any]] = [{self.factor: int(v) if whole else v} for v in self.values]
        return [self._with_tau(replace(self.base, **point)) for point in varied]

    def _with_tau(self, s: Setting) -> Setting:
        if self.tau is None:
            return s
        return replace(s, tau=max(1, math.ceil(TAU_SCALE * TAUS[self.tau](s) - 1e-9)), noisy=True)

    def promised(self, s: Setting) -> float:
        """The bound, without its constant."""
        return BOUNDS[self.bound](s)

    @property
    def semilog(self) -> bool:
        """Whether rounds are to grow with the logarithm of an accuracy, after some that do not count."""
        return self.factor == "epsilon" and self.bound.endswith("log(1/ε)") and self.base.linear

    @property
    def flat(self) -> bool:
        """Whether the bound does not know the factor."""
        return len({round(self.promised(s), 9) for s in self.settings()}) == 1
