"""Rounds to an accuracy: one method at many step sizes and seeds at once, their servers stacked too.

What a run does is `fedcom.rounds`, as in any engine; only the loop over runs is a tensor's axis here,
since problems this small cost their overhead alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.algorithms.base import Round
from fedcom.draws import Draw
from fedcom.reproduce.tables.problems import Problem
from fedcom.rounds.cohort import Steps
from fedcom.rounds.round import (
    Answer,
    Assignment,
    Work,
    client_finish,
    client_work,
    coin,
    facts,
    play,
    server_work,
)
from fedcom.rounds.rules import Rules
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.links import Links
from fedcom.vectors import Layout, Vectors


@dataclass(frozen=True)
class ProblemOracle:
    """Gradients of a problem's clients at one local step.

    Args:
        chance: what the gradients' noise is drawn from; None: gradients are exact.
    """

    problem: Problem
    chance: Tensor | None
    step: int = 0

    def at(self, step: int) -> "ProblemOracle":
        return replace(self, step=step)

    def batch(self, w: Tensor) -> Tensor:
        return self.full(w) if self.chance is None else self.problem.stochastic(w, self.chance, self.step)

    def full(self, w: Tensor) -> Tensor:
        return self.problem.gradient(w)


class Begun(NamedTuple):
    """What a round starts from: facts as columns, one number per run."""

    draw: Draw
    rnd: Round
    down: Vectors


class Grid:
    """Runs of one method that differ in eta and seed, all clients taking part; `step()` plays a round.

    Servers are stacked, one row per run, and so are clients, those of run 0 first.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        links: Links,
        etas: Sequence[float],
        seeds: Sequence[int],
    ) -> None:
        self.problem, self.round, m, d = problem, 0, problem.clients, len(problem.start)
        self.runs = len(etas) * len(seeds)
        self.rules = Rules(algorithm, links, Layout.vector(d, problem.start.dtype), m, m)
        self.eta = torch.tensor(etas, dtype=torch.float64).repeat_interleave(len(seeds)).unsqueeze(-1)
        self._seeds = torch.stack([Draw.seeded(seed).key for seed in seeds]).repeat(len(etas))
        self.server_side = self.rules.init_server(problem.start.expand(self.runs, -1))
        self.client, self.memory = self.rules.init_client(problem.start.expand(self.runs * m, -1))
        self.bill = Ledger(m)

    @property
    def server(self) -> Any:
        """The servers' state, one row per run."""
        return self.server_side.state

    def step(self) -> None:
        """One round of every run."""
        play(self)
        self.round += 1

    def begin(self) -> Begun:
        """The round's facts and what goes down; the model is not counted, since no table asks for it."""
        algorithm, draw = self.rules.algorithm, Draw(self._seeds).fold(self.round)
        rnd = facts(self.eta, cast(int, algorithm.tau), 1.0, coin(draw))
        return Begun(draw, rnd, algorithm.broadcast(self.server))

    def work(self, begun: Begun) -> Iterator[Work]:
        """All clients of all runs at once."""
        m, tau = self.problem.clients, cast(int, self.rules.algorithm.tau)
        clients = torch.arange(m).repeat(self.runs)
        draw = Draw(begun.draw.key.repeat_interleave(m)).fold(clients)
        oracle = ProblemOracle(self.problem, self.problem.chance(draw, tau))
        down = {name: self._rows(x) for name, x in begun.down.items()}
        rnd = self._wide(begun.rnd)
        given = Assignment(clients, self.client, self.memory, down, oracle, Steps(tau), rnd, draw)
        yield client_work(self.rules, given, Channel("uplink", [self.bill]))

    def collect(self, begun: Begun, works: Iterator[Work]) -> tuple[Vectors, Tensor]:
        """The means of what was sent and of q, one row per run."""
        (self._work,) = works
        sent, q = self._work.sent, self._work.q.unsqueeze(-1)
        return {name: self._mean(x) for name, x in sent.items()}, self._mean(q)

    def answer(self, begun: Begun, collected: tuple[Vectors, Tensor]) -> Answer:
        """What the servers made of the mean."""
        mean, q = collected
        channel = Channel("downlink", [self.bill])
        answer = server_work(self.rules, self.server_side, mean, q, begun.rnd, channel, begun.draw)
        self.server_side = answer.server_side
        return answer

    def finish(self, answer: Answer) -> None:
        """Update what clients keep."""
        mean = {name: self._rows(x) for name, x in answer.mean.items()}
        wide = answer._replace(mean=mean, rnd=self._wide(answer.rnd))
        self.client, self.memory = client_finish(self.rules, self._work, wide)

    def _rows(self, x: Tensor) -> Tensor:
        """One row per run, once for each of its clients."""
        return x.repeat_interleave(self.problem.clients, 0)

    def _mean(self, x: Tensor) -> Tensor:
        return x.reshape(self.runs, self.problem.clients, -1).mean(1)

    def _wide(self, rnd: Round) -> Round:
        """The facts of a round with one number per client."""

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
