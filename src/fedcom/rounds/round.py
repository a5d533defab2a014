"""One round: the order of its parts, and the parts themselves, for every engine.

    begin     the server's vectors go down                              broadcast
    work      local steps, upload, stages and codec of every client     client_work
    collect   the weighted mean of what was heard                       Mean
    answer    the mean goes down, and the server takes its step         server_work
    finish    clients update what they keep, knowing the mean           client_finish

`play` calls the parts in this order; the functions on the right do the work, and `sending` has how what they
send travels. An engine decides where they run: on stacked clients, threads, a GPU, other processes or real
devices.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedcom.algorithms.base import Oracle, Round
from fedcom.draws import Draw
from fedcom.rounds import loops, returned
from fedcom.rounds.cohort import Steps
from fedcom.rounds.local import Start, local_work
from fedcom.rounds.part import Turn
from fedcom.rounds.products import NAME as PRODUCTS
from fedcom.rounds.products import Products
from fedcom.rounds.rules import OWN, TAKEN, Rules, ServerSide
from fedcom.rounds.sending import UNCOMPRESSED, hear_mean, send_mean, send_number, send_q, send_up, tell
from fedcom.traffic.channel import SEED_BYTES, Channel, Inbox
from fedcom.vectors import Vectors

_FIRST = "first model"  # the name in the ledger of what the clients of the first round begin from

B = TypeVar("B")
W = TypeVar("W")
M = TypeVar("M")
A = TypeVar("A")


class Players(Protocol[B, W, M, A]):
    """How an engine does each part of a round, for one run or for several in step.

    Each part takes what the parts before it returned; what that is, the engine decides.
    """

    def begin(self) -> B:
        """What clients start from: the facts of the round, and what they were sent."""

    def work(self, begun: B) -> Iterator[W]:
        """What groups of clients did, in the order of the clients."""

    def collect(self, begun: B, works: Iterator[W]) -> M:
        """The mean of what all clients sent."""

    def answer(self, begun: B, mean: M) -> A:
        """What the server makes of the mean."""

    def finish(self, answer: A) -> None:
        """Update what the clients keep."""


def play(players: Players[B, W, M, A]) -> A:
    """One round; returns the server's answer."""
    with returned.read():
        begun = players.begin()
        mean = players.collect(begun, players.work(begun))
        answer = players.answer(begun, mean)
        players.finish(answer)
    return answer


def facts(
    rules: Rules,
    eta: float | Tensor,
    tau: float,
    share: float | Tensor,
    coin: float | Tensor,
    **when: Any,
) -> Round:
    """The public facts of a round, which `Round` explains; path is that of tau steps.

    Args:
        eta: the size of a local step.
        when: gamma, number and rounds, if they matter.
    """
    reach = rules.algorithm.local.reach(tau)
    mean = eta if reach == tau else eta * (reach / tau)
    kept, pull = rules.algorithm.server.kept, rules.algorithm.local.mu
    return Round(mean, tau, eta * reach, share, coin, mu=kept, rate=eta, pull=pull, **when)


def coin(draw: Draw) -> Tensor:
    """The number in [0, 1) that all clients of a round share.

    Args:
        draw: the round's key.
    """
    return draw.fold("coin").uniform(1, torch.float64)


def broadcast(
    rules: Rules, server: Any, channel: Channel, draw: Draw, first: bool, receivers: int | None = None
) -> Vectors:
    """Send clients what they need to begin a round.

    Clients that repeat the server's steps know it already: they are sent nothing after the first round, but
    for what they missed (traffic/receipts.py).

    Args:
        server: the algorithm's state on the server.
        channel: the downlink.
        first: whether this is the first round.
        receivers: how many hear each message; None: all clients of the round.
    """
    vectors = returned.sent_down(rules.algorithm, rules.algorithm.broadcast(server))
    receivers = receivers or rules.sampled
    if rules.clients_repeat_step and not first:
        return vectors
    if first and rules.first_seed is not None:
        channel.send_seed(_FIRST, rules.first_seed, rules.layout, receivers)
        return vectors
    return {
        name: channel.send(_FIRST if first else name, x, rules.layout, UNCOMPRESSED, draw, receivers)
        for name, x in vectors.items()
    }


def server_bytes(rules: Rules, server_side: ServerSide) -> tuple[int, int]:
    """The bytes of the first model, and of all that a client which repeats the server's step must have."""
    fields, algorithm = UNCOMPRESSED.fields(rules.layout), rules.algorithm
    vector = UNCOMPRESSED.format.HEADER + sum(field.nbytes for field in fields)
    sent = algorithm.broadcast(server_side.state)
    first = len(sent) * vector if rules.first_seed is None else SEED_BYTES
    base = 0 if rules.products is None else rules.products.base_bytes
    return first, len(rules.replica(server_side)) * vector + base


