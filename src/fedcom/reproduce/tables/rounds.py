"""Count the rounds to an accuracy, for one method at many step sizes and seeds at once.

What happens in a round is `fedcom.rounds`, as in every engine. Here the servers of all runs are rows of one
tensor too. The engines' stack of runs, which steps server after server, takes 10 to 40 times as long for the
hundreds of runs of problems this small.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round
from fedcom.draws import Draw
from fedcom.engines.local.stack import map_tensors
from fedcom.reproduce.tables.problems import Problem, decayed
from fedcom.rounds.cohort import Steps
from fedcom.rounds.round import Assignment, client_finish, client_work, coin, facts, server_work
from fedcom.rounds.rules import Rules
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.links import Links
from fedcom.vectors import Layout, Vectors


@dataclass(frozen=True)
class ProblemOracle:
    """The gradients of a problem's clients at one local step.

    Args:
        chance: the random numbers of the round, from `Problem.chance`; None for exact gradients.
        weight_decay: this times w is added to every gradient.
        step: the local step, from 0.
    """

    problem: Problem
    chance: Tensor | None
    weight_decay: float = 0.0
    step: int = 0

    def at(self, step: int) -> "ProblemOracle":
        return replace(self, step=step)

    def batch(self, w: Tensor) -> Tensor:
        if self.chance is None:
            return self.full(w)
        return decayed(w, self.problem.stochastic(w, self.chance, self.step), self.weight_decay)

    def full(self, w: Tensor) -> Tensor:
        return decayed(w, self.problem.gradient(w), self.weight_decay)


class StackedRuns:
    """Runs of one method that differ in eta and seed, computed together; `step()` does one round of all.

    All clients take part in every round. Tensors of servers have one row per run; tensors of clients have one
    row per run and client, those of run 0 first.

    Args:
        etas: there is one run for each pair of an eta and a seed, the seeds of the first eta first.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        links: Links,
        etas: Sequence[float],
        seeds: Sequence[int],
    ) -> None:
        self.problem, self.round, m = problem, 0, problem.clients
        self.runs = len(etas) * len(seeds)
        self.rules = Rules(algorithm, links, Layout.vector(len(problem.start), problem.start.dtype), m, m)
        self.eta = torch.tensor(etas, dtype=torch.float64).repeat_interleave(len(seeds)).unsqueeze(-1)
        self._seeds = torch.stack([Draw.seeded(seed).key for seed in seeds]).repeat(len(etas))
        self._clients = torch.arange(m).repeat(self.runs)
        self.server_side = self.rules.init_server(problem.start.expand(self.runs, -1))
        self.client, self.memory = self.rules.init_client(problem.start.expand(self.runs * m, -1))
        self.bill = Ledger(m)
        self.sent: Vectors = {}  # what the server heard of every client of every run in the last round

    @property
    def server(self) -> Any:
        """The servers' state, one row per run."""
        return self.server_side.state

    def step(self) -> None:
        """One round of every run; the bytes that begin it are not counted, as no table uses them."""
        rules, algorithm, clients = self.rules, self.rules.algorithm, self._clients
        tau, key = cast(int, algorithm.tau), Draw(self._seeds).fold(self.round)
        rnd = facts(rules, self.eta, tau, 1.0, coin(key))
        down = map_tensors(algorithm.broadcast(self.server), self._rows)
        draw = Draw(self._rows(key.key)).fold(clients)
        oracle = ProblemOracle(self.problem, self.problem.chance(draw, tau), algorithm.weight_decay)
        given = Assignment(clients, self.client, self.memory, down, oracle, Steps(tau), self._wide(rnd), draw)
        work = client_work(rules, given, Channel("uplink", [self.bill]))
        mean, q = map_tensors(work.sent, self._mean), self._mean(work.q.unsqueeze(-1))
        answer = server_work(rules, self.server_side, mean, q, rnd, Channel("downlink", [self.bill]), key)
        heard = answer._replace(mean=map_tensors(answer.mean, self._rows), rnd=self._wide(answer.rnd))
        self.client, self.memory = client_finish(rules, work, heard)
        self.server_side, self.sent = answer.server_side, work.sent
        self.round += 1

    def _rows(self, x: Tensor) -> Tensor:
        """Repeat each run's row once for each of its clients."""
        return x.repeat_interleave(self.problem.clients, 0)

    def _mean(self, x: Tensor) -> Tensor:
        """The mean over the clients of each run."""
        return x.reshape(self.runs, self.problem.clients, -1).mean(1)

    def _wide(self, rnd: Round) -> Round:
        """The facts of a round with one number per run and client."""
        own: dict[str, Any] = {
            name: self._rows(x) for name, x in rnd._asdict().items() if isinstance(x, Tensor)
        }
        return rnd._replace(**own)


class Reached(NamedTuple):
    """The fewest rounds to an accuracy over a grid of steps, and the step; None if no step reached it."""

    rounds: int | None = None
    step: float | None = None


class Counter:
    """Finds the first round in which the gap of some step, a mean over seeds, is down to each accuracy.

    Args:
        epsilons: the accuracies.
        averaged: compare the mean of the gap over all rounds so far, as bounds on gradients do.
    """

    def __init__(self, epsilons: Sequence[float], averaged: bool = False) -> None:
        self._waiting = sorted(epsilons, reverse=True)
        self._averaged, self._sum, self._seen = averaged, cast(Any, 0.0), 0
        self.reached: dict[float, tuple[int, int]] = {}

    def see(self, rounds: int, gaps: Tensor) -> bool:
        """Note the gaps, [steps, seeds], after some rounds; return whether all accuracies are reached."""
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
    epsilons: Sequence[float],
    problem: Problem,
    algorithm: Algorithm,
    links: Links,
    steps: Sequence[float],
    *,
    seeds: int = 2,
    most: int = 2000,
    averaged: bool = False,
) -> dict[float, Reached]:
    """The fewest rounds to each accuracy over some steps.

    Args:
        epsilons: the accuracies, as gaps relative to the start.
        algorithm: its eta is replaced by those that give the steps.
        steps: values of eta * gamma * tau to try (L is 1).
        seeds: how many seeds the gap is averaged over.
        most: the number of rounds after which to give up.
        averaged: see `Counter`.
    """
    scale = algorithm.global_rate * cast(int, algorithm.tau)
    grid = StackedRuns(problem, algorithm, links, [step / scale for step in steps], range(seeds))
    counter = Counter(epsilons, averaged)
    while not counter.see(grid.round, problem.gap(grid.server.w).reshape(len(steps), -1)):
        if grid.round >= most:
            break
        grid.step()
    found = {eps: Reached(r, steps[i]) for eps, (r, i) in counter.reached.items()}
    return {eps: found.get(eps, Reached()) for eps in epsilons}
