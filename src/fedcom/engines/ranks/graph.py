"""Rounds on several ranks with a GPU each or shared: the two parts of a round are CUDA graphs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from fedcom.engines.base import Options
from fedcom.engines.local.graph import CannotRecord, record
from fedcom.engines.local.inputs import copy_over
from fedcom.engines.ranks.engine import Own, RankedEngine, mean_in
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors

Result = TypeVar("Result")
_MOST = 16  # recordings; each keeps some vectors of the model's size on the GPU


class Recorded(NamedTuple):
    """The two parts of a round, ready to be replayed."""

    own: Own
    replay_own: Callable[[], None]
    after: Ledger
    replay_common: Callable[[], None]


class RankedGraphEngine(RankedEngine):
    """Records what is done before the exchange and what is done after it, and replays both.

    A recording is of some rows. Where clients are sampled, a rank's clients have other rows from round to
    round: each range of rows is recorded when it comes for the second time, as long as there is room, since
    libraries set themselves up in the first. Others are played.

    Attributes:
        refused: why rounds cannot be recorded; None if they can, or it was not tried yet.
        replayed: rounds that were replayed.
    """

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        super().__init__(runs, task, options)
        self.refused = "messages are made on the host" if runs[0].rules.links.encode else None
        self.replayed = 0
        self._seen: set[range] = set()
        self._recorded: dict[range, Recorded] = {}
        w, names = runs[0].server.w, runs[0].rules.algorithm.uploads
        self._mean: Vectors = {name: torch.zeros_like(w) for name in names}  # where `common_part` reads it
        self._q = w.new_zeros(len(self.stack))
        self._pool: Any = None  # the memory that all recordings share: they are replayed one after the other

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Record a part of a round."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # Only this thread's own calls are watched: nccl has threads that ask the GPU whether it is done.
        return record(function, pool=self._pool)

    def play(self) -> list[Ledger]:
        """Play or replay the round that the inputs describe; returns the bytes sent."""
        rows = self.store.rows_now
        if rows not in self._recorded and self._may_record(rows):
            self._record(rows)
        if rows not in self._recorded:
            self._seen.add(rows)
            return super().play()
        own, replay_own, after, replay_common = self._recorded[rows]
        replay_own()
        found = self.exchange(own)
        for name, x in mean_in(found).items():
            copy_over(self._mean[name], x)
        copy_over(self._q, found.tensors["q"])
        replay_common()
        self.replayed += 1
        return [self.bill(own, found, after)]

    def _may_record(self, rows: range) -> bool:
        fits, room = self.groups.size >= len(rows), len(self._recorded) < _MOST
        return self.refused is None and rows in self._seen and fits and room

    def _record(self, rows: range) -> None:
        try:
            own, replay_own = self.record(self.own_part)
            after, replay_common = self.record(partial(self.common_part, own.begun, self._mean, self._q))
        except CannotRecord as reason:
            self.refused = str(reason)
        else:
            # The next recording may use the memory of the clients' work again: both parts are done by then.
            self._recorded[rows] = Recorded(own._replace(done=()), replay_own, after, replay_common)
