"""Problems with a known optimum and smoothness, their gradients written out, for many runs at once."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from fedcom.draws import Draw

_BITS = 32  # of one random integer


class Problem(Protocol):
    """Losses of m clients; rows are clients, of one run after another."""

    @property
    def start(self) -> Tensor:
        """The model before round 0."""

    @property
    def clients(self) -> int:
        """m."""

    def gradient(self, w: Tensor) -> Tensor:
        """Each row's gradient of its client's whole loss."""

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        """What is random in the gradients of one round, drawn at once; None: nothing."""

    def stochastic(self, w: Tensor, chance: Tensor, step: int) -> Tensor:
        """Each row's gradient of one local step, from a part of its client's data or with noise."""

    def gap(self, w: Tensor) -> Tensor:
        """How far each run's model is from the goal, as a share of where it starts: 1 at first, then less."""


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f_j(w) = 1/2 (w - b_j)^T diag(a_j) (w - b_j); the mean of a_j and the optimum of f are given."""

    a: Tensor
    b: Tensor
    optimum: Tensor
    sigma: float = 0.0

    @classmethod
    def of(
        cls, m: int, d: int, kappa: float, *, power: float = 0.5, spread: float = 0.0, sigma: float = 0.0,
        seed: int = 0,
    ) -> Self:  # fmt: skip
        """L = 1, eigenvalues evenly spaced in their logarithm, the optimum at their power -p.

        power: 1: small eigenvalues have most of f at the start, the worst for a linear rate; 0: all are as
            far away, so that f falls as 1/rounds until the smallest is felt.
        spread: 0: all clients alike; else clients' curvatures differ by up to this share, and so do their
            gradients at the optimum, whose mean is zero.
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
        return (self.a * (w.reshape(-1, *self.a.shape) - self.b)).reshape(w.shape)

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        """One bit a coordinate and step: a sign is the quickest noise of a known variance."""
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


class Wave(Quadratic):
    """f_j(w) = sum a_j (u^2/2 + 3/2 sin(u)^2)/4 with u = w - b_j: not convex, but L = 1 still.

    The goal is a vanishing gradient.
    """

    def gradient(self, w: Tensor) -> Tensor:
        return self._gradient(w.reshape(-1, *self.a.shape)).reshape(w.shape)

    def gap(self, w: Tensor) -> Tensor:
        return self._size(w) / self._size(self.start)

    def _gradient(self, w: Tensor) -> Tensor:
        u = w - self.b
        return self.a * (u + 1.5 * torch.sin(2 * u)) / 4

    def _size(self, w: Tensor) -> Tensor:
        return self._gradient(w.unsqueeze(-2)).mean(-2).square().sum(-1)


@dataclass(frozen=True, eq=False)
class Logistic:
    """Logistic regression without an intercept; x is [m, n, d], y is [m, n]. batch: None: all samples."""

    x: Tensor
    y: Tensor
    batch: int | None = None

    @classmethod
    def of(
        cls, m: int, d: int, n: int, *, spread: float = 0.0, batch: int | None = None, seed: int = 0
    ) -> "Logistic":
        """Features whose scales fall by 3 from first to last, noisy labels; spread 0: clients share them."""
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
        return g.transpose(0, 1).reshape(w.shape)

    def chance(self, draw: Draw, tau: int) -> Tensor | None:
        """The samples of each step."""
        if self.batch is None:
            return None
        picked = draw.fold("batch").integers(self.x.shape[1], tau * self.batch)
        return picked.reshape(-1, tau, self.batch).transpose(0, 1)

    def stochastic(self, w: Tensor, chance: Tensor, step: int) -> Tensor:
        sample, client = chance[step], (torch.arange(len(w)) % self.clients).unsqueeze(-1)
        x, y = self.x[client, sample], self.y[client, sample]
        score = (x @ w.unsqueeze(-1)).squeeze(-1)
        return ((torch.sigmoid(score) - y).unsqueeze(-2) @ x).squeeze(-2) / sample.shape[-1]

    def gap(self, w: Tensor) -> Tensor:
        return (self._loss(w) - self._least) / (self._loss(self.start) - self._least)

    def _loss(self, w: Tensor) -> Tensor:
        score = w @ self.x.flatten(0, 1).mT
        return (torch.nn.functional.softplus(score) - self.y.flatten() * score).mean(-1)

    def _mean_gradient(self, w: Tensor) -> Tensor:
        x = self.x.flatten(0, 1)
        return (torch.sigmoid(w @ x.mT) - self.y.flatten()) @ x / len(x)

    @cached_property
    def _least(self) -> Tensor:
        """The least logistic loss, by Newton's method with halved steps."""
        x, w = self.x.flatten(0, 1), self.start
        for _ in range(100):
            p = torch.sigmoid(x @ w)
            hessian = (x.mT * (p * (1 - p))) @ x / len(x)
            step = torch.linalg.solve(hessian, self._mean_gradient(w))
            t = 1.0
            while t > 1e-9 and self._loss(w - t * step) > self._loss(w):
                t /= 2
            w = w - t * step
            if step.abs().max() < 1e-10 * w.abs().max():
                break
        return self._loss(w)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0)
