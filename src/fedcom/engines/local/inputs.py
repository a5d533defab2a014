"""What changes from round to round, on the device, where a replayed round looks for it."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.rounds.state import RunState


class Inputs(NamedTuple):
    """What a round is told; one number per run, and the number of each row's client in its run."""

    key: Tensor
    eta: Tensor
    coin: Tensor
    client: Tensor

    @classmethod
    def empty(cls, runs: int, rows: int, device: torch.device) -> "Inputs":
        """Room for what some runs are told."""
        real, whole = (partial(torch.zeros, dtype=t, device=device) for t in (torch.float64, torch.int64))
        return cls(key=whole(runs), eta=real(runs), coin=real(runs), client=whole(rows))

    def fill(self, runs: Sequence[RunState], turn: int) -> None:
        """Tell the runs a round."""
        told = [run.told(turn) for run in runs]
        _copy(self.key, torch.stack([each.draw.key for each in told]))
        _copy(self.eta, torch.tensor([each.eta for each in told], dtype=torch.float64))
        _copy(self.coin, torch.cat([each.coin for each in told]))

    def call(self, runs: Sequence[RunState], turn: int) -> None:
        """Tell the runs who takes part in a round."""
        _copy(self.client, torch.cat([run.sample(turn) for run in runs]))


def _copy(there: Tensor, here: Tensor) -> None:
    """Copy to the device without waiting for it."""
    there.copy_(here.pin_memory() if there.is_cuda else here, non_blocking=True)
