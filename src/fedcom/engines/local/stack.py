"""Runs of equal shapes played in step: the sampled clients of all of them are one stack, computed in groups.

A round is made of tensors alone. What changes from round to round (keys, rates, who is sampled) lies in
`Inputs`, so that a GPU can replay it; the host learns nothing of it before it asks.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.draws import Draw
from fedcom.engines.local.groups import clients_a_core
from fedcom.engines.local.threads import spread
from fedcom.engines.state.parking import Parking, Waiting, stay
from fedcom.engines.state.placement import Crowd, clients_that_fit, make_store
from fedcom.engines.state.stores import ClientStore, Storage
from fedcom.rounds.round import Heard, Rules, Steps, Work, broadcast, client_finish, client_work, server_work
from fedcom.tasks.oracle import Oracle
from fedcom.tasks.task import Task
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.traffic.network import Clock, Network, Stopwatch
from fedcom.vectors import Vectors

log = logging.getLogger("fedcom")


@dataclass
class Run:
    """One run of a stack: its rules, its server and its books."""

    rules: Rules
    server: Any
    weights: Tensor  # p_j of its clients
    steps: Steps
    tau: float
    draw: Draw  # on the host
    ledger: Ledger
    residual: Vectors = field(default_factory=dict)
    network: Network | None = None

    def sample(self, turn: int) -> Tensor:
        """The clients of a round, in order."""
        m, n = self.rules.clients, self.rules.sampled
        return torch.arange(m) if n == m else self.draw.fold(turn, "sample").subset(m, n).sort().values


class Inputs(NamedTuple):
    """What a round is told, on the device; one number a run, or one a sampled client."""

    key: Tensor
    eta: Tensor
    coin: Tensor
    client: Tensor


class Begun(NamedTuple):
    """What one run's clients start from."""

    draw: Draw
    down: Vectors
    rnd: Round
    p: Tensor  # weights of the sampled clients in the mean


