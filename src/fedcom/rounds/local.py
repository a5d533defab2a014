"""A client's local steps, quicker where the method's step is the plain one, w - eta * direction."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from numpy import float32 as F
from torch import Tensor

from fedcom.algorithms import FedGATE
from fedcom.algorithms.base import Algorithm, Oracle, Round
from fedcom.codecs.kernels.arrays import Floats
from fedcom.codecs.kernels.jit import COMPILED, fma_jit
from fedcom.rounds.cohort import Steps
from fedcom.vectors import Piece, Vectors, descend


@runtime_checkable
class OracleInPieces(Oracle, Protocol):
    """An oracle that can give its gradient piece by piece."""

    def pieces(self, w: Tensor) -> Iterator[Piece]:
        """The minibatch gradient at w; a piece does not depend on what is written over earlier ones' w."""


def local_steps(
    algorithm: Algorithm, w: Tensor, client: Any, down: Vectors, oracle: Oracle, steps: Steps, rnd: Round
) -> Tensor:
    """The clients' models after all their local steps.

    Args:
        w: their models before, which are left as they are.
    """
    plain = type(algorithm).local_step is Algorithm.local_step and "local_step" not in vars(algorithm)
    if plain and steps.per_client is None and isinstance(oracle, OracleInPieces) and not w.is_cuda:
        new = torch.empty_like(w, memory_format=torch.contiguous_format)
        for c in range(steps.most):
            _step_in_pieces(algorithm, w if c == 0 else new, client, down, oracle.at(c), rnd, new)
        return new
    for c in range(steps.most):
        moved = algorithm.local_step(w, client, down, oracle.at(c), rnd)
        w = moved if steps.per_client is None else torch.where(c < steps.per_client, moved, w)
    return w


def _step_in_pieces(
    algorithm: Algorithm, w: Tensor, client: Any, down: Vectors, oracle: Any, rnd: Round, new: Tensor
) -> None:
    """Write the models after one local step to `new`, each piece while the processor's cache holds it.

    Args:
        new: may be w itself.
    """
    d, eta, minus = w.shape[-1], rnd.eta, _subtracted(algorithm, client, w, rnd)
    for rows, place, g in oracle.pieces(w):
        if minus is not None:
            ends = *rows.indices(len(w))[:2], *place.indices(d)[:2]
            _descend(w.numpy(), F(float(eta)), g.numpy(), minus.numpy(), new.numpy(), *ends)
            continue

        def cut(x: Tensor, rows: slice = rows, place: slice = place) -> Tensor:
            x = x[rows] if x.dim() > 1 else x
            return x[..., place] if x.shape[-1] == d else x

        state = type(client)(*map(cut, client))
        rate = eta[rows] if isinstance(eta, Tensor) and eta.dim() else eta
        direction = algorithm.direction(g, state, {name: cut(x) for name, x in down.items()})
        descend(cut(w), rate, direction, out=cut(new))


# The directions g - x of a step that one loop can take, and the x of each.
_DIFFERENCES: Mapping[Callable[..., Tensor], Callable[[Any], Tensor]] = {
    FedGATE.direction: lambda client: client.delta
}


def _subtracted(algorithm: Algorithm, client: Any, w: Tensor, rnd: Round) -> Tensor | None:
    """What the algorithm subtracts from a gradient, if a compiled loop can take its step."""
    known = _DIFFERENCES.get(type(algorithm).direction)
    one_rate = not isinstance(rnd.eta, Tensor) or not rnd.eta.dim()
    if known is None or not (COMPILED and one_rate and w.dtype == torch.float32 and _rounds_as_torch()):
        return None
    return known(client).contiguous()


@lru_cache(maxsize=1)
def _rounds_as_torch() -> bool:
    """Whether the loop has the bits of torch on this processor; they fuse products and sums alike on most."""
    w, g, delta = torch.randn(3, 1, 4099, generator=torch.Generator().manual_seed(0))
    new, eta = torch.empty_like(w), torch.tensor(0.1, dtype=torch.float64)
    _descend(w.numpy(), F(0.1), g.numpy(), delta.numpy(), new.numpy(), 0, 1, 0, 4099)
    return torch.equal(new, descend(w, eta, g - delta)) and torch.equal(new, descend(w, 0.1, g - delta))


@fma_jit
def _descend(
    w: Floats, eta: F, g: Floats, delta: Floats, new: Floats, first: int, last: int, start: int, stop: int
) -> None:
    """Fill some coordinates of some rows of `new` with w - eta (g - delta); g has only those."""
    for r in range(first, last):
        a, b, c, out = w[r, start:stop], g[r - first], delta[r, start:stop], new[r, start:stop]
        for i in range(len(out)):
            out[i] = a[i] - eta * (b[i] - c[i])
