"""The engine of a run on several ranks: rank 0 leads, the others do as they are told.

All ranks know the server's state and play the same round; each computes its own clients, and they exchange
what these did where the mean is collected.

With transport "chain", the weighted sum of what clients sent goes from rank to rank, each adding its clients
in order, so that on CPUs the bits are those of one process. With "bytes", every message travels to rank 0 and
is decoded there. With "reduce", torch.distributed adds the ranks' sums in an order of its own, and results
differ by rounding. GPUs sum the clients of a rank by a matrix product, so there all transports differ by it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcom.engines.base import Options
from fedcom.engines.local.eager import Begun, Collected, Done, EagerEngine, repeatable
from fedcom.engines.ranks.block import BlockStore
from fedcom.engines.ranks.ranks import Parcel, needing_all_ranks, on_host
from fedcom.engines.state.parking import Parking
from fedcom.engines.state.placement import ClientCounts, make_store
from fedcom.errors import ConfigError
from fedcom.rounds.round import Mean, server_hears
from fedcom.rounds.state import RunState
from fedcom.saving.series import ClientRows, Saved
from fedcom.tasks.task import Scored, Task
from fedcom.traffic.channel import Inbox, Mail
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors

_MEAN = "mean."  # before the name of a vector in a parcel


class Own(NamedTuple):
    """What the clients of this rank did in a round, before the other ranks are heard."""

    begun: Begun
    done: Sequence[Done]  # group by group
    q: Tensor  # one number per client
    sums: Vectors  # the weighted sums of what they sent, where these are known before the exchange
    sent: Ledger  # the bytes that they sent


class RankedEngine(EagerEngine):
    """Plays the rounds of one run together with the same engine on other ranks.

    Attributes:
        received: the bytes of messages that came to the server, counted there (transport "bytes").
    """

    store: BlockStore

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        if len(runs) > 1:
            raise ConfigError("runs cannot be played in step on several ranks; play each run by itself")
        self.ranks, self.transport, self.received = options.ranks, options.transport, 0
        self.mails = self.transport == "bytes"
        self.sums_first = self.transport == "reduce" or (not self.mails and runs[0].server.w.is_cuda)
        self._by_transport = {"chain": self._by_chain, "bytes": self._by_bytes, "reduce": self._by_reduce}
        super().__init__(runs, task, options)

    def clients_here(self, clients: int, sampled: int) -> int:
        """How many of this rank's clients take part in a round, at most."""
        return min(sampled, len(self.ranks.block(clients)))

    def make_store(self, counts: ClientCounts, options: Options) -> tuple[Any, Parking]:
        """A store for the clients of this rank."""
        run, block = self.runs[0], self.ranks.block(counts.clients)
        own = ClientCounts.of(len(block), self.clients_here(*counts[:2]), options.rounds)
        store, park = make_store(own, run.rules, run.server.w, options.storage)
        store.everyone = counts.sampled == counts.clients
        return BlockStore(store, block), park

    # What rank 0 does, and tells the others to do

    def step(self) -> None:
        """One round."""
        with needing_all_ranks():
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

    def scored(self) -> Scored | None:
        """The training samples, scored by all ranks in the blocks in which one process scores them.

        Rank 0 scores what is left: blocks with samples of several ranks. None: it is to score all by itself.
        """
        task, w, size = self.task, self.runs[0].server.w, self.task.block_size
        others = [replace(self.ranks, rank=rank) for rank in range(1, self.ranks.size)]
        shares = [task.whole_blocks(other.block(task.clients), size) for other in others]
        if task.source is not None or not any(shares) or self.runs[0].rules.own is not None:
            return None
        with needing_all_ranks():
            self.ranks.tell({"do": "score", "size": size})  # elsewhere another may suit
            found = dict[int, Scored]()
            for block in range(-(-len(task.x) // size)):
                if not any(block in share for share in shares):
                    found[block] = task.score_block(w, block, size)
            for rank, share in enumerate(shares, 1):
                for block, scores in zip(share, self.ranks.receive(rank).tensors.values(), strict=True):
                    found[block] = (scores[0].numpy(), scores[1].numpy())
        losses, hits = zip(*(found[block] for block in sorted(found)), strict=True)
        return np.concatenate(losses), np.concatenate(hits)

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
            "score": self._tell_scores,
        }
        orders[parcel.facts["do"]](parcel)

    def _tell_rows_since(self, told: Parcel) -> None:
        rows = super().rows_since(told.facts["since"])
        self.ranks.send(0, {}, {"known": rows.known, "changed": rows.changed})

    def _tell_rows(self, told: Parcel) -> None:
        mine, rows = self._own_rows(told.tensors["clients"])
        self.ranks.send(0, {}, {"mine": mine, **_numbered(rows)})

    def _tell_scores(self, told: Parcel) -> None:
        w, size = self.runs[0].server.w, told.facts["size"]
        own = self.task.whole_blocks(self.ranks.block(self.task.clients), size)
        with repeatable(self.tf32):
            blocks = [self.task.score_block(w, block, size) for block in own]
        self.ranks.send(0, {}, _numbered([torch.from_numpy(np.stack(block)) for block in blocks]))

    # The round

    def work(self, begun: Sequence[Begun]) -> Iterator[Done]:
        """The work of this rank's clients, group by group."""
        own = self.store.rows_now
        groups = self.groups.cut(len(own)) if len(own) else []
        shifted = [slice(own.start + rows.start, own.start + rows.stop) for rows in groups]
        return self.groups.map(partial(self.group_work, begun), shifted)

    def collect(self, begun: Sequence[Begun], works: Iterator[Done]) -> list[Collected]:
        """The mean over the clients of all ranks."""
        return self.hear(self.own_work(begun[0], works))

    def own_work(self, begun: Begun, works: Iterator[Done]) -> Own:
        """What this rank's clients did; it computes with tensors only."""
        sent, mean, own, w = Ledger(self.stack.clients), self.new_mean(), list[Done](), self.runs[0].server.w
        self._waiting = []
        for done in works:
            own.append(done)
            sent.merge(done.bills[0])
            self.keep(done)
            if self.sums_first:
                self.add([mean], [begun], done)
        return Own(
            begun, own, torch.cat([w.new_empty(0), *(done.work.q for done in own)]), mean.vectors, sent
        )

    def hear(self, own: Own) -> list[Collected]:
        """Exchange what the clients of each rank did: the mean and the q of all, and the bytes they sent."""
        found = self._by_transport[self.transport](own)
        self.received += found.facts.get("received", 0)
        if (meter := self.clock.uplink_meter(slice(None))) is not None:
            meter.copy_(found.tensors["sent"])
        self.bills[0].merge(_ledger(found))
        device = self.runs[0].server.w.device
        mean = {name: x.to(device) for name, x in mean_in(found).items()}
        return self.collected([mean], found.tensors["q"].to(device))

    def _by_chain(self, own: Own) -> Parcel:
        """Each rank adds its clients to the sum and passes it on; the last one tells it to all."""
        return self._passed_on(own, adds=True)

    def _by_reduce(self, own: Own) -> Parcel:
        """torch.distributed adds the ranks' sums, in an order of its own."""
        found, w = self._passed_on(own, adds=False), self.runs[0].server.w
        for name, zeros in self.runs[0].rules.at(self.round).blank_mean(w).items():
            found.tensors[f"{_MEAN}{name}"] = self.ranks.sum(own.sums.get(name, zeros))
        return found

    def _passed_on(self, own: Own, adds: bool) -> Parcel:
        """The books of all ranks, and the sum that goes from rank to rank, if each adds its clients to it."""
        rank, last = self.ranks.rank, self.ranks.size - 1
        before = self.ranks.receive(rank - 1) if rank else None
        mean = self.new_mean()
        mean.vectors = mean_in(before) if before else {}
        if adds and self.sums_first:
            for name, x in own.sums.items():
                mean.vectors[name] = on_host(x) + mean.vectors.get(name, 0)
        elif adds:
            for done in own.done:
                self.add([mean], [own.begun], done)
        parcel = self._books(own, before)
        parcel.tensors.update({f"{_MEAN}{name}": x for name, x in mean.vectors.items()})
        if rank < last:
            self.ranks.send(rank + 1, *parcel)
            return self.ranks.hear(last)
        self.ranks.tell(*parcel)
        return parcel

    def _by_bytes(self, own: Own) -> Parcel:
        """Every message travels to rank 0, which decodes them in order of clients and tells the mean."""
        books, own_boxes = self._books(own, None), [box for done in own.done for box in done.mail]
        if self.ranks.rank:
            mail = [message for box in own_boxes for message in box]
            per_client = [[len(message) for message in box] for box in own_boxes]
            books.tensors["mail"] = torch.frombuffer(
                bytearray(b"".join(mail)) or bytearray(1), dtype=torch.uint8
            )
            self.ranks.send(0, {**books.facts, "lengths": per_client}, books.tensors)
            return self.ranks.hear()
        mean, row, received = self.new_mean(), 0, 0
        for rank in range(self.ranks.size):
            if rank:
                other = self.ranks.receive(rank)
                boxes = _boxes(other)
                books = _joined(books, other)
            else:
                boxes = own_boxes
            for box in boxes:
                received += sum(map(len, box))
                self._hear(mean, own.begun, row, box)
                row += 1
        books.tensors.pop("mail", None)
        books.tensors.update({f"{_MEAN}{name}": x for name, x in mean.vectors.items()})
        parcel = Parcel({**books.facts, "received": received}, books.tensors)
        self.ranks.tell(*parcel)
        return parcel

    def _hear(self, mean: Mean, begun: Begun, row: int, box: Mail) -> None:
        """Add what one client's messages say to the mean."""
        rules, w, rows = self.runs[0].rules.at(self.round), self.runs[0].server.w, slice(row, row + 1)
        inbox = Inbox("uplink", [], encode=True, mail=[list(box)])
        sent, _ = server_hears(rules, self.senders([begun], rows), w, inbox)
        mean.add(begun.p[rows], sent)

    def _books(self, own: Own, before: Parcel | None) -> Parcel:
        """The bytes and the q of this rank's clients, after those of the ranks before, on the host."""
        rows = self.store.rows_now
        meter = self.clock.uplink_meter(slice(rows.start, rows.stop))
        tensors = {"q": on_host(own.q)} | ({} if meter is None else {"sent": on_host(meter)})
        parcel = Parcel({"bill": own.sent.as_dict()}, tensors)
        return parcel if before is None else _joined(before, parcel)


def _ledger(parcel: Parcel) -> Ledger:
    """The bytes that the clients of a parcel sent."""
    found = Ledger(parcel.facts["bill"]["clients"])
    found.load(parcel.facts["bill"])
    return found


def _joined(first: Parcel, second: Parcel) -> Parcel:
    """The bytes and the q of clients of several ranks."""
    bill = _ledger(first)
    bill.merge(_ledger(second))
    both: Vectors = {
        name: torch.cat([first.tensors[name], second.tensors[name]])
        for name in ("q", "sent")
        if name in first.tensors
    }
    return Parcel({"bill": bill.as_dict()}, both)


def mean_in(parcel: Parcel) -> Vectors:
    """The mean in a parcel, or the sum so far."""
    return {name.removeprefix(_MEAN): x for name, x in parcel.tensors.items() if name.startswith(_MEAN)}


def _boxes(parcel: Parcel) -> list[Mail]:
    """The messages of each client in a parcel."""
    raw, place, boxes = parcel.tensors["mail"].numpy().tobytes(), 0, list[Mail]()
    for lengths in parcel.facts["lengths"]:
        boxes.append([])
        for length in lengths:
            boxes[-1].append(raw[place : place + length])
            place += length
    return boxes


def _numbered(rows: Sequence[Tensor]) -> Vectors:
    return {f"field-{i}": row for i, row in enumerate(rows)}


def _received(parcel: Parcel, which: str = "mine") -> tuple[Tensor, list[Tensor]]:
    """The clients or places in a parcel, and the rows beside them."""
    rows = parcel.tensors
    return rows[which], [rows[f"field-{i}"] for i in range(len(rows) - 1)]
