"""The server's side of a job with real clients: it speaks bytes and knows no transport and no clock.

    open    a round begins                                     yields one call per client
    hear    a reply has come, in any order                     decoded, checked, added to the mean
    close   the round ends with the clients that were heard    the server's step

docs/decisions/remote.md explains the protocol. calls.py makes the calls, replies.py reads the replies,
open_round.py and clients.py are the books of a round and of the clients.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.codecs.wire import Data
from fedcom.engines.remote import messages, replies, shared
from fedcom.engines.remote.archive import Archive, End
from fedcom.engines.remote.calls import ENVELOPES, Calls, downlink
from fedcom.engines.remote.clients import FORGOTTEN, Clients
from fedcom.engines.remote.faults import Faults, Reason
from fedcom.engines.remote.messages import NEVER, Envelope, Told
from fedcom.engines.remote.open_round import OpenRound
from fedcom.engines.remote.replies import Heard, Refused
from fedcom.engines.remote.terms import Terms
from fedcom.errors import ConfigError
from fedcom.rounds.cohort import mean_weights
from fedcom.rounds.round import server_work
from fedcom.rounds.state import RunState
from fedcom.rounds.together import fewest
from fedcom.traffic.channel import Mail
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors

_OFFENCES: tuple[Reason, ...] = (
    "oversized",
    "malformed",
    "not finite",
    "other version",
    "other settings",
    "wrong job",
    "wrong client",
)


class Closed(NamedTuple):
    """How a round ended."""

    counted: tuple[int, ...]  # the clients
    q: Tensor
    alpha: Tensor
    void: bool  # too few were heard, and nothing changed


class Coordinator:
    """Plays the server's part of the rounds of one job.

    Args:
        run: its rules, clients, server and ledger.
        folder: for what must outlive the process beside checkpoints; the job's alone.
        faults: where refused replies are entered.

    Attributes:
        round: how many are done.
        generation: how often all clients had to start anew.
        void: how many rounds in a row were void; voids: how many in all.
        job: its number; empty before the first round.
    """

    def __init__(
        self,
        run: RunState,
        folder: Path,
        terms: Terms | None = None,
        faults: Faults | None = None,
        frozen: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.run, self.terms, self.faults = run, terms or Terms(), faults or Faults()
        self.archive = Archive(folder)
        self.clients = Clients(run.cohort.clients, self.terms, self.faults)
        self.calls = Calls(run, self.clients, self.archive)
        self.round = self.generation = self.void = self.voids = 0
        if run.rules.products is not None:
            raise ConfigError(
                "adapters fedex and flora change the base, which real clients do not keep; use lora, ffa or "
                "rolora"
            )
        self.job, self._session, self._agreement = b"", 0, shared.agreement(run, frozen)
        state, _ = run.rules.init_client(run.server.w)
        self._coupled = bool(state)
        self._open: OpenRound | None = None

    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside tensors."""
        return {
            "round": self.round,
            "generation": self.generation,
            "void": self.void,
            "voids": self.voids,
            "job": self.job.hex(),
            "ends": dict(self.calls.ends),
            "since": self.calls.since,
            "faults": dict(self.faults.counts),
            **self.clients.facts(),
        }

    def restore(self, facts: dict[str, Any], tensors: Vectors) -> None:
        """Go on from a checkpoint; a round that was open begins again."""
        self.round, self.generation = facts["round"], facts["generation"]
        self.void, self.voids = facts["void"], facts["voids"]
        self.job, self._session, self._open = bytes.fromhex(facts["job"]), 0, None
        self.calls.restore(facts["ends"], facts["since"])
        self.faults.counts.update(facts["faults"])
        self.clients.restore(facts, tensors)

    @property
    def called(self) -> tuple[int, ...]:
        """The clients of the round that is open, in order."""
        return self._open.called if self._open else ()

    @property
    def missing(self) -> tuple[int, ...]:
        """Those of them from which nothing final has come."""
        return self._open.missing if self._open else ()

    def needed(self, called: int) -> int:
        """How many of the called clients must be counted; with fewer the round is void."""
        return max(self.terms.needed(called), fewest(self.run.rules.algorithm))

    def open(self) -> Iterator[tuple[int, bytes]]:
        """Begin a round: the numbers of its clients, and the call for each, made when it is asked for.

        The last checkpoint must be on the disk.
        """
        if not self._session:
            self.job, self._session = self.archive.begin_session(self.job or None)
        self.calls.prune(self.round)
        self.faults.next_round()
        called = self.clients.to_call(self.run.sample(self.round).tolist(), self.round)
        self._open = OpenRound(self.run, self.round, called, self.terms.clip)
        return self.calls.of(self._open, self._envelope)

    def _envelope(self, client: int) -> Envelope:
        """The envelope of the call for a client."""
        about = (self._agreement, self.job, self._session, self.round, self.generation, client)
        return Envelope(messages.CALL, *about)

    def admit(self, client: int, key: str) -> bool:
        """Whether a node may be a client: only the node that was first counted as it, unless `rebind` is set.

        Args:
            key: what identifies the node for as long as the job lasts.
        """
        assert self._open is not None
        if not self.clients.may_be(client, key):
            known = self.clients.keys[client]
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
            if len(data) > (limit := replies.largest(self.run.rules)):
                raise Refused("oversized", f"{len(data)} bytes where {limit} are allowed", final=False)
            body = replies.body(data, self._envelope(client))
            heard = self._decoded(now, client, body)
        except Refused as refused:
            self._refuse(client, refused, len(data))
            return refused.reason
        now.done.add(client)
        now.norms[client], now.hashes[client] = heard.norms, hashlib.sha256(data).hexdigest()
        self.run.ledger.merge(heard.bill)
        overhead = len(data) - sum(map(len, messages.split(body)))
        self.run.ledger.add("uplink", ENVELOPES, {"header": overhead})
        if now.next == client and self.terms.clip_times is None:
            self._count(now, client, heard)
            self._advance(now)
        else:
            now.aside.add(client)
            self.archive.put_aside(client, body)
        return None

    def _decoded(self, now: OpenRound, client: int, body: Data) -> Heard:
        return replies.decoded(self.run, self._envelope(client), now.share, body, now.bounds)

    def _refuse(self, client: int, refused: Refused, nbytes: int) -> None:
        """Enter a reply that does not count, of so many bytes."""
        now, known = self._open, client if 0 <= client < self.run.cohort.clients else NEVER
        if now is not None and refused.reason in _OFFENCES:
            now.offended.add(known)
        if now is not None and refused.reason == "state lost":
            now.lost.append(client)
        if now is not None and refused.final:
            now.done.add(client)
            self._advance(now)
        self.faults.refuse(self.round, known, refused.reason, refused.detail, nbytes, self.run.ledger)

    def give_up(self, client: int) -> None:
        """Wait no longer for a client, as the transport has lost it."""
        if client in self.missing:
            assert self._open is not None
            self._open.done.add(client)
            self._advance(self._open)

    def _count(self, now: OpenRound, client: int, heard: Heard) -> None:
        """Add what was heard of a client, whose turn it is, to the mean."""
        now.mean.add(now.p[client].reshape(1), heard.sent)
        now.qs.append(float(heard.q))
        now.counted.append(client)
        if heard.factors:
            now.factors[client] = heard.factors
            self.faults.note(self.round, client=client, clipped=heard.factors)

    def _advance(self, now: OpenRound, to_the_end: bool = False) -> None:
        """Go on to the next client that may still reply, and add those that replied before their turn."""
        if self.terms.clip_times is not None and not to_the_end:
            return  # how long a vector may be is known when all have replied
        while (client := now.next) is not None and client in now.done:
            if client in now.aside:
                self._count(now, client, self._decoded(now, client, self.archive.take_back(client)))
            now.turn += 1

    def close(self) -> Closed:
        """End the round with the clients that were heard."""
        now = self._open
        assert now is not None
        now.done.update(now.called)
        if self.terms.clip_times is not None:
            times = self.terms.clip_times
            now.bounds |= {name: min(now.bounds[name], times * x) for name, x in now.medians.items()}
        self._advance(now, to_the_end=True)
        self._open = None
        absent = sorted(set(now.called) - set(now.counted))
        if absent:
            self.faults.note(self.round, missing=absent)
        self.clients.count(now)
        self.clients.judge(now)
        void = len(now.counted) < self.needed(len(now.called))
        q, alpha = torch.zeros(()), torch.zeros(())
        if void:
            self.void, self.voids = self.void + 1, self.voids + 1
            self.faults.note(self.round, void=True)
        else:
            self.void = 0
            q, alpha = self._step(now)
        self._start_anew_if_lost(now)
        hashes = {client: now.hashes[client] for client in now.counted}
        self.faults.audit(self.round, self._session, hashes, absent, void)
        self.round += 1
        return Closed(() if void else tuple(now.counted), q, alpha, void)

    def _step(self, now: OpenRound) -> tuple[Tensor, Tensor]:
        """The server's step; the end of the round goes to the archive."""
        run, counted = self.run, torch.tensor(now.counted)
        _, share = mean_weights(run.cohort.weights[counted].reshape(1, -1))
        if len(counted) < len(now.called):
            for x in now.mean.vectors.values():
                x.mul_(now.share / float(share))
        q = torch.tensor(now.qs, dtype=run.server.w.dtype).reshape(1, -1)
        q = run.rules.coarsest_q(q, counted)[0]
        rnd = shared.round_facts(run, self.round, float(share))
        bill, mail = Ledger(run.rules.clients), Mail()
        channel = downlink(bill, mail)
        answer = server_work(
            run.rules.at(self.round),
            run.server_side,
            now.mean.vectors,
            q,
            rnd,
            channel,
            now.draw,
            receivers=1,
        )
        run.server_side = answer.server_side
        self.calls.keep(End(Told(self.round, float(share), mail), bill))
        self.clients.owe(now)
        return q, torch.as_tensor(answer.rnd.alpha, dtype=torch.float64)

    def _start_anew_if_lost(self, now: OpenRound) -> None:
        """Let all start anew if a client has lost a state on which the others' depend."""
        restarts = bool(now.lost) and self._coupled
        self.generation += restarts
        self.clients.lose(now, self.generation)
        if restarts:
            anew = self.run.rules.init_server(self.run.server.w)
            self.run.server_side = self.run.server_side._replace(state=anew.state)
            self.clients.known.fill_(FORGOTTEN)
