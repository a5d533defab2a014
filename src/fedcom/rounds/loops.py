"""Some lines of the algorithms as compiled loops: one pass over vectors where torch takes several.

They serve float32 vectors on a CPU, and only where they have the bits of torch, which is tried once.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy import float32 as F
from torch import Tensor

from fedcom.algorithms.base import Algorithm, Round
from fedcom.algorithms.local_optimisers import AdamWSteps, LocalOptimiser, LocalStep, MomentumSteps
from fedcom.codecs.kernels.arrays import Floats
from fedcom.codecs.kernels.jit import COMPILED, fma_jit, jit
from fedcom.vectors import Layout, Piece, Vectors, descend, share_memory

Step = Callable[[Tensor, Piece, Tensor], None]  # (w, a piece of the gradient, the models after the step)
OptimisedStep = Callable[[Tensor, Piece, Vectors, Tensor], None]  # the same with the moments before `new`


def local_step(corrections: Sequence[Tensor], w: Tensor, rnd: Round) -> Step | None:
    """A loop that takes one piece of a local step with one correction of the gradient; None if it cannot."""
    if len(corrections) != 1 or corrections[0].shape != w.shape or not _serve(w, rnd.eta):
        return None
    delta, eta = corrections[0].contiguous().numpy(), F(float(rnd.eta))

    def step(w: Tensor, piece: Piece, new: Tensor) -> None:
        _descend(w.numpy(), eta, piece.values.numpy(), delta, new.numpy(), *_bounds(piece, w))

    return step


def optimised_step(local: LocalOptimiser, w: Tensor, at: LocalStep) -> OptimisedStep | None:
    """A loop that takes one piece of a local step by an optimiser, its moments written over; None: none."""
    if local.mu or isinstance(at.mu, Tensor) or not _serve(w, at.eta):
        return None
    if type(local) is AdamWSteps and _adam_has_bits_of_torch():
        return _adam_step(local, w, at)
    if type(local) is MomentumSteps and not (local.nesterov or local.weight_decay) and _rolls_like_torch():
        return _momentum_step(local.momentum, at)
    return None


def _momentum_step(momentum: float, at: LocalStep) -> OptimisedStep:
    mu, eta = F(momentum), F(float(at.eta))

    def step(w: Tensor, piece: Piece, moments: Vectors, new: Tensor) -> None:
        g, b = piece.values.numpy(), moments["momentum"].numpy()
        _roll(_begun(w, piece, new).numpy(), eta, g, mu, b, *_bounds(piece, w))

    return step


def _begun(w: Tensor, piece: Piece, new: Tensor) -> Tensor:
    """`new` with w in the place of a piece: a loop of two arrays that may be one is not made vector code."""
    if w.data_ptr() != new.data_ptr():
        new[piece.rows, piece.place] = w[piece.rows, piece.place]
    return new


def _adam_step(local: AdamWSteps, w: Tensor, at: LocalStep) -> OptimisedStep:
    sizes, roots = (x.expand(len(w), 1).reshape(-1).contiguous().numpy() for x in local.scales(at, w.dtype))
    shares = F(1 - local.beta1), F(local.beta2), F(1 - local.beta2), F(local.eps)
    decay = F(float(at.eta * local.weight_decay))

    def step(w: Tensor, piece: Piece, moments: Vectors, new: Tensor) -> None:
        g, m, v = (x.numpy() for x in (piece.values, moments["momentum"], moments["square"]))
        _adam(_begun(w, piece, new).numpy(), sizes, roots, decay, *shares, g, m, v, *_bounds(piece, w))

    return step


def upload(algorithm: Algorithm, down: Vectors, w: Tensor, rnd: Round) -> Vectors | None:
    """What clients mean to send, written over their models w; None if there is no loop for this method."""
    plain = is_plain(algorithm, "upload") and down["w"].dim() == 1 and w.is_contiguous()
    if not (plain and _serve(w, rnd.path)):
        return None
    path = F(float(rnd.path))
    if path == 0:  # a compiled loop may not divide by zero; eta has decayed to nothing
        return None
    _update(down["w"].numpy(), w.numpy(), F(rnd.tau), path)
    return {"D": w}


def client_step(algorithm: Algorithm, client: Any, sent: Vectors, mean: Vectors, rnd: Round) -> Any:
    """The clients' state after the round, written over the one before; None if there is no loop for it."""
    loop = getattr(algorithm.client_step, "loop", None)
    if not (loop == "track" and _serve(client.delta, rnd.alpha)):
        return None
    delta, heard, mean_heard = client.delta, sent["D"], mean["D"]
    if not (delta.dim() == 2 and mean_heard.dim() == 1 and delta.is_contiguous() and heard.is_contiguous()):
        return None
    if any(share_memory(delta, x) for x in (*client, heard, mean_heard) if x is not delta):
        return None
    _track(delta.numpy(), heard.numpy(), mean_heard.numpy(), F(float(rnd.alpha)), F(rnd.tau))
    return client


