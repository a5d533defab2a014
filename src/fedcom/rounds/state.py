"""What one run keeps between rounds, in every engine."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedcom.draws import Draw
from fedcom.rounds.cohort import Cohort
from fedcom.rounds.round import coin
from fedcom.rounds.rules import Rules, ServerSide
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.network import Network


class RoundInputs(NamedTuple):
    """What changes from round to round in one run, on the host."""

    draw: Draw  # the round's key
    eta: float  # its local rate
    gamma: float  # its global rate
    coin: Tensor  # its number in [0, 1)


@dataclass
class RunState:
    """A run's rules and clients, what its server keeps, and its ledger.

    Args:
        server_side: what the server keeps, after the last round played.
        draw: the root of all its randomness, on the host.
        network: the speeds its modelled time is computed from, if any.
        rounds: how many it has in all, for schedules.
    """

    rules: Rules
    cohort: Cohort
    server_side: ServerSide
    draw: Draw
    ledger: Ledger
    network: Network | None = None
    rounds: int = 0

    @property
    def server(self) -> Any:
        """The algorithm's state on the server."""
        return self.server_side.state

    def inputs(self, round_index: int) -> RoundInputs:
        """The key, rates and coin of a round."""
        draw = self.draw.fold(round_index)
        return RoundInputs(draw, *self.rules.algorithm.rates(round_index, self.rounds), coin(draw))

    def sample(self, round_index: int) -> Tensor:
        """The numbers of the clients that take part in a round, in increasing order."""
        return self.cohort.sample(self.draw, round_index)
