"""A client's local steps and what it sends after them; steps as those of local SGD are taken quicker."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedcom.algorithms.base import Algorithm, Oracle, Round
from fedcom.rounds import loops, returned
from fedcom.rounds.cohort import Steps
from fedcom.vectors import Piece, Vectors, descend


@runtime_checkable
class OracleInPieces(Oracle, Protocol):
    """An oracle that can give its gradient piece by piece."""

    def pieces(self, w: Tensor) -> Iterator[Piece]:
        """The minibatch gradient at w; where earlier pieces were, w may be written over meanwhile."""


@runtime_checkable
class WalkingOracle(Oracle, Protocol):
    """An oracle that sees all local steps at once, and may take plain ones itself."""

    def steps(self, count: int, dtype: torch.dtype) -> Sequence[Oracle]:
        """The oracles of the first local steps, for models of a dtype."""

    def walk(self, w: Tensor, eta: Tensor, delta: Tensor | None) -> Tensor | None:
        """The models after steps w - eta (g - delta); None if it cannot take them.

        Args:
            w: the models before: one row per client, or one vector that all have.
            eta: [steps, clients]; a client whose eta is zero stays where it is.
            delta: one row per client; None: zero.
        """


def local_work(
    algorithm: Algorithm, w: Tensor, client: Any, down: Vectors, oracle: Oracle, steps: Steps, rnd: Round
) -> Vectors:
    """What clients mean to send after all their local steps.

    Args:
        w: their models before, which are left as they are.
    """
    plain = loops.is_plain(algorithm, "local_step")
    if plain and steps.per_client is None and isinstance(oracle, OracleInPieces) and not w.is_cuda:
        new = torch.empty_like(w, memory_format=torch.contiguous_format)
        corrects = loops.is_plain(algorithm, "direction")
        loop = loops.local_step(algorithm.corrections(client, down) if corrects else (), w, rnd)
        for c in range(steps.most):
            before = w if c == 0 else new
            _step_in_pieces(algorithm, before, client, down, oracle.at(c), rnd, new, loop)
        return loops.upload(algorithm, down, new, rnd) or algorithm.upload(client, down, new, rnd)
    walked = _walk(algorithm, w, client, down, oracle, steps, rnd) if w.is_cuda else None
    if walked is not None:
        return algorithm.upload(client, down, walked, rnd)
    for c, here in enumerate(_oracles(oracle, steps.most, w.dtype)):
        moved = returned.moved(algorithm, w, algorithm.local_step(w, client, down, here, rnd))
        w = moved if steps.per_client is None else torch.where(c < steps.per_client, moved, w)
    return algorithm.upload(client, down, w, rnd)


def _oracles(oracle: Oracle, count: int, dtype: torch.dtype) -> Sequence[Oracle]:
    """The oracle of each local step."""
    if isinstance(oracle, WalkingOracle):
        return oracle.steps(count, dtype)
    return [oracle.at(c) for c in range(count)]


def _walk(
    algorithm: Algorithm, w: Tensor, client: Any, down: Vectors, oracle: Oracle, steps: Steps, rnd: Round
) -> Tensor | None:
    """The models after all local steps, if the oracle can take them; None if it cannot."""
    kind = type(algorithm)  # an engine may have compiled the methods of the algorithm itself
    plain = kind.local_step is Algorithm.local_step and kind.direction is Algorithm.direction
    if not plain or not isinstance(oracle, WalkingOracle):
        return None
    eta = torch.as_tensor(rnd.eta, dtype=w.dtype, device=w.device).reshape(1, -1)
    eta = eta.expand(steps.most, len(w))
    if steps.per_client is not None:
        every = torch.arange(steps.most, device=w.device).unsqueeze(-1)
        eta = eta * (every < steps.per_client.reshape(1, -1))
    shared = down["w"].dim() == 1
    corrections = algorithm.corrections(client, down)
    delta = reduce(torch.add, corrections).expand(len(w), -1) if corrections else None
    return oracle.walk(down["w"] if shared else w, eta.contiguous(), delta)


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
    d, eta = w.shape[-1], rnd.eta
    for piece in oracle.pieces(w):
        if loop is not None:
            loop(w, piece, new)
            continue
        rows, place, g = piece

        def cut(x: Tensor, rows: slice = rows, place: slice = place) -> Tensor:
            x = x[rows] if x.dim() > 1 else x
            return x[..., place] if x.shape[-1] == d else x

        state = type(client)(*map(cut, client))
        rate = eta[rows] if isinstance(eta, Tensor) and eta.dim() else eta
        direction = algorithm.direction(g, state, {name: cut(x) for name, x in down.items()})
        descend(cut(w), rate, direction, out=cut(new))
