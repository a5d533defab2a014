"""A round as one CUDA graph: recorded once, then replayed by one launch per round."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from fedcom.engines.base import Options
from fedcom.engines.local.eager import EagerEngine
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger

log = logging.getLogger("fedcom")
_WARM = 1  # rounds played before one is recorded, since libraries set themselves up in the first
Result = TypeVar("Result")


class CannotRecord(Exception):
    """Something asked the host for a decision while it was being recorded."""


def record(function: Callable[[], Result], **options: Any) -> tuple[Result, Callable[[], None]]:
    """Record a function of tensors as a CUDA graph; returns its result, and a function that replays it.

    Recording computes nothing: the result's tensors are filled by each replay.

    Args:
        options: of torch.cuda.graph.
    """
    graph, shared = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
    before = shared.clone_state()
    try:
        # Threads that read and write clients' state use the GPU meanwhile; that is no part of the round.
        with torch.cuda.graph(graph, capture_error_mode="thread_local", **options):
            result = function()
    except RuntimeError as error:
        torch.cuda.synchronize()
        shared.graphsafe_set_state(before)  # it would refuse every draw of the process from now on
        first = error.__context__ or error  # leaving the recording raises another error over it
        reason = first_line(first)
        log.warning("rounds cannot be recorded as a CUDA graph and are played: %s", reason)
        raise CannotRecord(reason) from None
    return result, graph.replay


def first_line(error: BaseException) -> str:
    """The first line of an error, or the name of its class if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
        self._turns = max(1, len(runs[0].rules.turns))  # rounds in which other parts are trained
        self._whole = self.groups.size >= len(self.stack)
        self._recorded: dict[int, tuple[list[Ledger], Callable[[], None]]] = {}  # by turn

    def play(self) -> list[Ledger]:
        """Play or replay the round that the inputs describe; returns the bytes sent, one ledger per run."""
        turn, warm = self.round % self._turns, self._played >= _WARM * self._turns
        if turn not in self._recorded and self._whole and self.refused is None and warm:
            try:
                self._recorded[turn] = record(super().play)
            except CannotRecord as reason:
                self.refused = str(reason)
        if turn not in self._recorded:
            self._played += 1
            return super().play()
        bills, replay = self._recorded[turn]
        replay()
        return bills