def is_plain(algorithm: Algorithm, line: str) -> bool:
    """Whether an algorithm leaves a line as it is in local SGD."""
    return getattr(type(algorithm), line) is getattr(Algorithm, line) and line not in vars(algorithm)


def _serve(x: Tensor, rate: float | Tensor) -> bool:
    """Whether the loops can take the place of torch for stacked vectors x, with the same rate for all."""
    one_rate = not isinstance(rate, Tensor) or not rate.dim()
    return COMPILED and one_rate and x.dtype == torch.float32 and not x.is_cuda and _have_bits_of_torch()


@lru_cache(maxsize=1)
def _have_bits_of_torch() -> bool:
    """Whether the loops have the bits of torch on this processor: most fuse products and sums alike."""
    w, g, delta, w0 = torch.randn(4, 1, 4099, generator=torch.Generator().manual_seed(0))
    rnd = Round(0.1, 7, torch.tensor(0.7, dtype=torch.float64), 1.0, alpha=torch.tensor(0.3))
    stepped, sent, moved = torch.empty_like(w), w.clone(), delta.clone()
    _descend(w.numpy(), F(0.1), g.numpy(), delta.numpy(), stepped.numpy(), 0, 1, 0, w.shape[1])
    _update(w0[0].numpy(), sent.numpy(), F(7), F(0.7))
    _track(moved.numpy(), g.numpy(), w0[0].numpy(), F(0.3), F(7))
    pairs = [(stepped, descend(w, eta, g - delta)) for eta in (0.1, torch.tensor(0.1, dtype=torch.float64))]
    pairs += [(sent, Algorithm().upload(None, {"w": w0[0]}, w, rnd)["D"])]
    pairs += [(moved, delta + rnd.alpha * (g - w0[0]) / rnd.tau)]
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@lru_cache(maxsize=1)
def _rolls_like_torch() -> bool:
    """Whether the loop for momentum has the bits of torch on this processor."""
    w, g, b = torch.randn(3, 1, 4099, generator=torch.Generator().manual_seed(0))
    heavy, new, rates = torch.add(g, b, alpha=0.9), w.clone(), (0.1, torch.tensor(0.1).double())
    _roll(new.numpy(), F(0.1), g.numpy(), F(0.9), b.numpy(), 0, 1, 0, w.shape[1])
    return torch.equal(b, heavy) and all(torch.equal(new, descend(w, eta, heavy)) for eta in rates)


