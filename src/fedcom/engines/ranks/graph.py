"""Rounds on several ranks with GPUs: what comes before and after the exchange are CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from fedcom.engines.base import Options
from fedcom.engines.local.eager import Collected, Done
from fedcom.engines.local.graph import CannotRecord, record
from fedcom.engines.local.inputs import copy_over
from fedcom.engines.ranks.engine import Own, RankedEngine
from fedcom.rounds.round import play
from fedcom.rounds.state import RunState
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger

Result = TypeVar("Result")
Which = tuple[range, int]  # a rank's rows, and which part of the model is trained
_MOST = 16  # recordings; each keeps some vectors of the model's size on the GPU


class Recorded(NamedTuple):
    """A round in two parts, ready to be replayed: what is done before the exchange, and after it."""

    own: Own
    heard: Ledger  # the bytes that were sent to clients before they began
    replay_first: Callable[[], None]
    after: Ledger  # the bytes that the server sent at the end
    replay_second: Callable[[], None]


class RankedGraphEngine(RankedEngine):
    """Records what is done before the exchange and what is done after it, and replays both.

    A recording is of some rows, and of the part of the model that is trained. Where clients are sampled, a
    rank's clients have other rows from round to round: each range of rows is recorded when it comes for the
    second time, as long as there is room, since libraries set themselves up in the first. Others are played.

    Attributes:
        refused: why rounds cannot be recorded; None if they can, or it was not tried yet.
        replayed: rounds that were replayed.
    """

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        super().__init__(runs, task, options)
        self.refused = "messages are made on the host" if runs[0].rules.links.encode else None
        self.replayed = 0
        self._seen: set[Which] = set()
        self._recorded: dict[Which, Recorded] = {}
        w, rules = runs[0].server.w, runs[0].rules
        turns = rules.by_turn or (rules,)
        self._collected = [Collected(turn.blank_mean(w), w.new_zeros(())) for turn in turns]
        self._pool: Any = None  # the memory that all recordings share: they are replayed one after the other

    @property
    def collected_here(self) -> Collected:
        """Where the second part of this round reads the mean."""
        return self._collected[self.round % len(self._collected)]

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Record a part of a round."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        # Only this thread's own calls are watched: nccl has threads that ask the GPU whether it is done.
        return record(function, pool=self._pool)

    def play(self) -> list[Ledger]:
        """Play or replay the round that the inputs describe; returns the bytes sent."""
        which = self.store.rows_now, self.round % len(self._collected)
        if which not in self._recorded and self._may_record(which):
            self._record(which)
        if which not in self._recorded:
            self._seen.add(which)
            return super().play()
        play(_Replay(self, self._recorded[which]))
        self.replayed += 1
        return self.bills

    def _may_record(self, which: Which) -> bool:
        fits, room = self.groups.size >= len(which[0]), len(self._recorded) < _MOST
        return self.refused is None and which in self._seen and fits and room

    def _record(self, which: Which) -> None:
        try:
            own, replay_first = self.record(self._before_the_exchange)
            (heard,), self.bills = self.bills, [Ledger(self.stack.clients)]
            _, replay_second = self.record(partial(self._after_the_exchange, own))
        except CannotRecord as reason:
            self.refused = str(reason)
        else:
            # The next recording may use the memory of the clients' work again: both parts are done by then.
            own = own._replace(done=())
            self._recorded[which] = Recorded(own, heard, replay_first, self.bills[0], replay_second)

    def _before_the_exchange(self) -> Own:
        begun = self.begin()
        return self.own_work(begun[0], self.work(begun))

    def _after_the_exchange(self, own: Own) -> None:
        self.finish(self.answer([own.begun], [self.collected_here]))


class _Replay:
    """A round with two replayed parts and the exchange between them."""

    def __init__(self, engine: RankedGraphEngine, recorded: Recorded) -> None:
        self.engine, self.recorded = engine, recorded

    def begin(self) -> None:
        """What clients are sent, and their work."""
        self.recorded.replay_first()
        self.engine.bills = [Ledger(self.engine.stack.clients)]
        self.engine.bills[0].merge(self.recorded.heard)

    def work(self, begun: None) -> Iterator[Done]:
        """All of it is done."""
        return iter(())

    def collect(self, begun: None, works: Iterator[Done]) -> None:
        """The mean over the clients of all ranks, put where the second part reads it."""
        (found,), here = self.engine.hear(self.recorded.own), self.engine.collected_here
        for name, x in found.mean.items():
            copy_over(here.mean[name], x)
        copy_over(here.q, found.q)

    def answer(self, begun: None, mean: None) -> None:
        """The server's step, and what clients keep."""
        self.recorded.replay_second()
        self.engine.bills[0].merge(self.recorded.after)

    def finish(self, answer: None) -> None:
        """All of it is done."""
