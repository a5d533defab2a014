"""A client's local steps and what it sends after them; steps as those of local SGD are taken quicker."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedcom.algorithms.base import Algorithm, Oracle, Round
from fedcom.algorithms.local_optimisers import Begun, LocalOptimiser, LocalStep
from fedcom.rounds import loops, returned
from fedcom.rounds.cohort import Steps
from fedcom.vectors import Layout, Piece, Vectors, apart, descend

STEPS = "steps"  # beside the moments that a client keeps: how many steps it has taken with them


@runtime_checkable
class OracleInPieces(Oracle, Protocol):
    """An oracle that can give its gradient piece by piece."""

    def pieces(self, w: Tensor) -> Iterator[Piece]:
        """The minibatch gradient at w; where earlier pieces were, w may be written over meanwhile."""


@runtime_checkable
class PartedOracle(Oracle, Protocol):
    """An oracle of several clients that can be cut to some of them."""

    def some(self, rows: Tensor | slice) -> "PartedOracle":
        """The oracle of some of the clients."""


@runtime_checkable
class WalkingOracle(Oracle, Protocol):
    """An oracle that sees all local steps at once, and may take plain ones itself."""

    def steps(self, count: int, dtype: torch.dtype) -> Sequence[Oracle]:
        """The oracles of the first local steps, for models of a dtype."""

    def walk(
        self, w: Tensor, eta: Tensor, delta: Tensor | None, local: LocalOptimiser, begun: Begun | None
    ) -> Tensor | None:
        """The models after steps along g - delta; None if it cannot take them.

        Args:
            w: the models before: one row per client, or one vector that all have.
            eta: [steps, clients]; a client whose eta is zero stays where it is.
            delta: one row per client; None: zero.
            local: how clients step.
            begun: what it begins from; the moments are written over. None: steps are plain.
        """


class Start(NamedTuple):
    """What clients begin their local steps from; one row per client."""

    w: Tensor  # their models, which are left as they are
    client: Any  # their states
    moments: Vectors  # what their optimiser kept, and how many steps it took; empty: it begins anew
    down: Vectors  # what the server sent
    own: Tensor | None = None  # coordinates behind those of w that stay with each client
    statistics: int = 0  # how many of the last coordinates are statistics, which no optimiser moves


def local_work(
    algorithm: Algorithm, start: Start, oracle: Oracle, steps: Steps, rnd: Round, layout: Layout
) -> tuple[Vectors, Vectors, Tensor | None]:
    """What clients mean to send after all their local steps, what their optimiser keeps, and their own."""
    if start.own is not None or start.statistics:
        return _work_apart(algorithm, start, oracle, steps, rnd, layout)
    return *_usual_work(algorithm, start, oracle, steps, rnd, layout), None


def _work_apart(
    algorithm: Algorithm, start: Start, oracle: Oracle, steps: Steps, rnd: Round, layout: Layout
) -> tuple[Vectors, Vectors, Tensor | None]:
    """The same where some coordinates stay with the client, or are statistics.

    During the steps a client's own coordinates lie behind those of its model. There, what the server sent and
    what the method keeps are zero, so that no correction moves them.
    """
    d, own = start.w.shape[-1], start.own
    within = start
    if own is not None:

        def behind(x: Tensor) -> Tensor:
            return pad(x, (0, own.shape[-1])) if x.shape[-1] == d else x

        w = torch.cat((start.w, own), -1)
        down = {name: behind(x) for name, x in start.down.items()}
        within = Start(w, type(start.client)(*map(behind, start.client)), start.moments, {**down, "w": w})
    w, moments = _steps_of(algorithm, within, oracle, steps, rnd, layout, start.statistics)
    meant = algorithm.upload(start.client, start.down, w[..., :d], rnd)
    if start.statistics and own is None and steps.per_client is not None:
        # D is scaled to tau steps, which would carry statistics beyond those of the batches.
        nominal = rnd._replace(path=rnd.tau * rnd.eta)
        exact, last = algorithm.upload(start.client, start.down, w, nominal), start.statistics
        meant = {n: torch.cat((x[..., :-last], exact[n][..., -last:]), -1) for n, x in meant.items()}
    return meant, moments, None if own is None else w[..., d:]


def _steps_of(
    algorithm: Algorithm,
    start: Start,
    oracle: Oracle,
    steps: Steps,
    rnd: Round,
    layout: Layout,
    statistics: int,
) -> tuple[Tensor, Vectors]:
    """Clients' models after all local steps, and what their optimiser keeps.

    Args:
        statistics: how many of the last coordinates are statistics: each step moves them by their gradient.
    """
    plain = algorithm.local.plain
    first = _plain_rows(start, rnd) if plain else _optimised_rows(algorithm, start, steps, rnd)
    step = _plain_step(algorithm) if plain else _optimised_step(algorithm, layout)

    def moved(rows: Rows, here: Oracle, c: int) -> Rows:
        aside = _WithoutStatistics(here, statistics)
        after = step(rows, aside, c)
        last = rows.w[..., -statistics:]
        new = last if aside.moves is None else last - aside.moves
        return after._replace(w=torch.cat((after.w[..., :-statistics], new), -1))

    w, moments = _stepped(first, oracle, steps, moved if statistics else step)
    return w, moments | _steps_taken(start, steps)


class _WithoutStatistics:
    """An oracle whose gradients are zero at the statistics; it keeps how far those move.

    Args:
        count: how many of the last coordinates are statistics.
    """

    def __init__(self, oracle: Oracle, count: int) -> None:
        self.oracle, self.count, self.moves = oracle, count, cast(Tensor | None, None)

    def at(self, step: int) -> Oracle:
        """The same at another local step."""
        return _WithoutStatistics(self.oracle.at(step), self.count)

    def batch(self, w: Tensor) -> Tensor:
        g = self.oracle.batch(w)
        self.moves = g[..., -self.count :] if self.moves is None else self.moves
        return self._zeroed(g)

    def full(self, w: Tensor) -> Tensor:
        return self._zeroed(self.oracle.full(w))

    def _zeroed(self, g: Tensor) -> Tensor:
        return pad(g[..., : -self.count], (0, self.count))


def _usual_work(
    algorithm: Algorithm, start: Start, oracle: Oracle, steps: Steps, rnd: Round, layout: Layout
) -> tuple[Vectors, Vectors]:
    if not algorithm.local.plain:
        return _optimised_work(algorithm, start, oracle, steps, rnd, layout)
    w, client, _, down = start[:4]
    plain = loops.is_plain(algorithm, "local_step") and loops.is_plain(algorithm, "gradient")
    if plain and steps.per_client is None and isinstance(oracle, OracleInPieces) and not w.is_cuda:
        new = torch.empty_like(w, memory_format=torch.contiguous_format)
        corrects = loops.is_plain(algorithm, "direction")
        loop = loops.local_step(algorithm.corrections(client, down) if corrects else (), w, rnd)
        for c in range(steps.most):
            before = w if c == 0 else new
            _step_in_pieces(algorithm, before, client, down, oracle.at(c), rnd, new, loop)
        return loops.upload(algorithm, down, new, rnd) or algorithm.upload(client, down, new, rnd), {}
    walked = _walk(algorithm, start, oracle, steps, rnd) if w.is_cuda else None
    if walked is not None:
        return algorithm.upload(client, down, walked, rnd), {}
    w, _ = _stepped(_plain_rows(start, rnd), oracle, steps, _plain_step(algorithm))
    return algorithm.upload(client, down, w, rnd), {}


def _plain_rows(start: Start, rnd: Round) -> "Rows":
    return Rows(start.w, {}, start.client, start.down, rnd)


def _plain_step(algorithm: Algorithm) -> "Step":
    def step(rows: Rows, here: Oracle, c: int) -> Rows:
        moved = algorithm.local_step(rows.w, rows.client, rows.down, here, rows.rnd)
        return rows._replace(w=returned.moved(algorithm, rows.w, moved))

    return step


def _optimised_work(
    algorithm: Algorithm, start: Start, oracle: Oracle, steps: Steps, rnd: Round, layout: Layout
) -> tuple[Vectors, Vectors]:
    """The same for steps by an optimiser; a client that has taken its steps keeps model and moments."""
    w, client, _, down = start[:4]
    first, local, meant = _optimised_rows(algorithm, start, steps, rnd), algorithm.local, None
    moments, begun = first.moments, Begun(first.moments, cast(Tensor, first.taken))
    inside = local.correction == "inside"
    pieces = local.in_pieces and inside and loops.is_plain(algorithm, "gradient")
    if pieces and steps.per_client is None and isinstance(oracle, OracleInPieces) and not w.is_cuda:
        new = torch.empty_like(w, memory_format=torch.contiguous_format)
        for c in range(steps.most):
            at = first.at(c, layout)
            _optimised_in_pieces(algorithm, new if c else w, new, moments, client, down, oracle.at(c), at)
        meant, w = loops.upload(algorithm, down, new, rnd), new
    elif w.is_cuda and inside and (walked := _walk(algorithm, start, oracle, steps, rnd, begun)) is not None:
        w = walked
    else:
        w, moments = _stepped(first, oracle, steps, _optimised_step(algorithm, layout))
    return meant or algorithm.upload(client, down, w, rnd), moments | _steps_taken(start, steps)


def _optimised_rows(algorithm: Algorithm, start: Start, steps: Steps, rnd: Round) -> "Rows":
    begun = _begun(start, algorithm.local)
    mean = rnd.eta if steps.per_client is None else rnd.path / steps.per_client
    return Rows(start.w, begun.moments, start.client, start.down, rnd, mean, begun.taken)


def _optimised_step(algorithm: Algorithm, layout: Layout) -> "Step":
    def step(rows: Rows, here: Oracle, c: int) -> Rows:
        w, held, client, down, rnd = rows[:5]
        after = algorithm.optimised_step(w, held, client, down, here, rnd, rows.at(c, layout))
        moved, changed = returned.optimised(algorithm.local, w, held, after)
        return rows._replace(w=moved, moments=changed)

    return step


def _steps_taken(start: Start, steps: Steps) -> Vectors:
    """How many steps clients have taken with their moments; empty if they do not keep them."""
    taken = steps.most if steps.per_client is None else steps.per_client
    return {STEPS: start.moments[STEPS] + taken} if start.moments else {}


def _begun(start: Start, local: LocalOptimiser) -> Begun:
    """What the clients' optimiser begins from; its moments may be written over."""
    kept = start.moments
    given = {name: x for name, x in kept.items() if name != STEPS} or local.init(start.w)
    held = [start.w, *kept.values()]  # moments that lie in the memory of these are copied
    moments = dict(zip(given, apart([*held, *given.values()])[len(held) :], strict=True))
    none = torch.zeros((), dtype=torch.float64, device=start.w.device)
    return Begun(moments, kept[STEPS].double() if kept else none)