class Assignment(NamedTuple):
    """What some clients are given for a round; state, memory and vectors are stacked, one row per client."""

    clients: Tensor  # their numbers
    state: Any  # what the algorithm keeps for each
    memory: Vectors  # what their link's memory keeps for each
    down: Vectors  # what the server sent
    oracle: Oracle
    steps: Steps
    rnd: Round
    draw: Draw  # one key per client, and the clients' strata, if any


class Work(NamedTuple):
    """What some clients did in a round, before they know the mean; one row per client."""

    state: Any
    memory: Vectors
    meant: Vectors  # what `upload` returned; empty unless the algorithm uses it again
    sent: Vectors  # what the server hears of it
    q: Tensor  # |Q(x) - x|^2 / |x|^2 of each client, the mean over its vectors


def client_work(rules: Rules, given: Assignment, channel: Channel) -> Work:
    """Local steps, upload, stages and codec of some clients.

    Args:
        channel: the uplink.
    """
    if rules.part is not None:
        return _part_work(rules.alone, rules.part, given, channel)
    algorithm, rnd = rules.algorithm, _own_path(rules, given)
    state = algorithm.begin(given.state, given.down, given.oracle, rnd)
    state = returned.stepped(algorithm, "begin", given.state, state)
    down = given.down if rules.ranks is None else rules.ranks.begin(given.down, given.clients)
    w = down["w"].expand(len(given.clients), -1)
    kept = rules.moments_in(given.memory)
    start = Start(w, state, kept, down, given.memory.get(OWN), rules.statistics)
    layout = rules.whole or rules.layout
    meant, moments, own = local_work(algorithm, start, given.oracle, given.steps, rnd, layout)
    meant = returned.uploaded(algorithm, w, meant)
    memory, sent, clipped, errors, uplink = {}, {}, {}, [], rules.uplink_of(given.clients)
    for name, x in meant.items():
        units, remembered = rules.units(name, rnd), given.memory.get(name, x[..., :0])
        passed = uplink.before(x, remembered, units)
        clipped[name] = passed[0 if rules.links.clip is None else 1]
        key = given.draw.fold("uplink", name)
        decoded = send_up(rules, name, given.clients, channel, key, passed[-1])
        sent[name], memory[name], out = uplink.after(passed, decoded, remembered, units)
        sent[name] = sent[name] if rules.ranks is None else rules.ranks.spread(sent[name])
        lossless = rules.links.uplink.lossless
        errors.append(x.new_zeros(len(x)) if lossless else rules.measure(out, passed[-1]))
    q = torch.stack(errors).mean(0)
    if rules.sends_q:
        q = send_q(rules, next(iter(sent)), given.clients, channel, given.draw, q)
    numbers = returned.measured(algorithm, w, algorithm.measure(clipped, rnd))
    sent |= {name: send_number(name, x, channel, given.draw) for name, x in numbers.items()}
    return Work(
        state,
        (memory if rules.uplink.remembers else {})
        | rules.moments_kept(moments)
        | ({} if own is None else {OWN: own}),
        meant if algorithm.uses_meant else {},
        sent,
        q,
    )


def _part_work(rules: Rules, part: Turn, given: Assignment, channel: Channel) -> Work:
    """The same of a part of the model; what clients keep has the length of the whole model again."""
    state, memory, down = (part.of(x) for x in (given.state, given.memory, given.down))
    oracle, taken = part.oracle(given.oracle, given.down["w"]), given.memory.get(TAKEN)
    if taken is not None:
        memory[TAKEN] = part.steps(taken)
    inner = given._replace(state=state, memory=memory, down=down, oracle=oracle)
    work = client_work(rules, inner, channel)
    after = part.into(given.memory, work.memory)
    if taken is not None:
        after[TAKEN] = part.stepped(taken, (work.memory[TAKEN] - memory[TAKEN])[..., :1])
    return work._replace(state=part.into(given.state, work.state), memory=after)


class Senders(NamedTuple):
    """What the server knows of some clients whose messages it hears."""

    clients: Tensor  # their numbers
    steps: Steps
    rnd: Round
    draw: Draw  # as in an Assignment


