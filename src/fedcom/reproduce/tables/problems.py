"""Problems with a known optimum and smoothness; gradients are given by formulas, for many runs at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from fedcom.draws import Draw

_BITS = 32  # random bits per integer


class Problem(Protocol):
    """The losses of m clients. Tensors of models have one row per client, the clients of run 0 first."""

    @property
    def start(self) -> Tensor:
        """The model before round 0."""

    @property
    def clients(self) -> int:
        """The number of clients, m."""

    def gradient(self, w: Tensor) -> Tensor:
        """The full gradient of each row's client, at that row of w."""

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        """The random numbers for the gradients of one round of tau steps; None if gradients are exact."""

    def stochastic(self, w: Tensor, chance: Tensor, step: int) -> Tensor:
        """The stochastic gradient of each row's client in one local step.

        Args:
            chance: what `chance` returned for the round.
            step: the local step, from 0.
        """

    def gap(self, w: Tensor) -> Tensor:
        """How far the model of each run (row of w) is from the goal, relative to the start, where it is 1."""

    def losses(self, w: Tensor) -> Tensor:
        """The loss of every client at each run's model, [runs, clients]."""

    def curvatures(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest curvature that each client's loss has anywhere."""

    def noise(self) -> float:
        """sigma^2: the largest E|g~ - g|^2 that a client's stochastic gradient has anywhere."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f_j(w) = 1/2 (w - b_j)^T diag(a_j) (w - b_j) for client j.

    Args:
        a: the eigenvalues of each client, [m, d].
        b: the optimum of each client, [m, d].
        optimum: of the mean of all f_j.
        sigma: the norm of the noise that is added to every gradient; 0 for exact gradients.
    """

    a: Tensor
    b: Tensor
    optimum: Tensor
    sigma: float = 0.0

    @classmethod
    def of(
        cls,
        m: int,
        d: int,
        kappa: float,
        *,
        power: float = 0.5,
        spread: float = 0.0,
        sigma: float = 0.0,
        seed: int = 0,
    ) -> Self:
        """A quadratic with eigenvalues from 1 to 1/kappa, evenly spaced in their logarithm.

        Args:
            m: clients.
            d: coordinates.
            power: a coordinate of eigenvalue a has its optimum at a^-power. With 1, small eigenvalues make up
                most of f at the start, the worst case for linear convergence. With 0, all coordinates start
                equally far away, so f falls as 1/rounds until only the smallest eigenvalue is left.
            spread: 0 if all clients are alike; else their eigenvalues differ by up to this share, and their
                gradients at the optimum differ too, with a mean of zero.
        """
        mean = torch.logspace(0, -torch.tensor(float(kappa)).log10().item(), d, dtype=torch.float64)
        optimum = mean**-power
        each = Draw.seeded(seed).fold("quadratic").fold(torch.arange(m))
        tilt = _centred(2 * each.fold("curvature").uniform(d, torch.float64) - 1)
        pull = _centred(each.fold("pull").normal(d, torch.float64))
        a = mean * (1 + spread * tilt / tilt.abs().max().clamp(min=1))
        return cls(a, optimum - spread * pull / a, optimum, sigma)

    @property
    def start(self) -> Tensor:
        """The model before round 0."""
        return torch.zeros_like(self.optimum)

    @property
    def clients(self) -> int:
        return len(self.a)

    def gradient(self, w: Tensor) -> Tensor:
        return self.slope(w.reshape(-1, *self.a.shape) - self.b).reshape(w.shape)

    def slope(self, u: Tensor) -> Tensor:
        """The gradient at u = w - b_j."""
        return self.a * u

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        """One bit per coordinate and step: a random sign is the quickest noise of known variance."""
        if not self.sigma:
            return None
        d = self.a.shape[-1]
        return torch.stack([draw.fold("noise", block).bits(d) for block in range(-(-tau // _BITS))])

    def stochastic(self, w: Tensor, chance: Tensor, step: int) -> Tensor:
        bit: Tensor = (chance[step // _BITS] >> (step % _BITS)) & 1
        return self.gradient(w) + (2 * bit - 1) * (self.sigma / math.sqrt(w.shape[-1]))

    def gap(self, w: Tensor) -> Tensor:
        mean = self.a.mean(0)
        return (mean * (w - self.optimum) ** 2).sum(-1) / (mean * self.optimum**2).sum(-1)

    def losses(self, w: Tensor) -> Tensor:
        return (self.a * (w.unsqueeze(-2) - self.b) ** 2).sum(-1) / 2

    def curvatures(self) -> tuple[Tensor, Tensor]:
        return self.a.amin(-1), self.a.amax(-1)

    def noise(self) -> float:
        return self.sigma**2


class Wave(Quadratic):
    """f_j(w) = sum a_j (u^2/2 + 3/2 sin(u)^2)/4 with u = w - b_j: not convex, and L = 1.

    The gap is that of the squared norm of the gradient.
    """

    def slope(self, u: Tensor) -> Tensor:
        return self.a * (u + 1.5 * torch.sin(2 * u)) / 4

    def gap(self, w: Tensor) -> Tensor:
        return self._size(w) / self._size(self.start)

    def losses(self, w: Tensor) -> Tensor:
        u = w.unsqueeze(-2) - self.b
        return (self.a * (u**2 / 2 + 1.5 * torch.sin(u) ** 2)).sum(-1) / 4

    def curvatures(self) -> tuple[Tensor, Tensor]:
        return -self.a.amax(-1) / 2, self.a.amax(-1)

    def _size(self, w: Tensor) -> Tensor:
        return self.slope(w.unsqueeze(-2) - self.b).mean(-2).square().sum(-1)


@dataclass(frozen=True, eq=False)
class Logistic:
    """Logistic regression without an intercept.

    Args:
        x: features, [m, n, d].
        y: labels 0 or 1, [m, n].
        batch: samples per stochastic gradient; None for all.
        ridge: ridge/2 |w|^2 is added to every client's loss.
    """

    x: Tensor
    y: Tensor
    batch: int | None = None
    ridge: float = 0.0

    @classmethod
    def of(
        cls, m: int, d: int, n: int, *, spread: float = 0.0, batch: int | None = None, seed: int = 0
    ) -> "Logistic":
        """A problem with L = 1 and noisy labels; the last feature's scale is a third of the first's.

        Args:
            m: clients.
            d: features.
            n: samples per client.
            spread: 0 if all clients have the same data; else how much their labels' true models differ.
        """
        root = Draw.seeded(seed).fold("logistic")
        each = root.fold(torch.arange(m) if spread else torch.zeros(m, dtype=torch.int64))
        scale = torch.logspace(0, -0.5, d, dtype=torch.float64)
        truth, own = (draw.normal(d, torch.float64) for draw in (root.fold("truth"), each.fold("own")))
        x = each.fold("x").normal(n * d, torch.float64).reshape(m, n, d) * scale
        x = x / torch.linalg.matrix_norm(x.flatten(0, 1), 2) * (m * n) ** 0.5 * 2  # so that L = 1
        score = torch.einsum("mnd,md->mn", x, (truth + spread * own) / d**0.5)
        y = (score + each.fold("doubt").normal(n, torch.float64) > 0).to(torch.float64)
        return cls(x, y, batch)

    @property
    def start(self) -> Tensor:
        """The model before round 0."""
        return torch.zeros_like(self.x[0, 0])

    @property
    def clients(self) -> int:
        return len(self.x)

    def gradient(self, w: Tensor) -> Tensor:
        rows = w.reshape(-1, self.clients, w.shape[-1]).transpose(0, 1)  # [m, runs, d]
        score = rows @ self.x.mT
        g = (torch.sigmoid(score) - self.y.unsqueeze(1)) @ self.x / self.x.shape[1]
        return decayed(w, g.transpose(0, 1).reshape(w.shape), self.ridge)

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        """The indices of the samples of each step."""
        if self.batch is None:
            return None
        picked = draw.fold("batch").integers(self.x.shape[1], tau * self.batch)
        return picked.reshape(-1, tau, self.batch).transpose(0, 1)

    def stochastic(self, w: Tensor, chance: Tensor, step: int) -> Tensor:
        sample, client = chance[step], (torch.arange(len(w)) % self.clients).unsqueeze(-1)
        x, y = self.x[client, sample], self.y[client, sample]
        score = (x @ w.unsqueeze(-1)).squeeze(-1)
        g = ((torch.sigmoid(score) - y).unsqueeze(-2) @ x).squeeze(-2) / sample.shape[-1]
        return decayed(w, g, self.ridge)

    def gap(self, w: Tensor) -> Tensor:
        return (self._loss(w) - self._least) / (self._loss(self.start) - self._least)

    def losses(self, w: Tensor) -> Tensor:
        score = torch.einsum("...d,mnd->...mn", w, self.x)
        losses = (torch.nn.functional.softplus(score) - self.y * score).mean(-1)
        return losses + self.ridge / 2 * w.square().sum(-1, keepdim=True)

    def curvatures(self) -> tuple[Tensor, Tensor]:
        largest = torch.linalg.matrix_norm(self.x, 2) ** 2 / self.x.shape[1] / 4
        return torch.full_like(largest, self.ridge), largest + self.ridge

    def noise(self) -> float:
        if self.batch is None:
            return 0.0
        return float(self.x.square().sum(-1).mean(-1).max()) / self.batch

    def _loss(self, w: Tensor) -> Tensor:
        return self.losses(w).mean(-1)

    @cached_property
    def _least(self) -> Tensor:
        """The smallest loss."""
        return self._loss(minimiser(self._loss, self.start))


def minimiser(f: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """The minimiser of a convex function, by Newton's method; a step that does not lower it is halved."""
    for _ in range(100):
        slope = torch.func.grad(f)(w)
        curvature = torch.func.jacrev(torch.func.grad(f))(w) + 1e-12 * torch.eye(len(w), dtype=w.dtype)
        step = torch.linalg.solve(curvature, slope)
        t = 1.0
        while t > 1e-9 and f(w - t * step) > f(w):
            t /= 2
        w = w - t * step
        if float(step.norm()) <= 1e-10 * (1 + float(w.norm())):
            break
    return w


def decayed(w: Tensor, g: Tensor, ridge: float) -> Tensor:
    """A gradient with that of ridge/2 |w|^2 added to it."""
    return g + ridge * w if ridge else g


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)
