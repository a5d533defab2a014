"""The eager engine: stacked clients in one process, computed in groups, by threads on a CPU.

A round is made of tensors alone. What changes from round to round (keys, rates, who is sampled) lies in
`Inputs`, so that a GPU can replay a round; the host learns nothing of it before it asks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.draws import Draw
from fedcom.engines.base import Gauge, Options
from fedcom.engines.local.gauges import Gauges
from fedcom.engines.local.groups import Groups
from fedcom.engines.local.inputs import Inputs
from fedcom.engines.local.stack import Stack
from fedcom.engines.state.parking import Waiting
from fedcom.engines.state.placement import Crowd, make_store
from fedcom.rounds.cohort import mean_weights
from fedcom.rounds.round import (
    Call,
    Heard,
    Mean,
    Work,
    broadcast,
    client_finish,
    client_work,
    facts,
    play,
    server_work,
)
from fedcom.rounds.rules import Kept
from fedcom.rounds.state import RunState
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.network import clock_of
from fedcom.vectors import Vectors


class Begun(NamedTuple):
    """What the clients of one run start from."""

    draw: Draw
    down: Vectors
    rnd: Round
    p: Tensor  # weights of the sampled clients in the mean


class Done(NamedTuple):
    """What the clients of some rows did, and what it cost each run."""

    rows: slice
    work: Work
    bills: list[Ledger]


class Collected(NamedTuple):
    """The mean of what one run's clients sent, and of their measured q."""

    mean: Vectors
    q: Tensor