def server_hears(rules: Rules, senders: Senders, w: Tensor, inbox: Inbox) -> tuple[Vectors, Tensor]:
    """What the server hears of some clients: vectors and numbers, and their q if they send it (else zeros).

    Args:
        w: the model; only its shape and dtype matter.
    """
    if rules.part is not None:
        return server_hears(rules.alone, senders, rules.part.of(w), inbox)
    clients, rnd = senders.clients, _own_path(rules, senders)
    sent, blank, uplink = {}, w.expand(len(clients), -1), rules.uplink_of(clients)
    for name in rules.algorithm.uploads:
        decoded = send_up(rules, name, clients, inbox, senders.draw.fold("uplink", name), blank)
        heard = uplink.hear(decoded, rules.units(name, rnd))
        sent[name] = heard if rules.ranks is None else rules.ranks.spread(heard)
    q = w.new_zeros(len(clients))
    if rules.sends_q:
        q = send_q(rules, next(iter(sent)), clients, inbox, senders.draw, q)
    for name in rules.algorithm.numbers:
        sent[name] = send_number(name, blank[:, :1], inbox, senders.draw)
    return sent, q


def cut_numbers(rules: Rules, sender: Senders, sent: Vectors, longest: Mapping[str, float]) -> Vectors:
    """What was heard of one client, its numbers no larger than vectors no longer than some bounds allow.

    Args:
        longest: the bound of each vector, in the model's units.
    """
    algorithm, rnd = rules.algorithm, _own_path(rules, sender)
    limits = {name: algorithm.largest_number(name, longest, rnd) for name in algorithm.numbers}
    return {name: x.clamp(-limits[name], limits[name]) if name in limits else x for name, x in sent.items()}


def _own_path(rules: Rules, given: "Assignment | Senders") -> Round:
    """The round's facts, with the path of each client where their steps differ."""
    rnd, steps = given.rnd, given.steps.per_client
    if steps is None:
        return rnd
    return rnd._replace(path=rnd.rate * rules.algorithm.local.reach(steps.to(rules.layout.dtype)))


class Mean:
    """The weighted mean of what clients sent, summed as their messages come.

    Args:
        products: the adapters whose products are averaged too, if any.
    """

    def __init__(self, products: Products | None = None) -> None:
        self.vectors: Vectors = {}
        self._products = products

    def add(self, p: Tensor, sent: Vectors) -> None:
        """Add one message, or a stack of them.

        Args:
            p: the weight of each message.
            sent: its vectors, or stacks of vectors with one row per message.
        """
        for name, x in sent.items():
            rows, weights = (x, p) if x.dim() > 1 else (x.unsqueeze(0), p.reshape(1))
            self.vectors[name] = _weighted(self.vectors.get(name), weights, rows)
            if name == "D" and self._products is not None:
                self.vectors[PRODUCTS] = self._products.added(self.vectors.get(PRODUCTS), weights, rows)


def _weighted(mean: Tensor | None, p: Tensor, x: Tensor) -> Tensor:
    """Add weighted rows to a sum; on a CPU row by row, so that groups of any size give the same bits."""
    if x.is_cuda:
        return p @ x if mean is None else mean + p @ x
    mean = torch.zeros_like(x[0]) if mean is None else mean
    for weight, row in zip(p.tolist(), x, strict=True):
        mean.add_(row, alpha=weight)
    return mean


class Answer(NamedTuple):
    """What the server made of a round."""

    server_side: ServerSide  # what the server keeps now
    mean: Vectors  # the mean as clients hear it
    rnd: Round  # the round's facts, alpha included
    change: Tensor | None = None  # what is to be added to the base, if it changes


def server_work(
    rules: Rules,
    server_side: ServerSide,
    mean: Vectors,
    q: Tensor,
    rnd: Round,
    channel: Channel,
    draw: Draw,
    receivers: int | None = None,
) -> Answer:
    """Send the mean down where clients need it, and take the server's step with what they hear.

    Args:
        server_side: what the server keeps before the round.
        mean: of what the server heard.
        q: what clients measured, as `coarsest_q` gives it; a column where several runs are stacked.
        channel: the downlink.
        draw: the round's key.
        receivers: how many hear each message; None: all clients of the round.
    """
    if (part := rules.part) is not None:
        inner = part.of(server_side)
        answer = server_work(rules.alone, inner, mean, q, rnd, channel, draw, receivers)
        return answer._replace(server_side=part.into(server_side, answer.server_side))
    algorithm, (state, memory, *_), heard, q_down = rules.algorithm, server_side, mean, None
    receivers = receivers or rules.sampled
    if rules.sends_mean_down:
        reply = algorithm.reply(state, mean, rnd) if rules.corrects_downlink else mean
        heard, memory = send_mean(rules, reply, memory, rnd, channel, draw, receivers)
        if rules.tells_q_down:
            q_down = torch.stack([rules.measure(x, reply[name]) for name, x in heard.items()]).mean(0)
        for name in algorithm.numbers:
            heard[name] = send_number(name, mean[name], channel, draw, receivers)

    q = tell(rules, q, channel, draw, receivers) if rules.sends_q else q
    q_down = None if q_down is None else tell(rules, q_down, channel, draw, receivers)
    rnd = rnd._replace(alpha=rules.alpha(q, rnd, q_down), q=q if rules.sends_q else 0.0)
    after = rules.server_step(server_side, heard, rnd)
    if rules.corrects_downlink:
        after = after._replace(state=algorithm.settle_server(after.state, mean, heard, rnd))
    answer = Answer(after._replace(memory=memory), heard, rnd)
    return (
        answer
        if rules.products is None
        else _with_change(rules.products, server_side, mean, answer, channel, receivers)
    )


