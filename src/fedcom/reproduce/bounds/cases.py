"""One case of the study on the theorems: a problem, the prescribed step sizes, the error and its bound."""

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm, FedCOM, FedCOMGATE
from fedcom.codecs import Identity, RandK
from fedcom.reproduce.tables.problems import Logistic, Problem, Quadratic, Wave, minimiser
from fedcom.reproduce.tables.rounds import StackedRuns
from fedcom.theory import Constants, Theorem, theorem
from fedcom.theory.theorems import Regime
from fedcom.traffic.links import Links

DIM, SAMPLES, BATCH = 32, 256, 4
SIGMA = 0.5  # of quadratics and waves
ROUNDS = 100  # at least; more where the conditions on the step sizes need more
DAMPED = 1.0  # tracking is damped from this q on: as printed it diverges there (docs/decisions)


@dataclass(frozen=True)
class BoundCase:
    """A theorem and a problem that it is about.

    Args:
        spread: how much clients differ; 0: they are alike, and the theorem is FedCOM's.
        noisy: whether gradients are stochastic.
        seeds: over which the error is averaged.
    """

    regime: Regime
    objective: Literal["quadratic", "logistic", "wave"]
    m: int
    q: float
    tau: int
    kappa: float
    spread: float = 0.0
    noisy: bool = True
    seeds: int = 20

    @property
    def key(self) -> str:
        """The text that identifies it in results.jsonl."""
        return json.dumps([asdict(self), DIM, SAMPLES, BATCH, SIGMA, ROUNDS])

    @property
    def theorem(self) -> Theorem:
        """The theorem in question."""
        return theorem(self.spread == 0, self.regime)

    def problem(self) -> Problem:
        """The clients' losses; a strongly convex logistic regression has a ridge that gives it its kappa."""
        if self.objective == "logistic":
            batch = BATCH if self.noisy else None
            plain = Logistic.of(self.m, DIM, SAMPLES, spread=self.spread, batch=batch)
            ridge = float(plain.curvatures()[1].max()) / (self.kappa - 1)
            return replace(plain, ridge=ridge) if self.regime == "strongly convex" else plain
        kind = Wave if self.objective == "wave" else Quadratic
        sigma = SIGMA if self.noisy else 0.0
        return kind.of(self.m, DIM, self.kappa, spread=self.spread, sigma=sigma)

    def algorithm(self, gamma: float, phi: float) -> Algorithm:
        """The theorem's method, with its ridge phi; tracking is damped where it would diverge."""
        own: dict[str, Any] = {"gamma": gamma, "tau": self.tau, "batch": "full", "decay": 1.0}
        own["weight_decay"] = phi
        if self.spread == 0:
            return FedCOM(**own)
        return FedCOMGATE(**own, damping=1 / (1 + self.q) if self.q >= DAMPED else 1.0)

    def links(self) -> Links:
        """rand-k, whose variance factor is exactly q."""
        return Links(RandK(1 / (1 + self.q)) if self.q else Identity())

    def run(self) -> dict[str, Any]:
        """The error, a mean over seeds, and the theorem's bound on it."""
        problem, claim = self.problem(), self.theorem
        phi = claim.weight(Constants(1, m=self.m), self.tau)
        constants, least = known(problem, convex=self.objective != "wave", drawn_to=phi)
        constants = replace(constants, q=self.q)
        rounds = self._rounds(claim, constants)
        steps = claim.steps(constants, self.tau, rounds)
        algorithm = self.algorithm(steps.gamma, phi)
        runs = StackedRuns(problem, algorithm, self.links(), [steps.eta], range(self.seeds))
        errors, worst = [self._error(problem, least, runs)], 0.0
        for _ in range(rounds):
            runs.step()
            worst = max(worst, self._mean_noise(runs))
            errors.append(self._error(problem, least, runs))
        averaged = self.regime == "nonconvex"
        error = torch.stack(errors[:-1]).mean(0) if averaged else errors[-1]
        bound = claim.bound(replace(constants, G_q=worst), steps, rounds)
        return {
            "theorem": claim.name,
            "slack": claim.slack(constants, steps),
            "rounds": rounds,
            "eta": steps.eta,
            "gamma": steps.gamma,
            "G_q": worst,
            "error": float(error.mean()),
            "spread_of_error": float(error.std() / math.sqrt(self.seeds)) if self.seeds > 1 else 0.0,
            "bound": bound,
        }

    def _rounds(self, claim: Theorem, c: Constants) -> int:
        rounds = ROUNDS
        while not claim.holds(c, claim.steps(c, self.tau, rounds)) and rounds < 2**20:
            rounds *= 2
        return rounds

    def _error(self, problem: Problem, least: float, runs: StackedRuns) -> Tensor:
        """The error of each run's model as the theorem measures it; least: the smallest loss."""
        w, m = runs.server.w, self.m
        if self.regime != "nonconvex":
            return problem.losses(w).mean(-1) - least
        gradient = problem.gradient(w.repeat_interleave(m, 0)).reshape(len(w), m, -1).mean(1)
        return gradient.square().sum(-1)

    def _mean_noise(self, runs: StackedRuns) -> float:
        """G_q of the last round, from what the server heard.

        With independent codecs of variance factor q, E|Q(x_j)|^2 = (1 + q)|x_j|^2, and so
        q (mean|Q(x_j)|^2/m - |mean Q(x_j)|^2) has G_q as its mean.
        """
        heard = runs.sent["D"].reshape(runs.runs, self.m, -1)
        mean = heard.mean(1).square().sum(-1)
        return float((self.q * (heard.square().sum(-1).mean(-1) / self.m - mean)).mean())


def known(problem: Problem, convex: bool, drawn_to: float = 0.0) -> tuple[Constants, float]:
    """The constants of a problem that starts at w = 0, and the smallest value of f, or a bound below it.

    q and G_q are those of a codec, and left at zero.

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
        return Constants(**constants, gap=gap, local_gap=gap), 0.0

    def own(j: int, w: Tensor) -> Tensor:
        """What client j optimises."""
        return problem.losses(w)[j] + drawn_to / 2 * w.square().sum(-1)

    best = minimiser(lambda w: problem.losses(w).mean(), start)
    each = [minimiser(partial(own, j), start) for j in range(m)]
    least = float(problem.losses(best).mean())
    local = [float(own(j, start) - own(j, w)) for j, w in enumerate(each)]
    found = Constants(
        **constants,
        gap=float(first.mean()) - least,
        local_gap=sum(local) / m,
        distance=sum(float((w - start).square().sum()) for w in each) / m,
        norm=float(best.square().sum()),
    )
    return found, least


def grid(seeds: int, quick: bool = False) -> list[BoundCase]:
    """All cases; the quick form has the corners of fewer factors."""
    objectives: dict[Regime, tuple[Literal["quadratic", "logistic", "wave"], ...]] = {
        "nonconvex": ("quadratic", "logistic", "wave"),
        "strongly convex": ("quadratic", "logistic"),
        "convex": ("quadratic", "logistic"),
    }
    ms, qs, taus = ((4,), (0.0, 3.0), (4,)) if quick else ((2, 8), (0.0, 1.0, 7.0), (1, 8))
    kappas, spreads = ((16.0,), (0.0, 0.5)) if quick else ((4.0, 64.0), (0.0, 0.3, 0.9))
    return [
        BoundCase(regime, objective, m, q, tau, kappa, spread, seeds=seeds)
        for regime, own in objectives.items()
        for objective in own
        for m in ms
        for q in qs
        for tau in taus
        for kappa in (kappas if objective != "logistic" or regime == "strongly convex" else kappas[:1])
        for spread in spreads
    ]