class Stack:
    """Some runs, their clients' data and state, and the round they are in."""

    def __init__(
        self, runs: Sequence[Run], task: Task, store: ClientStore, group: int, workers: int,
        park: Parking = stay,
    ) -> None:  # fmt: skip
        self.runs, self.task, self.store, self.round = runs, task, store, 0
        self.group, self.workers, self.park = group, workers, park
        first, device = runs[0].rules, runs[0].server.w.device
        self.m, self.n, count = first.clients, first.sampled, len(runs)
        real, whole = (partial(torch.zeros, dtype=t, device=device) for t in (torch.float64, torch.int64))
        self.inputs = Inputs(
            key=whole(count), eta=real(count), coin=real(count), client=whole(count * self.n)
        )
        self.q, self.alpha = real(count), real(count)
        self.sound = whole(count)  # rounds that left a finite model
        self._of_run = torch.arange(count, device=device).repeat_interleave(self.n)
        self._weights = torch.cat([run.weights for run in runs])
        draws, network = [run.draw for run in runs], runs[0].network
        self.clock = Clock() if network is None else Stopwatch(network, draws, self.n, device)

    @classmethod
    def of(
        cls, runs: Sequence[Run], task: Task, chunk: int | None = None, storage: Storage | None = None,
        rounds: int | None = None,
    ) -> "Stack":  # fmt: skip
        """A stack on its task's device; chunk: clients at once, None for as many as fit and suit.

        rounds: how many there will be, so that room is sought for those alone who can take part.
        """
        rules, w = runs[0].rules, runs[0].server.w
        algorithm, sampled = rules.algorithm, len(runs) * rules.sampled
        ever = task.clients if rounds is None else min(task.clients, max(1, rounds) * sampled)
        store, park = make_store(Crowd(task.clients, sampled, ever), algorithm, w, storage or Storage())
        workers = 1 if w.is_cuda else torch.get_num_threads()
        fit = clients_that_fit(task, algorithm, w)
        if chunk is None and not w.is_cuda:
            most = min(max(1, fit // workers), -(-rules.sampled // workers))
            chunk = clients_a_core(task, algorithm, w, most)
        return cls(runs, task, store, chunk or fit, workers, park)

    def step(self) -> None:
        """One round of every run."""
        self.tell()
        self.book(self.play())

    def tell(self) -> None:
        """Bring the inputs up to the round."""
        draws = [run.draw.fold(self.round) for run in self.runs]
        rates = [run.rules.algorithm.eta * run.rules.algorithm.decay**self.round for run in self.runs]
        _fill(self.inputs.key, torch.stack([draw.key for draw in draws]))
        _fill(self.inputs.eta, torch.tensor(rates, dtype=torch.float64))
        _fill(self.inputs.coin, torch.cat([draw.fold("coin").uniform(1, torch.float64) for draw in draws]))
        if self.n < self.m or self.round == 0:
            _fill(self.inputs.client, torch.cat([run.sample(self.round) for run in self.runs]))
        self.store.open(self.round, self._places)

    def book(self, bills: Sequence[Ledger]) -> None:
        """Make a round final."""
        for run, bill in zip(self.runs, bills, strict=True):
            run.ledger.merge(bill)
        self.store.commit()
        self.round += 1

    def _places(self, turn: int) -> Tensor:
        """The clients of a round among those of all runs, on the host."""
        return torch.cat([run.sample(turn) + self.m * i for i, run in enumerate(self.runs)])

    def play(self) -> list[Ledger]:
        """The round of the present inputs; what it cost each run."""
        self.clock.start()
        bills = [Ledger(self.m) for _ in self.runs]
        begun = self._begin(bills)
        groups = self._groups()
        works, means, qs = [], [dict[str, Tensor]() for _ in self.runs], []
        for rows, (work, bought) in zip(
            groups, spread(partial(self._work, begun), groups, self.workers), strict=True
        ):
            for bill, part in zip(bills, bought, strict=True):
                bill.merge(part)
            self._add(means, begun, work, rows)
            qs.append(work.q)
            works += [] if self.store.empty else [(rows, self.park(rows, work))]
            del work
        q = torch.cat(qs).reshape(len(self.runs), self.n).mean(-1)
        heard = [self._hear(*each) for each in zip(range(len(bills)), begun, means, q, bills, strict=True)]
        self.q.copy_(q)
        self.alpha.copy_(self._numbers([each.rnd.alpha for each in heard]))
        self.sound.add_(
            torch.isfinite(torch.stack([run.server.w.sum(dtype=torch.float64) for run in self.runs]))
        )
        list(spread(partial(self._finish, heard), works, self.workers))
        self.clock.stop(self.inputs.client, *self.runs[0].steps)
        return bills

    def rehearse(self) -> None:
        """A round of one local step of which nothing is kept, to find out whether it can be played."""
        self.tell()
        begun = self._begin([Ledger(self.m) for _ in self.runs])
        for rows in self._groups():
            work, _ = self._work(begun, rows, most=1)
            work = work._replace(client=type(work.client)(*(field.clone() for field in work.client)))
            mean = {name: sent[0] for name, sent in work.sent.items()}
            alphas = [run.rules.alpha(work.q.mean()) for run in self.runs]
            rounds = [each.rnd._replace(alpha=a) for each, a in zip(begun, alphas, strict=True)]
            heard = [Heard(None, {}, mean, rnd) for rnd in rounds]
            self._finished(heard, work)

    def _begin(self, bills: Sequence[Ledger]) -> list[Begun]:
        """What the clients of each run start from."""
        inputs, weights = self.inputs, self._weights[self.inputs.client + self.m * self._of_run]
        p = weights.reshape(len(bills), self.n)
        share = p.sum(-1)
        p, begun = (p / share.unsqueeze(-1)).to(self.runs[0].server.w.dtype), []
        for i, (run, bill) in enumerate(zip(self.runs, bills, strict=True)):
            draw, meter = Draw(inputs.key[i]), self.clock.heard(i)
            channel = Channel("downlink", [bill], run.rules.links.encode, meter)
            down = broadcast(run.rules, run.server, channel, draw, first=self.round == 0)
            rnd = Round(inputs.eta[i], run.tau, inputs.eta[i] * run.tau, share[i], inputs.coin[i])
            begun.append(Begun(draw, down, rnd, p[i]))
        return begun

    def _work(
        self, begun: Sequence[Begun], rows: slice, most: int | None = None
    ) -> tuple[Work, list[Ledger]]:
        """The work of some rows of the stack; most: local steps, where not all are wanted."""
        run, a = self.runs[0], self.runs[0].rules.algorithm
        of_run, clients = self._of_run[rows], self.inputs.client[rows]
        places = clients + self.m * of_run
        draw = Draw(self.inputs.key[of_run]).fold(clients)
        batch = None if a.batch == "full" else a.batch
        oracle = Oracle(self.task, places, draw, batch, a.epochs is not None, a.weight_decay)
        state, memory = self.store.take(rows, places)
        rnd, down, steps = begun[0].rnd, begun[0].down, run.steps._replace(most=most or run.steps.most)
        if len(begun) > 1:
            rnd = self._facts([each.rnd for each in begun], lambda numbers: numbers[of_run].unsqueeze(-1))
            down = {name: torch.cat([each.down[name].expand(self.n, -1) for each in begun]) for name in down}
        if steps.each is not None:
            own = steps.each[clients]
            steps, rnd = steps._replace(each=own), rnd._replace(path=rnd.eta * own.to(run.server.w.dtype))
        bills = [Ledger(self.m) for _ in begun]
        channel = Channel("uplink", bills, run.rules.links.encode, self.clock.sent(rows))
        return client_work(run.rules, state, memory, down, oracle, steps, rnd, channel, draw), bills

    def _add(self, means: list[Vectors], begun: Sequence[Begun], work: Work, rows: slice) -> None:
        """Add some rows to the means of their runs."""
        for i, (mean, each) in enumerate(zip(means, begun, strict=True)):
            one = len(begun) == 1
            p = each.p[rows] if one else each.p
            for name, sent in work.sent.items():
                part = sent if one else sent[i * self.n : (i + 1) * self.n]
                mean[name] = _weighted(mean.get(name), p, part)

    def _hear(self, i: int, begun: Begun, mean: Vectors, q: Tensor, bill: Ledger) -> Heard:
        """The server's work of one run, and its state after the round."""
        run = self.runs[i]
        channel = Channel("downlink", [bill], run.rules.links.encode, self.clock.heard(i))
        heard = server_work(run.rules, run.server, run.residual, mean, q, begun.rnd, channel, begun.draw)
        run.server = type(run.server)(*map(_moved, run.server, heard.server))
        run.residual = {n: _moved(run.residual.get(n), x) for n, x in heard.residual.items()}
        return heard

    def _finish(self, heard: Sequence[Heard], done: tuple[slice, Waiting]) -> None:
        rows, waiting = done
        places = self.inputs.client[rows] + self.m * self._of_run[rows]
        self.store.put(rows, places, *self._finished(heard, waiting()))

    def _finished(self, heard: Sequence[Heard], work: Work) -> tuple[Any, Vectors]:
        """The state and memory of clients after the round."""
        rules, hear, count = self.runs[0].rules, heard[0], len(heard)
        if count == 1:
            return client_finish(rules, work, hear)
        mean = {name: torch.stack([each.mean[name] for each in heard]).unsqueeze(1) for name in hear.mean}
        facts = self._facts([each.rnd for each in heard], lambda numbers: numbers.reshape(-1, 1, 1))
        by_run = Work(*(_each(x, lambda rows: rows.reshape(count, self.n, *rows.shape[1:])) for x in work))
        done = client_finish(rules, by_run, hear._replace(mean=mean, rnd=facts))
        state, memory = (_each(x, lambda rows: rows.flatten(0, 1)) for x in done)
        return state, memory

    def _groups(self) -> Sequence[slice]:
        """The rows of the stack that are computed at once: as many groups for each thread, of like size."""
        count, workers = len(self._of_run), self.workers if len(self.runs) == 1 else 1
        parts = min(count, workers * -(-count // (workers * self.group)))
        return [slice(*pair) for pair in pairwise(i * count // parts for i in range(parts + 1))]

    def _facts(self, rounds: Sequence[Round], shape: Callable[[Tensor], Tensor]) -> Round:
        """The facts of all runs as tensors, one number a run laid out in some shape."""

        dtype = self.runs[0].server.w.dtype
        eta, path, coin, alpha = (
            shape(self._numbers([getattr(r, name) for r in rounds]).to(dtype))
            for name in ("eta", "path", "coin", "alpha")
        )
        return rounds[0]._replace(eta=eta, path=path, coin=coin, alpha=alpha)

    def _numbers(self, values: Sequence[float | Tensor]) -> Tensor:
        """One number a run, on the device."""
        return torch.stack([v if isinstance(v, Tensor) else self.q.new_full((), v) for v in values])


def _each(held: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A tensor, or each one in a dictionary or a named tuple, changed."""
    if isinstance(held, Tensor):
        return change(held)
    if isinstance(held, dict):
        return {name: change(x) for name, x in held.items()}
    return type(held)(*map(change, held))


def _fill(there: Tensor, here: Tensor) -> None:
    """Copy to the device without waiting for it."""
    there.copy_(here.pin_memory() if there.is_cuda else here, non_blocking=True)


def _moved(old: Tensor | None, new: Tensor) -> Tensor:
    """The new value; on a GPU in the old one's place, where a replayed round will look for it."""
    return old.copy_(new) if old is not None and new.is_cuda else new


def _weighted(mean: Tensor | None, p: Tensor, x: Tensor) -> Tensor:
    """A sum of rows added to one; on a CPU row by row, so that no grouping changes a bit of it."""
    if x.is_cuda:
        return p @ x if mean is None else mean + p @ x
    mean = torch.zeros_like(x[0]) if mean is None else mean
    for weight, row in zip(p.tolist(), x, strict=True):
        mean.add_(row, alpha=weight)
    return mean