def _with_change(
    products: Products, before: ServerSide, mean: Vectors, answer: Answer, channel: Channel, receivers: int
) -> Answer:
    """The answer with the change of the base, whose bytes are counted."""
    moved = answer.rnd.eta * mean["D"]
    change = products.change(before.state.w, moved, answer.rnd.eta**2 * mean[PRODUCTS])
    channel.count("base", "factors", products.nbytes(receivers), receivers)
    after = answer.server_side
    w = products.anew(after.state.w, before.base["start"])
    return answer._replace(server_side=after._replace(state=after.state._replace(w=w)), change=change)


def client_hears(rules: Rules, rnd: Round, w: Tensor, inbox: Inbox, draw: Draw) -> tuple[Vectors, Round]:
    """What a client hears of the answer that `server_work` sent: the mean, and the facts with alpha and q.

    The mean is empty if clients are not sent it.

    Args:
        rnd: the facts of the round that the answer ends.
        w: a model; only its shape and dtype matter.
        draw: that round's key.
    """
    w = w if rules.part is None else rules.part.of(w)
    mean = hear_mean(rules, rnd, w, inbox, draw) if rules.sends_mean_down else {}
    number = w.new_zeros(())
    q = tell(rules, number, inbox, draw) if rules.sends_q else number
    q_down = tell(rules, number, inbox, draw) if rules.tells_q_down else None
    return mean, rnd._replace(alpha=rules.alpha(q, rnd, q_down), q=q if rules.sends_q else 0.0)


def client_finish(rules: Rules, work: Work, answer: Answer, in_place: bool = False) -> tuple[Any, Vectors]:
    """The clients' state and memory after the round.

    Args:
        in_place: whether the state may be written over the one before.
    """
    if (part := rules.part) is not None:
        inner = work._replace(state=part.of(work.state), memory=part.of(work.memory))
        state, memory = client_finish(rules.alone, inner, answer, in_place)
        return part.into(work.state, state), part.into(work.memory, memory)
    algorithm, rnd = rules.algorithm, answer.rnd
    state = loops.client_step(algorithm, work.state, work.sent, answer.mean, rnd) if in_place else None
    if state is None:
        state = algorithm.client_step(work.state, work.meant, work.sent, answer.mean, rnd)
        state = returned.stepped(algorithm, "client_step", work.state, state)
    memory = work.memory
    if rules.uplink.needs_mean:
        settle = rules.uplink.settle
        settled = {
            name: settle(memory[name], answer.mean[name], rules.units(name, rnd))
            for name in algorithm.uploads
        }
        memory = memory | settled
    return state, memory


def norms(rules: Rules, sent: Vectors, rnd: Round) -> dict[str, float]:
    """The norms of one client's vectors in the model's units.

    Args:
        sent: what the server heard of the client.
    """
    unit, names = rules.algorithm.unit, rules.algorithm.uploads
    return {name: float(torch.linalg.vector_norm(unit(name, rnd) * sent[name])) for name in names}


def shortened(rules: Rules, work: Work, factors: Mapping[str, float], rnd: Round) -> Work:
    """Clients' work once they know that the server multiplied what it heard of them by some factors."""
    unheard, kept = rules.uplink.unheard, work.memory if rules.part is None else rules.part.of(work.memory)
    memory = {
        name: unheard(kept[name], (1 - factors[name]) * sent, rules.units(name, rnd))
        for name, sent in work.sent.items()
        if name in kept
    }
    if rules.part is not None:
        memory = rules.part.into({name: work.memory[name] for name in memory}, memory)
    return work._replace(sent=scaled(work.sent, factors), memory=work.memory | memory)


def scaled(sent: Vectors, factors: Mapping[str, float]) -> Vectors:
    """What was sent, the vectors that have a factor multiplied by it."""
    return {name: factors[name] * x if name in factors else x for name, x in sent.items()}