@lru_cache(maxsize=1)
def _adam_has_bits_of_torch() -> bool:
    """Whether the loop for AdamW has the bits of torch on this processor."""
    w, g, m, v = torch.randn(4, 2, 4099, generator=torch.Generator().manual_seed(0))
    local, moments = AdamWSteps(), {"momentum": m, "square": v * v}
    number, eta = torch.tensor([[1.0], [7.0]], dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    at = LocalStep(eta, number, Layout.vector(w.shape[1]), eta)
    right, after = local.taken(w, g, w, moments, at)
    new = torch.empty_like(w)
    _adam_step(local, w, at)(w, Piece(slice(None), slice(None), g), moments, new)
    return torch.equal(new, right) and all(torch.equal(moments[name], x) for name, x in after.items())


def _bounds(piece: Piece, w: Tensor) -> tuple[int, ...]:
    """The first row and the end of the rows of a piece, and the same of its coordinates."""
    pairs = zip(piece[:2], w.shape, strict=True)
    return tuple(bound for cut, size in pairs for bound in cut.indices(size)[:2])


@fma_jit
def _descend(
    w: Floats, eta: F, g: Floats, delta: Floats, new: Floats, first: int, last: int, start: int, stop: int
) -> None:
    """Fill some coordinates of some rows of `new` with w - eta (g - delta); g has only those."""
    for r in range(first, last):
        a, b, c, out = w[r, start:stop], g[r - first], delta[r, start:stop], new[r, start:stop]
        for i in range(len(out)):
            out[i] = a[i] - eta * (b[i] - c[i])


@fma_jit
def _roll(
    w: Floats, eta: F, g: Floats, mu: F, b: Floats, first: int, last: int, start: int, stop: int
) -> None:
    """Replace some coordinates of some rows of b by mu b + g, then those of w by w - eta b."""
    for r in range(first, last):
        here, grad, moment = w[r, start:stop], g[r - first], b[r, start:stop]
        for i in range(len(here)):
            moment[i] = grad[i] + mu * moment[i]
            here[i] = here[i] - eta * moment[i]


@jit
def _rounded(a: F, b: F) -> F:
    """a b, rounded before it is added to anything."""
    return F(a * b)


@fma_jit
def _adam(
    w: Floats,
    sizes: Floats,
    roots: Floats,
    decay: F,
    share1: F,
    beta2: F,
    share2: F,
    eps: F,
    g: Floats,
    m: Floats,
    v: Floats,
    first: int,
    last: int,
    start: int,
    stop: int,
) -> None:
    """A step of AdamW along some coordinates of some rows; w, m and v are written over.

    Some coordinates at a time, in two loops: one with so many arrays is not made vector code.

    Args:
        sizes: one per row, as are the roots.
    """
    for r in range(first, last):
        for a in range(start, stop, _AT_ONCE):
            b = min(a + _AT_ONCE, stop)
            grad, mean, square = g[r - first, a - start : b - start], m[r, a:b], v[r, a:b]
            _average(grad, mean, square, share1, beta2, share2)
            _descend_by(w[r, a:b], mean, square, sizes[r], roots[r], decay, eps)


_AT_ONCE = 1024  # coordinates, which the nearest cache holds


@fma_jit
def _average(g: Floats, m: Floats, v: Floats, share1: F, beta2: F, share2: F) -> None:
    """Take a gradient into the means of gradients and of their squares."""
    for i in range(len(g)):
        m[i] = m[i] + share1 * (g[i] - m[i])
        v[i] = _rounded(beta2, v[i]) + (share2 * g[i]) * g[i]


@fma_jit
def _descend_by(w: Floats, m: Floats, v: Floats, size: F, root: F, decay: F, eps: F) -> None:
    """Replace w by w after weight decay and a step along m over the root of v."""
    for i in range(len(w)):
        deviation = F(1) / (F(1) / np.sqrt(v[i]) * root)
        kept = w[i] - decay * w[i]
        w[i] = kept - size * (m[i] / (deviation + eps))


@jit
def _update(w0: Floats, w: Floats, tau: F, path: F) -> None:
    """Replace each row of w by tau (w0 - w) / path."""
    for r in range(len(w)):
        row = w[r]
        for i in range(len(row)):
            row[i] = F(tau * F(w0[i] - row[i])) / path


@jit
def _track(delta: Floats, sent: Floats, mean: Floats, alpha: F, tau: F) -> None:
    """Add alpha (sent - mean) / tau to each row of delta."""
    for r in range(len(delta)):
        row, heard = delta[r], sent[r]
        for i in range(len(row)):
            row[i] += F(alpha * F(heard[i] - mean[i])) / tau
