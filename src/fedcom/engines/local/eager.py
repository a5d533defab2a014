"""The eager engine: stacked clients in one process, computed in groups; on a CPU by several threads.

A round computes with tensors only. What changes from round to round (keys, rates, who is sampled) lies in
`Inputs`, so that a GPU can replay a recorded round. Results stay on the device until they are asked for.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.draws import Draw, Strata
from fedcom.engines.base import Gauge, InOneProcess, Options
from fedcom.engines.local.gauges import Gauges
from fedcom.engines.local.groups import Groups
from fedcom.engines.local.inputs import Inputs
from fedcom.engines.local.stack import Stack, map_tensors
from fedcom.engines.state.parking import Parking, Waiting
from fedcom.engines.state.placement import ClientCounts, make_store
from fedcom.engines.strays import watched
from fedcom.errors import ConfigError
from fedcom.rounds.cohort import Ranking, Steps, mean_weights
from fedcom.rounds.round import (
    Answer,
    Assignment,
    Mean,
    Senders,
    Work,
    broadcast,
    client_finish,
    client_work,
    facts,
    play,
    server_bytes,
    server_work,
)
from fedcom.rounds.rules import ServerSide
from fedcom.rounds.state import RunState
from fedcom.saving.series import ClientRows, Facts, Saved, Series
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task
from fedcom.traffic.channel import Channel, Mail
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.network import clock_of
from fedcom.traffic.receipts import Receipts
from fedcom.vectors import Vectors, handfuls, overwrite


class Begun(NamedTuple):
    """What the clients of one run start a round from."""

    draw: Draw  # the round's key
    down: Vectors  # what the server sent
    rnd: Round
    p: Tensor  # weights of the sampled clients in the mean


class Done(NamedTuple):
    """What the clients of some rows did."""

    rows: slice
    work: Work
    bills: list[Ledger]  # the bytes they sent, one ledger per run
    mail: list[Mail]  # the messages of each of them, if they are to travel


class Collected(NamedTuple):
    """The mean of what one run's clients sent, and the mean of their measured q."""

    mean: Vectors
    q: Tensor


