"""The paper's six convergence theorems: FedCOM on clients that are alike, FedCOMGATE on clients that differ.

Each for nonconvex, PL or strongly convex, and convex objectives. Theorems 5.1 and 5.2 state them in O-form;
the bounds are those of the appendix, D.4, D.7, D.9 (FedCOM) and E.4, E.6, E.9 (FedCOMGATE). Where the paper
has slips, docs/decisions/theorems.md says how they are settled.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedcom.errors import ConfigError
from fedcom.theory.constants import Constants, StepSizes

Regime = Literal["nonconvex", "strongly convex", "convex"]
_MOST = 2**62  # rounds


@dataclass(frozen=True)
class Theorem(ABC):
    """A bound on the error after R rounds, and when it holds.

    Attributes:
        name: of the theorem in the paper.
        alike: whether it is about clients that are alike: FedCOM; else FedCOMGATE.
        regime: the kind of objective.
        error: what is bounded.
    """

    name: ClassVar[str]
    alike: ClassVar[bool]
    regime: ClassVar[Regime]
    error: ClassVar[str] = "E f(w_R) - f*"

    @abstractmethod
    def slack(self, c: Constants, s: StepSizes) -> float:
        """How much room the conditions on the step sizes leave; they hold if it is 0 or more."""

    @abstractmethod
    def gamma(self, c: Constants, tau: int) -> float:
        """The least gamma that the theorem prescribes."""

    @abstractmethod
    def steps(self, c: Constants, tau: int, rounds: int, gamma: float | None = None) -> StepSizes:
        """The step sizes that the theorem prescribes; gamma: the least, unless given."""

    @abstractmethod
    def bound(self, c: Constants, s: StepSizes, rounds: int) -> float:
        """The bound on the error after so many rounds with these step sizes."""

    def weight(self, c: Constants, tau: int) -> float:
        """phi: the weight of the ridge phi/2 |w|^2 that the method is to be run with; 0 for none."""
        return 0.0

    def holds(self, c: Constants, s: StepSizes) -> bool:
        """Whether the conditions on the step sizes hold."""
        return self.slack(c, s) >= -1e-12

    def rounds(self, c: Constants, epsilon: float, tau: int, gamma: float | None = None) -> int | None:
        """The fewest rounds after which the bound at the prescribed step sizes is down to epsilon.

        None if no number of rounds is enough, as the noise of so few local steps is too large.
        """

        def enough(rounds: int) -> bool:
            s = self.steps(c, tau, rounds, gamma)
            return self.holds(c, s) and self.bound(c, s, rounds) <= epsilon

        return _first(enough)

    def target(self, c: Constants, epsilon: float) -> tuple[int, int]:
        """R and tau for an error of epsilon.

        tau is the least power of two with at most twice as many rounds as the best tau has.
        """
        if epsilon <= 0:
            raise ConfigError(f"an error to reach must be above 0; got {epsilon}")
        found = {tau: rounds for tau in (2**k for k in range(41)) if (rounds := self.rounds(c, epsilon, tau))}
        if not found:
            raise ConfigError(f"{self.name} reaches no error of {epsilon:g}: its bound stays above it")
        best = min(found.values())
        tau = next(tau for tau, rounds in found.items() if rounds <= 2 * best)
        return found[tau], tau


class _FedCOM(Theorem):
    """What FedCOM's theorems share: their condition, and gamma >= m."""

    alike = True

    def slack(self, c: Constants, s: StepSizes) -> float:
        """1 - tau^2 L^2 eta^2 - (q/m + 1) eta gamma L tau."""
        return 1 - (s.tau * c.L * s.eta) ** 2 - (c.q / c.m + 1) * c.L * s.round

    def gamma(self, c: Constants, tau: int) -> float:
        return float(c.m)


class FedCOMNonconvex(_FedCOM):
    """Theorem D.4 (5.1, nonconvex)."""

    name = "Theorem D.4"
    regime: ClassVar[Regime] = "nonconvex"
    error = "mean of |grad f|^2 over the rounds"

    def steps(self, c: Constants, tau: int, rounds: int, gamma: float | None = None) -> StepSizes:
        """eta gamma = sqrt(m/(R tau (q + 1)))/L."""
        return _slow(c, tau, rounds, gamma or self.gamma(c, tau))

    def bound(self, c: Constants, s: StepSizes, rounds: int) -> float:
        start = 2 * c.gap / (s.round * rounds)
        noise = c.L * s.eta * s.gamma * (c.q + 1) / c.m * c.sigma**2
        drift = c.L**2 * s.eta**2 * s.tau * c.sigma**2
        return start + noise + drift


