"""A round as one CUDA graph: recorded once, then replayed by one launch per round."""

import logging
from collections.abc import Sequence
from typing import ClassVar

import torch

from fedcom.engines.base import Options
from fedcom.engines.local.eager import EagerEngine
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger

log = logging.getLogger("fedcom")
_WARM = 1  # rounds played before one is recorded, since libraries set themselves up in the first


class GraphEngine(EagerEngine):
    """Records a round on a GPU and replays it.

    Rounds that cannot be recorded are played as in the eager engine, and the log says why. Rounds whose
    clients do not fit in memory at once are played too.

    Attributes:
        refused: why a round could not be recorded; None if it could, or was not tried yet.
    """

    needs_gpu: ClassVar[bool] = True

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        super().__init__(runs, task, options)
        self.refused: str | None = None
        self._played = 0  # rounds since this engine was made, which may have gone on from a checkpoint
        self._whole = self.groups.size >= len(self.stack)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded: list[Ledger] = []

    def play(self) -> list[Ledger]:
        """Play or replay the round that the inputs describe; returns the bytes sent, one ledger per run."""
        if self._graph is None and self._whole and self.refused is None and self._played >= _WARM:
            self._record()
        if self._graph is None:
            self._played += 1
            return super().play()
        self._graph.replay()
        return self._recorded

    def _record(self) -> None:
        graph, drawn = torch.cuda.CUDAGraph(), _generator(self.stack.device)
        before = drawn.clone_state()
        try:
            # Threads that read and write clients' state use the GPU meanwhile; that is no part of the round.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._recorded = super().play()
        except RuntimeError as error:  # something asked the host for a decision
            torch.cuda.synchronize()
            drawn.graphsafe_set_state(before)  # it would refuse every draw of the process from now on
            first = error.__context__ or error  # leaving the recording raises another error over it
            self.refused = (str(first).strip() or type(first).__name__).splitlines()[0]
            log.warning("rounds cannot be recorded as a CUDA graph and are played: %s", self.refused)
        else:
            self._graph = graph


def _generator(device: torch.device) -> torch.Generator:
    """The generator of a GPU that everybody shares."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
