"""The server's side of a job with real clients: it speaks bytes and knows no transport and no clock.

    open    a round begins                                     yields one call per client
    hear    a reply has come, in any order                     decoded, checked, added to the mean
    close   the round ends with the clients that were heard    the server's step

docs/decisions/remote.md explains the protocol.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.codecs import Identity
from fedcom.codecs.wire import Data
from fedcom.draws import Draw
from fedcom.engines.remote import messages, shared
from fedcom.engines.remote.archive import Archive, End
from fedcom.engines.remote.faults import Faults, Reason
from fedcom.engines.remote.messages import NEVER, Call, Envelope, OtherVersion, Told
from fedcom.engines.remote.terms import Terms
from fedcom.errors import NotFinite, WireError
from fedcom.formats import printable
from fedcom.rounds.cohort import mean_weights
from fedcom.rounds.round import (
    Mean,
    broadcast,
    norms,
    server_bytes,
    server_hears,
    server_work,
)
from fedcom.rounds.rules import ServerSide, fewest
from fedcom.rounds.state import RunState
from fedcom.traffic.channel import Channel, Inbox, Mail
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Layout, Vectors

_FORGOTTEN = -2  # the replica of a client that can only be sent the model
_ENVELOPES = "envelope"  # the name in the ledger of what surrounds messages
_LONG = 10.0  # a vector that is so many times as long as the median of its round is named
_OFFENCES: tuple[Reason, ...] = (
    "oversized",
    "malformed",
    "not finite",
    "other version",
    "other settings",
    "wrong job",
    "wrong client",
)
_LARGEST_Q = 10.0  # times one plus what the codec promises; no honest client measures more


class Refused(Exception):
    """A reply that does not count.

    Args:
        final: whether the client's next reply in this round is refused too.
    """

    def __init__(self, reason: Reason, detail: str, final: bool = True) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.final = reason, detail, final


class Closed(NamedTuple):
    """How a round ended."""

    counted: tuple[int, ...]  # the clients
    q: Tensor
    alpha: Tensor
    void: bool  # too few were heard, and nothing changed
    restarted: bool  # a client had lost its state, and all start anew


class _Heard(NamedTuple):
    """What was heard of one client."""

    sent: Vectors
    q: Tensor
    norms: dict[str, float]  # in the model's units, by vector
    factors: tuple[float, ...]  # empty: nothing was clipped
    bill: Ledger


class Coordinator:
    """Plays the server's part of the rounds of one job.

    Args:
        run: its rules, clients, server and ledger.
        folder: for what must outlive the process beside checkpoints; the job's alone.
        faults: where refused replies are entered.

    Attributes:
        round: how many are done.
        generation: how often all clients had to start anew.
        counted: the last round in which each client was counted; NEVER: in none.
        known: the round at whose beginning each client had the server's vectors; NEVER, or _FORGOTTEN.
        owed: which clients are still to be told the end of the round in which they were last counted.
        losses: how often each client has said that its state is lost.
        keys: of the node that each client is; not of clients that were never counted.
        void: how many rounds in a row were void; voids: how many in all.
        offences: how often in a row a client's reply was not as it must be.
        resting: the round until which a client is left out.
    """

    def __init__(
        self, run: RunState, folder: Path, terms: Terms | None = None, faults: Faults | None = None
    ) -> None:
        self.run, self.terms, self.faults = run, terms or Terms(), faults or Faults()
        self.archive, self.round, self.generation, self.void = Archive(folder), 0, 0, 0
        m = run.cohort.clients
        self.counted, self.known = torch.full((m,), NEVER), torch.full((m,), NEVER)
        self.owed, self.losses = torch.zeros(m, dtype=torch.bool), torch.zeros(m, dtype=torch.int64)
        self.keys: dict[int, str] = {}
        self.voids, self.offences, self.resting = 0, Counter[int](), dict[int, int]()
        self._factors: dict[int, tuple[float, ...]] = {}
        self._ends: dict[int, int] = {}  # the rounds whose end is in the archive, and their bytes
        self._since = 0  # the ends of all rounds from this one on are in the archive
        self._spared: set[int] = set()  # rounds whose end the last checkpoint may need
        self._start = run.server.w
        self._agreement, self._job, self._session = shared.agreement(run), b"", 0
        state, _ = run.rules.init_client(run.server.w)
        self._coupled = bool(state)
        self._open: _Open | None = None

    # What a checkpoint holds

    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside tensors."""
        return {
            "round": self.round,
            "generation": self.generation,
            "void": self.void,
            "voids": self.voids,
            "offences": {str(client): many for client, many in self.offences.items()},
            "resting": {str(client): until for client, until in self.resting.items()},
            "job": self._job.hex(),
            "keys": {str(client): key for client, key in self.keys.items()},
            "factors": {str(client): factors for client, factors in self._factors.items()},
            "ends": {str(r): size for r, size in self._ends.items()},
            "since": self._since,
            "faults": dict(self.faults.counts),
        }

    def tensors(self) -> Vectors:
        """What a checkpoint needs of the clients, by name."""
        names = ("counted", "known", "owed", "losses")
        return {f"clients.{name}": getattr(self, name) for name in names}

    def restore(self, facts: dict[str, Any], tensors: Vectors) -> None:
        """Go on from a checkpoint; a round that was open begins again."""
        self.round, self.generation, self.void = facts["round"], facts["generation"], facts["void"]
        self.voids = facts.get("voids", 0)
        self.offences = Counter({int(client): many for client, many in facts.get("offences", {}).items()})
        self.resting = {int(client): until for client, until in facts.get("resting", {}).items()}
        self._job, self._session, self._open = bytes.fromhex(facts["job"]), 0, None
        self.keys = {int(client): key for client, key in facts.get("keys", {}).items()}
        self._factors = {int(client): tuple(factors) for client, factors in facts["factors"].items()}
        self._ends = {int(r): size for r, size in facts["ends"].items()}
        self._since, self._spared = facts["since"], set(self._ends)
        self.faults.counts.update(facts["faults"])
        for name, x in self.tensors().items():
            x.copy_(tensors[name])

    # A round

    @property
    def called(self) -> tuple[int, ...]:
        """The clients of the round that is open, in order."""
        return self._open.called if self._open else ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Those of them from which nothing final has come."""
        return tuple(j for j in self._open.called if j not in self._open.done) if self._open else ()

    def open(self) -> Iterator[tuple[int, bytes]]:
        """Begin a round: the numbers of its clients, and the call for each, made when it is asked for.

        The last checkpoint must be on the disk.
        """
        if not self._session:
            self._job, self._session = self.archive.begin_session(self._job or None)
        self._prune()
        self.faults.next_round()
        self._open = _Open(self.run, self.round, self._left())
        return self._calls(self._open)

    def admit(self, client: int, key: str) -> bool:
        """Whether a node may be a client: the node that was first counted as it, unless the terms are milder.

        Args:
            key: what identifies the node for as long as the job lasts.
        """
        assert self._open is not None
        known = self.keys.get(client, key)
        if key != known and not self.terms.rebind:
            detail = f"the node with the key {key} says that it is this client, whose key is {known}"
            self.faults.refuse(self.round, client, "another node", detail, 0, self.run.ledger)
            return False
        self._open.keys[client] = key
        return True

    def hear(self, client: int, data: Data) -> Reason | None:
        """Take in a reply; returns why it is refused, or None.

        Args:
            client: who sent it, as far as the transport knows.
        """
        now = self._open
        try:
            if now is None or client not in now.called:
                raise Refused("unasked" if now else "late", "nobody asked this client", final=False)
            if client in now.done:
                raise Refused("repeated", "this client has replied before", final=False)
            if len(data) > (limit := self.largest_reply):
                raise Refused("oversized", f"{len(data)} bytes where {limit} are allowed", final=False)
            body = self._body(client, data)
            heard = self._hear(now, client, body)
        except Refused as refused:
            known = client if 0 <= client < self.run.cohort.clients else NEVER
            if now is not None and refused.reason in _OFFENCES:
                now.offended.add(known)
            if now is not None and refused.final:
                now.done.add(client)
                self._advance(now)
            self.faults.refuse(self.round, known, refused.reason, refused.detail, len(data), self.run.ledger)
            return refused.reason
        now.done.add(client)
        now.norms[client], now.hashes[client] = heard.norms, hashlib.sha256(data).hexdigest()
        self.run.ledger.merge(heard.bill)
        overhead = len(data) - sum(map(len, messages.split(body)))
        self.run.ledger.add("uplink", _ENVELOPES, {"header": overhead})
        if now.next == client and self.terms.clip_times is None:
            self._count(now, client, heard)
            self._advance(now)
        else:
            now.aside.add(client)
            self.archive.put_aside(client, body)
        return None

    def give_up(self, client: int) -> None:
        """Wait no longer for a client, as the transport has lost it."""
        if self._open is not None and client in self._open.called and client not in self._open.done:
            self._open.done.add(client)
            self._advance(self._open)

    def close(self) -> Closed:
        """End the round with the clients that were heard."""
        now = self._open
        assert now is not None
        for client in now.called:
            now.done.add(client)
        if self.terms.clip_times is not None:
            now.bounds = {name: self.terms.clip_times * x for name, x in now.medians.items()}
        self._advance(now, to_the_end=True)
        self._open = None
        absent = sorted(set(now.called) - set(now.counted))
        if absent:
            self.faults.note(self.round, missing=absent)
        void = len(now.counted) < self.needed(len(now.called))
        q, alpha = torch.zeros(()), torch.zeros(())
        for client in now.counted:  # their replies show that they were told all they were owed
            self.known[client], self.owed[client] = self.round, False
            self._factors.pop(client, None)
            self._bind(client, now.keys.get(client))
        self._judge(now)
        if void:
            self.void, self.voids = self.void + 1, self.voids + 1
            self.faults.note(self.round, void=True)
        else:
            self.void = 0
            q, alpha = self._step(now)
        restarted = self._start_anew_if_lost(now)
        hashes = {client: now.hashes[client] for client in now.counted}
        self.faults.audit(self.round, self._session, hashes, absent, void)
        self.round += 1
        return Closed(() if void else tuple(now.counted), q, alpha, void, restarted)

    def _bind(self, client: int, key: str | None) -> None:
        """Remember the node that was counted as a client."""
        if key is not None and self.keys.get(client, key) != key:
            self.faults.note(self.round, client=client, handed_over=key)
        if key is not None:
            self.keys[client] = key

    def needed(self, called: int) -> int:
        """How many of the called clients must be counted; with fewer the round is void."""
        return max(self.terms.needed(called), fewest(self.run.rules.algorithm))

    # Calls

    def _left(self) -> list[int]:
        """The clients of the round that are not left out for good or, if others remain, for some rounds."""
        sampled = self.run.sample(self.round).tolist()
        left = [j for j in sampled if self.losses[j] <= self.terms.restarts]
        return [j for j in left if self.resting.get(j, 0) <= self.round] or left

    def _calls(self, now: "_Open") -> Iterator[tuple[int, bytes]]:
        rules, server, first = self.run.rules, self.run.server, self.round == 0
        bill, mail = Ledger(rules.clients), list[Mail]([[]])
        if first or not rules.clients_repeat_step:
            broadcast(rules, server, _channel(bill, mail), now.draw, first, receivers=1)
        kind = messages.SEED if first and rules.first_seed is not None else messages.BROADCAST
        for client in now.called:
            if rules.clients_repeat_step and not first:
                yield client, self._catching_up(now, client)
                continue
            self.run.ledger.merge(bill)
            owed = self._owed(client)
            yield client, self._sealed(now, client, owed, kind, mail[0], base=self.round)

    def _owed(self, client: int) -> list[Told]:
        """What a client is to be told of the round in which it was last counted."""
        if not self.owed[client]:
            return []
        end = self.archive.load(int(self.counted[client]))
        self.run.ledger.merge(end.bill)
        return [end.told]

    def _catching_up(self, now: "_Open", client: int) -> bytes:
        """A call that brings a client's replica of the server up to date, by means or by the model."""
        rules, server = self.run.rules, self.run.server
        first_bytes, model_bytes = server_bytes(rules, server)
        owed = {told.round: told for told in self._owed(client)}
        known = int(self.known[client])
        begin = known + 1 if known in owed else max(known, 0)  # the first round that the client missed
        missed = [r for r in sorted(self._ends) if r >= begin]
        means = sum(self._ends[r] for r in missed)
        start = first_bytes if known == NEVER else 0
        if known == _FORGOTTEN or start + means > model_bytes or begin < self._since:
            self.run.ledger.add("downlink", "catch-up", {"model": model_bytes})
            vectors: Mail = [_dense(rules.layout, x) for x in rules.algorithm.replica(server).values()]
            return self._sealed(now, client, list(owed.values()), messages.REPLICA, vectors, base=self.round)
        self.run.ledger.add("downlink", "catch-up", {"first model": start, "means": means})
        told = owed | {r: self.archive.load(r).told for r in missed}
        kind, mail = messages.NO_MODEL, list[Mail]([[]])
        if known == NEVER:
            kind = messages.SEED if rules.first_seed is not None else messages.BROADCAST
            start_side = rules.init_server(self._start)
            broadcast(rules, start_side.state, _channel(Ledger(1), mail), now.draw, True, receivers=1)
        ordered = [told[r] for r in sorted(told)]
        return self._sealed(now, client, ordered, kind, mail[0], base=max(known, 0))

    def _sealed(
        self, now: "_Open", client: int, told: list[Told], model: int, mail: Mail, base: int
    ) -> bytes:
        """The bytes of a call; what surrounds its messages is entered in the ledger."""
        counted = int(self.counted[client])
        factors = self._factors.get(client, ()) if self.owed[client] else ()
        envelope = Envelope(
            messages.CALL,
            self._agreement,
            self._job,
            self._session,
            self.round,
            self.generation,
            client,
        )
        data = Call(envelope, now.share, counted, base, factors, tuple(told), model, mail).pack()
        inside = sum(len(message) for one in told for message in one.messages) + sum(map(len, mail))
        self.run.ledger.add("downlink", _ENVELOPES, {"header": len(data) - inside})
        return data

    def _prune(self) -> None:
        """Delete ends of rounds that nobody is to be told, nor was at the checkpoint before."""
        owed = set(self.counted[self.owed].tolist())
        if self.run.rules.clients_repeat_step:
            self._since = self._worth_telling()
        else:
            self._since = self.round
        needed = {r for r in self._ends if r in owed or r >= self._since}
        self.archive.keep_only(needed | self._spared)
        self._ends = {r: self._ends[r] for r in needed}
        self._spared = needed

    def _worth_telling(self) -> int:
        """The first round from which on all ends together are not longer than the model."""
        _, room = server_bytes(self.run.rules, self.run.server)
        for r in sorted((r for r in self._ends if r >= self._since), reverse=True):
            room -= self._ends[r]
            if room < 0:
                return r + 1
        return self._since

    # Replies

    @property
    def largest_reply(self) -> int:
        """No honest reply has more bytes."""
        rules = self.run.rules
        dense = 2 * rules.layout.size * rules.layout.itemsize + 2**16
        return len(rules.algorithm.uploads) * dense + messages.overhead(2 * len(rules.algorithm.uploads) + 1)

    def _body(self, client: int, data: Data) -> memoryview:
        """The messages of an update, whose envelope is that of a reply to the client's call."""
        try:
            envelope, body = messages.unseal(data)
        except OtherVersion as error:
            raise Refused("other version", str(error), final=False) from None
        except WireError as error:
            raise Refused("malformed", str(error), final=False) from None
        wanted: dict[Reason, tuple[object, object]] = {
            "other settings": (envelope.agreement, self._agreement),
            "wrong job": (envelope.job, self._job),
            "wrong client": (envelope.client, client),
        }
        for reason, (got, want) in wanted.items():
            if got != want:
                raise Refused(reason, f"got {got!r}, expected {want!r}", final=False)
        if (envelope.session, envelope.round) < (self._session, self.round):
            raise Refused("late", f"it is for round {envelope.round}", final=False)
        if (envelope.session, envelope.round, envelope.generation) != (
            self._session,
            self.round,
            self.generation,
        ):
            raise Refused("wrong round", f"it is for round {envelope.round}", final=False)
        if envelope.kind == messages.LOST:
            assert self._open is not None
            self._open.lost.append(client)
            raise Refused("state lost", "the client says so")
        if envelope.kind == messages.FAILED:
            text = bytes(body[: messages.LONGEST_REASON]).decode(errors="replace")
            raise Refused("failed", f"the client says: {printable(text)}")
        if envelope.kind != messages.UPDATE:
            raise Refused("malformed", f"a reply cannot be of kind {envelope.kind}")
        return body

    def _hear(self, now: "_Open", client: int, body: Data) -> _Heard:
        """Decode an update."""
        rules, w, bill = self.run.rules, self.run.server.w, Ledger(self.run.rules.clients)
        who = shared.sender(self.run, self.round, client, now.share)
        try:
            mail = messages.split(body)
            inbox = Inbox("uplink", [bill], encode=True, mail=[mail])
            sent, q = server_hears(rules, who, w, inbox)
            if mail:
                raise WireError(f"{len(mail)} messages too many")
            for name, x in sent.items():
                if not _finite(x):
                    raise NotFinite(f"vector {name} overflows")
            if rules.sends_q and not 0 <= float(q) <= self._largest_q(client):
                raise WireError(f"a q of {float(q):g} is not possible")
        except NotFinite as error:
            raise Refused("not finite", str(error)) from None
        except WireError as error:
            raise Refused("malformed", str(error)) from None
        return self._clipped(now, _Heard(sent, q, norms(rules, sent, who.rnd), (), bill))

    def _clipped(self, now: "_Open", heard: _Heard) -> _Heard:
        """What was heard, none of its vectors longer than the terms allow."""
        fixed = math.inf if self.terms.clip is None else self.terms.clip
        factors = dict[str, float]()
        for name, norm in heard.norms.items():
            bound = min(fixed, now.bounds.get(name, math.inf))
            factors[name] = bound / norm if norm > bound else 1.0
        if min(factors.values()) == 1:
            return heard
        sent = {name: factors[name] * x for name, x in heard.sent.items()}
        return heard._replace(sent=sent, factors=tuple(factors.values()))

    def _judge(self, now: "_Open") -> None:
        """Name clients whose vectors are far longer than the others'; leave out who offends repeatedly."""
        medians = now.medians
        for client in now.counted:
            long = {name: x for name, x in now.norms[client].items() if x > _LONG * medians[name] > 0}
            if long:
                now.offended.add(client)
                self.faults.name_long(self.round, client, long, {name: medians[name] for name in long})
            elif client not in now.offended:
                self.offences.pop(client, None)
        for client in now.offended - {NEVER}:
            self.offences[client] += 1
            if self.offences[client] >= self.terms.offences and self.terms.rest:
                del self.offences[client]
                self.resting[client] = self.round + 1 + self.terms.rest
                self.faults.leave_out(self.round, client, self.resting[client])
        self.resting = {client: until for client, until in self.resting.items() if until > self.round}

    def _largest_q(self, client: int) -> float:
        ((codec, _),) = self.run.rules.links.uplinks(torch.tensor([client]))
        return _LARGEST_Q * (1 + codec.variance(self.run.rules.layout))

    def _count(self, now: "_Open", client: int, heard: _Heard) -> None:
        """Add what was heard of a client, whose turn it is."""
        now.mean.add(now.p[client].to(self.run.server.w.dtype).reshape(1), heard.sent)
        now.qs.append(float(heard.q))
        now.counted.append(client)
        if heard.factors:
            now.factors[client] = heard.factors
            self.faults.note(self.round, client=client, clipped=heard.factors)

    def _advance(self, now: "_Open", to_the_end: bool = False) -> None:
        """Go on to the next client that may still reply, and add those that replied before their turn."""
        if self.terms.clip_times is not None and not to_the_end:
            return  # how long a vector may be is known when all have replied
        while (client := now.next) is not None and client in now.done:
            if client in now.aside:
                self._count(now, client, self._hear(now, client, self.archive.take_back(client)))
            now.turn += 1

    # The end

    def _step(self, now: "_Open") -> tuple[Tensor, Tensor]:
        """The server's step; the end of the round goes to the archive."""
        run, counted = self.run, torch.tensor(now.counted)
        _, share = mean_weights(run.cohort.weights[counted].reshape(1, -1))
        if len(counted) < len(now.called):
            for x in now.mean.vectors.values():
                x.mul_(now.share / float(share))
        q = torch.tensor(now.qs, dtype=run.server.w.dtype).reshape(1, -1)
        q = run.rules.coarsest_q(q, counted)[0]
        rnd = shared.round_facts(run, self.round, float(share))
        bill, mail = Ledger(run.rules.clients), list[Mail]([[]])
        channel = _channel(bill, mail)
        answer = server_work(
            run.rules, run.server_side, now.mean.vectors, q, rnd, channel, now.draw, receivers=1
        )
        run.server_side = answer.server_side
        end = End(Told(self.round, float(share), mail[0]), bill)
        self.archive.save(end)
        self._ends[self.round] = end.nbytes
        self.counted[counted], self.owed[counted] = self.round, True
        self._factors |= now.factors
        return q, torch.as_tensor(answer.rnd.alpha, dtype=torch.float64)

    def _start_anew_if_lost(self, now: "_Open") -> bool:
        """Let all start anew if a client has lost a state on which the others' depend; whether they do."""
        for client in now.lost:
            self.losses[client] += 1
            self.counted[client], self.known[client], self.owed[client] = NEVER, _FORGOTTEN, False
        restarts = bool(now.lost) and self._coupled
        if restarts:
            self.generation += 1
            state, memory = self.run.server_side
            self.run.server_side = ServerSide(self.run.rules.init_server(state.w).state, memory)
            self.known.fill_(_FORGOTTEN)
        if now.lost:
            out = [j for j in now.lost if self.losses[j] > self.terms.restarts]
            self.faults.note(self.round, lost=now.lost, generation=self.generation, left_out=out)
        return restarts