class Rows(NamedTuple):
    """Clients between two local steps. Models, moments and states have one row per client."""

    w: Tensor
    moments: Vectors
    client: Any
    down: Vectors  # one vector that all have, or one row per client
    rnd: Round  # numbers, or columns with one per client
    mean: float | Tensor = 0.0  # the same; see LocalStep
    taken: float | Tensor = 0.0  # the same: steps with these moments before this round

    def at(self, c: int, layout: Layout) -> LocalStep:
        """The facts of step c, from 0 on."""
        number: Any = self.taken + (c + 1)
        return LocalStep(self.rnd.rate, number, layout, self.mean, self.rnd.pull)

    def some(self, rows: slice | Tensor) -> "Rows":
        """Some of the clients."""
        return Rows(
            self.w[rows],
            {name: x[rows] for name, x in self.moments.items()},
            type(self.client)(*(x[rows] for x in self.client)),
            {name: _cut(x, rows) for name, x in self.down.items()},
            Round(*(_cut(x, rows) for x in self.rnd)),
            _cut(self.mean, rows),
            _cut(self.taken, rows),
        )


def _cut(x: Any, rows: slice | Tensor) -> Any:
    """Some rows of what has one per client; what all share as it is."""
    return x[rows] if isinstance(x, Tensor) and x.dim() > 1 else x


