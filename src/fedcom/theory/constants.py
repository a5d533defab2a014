"""What the theorems' bounds are functions of: the constants of a problem, and the step sizes of a run."""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from fedcom.errors import ConfigError


class StepSizes(NamedTuple):
    """The step sizes of a run: local rate, global rate and local steps per round."""

    eta: float
    gamma: float
    tau: int

    @property
    def round(self) -> float:
        """eta gamma tau: how far a round goes along the gradient."""
        return self.eta * self.gamma * self.tau


@dataclass(frozen=True)
class Constants:
    """The constants of a problem, a codec and a number of clients, in the paper's symbols.

    Args:
        L: smoothness of every client's loss (Assumption 1).
        mu: constant of the PL condition or of strong convexity; 0: none.
        sigma: E|g~ - g|^2 <= sigma^2 for a client's stochastic gradient (Assumptions 3 and 4).
        q: E|Q(x) - x|^2 <= q |x|^2 for the codec (Assumption 2).
        G_q: E[|mean Q(x_j)|^2 - |Q(mean x_j)|^2] <= G_q for what clients send (Assumption 5).
        m: clients that take part in a round.
        gap: f(w0) - f*, how far the start is from the least loss.
        local_gap: the mean over clients of f_j(w0) - min f_j.
        distance: the mean over clients of |w0 - w_j*|^2, with w_j* the minimiser of f_j.
        norm: |w*|^2.
        start: |w0|^2.
    """

    L: float
    mu: float = 0.0
    sigma: float = 0.0
    q: float = 0.0
    G_q: float = 0.0
    m: int = 1
    gap: float = 1.0
    local_gap: float = 0.0
    distance: float = 0.0
    norm: float = 0.0
    start: float = 0.0

    def __post_init__(self) -> None:
        if self.L <= 0 or self.m < 1 or self.mu > self.L * (1 + 1e-9):
            raise ConfigError(
                f"a problem has L > 0, mu <= L and m >= 1; got L={self.L}, mu={self.mu}, m={self.m}"
            )
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise ConfigError(f"{field.name} must be 0 or more; got {getattr(self, field.name)}")

    @property
    def kappa(self) -> float:
        """L/mu, the condition number."""
        return self.L / self.mu if self.mu else float("inf")

    def regularised(self, phi: float) -> "Constants":
        """The constants of f + phi/2 |w|^2, which is phi-strongly convex and (L + phi)-smooth."""
        return replace(
            self,
            L=self.L + phi,
            mu=self.mu + phi,
            gap=self.gap + phi / 2 * self.start,
            local_gap=self.local_gap + phi / 2 * self.start,
        )

    def sampled(self, n: int, alike: bool) -> "Constants":
        """The constants if n clients take part in every round, as far as the paper goes.

        If clients are alike, n of them are as good as any other n, so the theorems hold with m = n. For
        clients that differ the paper has an algorithm (4) and no theorem.
        """
        if n == self.m:
            return self
        if not 1 <= n < self.m:
            raise ConfigError(f"from 1 to {self.m} clients can take part; got {n}")
        if not alike:
            raise ConfigError(
                "the paper's theorem on heterogeneous clients needs all of them in every round: it has no "
                "theorem on Algorithm 4; leave sampling out, or plan with pilot runs (fedcom plan)"
            )
        return replace(self, m=n)