class _Open:
    """A round that is open.

    Attributes:
        called: its clients, in order.
        turn: of which client the next vector is to be added.
        done: clients from which no reply is awaited any more.
        aside: clients whose replies came before their turn.
        share: the weight of its clients among all.
        p: the weight of each of them in the mean.
        keys: of the nodes that were called.
        norms: of each client's vectors in the model's units.
        bounds: how long each vector may be.
        offended: clients of which a reply was not as it must be.
    """

    def __init__(self, run: RunState, round_index: int, called: list[int]) -> None:
        self.called, self.draw, self.turn = tuple(called), run.draw.fold(round_index), 0
        self.done, self.aside, self.lost = set[int](), set[int](), list[int]()
        p, share = mean_weights(run.cohort.weights[torch.tensor(called, dtype=torch.int64)].reshape(1, -1))
        self.share, self.p = float(share), dict(zip(called, p[0], strict=True))
        self.mean, self.qs = Mean(), list[float]()
        self.counted, self.factors = list[int](), dict[int, tuple[float, ...]]()
        self.keys, self.offended = dict[int, str](), set[int]()
        self.norms, self.bounds = dict[int, dict[str, float]](), dict[str, float]()
        self.hashes = dict[int, str]()  # of the replies

    @property
    def medians(self) -> dict[str, float]:
        """The median length of each vector; of an even number the lower of the two in the middle."""
        middle = (len(self.norms) - 1) // 2
        names = next(iter(self.norms.values()), {})
        return {name: sorted(own[name] for own in self.norms.values())[middle] for name in names}

    @property
    def next(self) -> int | None:
        """The client whose turn it is."""
        return self.called[self.turn] if self.turn < len(self.called) else None


def _channel(bill: Ledger, mail: list[Mail]) -> Channel:
    """A downlink whose messages are kept, to be sent to clients one by one."""
    return Channel("downlink", [bill], encode=True, mail=mail)


def _dense(layout: Layout, x: Tensor) -> bytes:
    return Identity().encode(x, layout, Draw.seeded(0))


def _finite(x: Tensor) -> bool:
    return math.isfinite(x.sum()) or bool(x.isfinite().all())
