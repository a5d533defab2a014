"""Estimates of the theorems' constants, from a few gradients and Hessian products of a task at one model."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms import Algorithm
from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle
from fedcom.tasks.task import Task
from fedcom.theory.spectrum import Extremes, extremes
from fedcom.traffic.links import Links
from fedcom.vectors import Layout

CLIENTS, SAMPLES, DRAWS, PRODUCTS = 20, 512, 8, 30  # clients; samples, minibatches, products of each
_NUMBERS = 2**26  # held at once for a group of clients


class Estimate(NamedTuple):
    """A number and how far the true one may be from it, on each side (95%)."""

    value: float
    below: float = 0.0
    above: float = 0.0

    @classmethod
    def mean(cls, values: Tensor) -> "Estimate":
        """The mean of independent values, plus or minus two standard errors."""
        values = values.double().flatten()
        error = 2 * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(float(values.mean()), error, error)

    def root(self) -> "Estimate":
        """The square root of an estimate."""
        value = math.sqrt(max(self.value, 0.0))
        low, high = math.sqrt(max(self.value - self.below, 0.0)), math.sqrt(max(self.value + self.above, 0.0))
        return Estimate(value, value - low, high - value)


@dataclass(frozen=True)
class Sharpness:
    """How curved losses are at one model.

    Args:
        each: the largest eigenvalue of the Hessian of each probed client's loss.
        clients: the largest of `each`.
        mean: the largest eigenvalue of the Hessian of the mean loss.
        least: the smallest eigenvalue of that Hessian; mu if the loss is strongly convex.
    """

    each: Tensor
    clients: Estimate
    mean: Estimate
    least: Estimate


@dataclass(frozen=True)
class Probe:
    """The constants of a task at one model, each with its uncertainty.

    Args:
        sharpness: L, of clients and of the mean, and mu.
        sigma: of minibatches of the method's size, the mean over clients.
        gradient: |grad f|.
        dissimilarity: the root of the mean over clients of |grad f_j - grad f|^2.
        q: the codec's, measured on what clients would send.
        G_q: of what clients would send, over |mean of it|^2.
        probed: how many clients were looked at.
        samples: of each of them; None: all.
    """

    sharpness: Sharpness
    sigma: Estimate
    gradient: float
    dissimilarity: Estimate
    q: Estimate
    G_q: Estimate
    probed: int
    samples: int | None


class Prober:
    """Some clients of a task, looked at in groups that fit into memory.

    Args:
        w: the model to look at; None: the start.
        clients: how many to probe, evenly spaced; None: all.
        samples: of each client for Hessian products, drawn at random; all if there are no more, or if None.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        w: Tensor | None = None,
        *,
        clients: int | None = CLIENTS,
        samples: int | None = SAMPLES,
        seed: int = 0,
    ) -> None:
        self.task, self.algorithm = task, algorithm
        self.samples = samples if samples is not None and samples < task.longest else None
        self.w = task.objective.start if w is None else w
        some = torch.arange(task.clients) if task.shown is None else task.shown.cpu()
        k = len(some) if clients is None else min(clients, len(some))
        self.clients = some[torch.arange(k) * len(some) // k].to(self.w.device)
        self.draw = Draw.seeded(seed, self.w.device).fold("probe")
        sizes = task.sizes[self.clients].to(self.w.dtype)
        p = sizes if algorithm.weights == "size" else torch.ones_like(sizes)
        self.p = p / p.sum()

    def sharpness(self, products: int = PRODUCTS) -> Sharpness:
        """The ends of the spectra of the clients' Hessians, and of the Hessian of their mean."""
        own = Extremes(*map(torch.cat, zip(*(self._own(o, products) for o in self._oracles()), strict=True)))
        oracles = list(self._oracles())

        def mean_product(v: Tensor) -> Tensor:
            rows = (o.curvature(self._w(o), v.expand(len(o.clients), -1)) for o in oracles)
            return (self.p @ torch.cat(list(rows))).unsqueeze(0)

        v = self.draw.fold("mean").normal(self.w.numel(), self.w.dtype).unsqueeze(0)
        mean = extremes(mean_product, v, products)
        top = int(own.high.argmax())
        return Sharpness(
            own.high,
            Estimate(float(own.high[top]), 0.0, float(own.high_error[top])),
            Estimate(float(mean.high), 0.0, float(mean.high_error)),
            Estimate(float(mean.low), float(mean.low_error), 0.0),
        )

    def _own(self, oracle: DataOracle, products: int) -> Extremes:
        w = self._w(oracle)
        v = self.draw.fold("start").fold(oracle.clients).normal(w.shape[-1], w.dtype)
        return extremes(lambda v: oracle.curvature(w, v), v, products)

    def gradients(self) -> Tensor:
        """The full gradients of the probed clients."""
        return torch.cat([oracle.full(self._w(oracle)) for oracle in self._oracles()])

    def noise(self, draws: int = DRAWS) -> Estimate:
        """sigma, of minibatches of the method's size: |g~ - g|^2 over clients and draws."""
        if self.algorithm.batch == "full":
            return Estimate(0.0)
        found = []
        for oracle in self._oracles():
            w = self._w(oracle)
            g = oracle.full(w)
            drawn = (self._minibatch(oracle, i).batch(w) for i in range(draws))
            found.append(torch.stack([(x - g).square().sum(-1) for x in drawn]))
        # The variance differs between clients: what is uncertain is each client's, not which there are.
        each = torch.cat(found, -1).double()
        error = 2 * float((each.var(0) / draws).sum().sqrt()) / each.shape[-1] if draws > 1 else 0.0
        return Estimate(float(each.mean()), error, error).root()

    def updates(self, eta: float, steps: int) -> Tensor:
        """What the probed clients would send after some local steps from the model: D_j = (w - w_j)/eta."""
        sent = []
        for oracle in self._oracles():
            w = start = self._w(oracle)
            for i in range(steps):
                w = w - eta * self._minibatch(oracle, i).batch(w)
            sent.append((start - w) / eta)
        return torch.cat(sent)

    def codec(self, links: Links, x: Tensor, draws: int = DRAWS) -> tuple[Estimate, Estimate]:
        """q of the uplink's codec on vectors that clients send, and G_q over the square of their mean."""
        layout, size = self.task.objective.layout, x.square().sum(-1).clamp(min=torch.finfo(x.dtype).tiny)
        mean = self.p.to(x.dtype) @ x
        qs, gaps = [], []
        for i in range(1 if links.uplink.lossless else draws):
            draw = self.draw.fold("codec", i).fold(self.clients)
            heard = torch.empty_like(x)
            for codec, rows in links.uplinks(self.clients):
                heard[rows] = codec.quantise(x[rows], layout, draw[rows])
            qs.append((heard - x).square().sum(-1) / size)
            alone = links.uplink.quantise(mean, layout, self.draw.fold("codec of the mean", i))
            gap = (self.p.to(x.dtype) @ heard).square().sum() - alone.square().sum()
            gaps.append(gap / mean.square().sum().clamp(min=torch.finfo(x.dtype).tiny))
        return Estimate.mean(torch.stack(qs).mean(-1)), Estimate.mean(torch.stack(gaps))

    def _w(self, oracle: DataOracle) -> Tensor:
        return self.w.expand(len(oracle.clients), -1)

    def _oracles(self) -> Iterator[DataOracle]:
        """An oracle for each group of clients; it draws `samples` for Hessian products."""
        rows = max(1, _NUMBERS // (8 * self.w.numel() + 1))
        decay = self.algorithm.weight_decay
        for clients in torch.split(self.clients, rows):
            yield DataOracle(self.task, clients, self.draw.fold(clients), self.samples, weight_decay=decay)

    def _minibatch(self, oracle: DataOracle, i: int) -> DataOracle:
        """An oracle of the i-th minibatch of the method's size."""
        batch = None if self.algorithm.batch == "full" else self.algorithm.batch
        draw, decay = oracle.draw.fold("minibatch", i), self.algorithm.weight_decay
        return DataOracle(self.task, oracle.clients, draw, batch, weight_decay=decay)


def probe(
    task: Task,
    algorithm: Algorithm,
    links: Links,
    w: Tensor | None = None,
    *,
    clients: int | None = CLIENTS,
    samples: int | None = SAMPLES,
    seed: int = 0,
    show: Callable[[str], object] = lambda what: None,
) -> Probe:
    """Estimate all constants of a task at one model; the arguments are those of Prober.

    Args:
        algorithm: its batch, tau, weights and weight decay count; its rates do not.
        links: the codec to measure.
        show: called with the name of each part before it is measured.
    """
    prober = Prober(task, algorithm, w, clients=clients, samples=samples, seed=seed)
    show("sharpness")
    sharpness = prober.sharpness()
    show("gradients")
    g = prober.gradients()
    mean = prober.p.to(g.dtype) @ g
    apart = (g - mean).square().sum(-1)
    show("noise")
    sigma = prober.noise()
    show("codec")
    steps = algorithm.tau if isinstance(algorithm.tau, int) else max(algorithm.tau)
    x = prober.updates(0.5 / max(sharpness.clients.value, 1e-12), min(steps, 10))
    q, gap = prober.codec(links, x)
    return Probe(
        sharpness,
        sigma,
        float(mean.norm()),
        Estimate.mean(apart).root(),
        q,
        gap,
        len(prober.clients),
        prober.samples,
    )


def promised(links: Links, layout: Layout) -> float | None:
    """The q that the uplink's codec promises for every vector; None if it is biased."""
    return links.uplink.variance(layout) if links.uplink.unbiased else None
