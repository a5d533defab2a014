"""Watch a run for a loss that blows up, and put it back to an earlier round with a smaller eta."""

import math
from collections.abc import Sequence
from typing import Literal

from fedcom.engines.results import Row
from fedcom.engines.simulation import Simulation
from fedcom.errors import ConfigError, Diverged
from fedcom.saving.in_memory import InMemory

OnDivergence = Literal["stop", "backoff"]
BLOWN = 3.0  # times the first loss
EVERY = 5  # rounds between two copies, at least; evaluations in between keep none
FACTOR, MOST = 0.5, 10  # of eta, each time; times, at most


class Watch:
    """Keeps copies of a run at good rounds, the last two, in memory.

    A round is good if its loss is at most BLOWN times the first. If a run blows up again before it has got
    past the round at which it did, it goes back further: to the copy before, then to the start.
    """

    def __init__(self, rule: OnDivergence, simulation: Simulation) -> None:
        if rule == "backoff" and simulation.options.ranks.size > 1:
            raise ConfigError("run.on_divergence=backoff plays in one process; use stop on several ranks")
        self.rule = rule
        self._first: float | None = None
        self._copies: list[InMemory] = []
        self._failed_at = -1

    def begin(self, rows: Sequence[Row], simulation: Simulation) -> None:
        """Keep a first copy of a run that begins, or goes on after some rows."""
        if self.rule == "backoff":
            self._first = rows[0]["train_loss"] if rows else None
            self._copies = [simulation.keep()]

    def see(self, row: Row, simulation: Simulation) -> None:
        """Look at a row; raise Diverged if the loss has blown up, else keep a copy now and then."""
        if self.rule == "stop":
            return
        loss = math.inf if row["train_loss"] is None else row["train_loss"]
        if self._first is None:
            self._first = loss
        if loss > BLOWN * abs(self._first):
            raise Diverged(
                f"the loss has grown to {loss:.3g} after round {row['round']}, from {self._first:.3g}"
            )
        if simulation.round >= self._copies[-1].number + EVERY:
            self._copies = [*self._copies[-1:], simulation.keep()]

    def gone_back(self, simulation: Simulation, diverged: Diverged) -> Simulation:
        """The run at an earlier round with a smaller eta; raises the error if it has gone back too often."""
        if self.rule == "stop" or len(simulation.backoffs) >= MOST:
            raise diverged
        again = simulation.round <= self._failed_at + EVERY
        if again and len(self._copies) > 1:
            self._copies.pop()
        self._failed_at = max(self._failed_at, simulation.round)
        eta = simulation.algorithm.local_rate(0) * FACTOR
        return simulation.gone_back(self._copies[-1], float(f"{eta:.6g}"))