class EagerEngine:
    """Plays rounds of one run, or of several runs of equal shapes in step.

    Args:
        runs: they share a network, and differ at most in what `Inputs` holds, in gamma and in their data.
        task: the clients' data of all runs, side by side, on the device where all is computed.
    """

    needs_gpu: ClassVar[bool] = False

    def __init__(self, runs: Sequence[RunState], task: Task, options: Options) -> None:
        first, w = runs[0], runs[0].server.w
        m, n, rules = first.cohort.clients, first.cohort.sampled, first.rules
        self.runs, self.task, self.round, self.tf32 = runs, task, 0, options.tf32
        self.stack = Stack(len(runs), m, n, w.device)
        rows = len(self.stack)
        crowd = Crowd.of(task.clients, rows, options.rounds)
        self.store, self.park = make_store(crowd, rules, w, options.storage)
        self.groups = Groups.of(task, rules.algorithm, w, n, options.chunk, alone=len(runs) == 1)
        self.inputs = Inputs.empty(len(runs), rows, w.device)
        self.gauges = Gauges(len(runs), w.device)
        self.clock = clock_of(first.network, [run.draw for run in runs], n, w.device)
        self._weights = torch.cat([run.cohort.weights for run in runs])
        self._bills: list[Ledger] = []
        self._waiting: list[tuple[slice, Waiting]] = []
        self._called = False

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""
        return self.groups.size

    def step(self) -> None:
        """One round of every run."""
        with repeatable(self.tf32):
            self.tell()
            bills = self.play()
        for run, bill in zip(self.runs, bills, strict=True):
            run.ledger.merge(bill)
        self.store.commit()
        self.round += 1

    def gauge(self, run: int) -> Gauge:
        """The figures of one run; waits for the device."""
        q, alpha, sound = (each[run] for each in (self.gauges.q, self.gauges.alpha, self.gauges.sound))
        return Gauge(float(q), float(alpha), int(sound), self.clock.read(run))

    def sound(self, run: int) -> int:
        """How many rounds of one run left a finite model; waits for the device."""
        return int(self.gauges.sound[run])

    def look(self, run: int, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients of a run, stacked."""
        return self.store.look(run * self.stack.clients + clients.cpu())

    def tell(self) -> None:
        """Bring the inputs up to the round."""
        self.inputs.fill(self.runs, self.round)
        if self.stack.sampled < self.stack.clients or not self._called:
            self.inputs.call(self.runs, self.round)
            self._called = True
        self.store.open(self.round, self._sampled)

    def play(self) -> list[Ledger]:
        """The round of the present inputs; what it cost each run."""
        self.clock.start()
        play(self)
        self.clock.stop(self.inputs.client, *self.runs[0].cohort.steps)
        return self._bills

    def begin(self) -> list[Begun]:
        """What the clients of each run start from."""
        self._bills = [Ledger(self.stack.clients) for _ in self.runs]
        weights = self._weights[self.stack.places(self.inputs.client)]
        p, share = mean_weights(weights.reshape(len(self.runs), self.stack.sampled))
        return [self._begin(i, p[i], share[i]) for i in range(len(self.runs))]

    def _begin(self, i: int, p: Tensor, share: Tensor) -> Begun:
        run, inputs = self.runs[i], self.inputs
        draw = Draw(inputs.key[i])
        down = broadcast(run.rules, run.server, self._downlink(i), draw, first=self.round == 0)
        rnd = facts(inputs.eta[i], run.cohort.tau, share, inputs.coin[i])
        return Begun(draw, down, rnd, p.to(run.server.w.dtype))

    def work(self, begun: Sequence[Begun]) -> Iterator[Done]:
        """The work of all rows, group by group."""
        return self.groups.each(partial(self.group_work, begun), self.groups.cut(len(self.stack)))

    def group_work(self, begun: Sequence[Begun], rows: slice, most: int | None = None) -> Done:
        """The work of some rows; most: local steps, where not all are wanted."""
        run, clients = self.runs[0], self.inputs.client[rows]
        places, algorithm, steps = self.stack.places(clients, rows), run.rules.algorithm, run.cohort.steps
        draw = Draw(self.inputs.key[self.stack.of_run[rows]]).fold(clients)
        own = None if steps.each is None else steps.each[clients]
        bills = [Ledger(self.stack.clients) for _ in begun]
        channel = Channel("uplink", bills, run.rules.links.encode, self.clock.sent(rows))
        state, memory = self.store.take(rows, places)
        call = Call(
            clients,
            state,
            memory,
            self.stack.lay_vectors([each.down for each in begun]),
            DataOracle.of(self.task, places, draw, algorithm),
            steps._replace(most=most or steps.most, each=own),
            self.stack.lay_facts([each.rnd for each in begun], rows, run.server.w.dtype),
            draw,
        )
        return Done(rows, client_work(run.rules, call, channel), bills)

    def collect(self, begun: Sequence[Begun], works: Iterator[Done]) -> list[Collected]:
        """The means of each run; what clients did waits, where they keep anything, until those are known."""
        means, qs, self._waiting = [Mean() for _ in begun], [], []
        for done in works:
            for bill, part in zip(self._bills, done.bills, strict=True):
                bill.merge(part)
            self.add(means, begun, done)
            qs.append(done.work.q)
            if not self.store.empty:
                self._waiting.append((done.rows, self.park(done.rows, done.work)))
            del done
        q = torch.cat(qs).reshape(len(self.runs), self.stack.sampled).mean(-1)
        return [Collected(mean.vectors, own) for mean, own in zip(means, q, strict=True)]

    def add(self, means: Sequence[Mean], begun: Sequence[Begun], done: Done) -> None:
        """Add what some rows sent to the means of their runs."""
        for i, (mean, each) in enumerate(zip(means, begun, strict=True)):
            p = each.p[done.rows] if self.stack.runs == 1 else each.p
            mean.add(p, {name: self.stack.own(sent, i) for name, sent in done.work.sent.items()})

    def hear(self, begun: Sequence[Begun], collected: Sequence[Collected]) -> list[Heard]:
        """What each server made of the round; they keep it."""
        heard = [self.server(i, begun[i], collected[i]) for i in range(len(self.runs))]
        for run, each in zip(self.runs, heard, strict=True):
            run.kept = _moved(run.kept, each.kept)
        alpha = self.stack.numbers([each.rnd.alpha for each in heard])
        q = torch.stack([each.q for each in collected])
        self.gauges.read(q, alpha, [run.server.w for run in self.runs])
        return heard

    def server(self, i: int, begun: Begun, collected: Collected) -> Heard:
        """What the server of one run makes of the round."""
        run = self.runs[i]
        mean, q = collected
        return server_work(run.rules, run.kept, mean, q, begun.rnd, self._downlink(i), begun.draw)

    def finish(self, heard: Sequence[Heard]) -> None:
        """Update what the clients keep."""

        def one(waiting: tuple[slice, Waiting]) -> None:
            rows, work = waiting
            places = self.stack.places(self.inputs.client[rows], rows)
            self.store.put(rows, places, *self.finished(heard, work()))

        for _ in self.groups.each(one, self._waiting):
            pass
        self._waiting = []

    def finished(self, heard: Sequence[Heard], work: Work) -> tuple[Any, Vectors]:
        """The state and memory of some rows after the round."""
        return self.stack.finished(partial(client_finish, self.runs[0].rules), work, heard)

    def _downlink(self, i: int) -> Channel:
        return Channel("downlink", [self._bills[i]], self.runs[i].rules.links.encode, self.clock.heard(i))

    def _sampled(self, turn: int) -> Tensor:
        """The clients of a round among those of all runs, on the host."""
        m = self.stack.clients
        return torch.cat([run.sample(turn) + m * i for i, run in enumerate(self.runs)])


class Rehearsal:
    """A round of one local step of which nothing is kept, to find out whether it can be played."""

    def __init__(self, engine: EagerEngine) -> None:
        self.engine = engine
        self._done: list[Done] = []

    def begin(self) -> list[Begun]:
        """Tell the engine its present round."""
        self.engine.tell()
        return self.engine.begin()

    def work(self, begun: Sequence[Begun]) -> Iterator[Done]:
        """One local step of every row, on copies of what clients keep: a compiled step writes in place."""
        for rows in self.engine.groups.cut(len(self.engine.stack)):
            done = self.engine.group_work(begun, rows, most=1)
            state = type(done.work.state)(*(field.clone() for field in done.work.state))
            yield done._replace(work=done.work._replace(state=state))

    def collect(self, begun: Sequence[Begun], works: Iterator[Done]) -> list[Collected]:
        """The means of each run."""
        means, self._done = [Mean() for _ in begun], list(works)
        for done in self._done:
            self.engine.add(means, begun, done)
        q = torch.cat([done.work.q for done in self._done]).mean()
        return [Collected(mean.vectors, q) for mean in means]

    def hear(self, begun: Sequence[Begun], collected: Sequence[Collected]) -> list[Heard]:
        """What each server would make of the round."""
        return [self.engine.server(i, *pair) for i, pair in enumerate(zip(begun, collected, strict=True))]

    def finish(self, heard: Sequence[Heard]) -> None:
        """What the clients would keep."""
        for done in self._done:
            self.engine.finished(heard, done.work)


@contextmanager
def repeatable(tf32: bool) -> Iterator[None]:
    """Convolutions that give the same bits twice, as matrix products do anyway; in TF32 only if asked."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _moved(old: Kept, new: Kept) -> Kept:
    """What the server keeps now; on a GPU in the old place, where a replayed round will look for it."""
    server = type(new.server)(*map(_written, old.server, new.server))
    return Kept(server, {name: _written(old.residual[name], x) for name, x in new.residual.items()})


def _written(old: Tensor, new: Tensor) -> Tensor:
    return old.copy_(new) if new.is_cuda else new
