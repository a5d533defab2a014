"""The constants that the theorems need, of problems where they are known."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from fedcom.reproduce.tables.problems import Problem, minimiser
from fedcom.theory import Constants


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

    def own(j: int, w: Tensor) -> Tensor:
        """What client j optimises."""
        return problem.losses(w)[j] + drawn_to / 2 * w.square().sum(-1)

    best = minimiser(lambda w: problem.losses(w).mean(), start)
    each = [minimiser(partial(own, j), start) for j in range(m)]
    least = float(problem.losses(best).mean())
    local = [float(own(j, start) - own(j, w)) for j, w in enumerate(each)]
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
