"""Rounds to an accuracy: one method at many step sizes and seeds at once, their servers stacked too.

What a run does is `fedcom.rounds`, as in any engine; only the loop over runs is a tensor's axis here,
since problems this small cost their overhead alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round
from fedcom.draws import Draw
from fedcom.reproduce.tables.problems import Problem
from fedcom.rounds.round import Heard, Rules, Steps, client_finish, client_work
from fedcom.tasks.oracle import Oracle as DataOracle
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.links import Links
from fedcom.vectors import Layout, Vectors


@dataclass(frozen=True)
class _Oracle:
    """Gradients of a problem's clients at one local step."""

    problem: Problem
    clients: Tensor
    chance: Tensor | None
    step: int = 0

    def at(self, step: int) -> "_Oracle":
        return replace(self, step=step)

    def batch(self, w: Tensor) -> Tensor:
        return self.full(w) if self.chance is None else self.problem.stochastic(w, self.chance, self.step)

    def full(self, w: Tensor) -> Tensor:
        return self.problem.gradient(w)


class Grid:
    """Runs of one method that differ in eta and seed, all clients taking part; `step()` plays a round."""

    def __init__(
        self, problem: Problem, algorithm: Algorithm, links: Links, etas: Sequence[float],
        seeds: Sequence[int],
    ) -> None:  # fmt: skip
        self.problem, self.round, m, d = problem, 0, problem.clients, len(problem.start)
        self.runs = len(etas) * len(seeds)
        self.rules = Rules(algorithm, links, Layout.vector(d, problem.start.dtype), m, m)
        self.eta = torch.tensor(etas, dtype=torch.float64).repeat_interleave(len(seeds)).unsqueeze(-1)
        self._seeds = torch.stack([Draw.seeded(seed).key for seed in seeds]).repeat(len(etas))
        self.server = algorithm.init_server(problem.start.expand(self.runs, -1))
        rows = problem.start.expand(self.runs * m, -1)
        self.client = algorithm.init_client(rows)
        kept = algorithm.memory != "none"
        self.memory: Vectors = {name: torch.zeros_like(rows) for name in algorithm.uploads} if kept else {}
        self.bill = Ledger(m)

    def step(self) -> None:
        """One round of every run."""
        rules, a, m = self.rules, self.rules.algorithm, self.problem.clients
        tau = cast(int, a.tau)
        draw = Draw(self._seeds).fold(self.round)
        coin = draw.fold("coin").uniform(1, torch.float64)
        rnd = Round(self.eta, tau, self.eta * tau, 1.0, coin)
        clients = torch.arange(m).repeat(self.runs)
        own = Draw(draw.key.repeat_interleave(m)).fold(clients)
        down = {name: self._rows(x) for name, x in a.broadcast(self.server).items()}
        oracle = cast(DataOracle, _Oracle(self.problem, clients, self.problem.chance(own, tau)))
        channel = Channel("uplink", [self.bill])
        work = client_work(
            rules, self.client, self.memory, down, oracle, Steps(tau), self._wide(rnd), channel, own
        )
        mean = {name: self._mean(x) for name, x in work.sent.items()}
        rnd = rnd._replace(alpha=rules.alpha(self._mean(work.q.unsqueeze(-1))))
        self.server = a.server_step(self.server, mean, rnd)
        told = {name: self._rows(x) for name, x in mean.items()}
        self.client, memory = client_finish(rules, work, Heard(None, {}, told, self._wide(rnd)))
        self.memory = {name: memory[name] for name in self.memory}
        self.round += 1

    def _rows(self, x: Tensor) -> Tensor:
        """One row a run, once for each of its clients."""
        return x.repeat_interleave(self.problem.clients, 0)

    def _mean(self, x: Tensor) -> Tensor:
        return x.reshape(self.runs, self.problem.clients, -1).mean(1)

    def _wide(self, rnd: Round) -> Round:
        """The facts of a round with one number a client."""

        def wide(x: float | Tensor) -> float | Tensor:
            return self._rows(x) if isinstance(x, Tensor) else x

        eta, path, coin, alpha = map(wide, (rnd.eta, rnd.path, rnd.coin, rnd.alpha))
        return rnd._replace(eta=eta, path=path, coin=coin, alpha=alpha)


@dataclass(frozen=True)
class Reached:
    """The fewest rounds to an accuracy over a grid of steps, and the step that took them; None: none did."""

    rounds: int | None
    step: float | None


class Counter:
    """The first round at which each step's mean over seeds is at most each accuracy.

    averaged: compare the mean over all rounds so far, as bounds on gradients do.
    """

    def __init__(self, epsilons: Sequence[float], averaged: bool = False) -> None:
        self._waiting = sorted(epsilons, reverse=True)
        self._averaged, self._sum, self._seen = averaged, cast(Any, 0.0), 0
        self.reached: dict[float, tuple[int, int]] = {}

    def see(self, rounds: int, gaps: Tensor) -> bool:
        """Take in gaps [steps, seeds] after so many rounds; whether all accuracies have been reached."""
        gaps = gaps.mean(-1)
        if self._averaged:
            self._sum, self._seen = self._sum + gaps, self._seen + 1
            gaps = self._sum / self._seen
        gaps = torch.nan_to_num(gaps, nan=math.inf)
        best = int(gaps.argmin())
        while self._waiting and gaps[best] <= self._waiting[0]:
            self.reached[self._waiting.pop(0)] = (rounds, best)
        return not self._waiting


def rounds_to(
    epsilons: Sequence[float], problem: Problem, algorithm: Algorithm, links: Links, steps: Sequence[float],
    *, seeds: int = 2, most: int = 2000, averaged: bool = False,
) -> dict[float, Reached]:  # fmt: skip
    """Rounds to each accuracy, the best over steps, where a step is eta * gamma * tau (L is 1)."""
    scale = algorithm.gamma * cast(int, algorithm.tau)
    grid = Grid(problem, algorithm, links, [step / scale for step in steps], range(seeds))
    counter = Counter(epsilons, averaged)
    while not counter.see(grid.round, problem.gap(grid.server.w).reshape(len(steps), -1)):
        if grid.round >= most:
            break
        grid.step()
    found = {eps: Reached(r, steps[i]) for eps, (r, i) in counter.reached.items()}
    return {eps: found.get(eps, Reached(None, None)) for eps in epsilons}