class EagerEngine(InOneProcess):
    """Plays rounds of one run, or of several runs of equal shapes in step.

    Args:
        runs: they share a network and differ only in seed, local rate, gamma, local.mu, data and local steps.
        task: the clients of all runs, those of the first run first, on the device that computes.
    """

    needs_gpu: ClassVar[bool] = False
    walks = False  # whether kernels may take all local steps at once, which rounds differently
    leaves: ClassVar[bool] = True  # whether clients that have taken their steps are left out of later ones
    mails = False  # whether messages are kept, to be sent to another process

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        first, w = runs[0], runs[0].server.w
        m, n, rules = first.cohort.clients, first.cohort.sampled, first.rules
        self.runs, self.task, self.round, self.tf32 = runs, task, 0, options.tf32
        self.writes_in_place = w.is_cuda  # the server's state, where a replayed round reads it
        self.stack = Stack(len(runs), m, n, w.device)
        rows = len(self.stack)
        counts = ClientCounts.of(task.clients, rows, options.rounds)
        self.store, self.park = self.make_store(counts, options)
        at_most = max(1, self.clients_here(m, n))
        self.groups = Groups.of(task, rules.algorithm, w, at_most, options.chunk, one_run=len(runs) == 1)
        self.inputs = Inputs.empty(len(runs), rows, w.device)
        self.gauges = Gauges(len(runs), w.device)
        self.clock = clock_of(first.network, [run.draw for run in runs], n, w.device)
        self.receipts = Receipts(len(runs), m if rules.catches_up else 0, n, w.device)
        self._weights = torch.cat([run.cohort.weights for run in runs])
        self._steps = Steps.joined([run.cohort.steps for run in runs], m)
        self._rankings: dict[tuple[int, int], Ranking] = {}
        self.bills: list[Ledger] = []
        self._strata: Strata | None = None
        self._waiting: list[tuple[slice, Waiting]] = []
        self._clients_filled = False

    def clients_here(self, clients: int, sampled: int) -> int:
        """How many clients of a run this process computes in a round, at most."""
        return sampled

    def make_store(self, counts: ClientCounts, options: Options) -> tuple[Any, Parking]:
        """The store for clients' state, and the parking for a round's work."""
        return make_store(counts, self.runs[0].rules, self.runs[0].server.w, options.storage)

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""
        return self.groups.size

    def step(self) -> None:
        """One round of every run."""
        with repeatable(self.tf32), watched(first=self.round == 0):
            self.load_inputs()
            bills = self.play()
        for run, bill in zip(self.runs, bills, strict=True):
            run.ledger.merge(bill)
        self.store.commit()
        self.round += 1

    def gauge(self, run: int) -> Gauge:
        """The figures of one run; waits for the device."""
        q, alpha = float(self.gauges.q[run]), float(self.gauges.alpha[run])
        return Gauge(q, alpha, self.finite_rounds(run), self.clock.read(run))

    def finite_rounds(self, run: int) -> int:
        """How many rounds of one run left a finite model; waits for the device."""
        return int(self.gauges.finite_rounds[run])

    def peek(self, run: int, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients of a run, stacked."""
        found: tuple[Any, Vectors] = self.store.peek(run * self.stack.clients + clients.cpu())
        return found

    def save(self, series: Series, facts: Facts) -> None:
        """Begin a checkpoint of all runs, between rounds.

        Args:
            facts: what else to keep.
        """
        books = {"round": self.round, "ledgers": [run.ledger.as_dict() for run in self.runs]}
        of = {"data": self.task.checksum, "model": self.runs[0].rules.layout.fingerprint}
        of |= {} if (base := self._base()) is None else {"base": base}
        series.save(self.round, {**facts, "of": of, "engine": books}, self._tensors(), self.rows_since)

    def restore(self, saved: Saved) -> None:
        """Go on from a checkpoint of the same runs, before the first round."""
        books, of = saved.facts["engine"], saved.facts["of"]
        if of["model"] != self.runs[0].rules.layout.fingerprint:
            raise ConfigError(
                "the checkpoint is of a model with other parameters; give the model it was made with"
            )
        if of["data"] != self.task.checksum:
            raise ConfigError(
                "the checkpoint was made with other data (its checksum differs); give the same data"
            )
        if of.get("base", base := self._base()) != base:
            raise ConfigError(
                "the checkpoint was made with another base (the checksum of what is frozen differs); give "
                "the same module"
            )
        self.set_state(books, saved.tensors)
        for clients, rows in saved.rows():
            self.fill(clients, rows)

    def _base(self) -> int | None:
        """A checksum of what is frozen in the module; None: nothing is."""
        frozen = self.task.objective.frozen
        return zlib.crc32(repr(frozen).encode()) if frozen else None

    def set_state(self, books: Facts, tensors: Vectors) -> None:
        """Set what a checkpoint holds of the runs, except what clients keep."""
        self.round = books["round"]
        for run, ledger in zip(self.runs, books["ledgers"], strict=True):
            run.ledger.load(ledger)
        for name, x in self._tensors().items():
            x.copy_(tensors[name])

    def fill(self, clients: Tensor, rows: Sequence[Tensor]) -> None:
        """Set what some clients keep, before the first round."""
        self.store.fill(clients, rows)

    def _tensors(self) -> Vectors:
        """All tensors that are kept between rounds, by name, except what clients keep."""
        found = self.gauges.tensors() | self.clock.tensors() | self.receipts.tensors()
        for i, run in enumerate(self.runs):
            found |= {f"server-{i}.{name}": x for name, x in run.server_side.tensors().items()}
        return found

    def rows_since(self, since: int | None) -> ClientRows:
        """What clients keep, for a checkpoint; rows may have changed of clients that took part since then."""
        known, rounds = self.store.known(), range(since or 0, self.round)
        few = len(rounds) * len(self.stack) < len(known)
        changed = torch.unique(torch.cat([self._sampled(r) for r in rounds])) if few and rounds else known
        changed = changed[torch.isin(changed, known)]  # on several ranks: this rank's
        return ClientRows(known, changed, self.store.rows, self.store.width)

    def load_inputs(self) -> None:
        """Set the inputs and the store to the next round."""
        self.inputs.fill(self.runs, self.round)
        if self.stack.sampled < self.stack.clients or not self._clients_filled:
            self.inputs.fill_clients(self.runs, self.round)
            self._clients_filled = True
        self.store.open(self.round, self._sampled)

    def play(self) -> list[Ledger]:
        """Play the round that the inputs describe; returns the bytes sent, one ledger per run."""
        play(self)
        return self.bills

    def begin(self) -> list[Begun]:
        """What the clients of each run start the round from."""
        self.clock.start()
        self.receipts.start()
        self.bills = [Ledger(self.stack.clients) for _ in self.runs]
        self._strata = self._strata_of_round() if self.runs[0].rules.links.correlated else None
        weights = self._weights[self.stack.places(self.inputs.client)]
        p, share = mean_weights(weights.reshape(len(self.runs), self.stack.sampled))
        return [self._begin(i, p[i], share[i]) for i in range(len(self.runs))]

    def _begin(self, i: int, p: Tensor, share: Tensor) -> Begun:
        run, inputs = self.runs[i], self.inputs
        draw = Draw(inputs.key[i])
        down = broadcast(run.rules, run.server, self._downlink(i), draw, first=self.round == 0)
        if run.rules.catches_up and self.round > 0:
            clients, sizes = self.stack.rows_of(inputs.client, i), server_bytes(run.rules, run.server_side)
            self.receipts.catch_up(i, clients, *sizes, self.bills[i])
        eta, gamma, coin, number = inputs.numbers[:, i].unbind()
        when = {"gamma": gamma, "number": number, "rounds": run.rounds}
        rnd = facts(run.rules, eta, run.cohort.tau, share, coin, **when)
        return Begun(draw, down, rnd, p.to(run.server.w.dtype))

    def work(self, begun: Sequence[Begun]) -> Iterator[Done]:
        """The work of all rows, group by group."""
        return self.groups.map(partial(self.group_work, begun), self.groups.cut(len(self.stack)))

    def group_work(self, begun: Sequence[Begun], rows: slice, most: int | None = None) -> Done:
        """The work of some rows.

        Args:
            most: the largest number of local steps; None: all.
        """
        rules, who = self.runs[0].rules, self.senders(begun, rows)
        places, bills = self.stack.places(who.clients, rows), [Ledger(self.stack.clients) for _ in begun]
        mail: list[Mail] | None = [[] for _ in who.clients] if self.mails else None
        channel = Channel("uplink", bills, rules.links.encode, self.clock.uplink_meter(rows), mail)
        state, memory = self.store.take(rows, places)
        given = Assignment(
            who.clients,
            state,
            memory,
            self.stack.vectors_per_row([each.down for each in begun]),
            DataOracle.of(self.task, places, Draw(who.draw.key), rules.algorithm, self.walks),
            who.steps._replace(most=min(most or who.steps.most, who.steps.most)),
            who.rnd,
            who.draw,
        )
        return Done(rows, client_work(rules.at(self.round), given, channel), bills, mail or [])

    def senders(self, begun: Sequence[Begun], rows: slice) -> Senders:
        """What is known to all of the clients of some rows."""
        run, clients = self.runs[0], self.inputs.client[rows]
        draw = Draw(self.inputs.key[self.stack.run_of_row[rows]]).fold(clients)
        steps = self._steps.of(self.stack.places(clients, rows), self._ranking(rows))
        rnd = self.stack.facts_per_row([each.rnd for each in begun], rows, run.server.w.dtype)
        strata = self._strata and self._strata.at(rows)
        return Senders(clients, steps, rnd, Draw(draw.key, strata))

    def _ranking(self, rows: slice) -> Ranking | None:
        """The ranking of some rows on a GPU by their steps, if the same clients take part in every round."""
        per_client, whole = self._steps.per_client, self.stack.sampled == self.stack.clients
        if not (self.leaves and whole and per_client is not None and per_client.is_cuda):
            return None
        name = (rows.start, rows.stop)
        if name not in self._rankings:  # in the first round, which is not replayed
            self._rankings[name] = Ranking.of(per_client[rows])
        return self._rankings[name]

    def collect(self, begun: Sequence[Begun], works: Iterator[Done]) -> list[Collected]:
        """The means of each run; where clients keep state, their work waits until the means are known."""
        means, qs, self._waiting = [self.new_mean() for _ in begun], [], []
        for done in works:
            for bill, part in zip(self.bills, done.bills, strict=True):
                bill.merge(part)
            self.add(means, begun, done)
            qs.append(done.work.q)
            self.keep(done)
            del done
        return self.collected([mean.vectors for mean in means], torch.cat(qs))

    def new_mean(self) -> Mean:
        """The mean of a round before anything is heard."""
        return Mean(self.runs[0].rules.products)

    def keep(self, done: Done) -> None:
        """Let the work of some rows wait until the means are known, if clients keep anything of it."""
        if not self.store.empty:
            self._waiting.append((done.rows, self.park(done.rows, done.work)))

    def collected(self, means: Sequence[Vectors], q: Tensor) -> list[Collected]:
        """The mean and the q of each run.

        Args:
            q: one number per row.
        """
        q = q.reshape(len(self.runs), self.stack.sampled)
        q = self.runs[0].rules.coarsest_q(q, self.inputs.client)
        return [Collected(mean, own) for mean, own in zip(means, q, strict=True)]

    def add(self, means: Sequence[Mean], begun: Sequence[Begun], done: Done) -> None:
        """Add what some rows sent to the means of their runs."""
        for i, (mean, each) in enumerate(zip(means, begun, strict=True)):
            p = each.p[done.rows] if self.stack.runs == 1 else each.p
            mean.add(p, {name: self.stack.rows_of(sent, i) for name, sent in done.work.sent.items()})

    def answer(self, begun: Sequence[Begun], collected: Sequence[Collected]) -> list[Answer]:
        """What each run's server makes of the round."""
        answers = [self.server_answer(i, begun[i], collected[i]) for i in range(len(self.runs))]
        alpha = self.stack.numbers([answer.rnd.alpha for answer in answers])
        q = torch.stack([each.q for each in collected])
        self.gauges.record(q, alpha, [answer.server_side.state.w for answer in answers])
        return answers

    def server_answer(self, i: int, begun: Begun, collected: Collected) -> Answer:
        """What the server of one run makes of the round."""
        run = self.runs[i]
        mean, q = collected
        rules, side = run.rules.at(self.round), run.server_side
        return server_work(rules, side, mean, q, begun.rnd, self._downlink(i), begun.draw)

    def finish(self, answers: Sequence[Answer]) -> None:
        """Update what clients keep, and only then what servers keep: clients may hold views of it."""

        def one(waiting: tuple[slice, Waiting]) -> None:
            group, work = waiting[0], waiting[1]()
            places = self.stack.places(self.inputs.client[group], group)
            for some in self._at_once(len(work.q)):
                rows = slice(group.start + some.start, group.start + some.stop)
                part = Work(*(map_tensors(x, itemgetter(some)) for x in work))
                self.store.put(rows, places[some], *self.finished(answers, part))

        for _ in self.groups.map(one, self._waiting):
            pass
        self._waiting = []
        for run, answer in zip(self.runs, answers, strict=True):
            new = answer.server_side
            if answer.change is not None:  # in place: it is the memory of the module's own weights
                new.base["weights"].add_(answer.change)
            run.server_side = _written(run.server_side, new) if self.writes_in_place else new
        down = self.receipts.stop(self.inputs.client)
        steps = self._steps.per_client
        own = None if steps is None else steps[self.stack.places(self.inputs.client)]
        self.clock.stop(self.inputs.client, down, self._steps.most, own)

    def _at_once(self, rows: int) -> list[slice]:
        """How the rows of a group are cut for work that passes over their vectors only."""
        w = self.runs[0].server.w
        return handfuls(rows, len(w)) if len(self.runs) == 1 and not w.is_cuda else [slice(0, rows)]

    def finished(self, answers: Sequence[Answer], work: Work) -> tuple[Any, Vectors]:
        """The state and memory of some rows after the round; the state may be written over the one before."""
        finish = partial(client_finish, self.runs[0].rules.at(self.round), in_place=True)
        return self.stack.finished(finish, work, answers)

    def _strata_of_round(self) -> Strata:
        """How each run's clients spread the random numbers they round by, in an order drawn each round."""
        keys, n = Draw(self.inputs.key), self.stack.sampled
        ranks = torch.cat([keys[i].fold("ranks").permutation(n) for i in range(len(self.runs))])
        return Strata(keys[0] if len(self.runs) == 1 else keys[self.stack.run_of_row], ranks, n)

    def _downlink(self, i: int) -> Channel:
        encode, meter = self.runs[i].rules.links.encode, self.receipts.meter(i)
        return Channel("downlink", [self.bills[i]], encode, meter)

    def _sampled(self, round_index: int) -> Tensor:
        """Where the clients of a round are among the clients of all runs, on the host."""
        m = self.stack.clients
        return torch.cat([run.sample(round_index) + m * i for i, run in enumerate(self.runs)])


class Rehearsal:
    """A round of few local steps that leaves no trace, to find out whether a round can be played."""

    def __init__(self, engine: EagerEngine) -> None:
        self.engine = engine
        self._done: list[Done] = []

    def begin(self) -> list[Begun]:
        """Load the engine's inputs, and what the clients of each run start from."""
        self.engine.load_inputs()
        return self.engine.begin()

    def work(self, begun: Sequence[Begun]) -> Iterator[Done]:
        """Some local steps of every row, on copies of the clients' state: a compiled step writes in place.

        Three steps, since kernels may tell the first and the last one from others.
        """
        for rows in self.engine.groups.cut(len(self.engine.stack)):
            done = self.engine.group_work(begun, rows, most=3)
            state = type(done.work.state)(*(field.clone() for field in done.work.state))
            yield done._replace(work=done.work._replace(state=state))

    def collect(self, begun: Sequence[Begun], works: Iterator[Done]) -> list[Collected]:
        """The means of each run."""
        means, self._done = [self.engine.new_mean() for _ in begun], list(works)
        for done in self._done:
            self.engine.add(means, begun, done)
        q = torch.cat([done.work.q for done in self._done]).mean()
        return [Collected(mean.vectors, q) for mean in means]

    def answer(self, begun: Sequence[Begun], collected: Sequence[Collected]) -> list[Answer]:
        """What each run's server would make of the round."""
        pairs = zip(begun, collected, strict=True)
        return [self.engine.server_answer(i, *pair) for i, pair in enumerate(pairs)]

    def finish(self, answers: Sequence[Answer]) -> None:
        """Compute what the clients would keep."""
        for done in self._done:
            self.engine.finished(answers, done.work)


@contextmanager
def repeatable(tf32: bool) -> Iterator[None]:
    """Make convolutions give the same bits every time, as matrix products do anyway.

    Args:
        tf32: whether a GPU may use TF32.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _written(old: ServerSide, new: ServerSide) -> ServerSide:
    """What the server keeps now, written into the tensors that it kept before."""
    before, after = old.tensors(), new.tensors()
    overwrite([before[name] for name in after], list(after.values()))
    return old
