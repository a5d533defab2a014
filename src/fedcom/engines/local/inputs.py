"""What changes from round to round, on the device, where a replayed round reads it."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.rounds.state import RunState


class Inputs(NamedTuple):
    """The inputs of a round."""

    key: Tensor  # one per run
    numbers: Tensor  # eta, gamma, coin and the number of the round, a row each with one per run
    client: Tensor  # one per row: the number of the row's client in its run

    @classmethod
    def empty(cls, runs: int, rows: int, device: torch.device) -> "Inputs":
        """Inputs that have not been filled yet."""
        real, whole = (partial(torch.zeros, dtype=t, device=device) for t in (torch.float64, torch.int64))
        return cls(key=whole(runs), numbers=real((4, runs)), client=whole(rows))

    def fill(self, runs: Sequence[RunState], round_index: int) -> None:
        """Set keys, rates and coins to those of a round."""
        inputs = [run.inputs(round_index) for run in runs]
        copy_over(self.key, torch.stack([each.draw.key for each in inputs]))
        found = [(each.eta, each.gamma, float(each.coin), round_index) for each in inputs]
        copy_over(self.numbers, torch.tensor(found, dtype=torch.float64).T.contiguous())

    def fill_clients(self, runs: Sequence[RunState], round_index: int) -> None:
        """Set the clients to those that take part in a round."""
        copy_over(self.client, torch.cat([run.sample(round_index) for run in runs]))


def copy_over(there: Tensor, here: Tensor) -> None:
    """Copy to the device without waiting for it."""
    there.copy_(here.pin_memory() if there.is_cuda and not here.is_cuda else here, non_blocking=True)
