"""The engine of a run on several ranks: rank 0 leads, the others do as they are told.

All ranks know the server's state and play the same round; each computes its own clients. The weighted sum of
what they sent goes from rank to rank, each adding its clients in order, so that the bits are those of one
process. The last rank tells the sum to all.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedcom.engines.base import Options
from fedcom.engines.local.eager import Begun, Collected, Done, EagerEngine
from fedcom.engines.ranks.block import BlockStore
from fedcom.engines.ranks.ranks import Parcel, together
from fedcom.engines.state.parking import Parking
from fedcom.engines.state.placement import ClientCounts, make_store
from fedcom.errors import ConfigError
from fedcom.rounds.round import Mean
from fedcom.rounds.state import RunState
from fedcom.saving.series import ClientRows, Saved
from fedcom.tasks.task import Task
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors

_MEAN = "mean."  # before the name of a vector in a parcel


class RankedEngine(EagerEngine):
    """Plays the rounds of one run together with the same engine on other ranks."""

    store: BlockStore

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        if len(runs) > 1:
            raise ConfigError("runs cannot be played in step on several ranks; play each run by itself")
        self.ranks = options.ranks
        super().__init__(runs, task, options)

    def make_store(self, counts: ClientCounts, options: Options) -> tuple[Any, Parking]:
        """A store for the clients of this rank."""
        run, block = self.runs[0], self.ranks.block(counts.clients)
        own = ClientCounts.of(len(block), min(counts.sampled, len(block)), options.rounds)
        store, park = make_store(own, run.rules, run.server.w, options.storage)
        store.everyone = counts.sampled == counts.clients
        return BlockStore(store, block), park

    # What rank 0 does, and tells the others to do

    def step(self) -> None:
        """One round."""
        with together():
            self.ranks.tell({"do": "step"})
            super().step()

    def restore(self, saved: Saved) -> None:
        """Go on from a checkpoint of the same run, made on any number of ranks."""
        self.ranks.tell({"do": "restore", "engine": saved.facts["engine"]}, saved.tensors)
        super().restore(saved)

    def fill(self, clients: Tensor, rows: Sequence[Tensor]) -> None:
        """Set what clients keep."""
        self.ranks.tell({"do": "fill"}, {"clients": clients, **_numbered(rows)})
        super().fill(clients, rows)

    def rows_since(self, since: int | None) -> ClientRows:
        """What clients keep, for a checkpoint."""
        self.ranks.tell({"do": "rows_since", "since": since})
        own = super().rows_since(since)
        others = [self.ranks.receive(rank).tensors for rank in range(1, self.ranks.size)]
        known = torch.cat([own.known, *(other["known"] for other in others)])
        changed = torch.cat([own.changed, *(other["changed"] for other in others)])
        return ClientRows(known, changed, self._take, own.width)

    def peek(self, run: int, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients, stacked."""
        return self.store.as_state(self._take(clients.cpu()))

    def _take(self, clients: Tensor) -> list[Tensor]:
        """The rows of some clients of any rank."""
        self.ranks.tell({"do": "take"}, {"clients": clients})
        found = list[Tensor]()
        for rank in range(self.ranks.size):
            mine, rows = self._own_rows(clients) if rank == 0 else _received(self.ranks.receive(rank))
            found = found or [torch.empty(len(clients), *row.shape[1:], dtype=row.dtype) for row in rows]
            for field, row in zip(found, rows, strict=True):
                field[mine] = row
        return found

    def _own_rows(self, clients: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Which of some clients are this rank's, and their rows."""
        mine = self.store.mine(clients).nonzero()[:, 0]
        return mine, self.store.rows(clients[mine])

    # What the other ranks do when they are told to

    def obey(self, parcel: Parcel) -> None:
        """Do what rank 0 tells this rank to do."""
        orders: dict[str, Callable[[Parcel], None]] = {
            "step": lambda _: super(RankedEngine, self).step(),
            "restore": lambda told: self.set_state(told.facts["engine"], told.tensors),
            "fill": lambda told: super(RankedEngine, self).fill(*_received(told, "clients")),
            "rows_since": self._tell_rows_since,
            "take": self._tell_rows,
        }
        orders[parcel.facts["do"]](parcel)

    def _tell_rows_since(self, told: Parcel) -> None:
        rows = super().rows_since(told.facts["since"])
        self.ranks.send(0, {}, {"known": rows.known, "changed": rows.changed})

    def _tell_rows(self, told: Parcel) -> None:
        mine, rows = self._own_rows(told.tensors["clients"])
        self.ranks.send(0, {}, {"mine": mine, **_numbered(rows)})

    # The round

    def work(self, begun: Sequence[Begun]) -> Iterator[Done]:
        """The work of this rank's clients, group by group."""
        own = self.store.rows_now
        groups = self.groups.cut(len(own)) if len(own) else []
        shifted = [slice(own.start + rows.start, own.start + rows.stop) for rows in groups]
        return self.groups.map(partial(self.group_work, begun), shifted)

    def collect(self, begun: Sequence[Begun], works: Iterator[Done]) -> list[Collected]:
        """The mean over the clients of all ranks; this rank's work waits until it is known."""
        dones, self._waiting = list(works), []
        mean, bill, qs = Mean(), Ledger(self.stack.clients), list[Tensor]()
        meter = self.clock.uplink_meter(slice(None))
        if self.ranks.rank > 0:
            facts, tensors = self.ranks.receive(self.ranks.rank - 1)
            mean.vectors = {n.removeprefix(_MEAN): x for n, x in tensors.items() if n.startswith(_MEAN)}
            bill.load(facts["bill"])
            qs.append(tensors["q"])
            if meter is not None:
                meter[: self.store.rows_now.start] = tensors["sent"]
        for done in dones:
            bill.merge(done.bills[0])
            self.add([mean], begun, done)
            qs.append(done.work.q)
            if not self.store.empty:
                self._waiting.append((done.rows, self.park(done.rows, done.work)))
        q = torch.cat(qs) if qs else torch.empty(0, dtype=self.runs[0].server.w.dtype)
        sent = {} if meter is None else {"sent": meter[: self.store.rows_now.stop]}
        parcel = {f"{_MEAN}{name}": x for name, x in mean.vectors.items()} | {"q": q} | sent
        return [self._shared(parcel, bill, meter)]

    def _shared(self, parcel: Vectors, bill: Ledger, meter: Tensor | None) -> Collected:
        """Pass the sum on; what all ranks hear from the last one."""
        last, rank = self.ranks.size - 1, self.ranks.rank
        facts = {"bill": bill.as_dict()}
        if rank < last:
            self.ranks.send(rank + 1, facts, parcel)
            facts, parcel = self.ranks.hear(last)
            bill.load(facts["bill"])
        else:
            self.ranks.tell(facts, parcel)
        if meter is not None:
            meter.copy_(parcel["sent"])
        self._bills[0].merge(bill)
        mean = {name.removeprefix(_MEAN): x for name, x in parcel.items() if name.startswith(_MEAN)}
        return Collected(mean, parcel["q"].reshape(1, -1).mean(-1)[0])


def _numbered(rows: Sequence[Tensor]) -> Vectors:
    return {f"field-{i}": row for i, row in enumerate(rows)}


def _received(parcel: Parcel, which: str = "mine") -> tuple[Tensor, list[Tensor]]:
    """The clients or places in a parcel, and the rows beside them."""
    rows = parcel.tensors
    return rows[which], [rows[f"field-{i}"] for i in range(len(rows) - 1)]
