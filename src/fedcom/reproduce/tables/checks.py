"""What a cell of the paper's tables states, and how it is checked: method, problem, factor and bound."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.codecs import CODECS
from fedcom.reproduce.panels import package_data
from fedcom.reproduce.tables.problems import Logistic, Problem, Quadratic, Wave
from fedcom.reproduce.tables.rounds import Reached, rounds_to
from fedcom.theory.rates import LOCAL_STEPS, ROUNDS
from fedcom.traffic.links import Links

DIM = 32
NOISE = 0.5**0.5  # sigma of noisy gradients: the norm of their noise
SPREAD = 0.5  # of heterogeneous clients; see `Quadratic.of`
LARGEST, OCTAVES = 2.0, 9  # steps eta gamma tau L: the largest that suits gradient descent, and its halvings
MOST = 3000  # rounds after which an accuracy counts as never reached

# The column of the paper's tables that each problem belongs to.
COLUMNS = {"quadratic": "strongly convex", "flat": "convex", "logistic": "convex", "wave": "nonconvex"}


class Shape(NamedTuple):
    """The shape of a quadratic.

    Args:
        kappa: the condition number; None for that of the case.
        power: where the optimum lies; see `Quadratic.of`.
    """

    kappa: float | None
    power: float


SHAPES = {"quadratic": Shape(None, 1.0), "flat": Shape(1e4, 0.0), "wave": Shape(None, 0.5)}


@dataclass(frozen=True)
class Case:
    """One case to measure: a method on a problem, with the value of every factor.

    Args:
        method: a name in SETUPS.
        objective: the problem; see the introduction in tables.toml.
        alike: homogeneous clients.
        noisy: gradients have noise, or come from minibatches.
        q: the relative variance of the codec.
        m: clients.
        kappa: the condition number.
        n: samples per client.
        tau: local steps per round.
        batch: samples per minibatch, if noisy.
        epsilon: the accuracy to reach, relative to the start.
    """

    method: str
    objective: Literal["quadratic", "flat", "logistic", "wave"] = "quadratic"
    alike: bool = True
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
        """Whether rounds grow with log(1/epsilon): convergence is linear."""
        return self.objective == "quadratic"

    @property
    def column(self) -> str:
        """The column of the paper's tables that the problem belongs to."""
        return COLUMNS[self.objective]

    def algorithm(self) -> Algorithm:
        """The method with its gamma; eta is set later, from the grid of steps."""
        kind, rate, _, own = SETUPS[self.method]
        tau = 1 if ALGORITHMS[kind].fixed.get("tau") == 1 else self.tau
        gamma = {"1": 1.0, "m": float(self.m), "sqrt": math.sqrt(self.m * tau)}[rate]
        known = {"kept": 1 / (1 + self.q), "1/n": 1 / self.n}
        own = {key: known.get(value, value) for key, value in own.items()}
        return ALGORITHMS[kind](gamma=gamma, tau=tau, batch="full", decay=1.0, **own)

    def links(self) -> Links:
        """The codec with this q: rand-k keeps d/(1+q) coordinates, and so does top-k."""
        name = SETUPS[self.method].codec if self.q else "identity"
        return Links(CODECS[name](**({"ratio": 1 / (1 + self.q)} if self.q else {})))

    def rounds_to(
        self, epsilons: Sequence[float], steps: Sequence[float], seeds: int
    ) -> dict[float, Reached]:
        """The fewest rounds to each accuracy over some steps; see `rounds.rounds_to`."""
        runs = self.problem(), self.algorithm(), self.links()
        return rounds_to(epsilons, *runs, steps, seeds=seeds, most=MOST, averaged=self.objective == "wave")


class MethodSetup(NamedTuple):
    """How a method of the tables is run.

    Args:
        name: of the algorithm.
        gamma: as in the theorems: 1, m, or the square root of m tau ("sqrt").
        codec: the name of the codec that is used if q is not 0.
        own: its other hyper-parameters, where "kept" stands for 1/(1 + q) and "1/n" for 1/n.
    """

    name: str
    gamma: Literal["1", "m", "sqrt"]
    codec: str = "identity"
    own: Mapping[str, Any] = {}


SETUPS = {name: MethodSetup(**own) for name, own in package_data("tables/tables.toml")["methods"].items()}
TAU_SCALE = 0.25  # the constant in front of the stated tau; it suits the noise used here


@dataclass(frozen=True)
class Check:
    """A bound of one or several tables, checked by varying one of its factors.

    Args:
        tables: the numbers of the tables that state the bound.
        base: the case to vary.
        factor: the field of the case to vary.
        values: of the factor.
        bound: the stated rounds, a key of ROUNDS.
        tau: the stated local steps, a key of LOCAL_STEPS, with noisy gradients; None for those of `base`.
    """

    tables: tuple[int, ...]
    base: Case
    factor: str
    values: tuple[float, ...]
    bound: str
    tau: str | None = None

    def cases(self) -> list[Case]:
        """The cases to measure, in order of the values."""
        whole = self.factor in ("m", "n")
        varied: list[dict[str, Any]] = [{self.factor: int(v) if whole else v} for v in self.values]
        return [self._with_tau(replace(self.base, **point)) for point in varied]

    def _with_tau(self, s: Case) -> Case:
        if self.tau is None:
            return s
        return replace(s, tau=max(1, math.ceil(TAU_SCALE * LOCAL_STEPS[self.tau](s) - 1e-9)), noisy=True)

    def promised(self, s: Case) -> float:
        """The rounds that the bound states for a case, without its constant."""
        return ROUNDS[self.bound](s)

    @property
    def semilog(self) -> bool:
        """Whether rounds are stated to grow with log(1/epsilon); then the fit starts at the first point."""
        return self.factor == "epsilon" and self.bound.endswith("log(1/ε)") and self.base.linear

    @property
    def independent(self) -> bool:
        """Whether the bound does not depend on the factor."""
        return len({round(self.promised(s), 9) for s in self.cases()}) == 1