Step = Callable[[Rows, Oracle, int], Rows]  # of clients, their oracle and a step's number, to them after it


def _stepped(rows: Rows, oracle: Oracle, steps: Steps, step: Step) -> tuple[Tensor, Vectors]:
    """Clients' models and moments after all local steps; one that has taken its own keeps what it has.

    Where the host knows who takes how many, those with most to do come first, and others leave one by one.
    """
    ranking, own = steps.ranking, steps.per_client
    if ranking is None or not isinstance(oracle, PartedOracle):
        for c, here in enumerate(_oracles(oracle, steps.most, rows.w.dtype)):
            after = step(rows, here, c)
            rows = after if own is None else _of_some(c < own, after, rows)
        return rows.w, rows.moments
    rows, oracle = rows.some(ranking.order), oracle.some(ranking.order)
    every = _oracles(oracle, steps.most, rows.w.dtype) if rows.w.is_cuda else []
    done, ended = 0, list[Rows]()
    for end, count in ranking.stretches(steps.most):
        some = slice(count)
        ended.append(rows.some(slice(count, None)))
        rows, few = rows.some(some), oracle.some(some)
        for c in range(done, end):
            rows = step(rows, every[c].some(some) if every else few.at(c), c)  # type: ignore[attr-defined]
        done = end
    parts = [rows, *reversed(ended)]
    moments = {name: torch.cat([part.moments[name] for part in parts]) for name in rows.moments}
    back = ranking.places
    return torch.cat([part.w for part in parts])[back], {name: x[back] for name, x in moments.items()}