class FedCOMStronglyConvex(_FedCOM):
    """Theorem D.7 (5.1, PL or strongly convex)."""

    name = "Theorem D.7"
    regime: ClassVar[Regime] = "strongly convex"

    def steps(self, c: Constants, tau: int, rounds: int = 1, gamma: float | None = None) -> StepSizes:
        """eta = 1/(2 L (q/m + 1) tau gamma), for any number of rounds."""
        gamma = gamma or self.gamma(c, tau)
        return StepSizes(1 / (2 * c.L * (c.q / c.m + 1) * tau * gamma), gamma, tau)

    def bound(self, c: Constants, s: StepSizes, rounds: int) -> float:
        noise = (1 + c.q) * s.gamma * s.eta * c.L / (2 * c.m) * c.sigma**2
        drift = c.L**2 * s.tau * s.eta**2 / 2 * c.sigma**2
        return _power(1 - _pl(c) * s.round, rounds) * c.gap + (drift + noise) / _pl(c)


class _FedCOMGATE(Theorem):
    """What FedCOMGATE's theorems share: 30 eta^2 L^2 tau^2 <= 1 keeps clients near the server's model."""

    alike = False

    @staticmethod
    def near(c: Constants, s: StepSizes) -> float:
        """1 - 30 eta^2 L^2 tau^2."""
        return 1 - 30 * (s.eta * c.L * s.tau) ** 2

    @staticmethod
    def echo(c: Constants, s: StepSizes) -> float:
        """10 eta^2 (eta gamma)^2 (q + 1) L^4 tau^4: what the last round's step adds to this one's drift."""
        return 10 * (s.eta * c.L * s.tau) ** 2 * (c.L * s.round) ** 2 * (c.q + 1)


class FedCOMGATENonconvex(_FedCOMGATE):
    """Theorem E.4 (5.2, nonconvex)."""

    name = "Theorem E.4"
    regime: ClassVar[Regime] = "nonconvex"
    error = "mean of |grad f|^2 over the rounds"

    def slack(self, c: Constants, s: StepSizes) -> float:
        return min(1 - self.echo(c, s) - c.L * s.round * (c.q + 1), self.near(c, s))

    def gamma(self, c: Constants, tau: int) -> float:
        return float(c.m)

    def steps(self, c: Constants, tau: int, rounds: int, gamma: float | None = None) -> StepSizes:
        """eta gamma = sqrt(m/(R tau (q + 1)))/L."""
        return _slow(c, tau, rounds, gamma or self.gamma(c, tau))

    def bound(self, c: Constants, s: StepSizes, rounds: int) -> float:
        L, eta, tau, noise = c.L, s.eta, s.tau, c.sigma**2
        eg = eta * s.gamma
        echo = 10 * eta**2 * L**4 * tau**2 * eg**2 * (c.q + 1)
        first = 32 * eta * L**2 * tau / rounds * c.local_gap + 16 * eta**3 * L**3 * tau**2 / rounds * noise
        first += 32 * eta**2 * L**3 * tau**2 / rounds * c.gap
        total = (
            2 * c.gap / (s.round * rounds)
            + (c.q + 1) * eg * L / c.m * noise
            + 36 * eta**2 * L**2 * tau * noise
            + echo * (tau * noise / c.m + c.G_q)
            + first
            + eg * L / tau * c.G_q
        )
        return total / (1 - 20 * (eta * L * tau) ** 2)


class FedCOMGATEStronglyConvex(_FedCOMGATE):
    """Theorem E.6 (5.2, PL or strongly convex)."""

    name = "Theorem E.6"
    regime: ClassVar[Regime] = "strongly convex"

    def slack(self, c: Constants, s: StepSizes) -> float:
        kept = 1 - _pl(c) * s.round * (1 - 20 * (s.eta * c.L * s.tau) ** 2)
        if kept <= 0:
            return kept - 1
        return min(1 - (c.q + 1) * c.L * s.round - self.echo(c, s) / kept, self.near(c, s))

    def gamma(self, c: Constants, tau: int) -> float:
        """sqrt(m tau), and what 30 eta^2 L^2 tau^2 <= 1 needs at the prescribed eta."""
        return max(math.sqrt(c.m * tau), math.sqrt(7.5) / (c.q + 1))

    def steps(self, c: Constants, tau: int, rounds: int = 1, gamma: float | None = None) -> StepSizes:
        """eta = 1/(2 L (q + 1) tau gamma), for any number of rounds."""
        gamma = gamma or self.gamma(c, tau)
        return StepSizes(1 / (2 * c.L * (c.q + 1) * tau * gamma), gamma, tau)

    def bound(self, c: Constants, s: StepSizes, rounds: int) -> float:
        L, eta, tau, mu, noise = c.L, s.eta, s.tau, _pl(c), c.sigma**2
        eg = eta * s.gamma
        first = 8 * L**4 * eta**2 * tau**2 * (c.distance + eta * noise / (mu * (1 - eta * L)))
        first += 16 * L**3 * tau**2 * eta**2 * c.gap
        floor = (
            18 * L**2 * eta**2 * tau * noise
            + first
            + 5 * L**4 * eta**2 * tau**2 * eg**2 * (c.q + 1) * (tau * noise / c.m + c.G_q)
            + (c.q + 1) * eg * L / 2 * noise / c.m
            + L * eg * c.G_q / (2 * tau)
        )
        return _power(1 - mu * s.round / 3, rounds) * c.gap + 3 / mu * floor


