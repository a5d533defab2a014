"""A client: turns a call into a reply, and keeps its state on its own disk.

It keeps two versions: the committed one, and the pending one, to which its last reply leads if that is
counted. The next call says which of them holds (docs/decisions/remote.md).
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedcom.algorithms.base import Round
from fedcom.codecs import Identity, wire
from fedcom.draws import Draw
from fedcom.engines.local.eager import repeatable
from fedcom.engines.remote import messages, shared
from fedcom.engines.remote.messages import Call, Envelope, OtherVersion, Told
from fedcom.engines.remote.vault import Kept, Pending, Vault
from fedcom.errors import NotFinite, WireError
from fedcom.rounds.round import (
    Answer,
    Assignment,
    Work,
    client_finish,
    client_hears,
    client_work,
    shortened,
)
from fedcom.rounds.state import RunState
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task
from fedcom.traffic.channel import Channel, Inbox, Mail
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors


class StaleCall(WireError):
    """A call that is older than one that was answered before."""


class _Lost(Exception):
    """What the server counts on is not there."""


class Participant:
    """One client of a job.

    Args:
        run: the rules and clients of the run, made from the same settings as the coordinator's.
        task: with at least this client's samples.
        client: its number.
        folder: where its state is kept, one folder per job in it.
    """

    def __init__(self, run: RunState, task: Task, client: int, folder: Path) -> None:
        self.run, self.task, self.client = run, task, client
        self._vault = Vault(folder, client)
        self._agreement = shared.agreement(run, task.objective.frozen)
        self._initial = run.rules.init_client(run.server.w)
        state, memory = self._initial
        self._keeps = bool(state or memory or run.rules.clients_repeat_step)

    def answer(self, data: wire.Data) -> bytes:
        """The reply to a call; what it leads to is on the disk when this returns.

        Raises WireError if the bytes are not a call of this job for this client. A server of another version
        is told so by the reply.
        """
        try:
            call = Call.unpack(data)
        except OtherVersion as error:
            if error.envelope is None or error.envelope.client != self.client:
                raise
            return messages.cannot(error.envelope, str(error))
        what = "fingerprint of the settings and of what is frozen in the model"
        wire.check(what, call.envelope.agreement, self._agreement)
        wire.check("client", call.envelope.client, self.client)
        with self._vault.locked(call.envelope.job) if self._keeps else nullcontext():
            try:
                return self._answer(call)
            except _Lost:
                self._vault.forget(call.envelope.job)
                return call.envelope._replace(kind=messages.LOST).seal(b"")

    def _answer(self, call: Call) -> bytes:
        envelope = call.envelope
        down, kept = self._down(call, self._resolved(call))
        given = self._assignment(call, kept, down)
        mail: list[Mail] = [[]]
        channel = Channel("uplink", [Ledger(1)], encode=True, mail=mail)
        try:
            with repeatable(tf32=False):
                work = client_work(self.run.rules.at(envelope.round), given, channel)
        except NotFinite as error:
            self._keep(envelope, kept, None)
            return messages.cannot(envelope, str(error))
        self._keep(envelope, kept, Pending(envelope.round, work))
        return envelope._replace(kind=messages.UPDATE).seal(messages.joined(mail[0]))

    def _keep(self, envelope: Envelope, kept: Kept, pending: Pending | None) -> None:
        if self._keeps:
            latest = (envelope.session, envelope.round)
            self._vault.save(envelope.job, kept._replace(pending=pending, latest=latest))

    def _resolved(self, call: Call) -> Kept:
        """What this client keeps, once it knows which of its replies was counted."""
        envelope = call.envelope
        kept = self._vault.load(envelope.job, self._initial) if self._keeps else None
        if kept is None:
            if self._keeps and call.counted != messages.NEVER:
                raise _Lost
            return self._fresh(envelope.generation)
        if (envelope.session, envelope.round) < kept.latest:
            raise StaleCall(
                f"the call for round {envelope.round} is older than one for round {kept.latest[1]}, "
                "which was answered before"
            )
        pending = kept.pending
        if call.counted != kept.committed:
            if pending is None or pending.round != call.counted:
                raise _Lost
            kept = self._committed(call, kept, pending)
        if envelope.generation != kept.generation:
            kept = kept._replace(generation=envelope.generation, state=self._fresh(0).state)
        return kept._replace(pending=None)

    def _fresh(self, generation: int) -> Kept:
        state, memory = self._initial
        rows = type(state)(*(field.unsqueeze(0).clone() for field in state))
        return Kept(
            committed=messages.NEVER,
            generation=generation,
            latest=(0, 0),
            state=rows,
            memory={name: x.unsqueeze(0).clone() for name, x in memory.items()},
            replica=None,
            pending=None,
        )

    def _committed(self, call: Call, kept: Kept, pending: Pending) -> Kept:
        """What the client keeps after a round in which it was counted."""
        told = next((one for one in call.told if one.round == pending.round), None)
        if told is None:
            raise WireError(f"the call counts round {pending.round}, but does not tell its end")
        state, memory = self._finished(pending.work, told, call.factors)
        return kept._replace(committed=pending.round, state=state, memory=memory)

    def _finished(self, work: Work, told: Told, factors: Sequence[float]) -> tuple[Any, Vectors]:
        """The state and memory that some work leads to, given how the round ended."""
        rules, (mean, rnd) = self.run.rules.at(told.round), self._heard(told)
        if factors:
            names = rules.algorithm.uploads
            if len(factors) != len(names):
                raise WireError(f"the call has {len(factors)} factors for {len(names)} vectors")
            work = shortened(rules, work, dict(zip(names, factors, strict=True)), rnd)
        return client_finish(rules, work, Answer(self.run.server_side, mean, rnd))

    def _heard(self, told: Told) -> tuple[Vectors, Round]:
        """The mean of a round as clients hear it, and the round's facts."""
        run, mail = self.run, list(told.messages)
        rnd = shared.round_facts(run, told.round, told.share)
        inbox = Inbox("downlink", [], encode=True, mail=[mail])
        rules, draw = run.rules.at(told.round), run.draw.fold(told.round)
        found = client_hears(rules, rnd, run.server.w, inbox, draw)
        if mail:
            raise WireError(f"the end of round {told.round} is told with {len(mail)} messages too many")
        return found

    def _down(self, call: Call, kept: Kept) -> tuple[Vectors, Kept]:
        """The vectors to begin the round from; and what the client keeps, the server's replica renewed."""
        rules, algorithm, start = self.run.rules, self.run.rules.algorithm, self.run.server_side
        if not rules.clients_repeat_step:
            return self._model(call, algorithm.broadcast(start.state)), kept
        if call.model != messages.NO_MODEL:
            whole = call.model == messages.REPLICA
            sent = rules.replica(start) if whole else algorithm.broadcast(start.state)
            base, vectors = call.base, self._model(call, sent)
        elif kept.replica is None or not call.base <= kept.replica[0] <= call.envelope.round:
            raise _Lost
        else:
            base, vectors = kept.replica
        server = rules.replicated(vectors)
        for told in call.told:
            if base <= told.round < call.envelope.round:
                server = rules.at(told.round).server_step(server, *self._heard(told))
        replica = (call.envelope.round, rules.replica(server))
        return algorithm.broadcast(server.state), kept._replace(replica=replica)

    def _model(self, call: Call, names: Iterable[str]) -> Vectors:
        """The vectors that a call brings, by name."""
        rules, mail = self.run.rules, list(call.messages)
        inbox = Inbox("downlink", [], encode=True, mail=[mail])
        w = self.run.server.w
        if call.model == messages.SEED:
            wire.check("seed of the first model", inbox.hear_seed(rules.layout), rules.seed)
            found = rules.algorithm.broadcast(self.run.server)
        elif call.model == messages.NO_MODEL:
            raise WireError("the call brings no model")
        else:
            found = {name: inbox.send(name, w, rules.layout, Identity(), Draw.seeded(0)) for name in names}
        if mail:
            raise WireError(f"the call's model has {len(mail)} messages too many")
        return found

    def _assignment(self, call: Call, kept: Kept, down: Vectors) -> Assignment:
        me = shared.sender(self.run, call.envelope.round, self.client, call.share)
        oracle = DataOracle.of(self.task, me.clients, Draw(me.draw.key), self.run.rules.algorithm)
        return Assignment(me.clients, kept.state, kept.memory, down, oracle, me.steps, me.rnd, me.draw)
