"""One run between two rounds, whichever engine plays it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedcom.draws import Draw
from fedcom.rounds.cohort import Cohort
from fedcom.rounds.round import coin
from fedcom.rounds.rules import Kept, Rules
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.network import Network


class Told(NamedTuple):
    """What a round of one run is told, on the host."""

    draw: Draw
    eta: float
    coin: Tensor


@dataclass
class RunState:
    """A run's rules and clients, what its server keeps, and its books.

    Args:
        draw: the root of all its randomness, on the host.
        network: the speeds its modelled time is computed from, if any.
    """

    rules: Rules
    cohort: Cohort
    kept: Kept
    draw: Draw
    ledger: Ledger
    network: Network | None = None

    @property
    def server(self) -> Any:
        """The algorithm's state on the server."""
        return self.kept.server

    def told(self, turn: int) -> Told:
        """What a round is told."""
        draw, algorithm = self.draw.fold(turn), self.rules.algorithm
        return Told(draw, algorithm.eta * algorithm.decay**turn, coin(draw))

    def sample(self, turn: int) -> Tensor:
        """The clients of a round, in order."""
        return self.cohort.sample(self.draw, turn)