@dataclass(frozen=True)
class _Regularised(Theorem):
    """A convex objective: the theorem on strongly convex ones, for f + phi/2 |w|^2, plus phi/2 |w*|^2.

    Args:
        phi: None: 1/sqrt(m tau), as the paper has it.
    """

    phi: float | None = None

    regime: ClassVar[Regime] = "convex"
    of: ClassVar[Theorem]

    def weight(self, c: Constants, tau: int) -> float:
        return self.phi or 1 / math.sqrt(c.m * tau)

    def made(self, c: Constants, tau: int) -> Constants:
        """The constants of the objective that is optimised."""
        return c.regularised(self.weight(c, tau))

    def slack(self, c: Constants, s: StepSizes) -> float:
        return self.of.slack(self.made(c, s.tau), s)

    def gamma(self, c: Constants, tau: int) -> float:
        return self.of.gamma(c, tau)

    def steps(self, c: Constants, tau: int, rounds: int = 1, gamma: float | None = None) -> StepSizes:
        return self.of.steps(self.made(c, tau), tau, rounds, gamma)

    def bound(self, c: Constants, s: StepSizes, rounds: int) -> float:
        return self.of.bound(self.made(c, s.tau), s, rounds) + self.weight(c, s.tau) / 2 * c.norm

    def target(self, c: Constants, epsilon: float) -> tuple[int, int]:
        """R and tau for an error of epsilon; if phi is not given, phi/2 |w*|^2 is half of epsilon."""
        if self.phi is None and c.norm > 0:
            return type(self)(epsilon / c.norm).target(c, epsilon)
        return super().target(c, epsilon)


class FedCOMConvex(_Regularised):
    """Theorem D.9 (5.1, convex)."""

    name = "Theorem D.9"
    alike = True
    of = FedCOMStronglyConvex()


class FedCOMGATEConvex(_Regularised):
    """Theorem E.9 (5.2, convex)."""

    name = "Theorem E.9"
    alike = False
    of = FedCOMGATEStronglyConvex()


THEOREMS: tuple[Theorem, ...] = (
    FedCOMNonconvex(),
    FedCOMStronglyConvex(),
    FedCOMConvex(),
    FedCOMGATENonconvex(),
    FedCOMGATEStronglyConvex(),
    FedCOMGATEConvex(),
)


def theorem(alike: bool, regime: Regime) -> Theorem:
    """The theorem on a kind of objective.

    Args:
        alike: whether all clients have the same distribution: FedCOM; else FedCOMGATE.
    """
    return next(t for t in THEOREMS if t.alike == alike and t.regime == regime)


def mean_noise(q: float, mean_square: float, square_of_mean: float, m: int) -> float:
    """G_q of vectors that m clients send through a codec of variance factor q, independently of each other.

    E|mean Q(x_j)|^2 = |mean x|^2 + q/m mean|x_j|^2 and E|Q(mean x)|^2 = (1 + q) |mean x|^2. It may be
    negative: the codec's noise on one mean is larger than the mean of m independent noises.

    Args:
        mean_square: the mean over clients of |x_j|^2.
        square_of_mean: |mean x_j|^2.
    """
    return q * (mean_square / m - square_of_mean)


def _slow(c: Constants, tau: int, rounds: int, gamma: float) -> StepSizes:
    """The step sizes for nonconvex objectives, which shrink with the number of rounds."""
    return StepSizes(math.sqrt(c.m / (rounds * tau * (c.q + 1))) / (c.L * gamma), gamma, tau)


def _pl(c: Constants) -> float:
    if c.mu <= 0:
        raise ConfigError("this theorem needs mu > 0; without it use those on convex or nonconvex objectives")
    return c.mu


def _power(base: float, exponent: int) -> float:
    """A contraction over many rounds; outside the theorems' conditions its base may be negative."""
    return math.exp(exponent * math.log(base)) if base > 0 else abs(base) ** min(exponent, 10**6)


def _first(enough: Callable[[int], bool]) -> int | None:
    """The least whole number for which a condition holds; it must hold for all larger ones too."""
    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
