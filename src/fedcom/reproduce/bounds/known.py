"""The constants that the theorems need, of problems where they are known."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from fedcom.draws import Draw
from fedcom.reproduce.tables.problems import Problem, minimiser
from fedcom.theory import Constants


@dataclass(frozen=True, eq=False)
class Ridged:
    """A problem with phi/2 |w|^2 added to every client's loss; `gap` is that of the problem without."""

    of: Problem
    phi: float

    @property
    def start(self) -> Tensor:
        return self.of.start

    @property
    def clients(self) -> int:
        return self.of.clients

    def gradient(self, w: Tensor) -> Tensor:
        return self.of.gradient(w) + self.phi * w

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        return self.of.chance(draw, tau)

    def stochastic(self, w: Tensor, chance: Tensor, step: int) -> Tensor:
        return self.of.stochastic(w, chance, step) + self.phi * w

    def gap(self, w: Tensor) -> Tensor:
        return self.of.gap(w)

    def losses(self, w: Tensor) -> Tensor:
        return self.of.losses(w) + self.phi / 2 * w.square().sum(-1, keepdim=True)

    def curvatures(self) -> tuple[Tensor, Tensor]:
        low, high = self.of.curvatures()
        return low + self.phi, high + self.phi

    def noise(self) -> float:
        return self.of.noise()


@dataclass(frozen=True)
class Known:
    """What is known of a problem.

    Args:
        constants: those of the problem alone; q and G_q are those of the codec and left at zero.
        least: the smallest value of f, or a bound below it.
    """

    constants: Constants
    least: float


def known(problem: Problem, convex: bool, drawn_to: float = 0.0) -> Known:
    """The constants of a problem that starts at w = 0.

    Args:
        convex: whether its minimisers are to be found; if not, no loss is below zero.
        drawn_to: phi, if clients optimise their losses with phi/2 |w|^2 added: their minimisers are those.
    """
    low, high = problem.curvatures()
    start, m = problem.start, problem.clients
    first = problem.losses(start)
    constants = {
        "L": float(high.max()),
        "mu": max(0.0, float(low.min())),
        "sigma": problem.noise() ** 0.5,
        "m": m,
    }
    if not convex:
        gap = float(first.mean())
        return Known(Constants(**constants, gap=gap, local_gap=gap), 0.0)
    own = Ridged(problem, drawn_to) if drawn_to else problem
    best = minimiser(lambda w: problem.losses(w).mean(), start)
    each = [minimiser(partial(_loss, own, j), start) for j in range(m)]
    least = float(problem.losses(best).mean())
    local = [float(own.losses(start)[j] - own.losses(w)[j]) for j, w in enumerate(each)]
    return Known(
        Constants(
            **constants,
            gap=float(first.mean()) - least,
            local_gap=sum(local) / m,
            distance=sum(float((w - start).square().sum()) for w in each) / m,
            norm=float(best.square().sum()),
        ),
        least,
    )


def _loss(problem: Problem, client: int, w: Tensor) -> Tensor:
    return problem.losses(w)[client]