def _of_some(moves: Tensor, after: Rows, before: Rows) -> Rows:
    """Clients after a step that some of them take; the others are as before."""
    moments = {name: torch.where(moves, x, before.moments[name]) for name, x in after.moments.items()}
    return after._replace(w=torch.where(moves, after.w, before.w), moments=moments)


def _optimised_in_pieces(
    algorithm: Algorithm,
    w: Tensor,
    new: Tensor,
    moments: Vectors,
    client: Any,
    down: Vectors,
    oracle: Any,
    at: LocalStep,
) -> None:
    """Write the models after one local step to `new`, and the moments over those before, piece by piece."""
    local, loop = algorithm.local, loops.optimised_step(algorithm.local, w, at)
    for piece in oracle.pieces(w):
        cut = _cutter(piece, w.shape[-1])
        here = {name: cut(x) for name, x in moments.items()}
        below = {name: cut(x) for name, x in down.items()}
        g = algorithm.direction(piece.values, type(client)(*map(cut, client)), below)
        if loop is not None:
            loop(w, piece._replace(values=g), moments, new)
            continue
        rows = at._replace(**{key: _rows(getattr(at, key), piece) for key in ("eta", "number", "mu")})
        moved, after = returned.optimised(local, g, here, local.taken(cut(w), g, below["w"], here, rows))
        cut(new).copy_(moved)
        for name, x in after.items():
            here[name].copy_(x)


def _cutter(piece: Piece, d: int) -> Callable[[Tensor], Tensor]:
    """A function that takes the same part as a piece out of other vectors, and out of columns."""

    def cut(x: Tensor) -> Tensor:
        x = x[piece.rows] if x.dim() > 1 else x
        return x[..., piece.place] if x.shape[-1] == d else x

    return cut


def _rows(number: Any, piece: Piece) -> Any:
    """The numbers of a piece's rows out of a column; a single number as it is."""
    return number[piece.rows] if isinstance(number, Tensor) and number.dim() else number


def _oracles(oracle: Oracle, count: int, dtype: torch.dtype) -> Sequence[Oracle]:
    """The oracle of each local step."""
    if isinstance(oracle, WalkingOracle):
        return oracle.steps(count, dtype)
    return [oracle.at(c) for c in range(count)]


def _walk(
    algorithm: Algorithm, start: Start, oracle: Oracle, steps: Steps, rnd: Round, begun: Begun | None = None
) -> Tensor | None:
    """The models after all local steps, if the oracle can take them; None if it cannot.

    Args:
        begun: what the optimiser begins from, written over; None: steps are plain.
    """
    kind = type(algorithm)  # an engine may have compiled the methods of the algorithm itself
    lines = ("local_step", "gradient", "direction")
    plain = all(getattr(kind, line) is getattr(Algorithm, line) for line in lines)
    if not plain or not isinstance(oracle, WalkingOracle) or isinstance(rnd.pull, Tensor):
        return None
    w, client, _, down = start[:4]
    eta = torch.as_tensor(rnd.rate if begun else rnd.eta, dtype=w.dtype, device=w.device).reshape(1, -1)
    eta = eta.expand(steps.most, len(w))
    if steps.per_client is not None:
        every = torch.arange(steps.most, device=w.device).unsqueeze(-1)
        eta = eta * (every < steps.per_client.reshape(1, -1))
    shared = down["w"].dim() == 1
    corrections = algorithm.corrections(client, down)
    delta = reduce(torch.add, corrections).expand(len(w), -1) if corrections else None
    return oracle.walk(down["w"] if shared else w, eta.contiguous(), delta, algorithm.local, begun)


def _step_in_pieces(
    algorithm: Algorithm,
    w: Tensor,
    client: Any,
    down: Vectors,
    oracle: Any,
    rnd: Round,
    new: Tensor,
    loop: loops.Step | None,
) -> None:
    """Write the models after one local step to `new`, each piece while the processor's cache holds it.

    Args:
        new: may be w itself.
        loop: takes a piece of the step, if there is one for the method.
    """
    for piece in oracle.pieces(w):
        if loop is not None:
            loop(w, piece, new)
            continue
        cut = _cutter(piece, w.shape[-1])
        state = type(client)(*map(cut, client))
        direction = algorithm.direction(piece.values, state, {name: cut(x) for name, x in down.items()})
        descend(cut(w), _rows(rnd.eta, piece), direction, out=cut(new))
