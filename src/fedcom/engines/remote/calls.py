"""Calls to clients: each brings what the client needs to begin a round, and what it is still to be told."""

from collections.abc import Callable, Iterator

from fedcom.codecs import Identity
from fedcom.draws import Draw
from fedcom.engines.remote import messages
from fedcom.engines.remote.archive import Archive, End
from fedcom.engines.remote.clients import FORGOTTEN, Clients
from fedcom.engines.remote.messages import NEVER, Call, Envelope, Told
from fedcom.engines.remote.open_round import OpenRound
from fedcom.rounds.round import broadcast, server_bytes
from fedcom.rounds.state import RunState
from fedcom.traffic.channel import Channel, Mail
from fedcom.traffic.ledger import Ledger

ENVELOPES = "envelope"  # the name in the ledger of what surrounds messages


def downlink(bill: Ledger, mail: Mail) -> Channel:
    """A downlink whose messages are kept, to be sent to clients one by one."""
    return Channel("downlink", [bill], encode=True, mail=[mail])


class Calls:
    """Makes calls, and keeps the ends of rounds that clients are yet to be told.

    Args:
        run: before its first round; a checkpoint is restored later.

    Attributes:
        ends: the rounds whose end is in the archive, and the bytes of its messages.
        since: the ends of all rounds from this one on are in the archive.
    """

    def __init__(self, run: RunState, clients: Clients, archive: Archive) -> None:
        self.run, self.clients, self.archive = run, clients, archive
        self.ends, self.since = dict[int, int](), 0
        self._spared: set[int] = set()  # rounds whose end the last checkpoint may need
        self._start = run.server.w

    def restore(self, ends: dict[str, int], since: int) -> None:
        """Go on from a checkpoint."""
        self.ends, self.since = {int(r): size for r, size in ends.items()}, since
        self._spared = set(self.ends)

    def keep(self, end: End) -> None:
        """Write the end of a round to the archive."""
        self.archive.save(end)
        self.ends[end.told.round] = end.nbytes

    def prune(self, round_index: int) -> None:
        """Delete the ends of rounds that no client is still to be told, now or by the last checkpoint."""
        owed = set(self.clients.counted[self.clients.owed].tolist())
        self.since = self._worth_telling() if self.run.rules.clients_repeat_step else round_index
        needed = {r for r in self.ends if r in owed or r >= self.since}
        self.archive.keep_only(needed | self._spared)
        self.ends = {r: self.ends[r] for r in needed}
        self._spared = needed

    def _worth_telling(self) -> int:
        """The first round since which the ends of all rounds are together not longer than the model."""
        _, room = server_bytes(self.run.rules, self.run.server_side)
        for r in sorted((r for r in self.ends if r >= self.since), reverse=True):
            room -= self.ends[r]
            if room < 0:
                return r + 1
        return self.since

    def of(self, now: OpenRound, envelope: Callable[[int], Envelope]) -> Iterator[tuple[int, bytes]]:
        """The number of each client of a round and the call for it, made when it is asked for.

        Args:
            envelope: returns that of a client's call.
        """
        rules, first, mail = self.run.rules, now.index == 0, Mail()
        bill = Ledger(rules.clients)
        if first or not rules.clients_repeat_step:
            broadcast(rules, self.run.server, downlink(bill, mail), now.draw, first, receivers=1)
        kind = messages.SEED if first and rules.first_seed is not None else messages.BROADCAST
        for client in now.called:
            if rules.clients_repeat_step and not first:
                yield client, self._catching_up(now, envelope(client))
                continue
            self.run.ledger.merge(bill)
            yield client, self._sealed(now, envelope(client), self._owed(client), kind, mail, base=now.index)

    def _owed(self, client: int) -> list[Told]:
        """What a client is to be told of the round in which it was last counted."""
        if not self.clients.owed[client]:
            return []
        end = self.archive.load(int(self.clients.counted[client]))
        self.run.ledger.merge(end.bill)
        return [end.told]

    def _catching_up(self, now: OpenRound, envelope: Envelope) -> bytes:
        """A call that brings a client's replica of the server up to date, by means or by the model."""
        rules, server_side, layout = self.run.rules, self.run.server_side, self.run.rules.layout
        first_bytes, model_bytes = server_bytes(rules, server_side)
        owed = {told.round: told for told in self._owed(envelope.client)}
        known = int(self.clients.known[envelope.client])
        begin = known + 1 if known in owed else max(known, 0)  # the first round that the client missed
        missed = [r for r in sorted(self.ends) if r >= begin]
        means = sum(self.ends[r] for r in missed)
        start = first_bytes if known == NEVER else 0
        if known == FORGOTTEN or start + means > model_bytes or begin < self.since:
            self.run.ledger.add("downlink", "catch-up", {"model": model_bytes})
            replica = rules.replica(server_side).values()
            vectors: Mail = [Identity().encode(x, layout, Draw.seeded(0)) for x in replica]
            return self._sealed(now, envelope, [*owed.values()], messages.REPLICA, vectors, base=now.index)
        self.run.ledger.add("downlink", "catch-up", {"first model": start, "means": means})
        told = owed | {r: self.archive.load(r).told for r in missed}
        kind, mail = messages.NO_MODEL, Mail()
        if known == NEVER:
            kind = messages.SEED if rules.first_seed is not None else messages.BROADCAST
            first = rules.init_server(self._start).state
            broadcast(rules, first, downlink(Ledger(1), mail), now.draw, True, receivers=1)
        return self._sealed(now, envelope, [told[r] for r in sorted(told)], kind, mail, base=max(known, 0))

    def _sealed(
        self, now: OpenRound, envelope: Envelope, told: list[Told], model: int, mail: Mail, base: int
    ) -> bytes:
        """The bytes of a call; what surrounds its messages is entered in the ledger."""
        client, clients = envelope.client, self.clients
        factors = clients.factors.get(client, ()) if clients.owed[client] else ()
        counted = int(clients.counted[client])
        data = Call(envelope, now.share, counted, base, factors, tuple(told), model, mail).pack()
        inside = sum(len(message) for one in told for message in one.messages) + sum(map(len, mail))
        self.run.ledger.add("downlink", ENVELOPES, {"header": len(data) - inside})
        return data
