"""How clients take their local steps: plainly, with momentum, by AdamW or by Muon.

A method says what the gradient g of a local step is (`Algorithm.gradient`), corrections included. Around the
optimiser's step, in this order and for each client by itself:

    g <- g + mu (w_j - w)           FedProx: a pull towards the server's model w
    g <- g min(1, clip/|g|)         one norm over the whole gradient
    w_j <- w_j - eta weight_decay w_j
    w_j <- the optimiser's step along g

What an optimiser keeps is one vector per moment and client. It begins anew each round unless `keep` is set
(docs/decisions/local-optimisers.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedcom import settings
from fedcom.algorithms.optimisers import Optimiser
from fedcom.errors import ConfigError
from fedcom.registry import Registry, derived_from
from fedcom.vectors import Layout, Vectors, descend

_SHARES = ("momentum", "beta1", "beta2")
_TINY = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to a norm
_NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # Muon's polynomial


class LocalStep(NamedTuple):
    """The facts of one local step."""

    eta: float | Tensor  # its size; a column if the rows are of several runs
    number: Tensor  # it is the client's 1st, 2nd, ...; a column if clients differ, like w if coordinates do
    layout: Layout  # where the tensors of the model lie in the flat vector
    mean: float | Tensor  # eta times the weight of a gradient in the client's steps, on average
    mu: float | Tensor | None = None  # of FedProx; a column if the rows are of runs that differ in it


class Begun(NamedTuple):
    """What an optimiser has when the local steps of a round begin."""

    moments: Vectors  # by name, one row per client
    taken: Tensor  # how many steps were taken with them; a column if clients differ

    def numbers(self, steps: int, clients: int) -> Tensor:
        """The number of each step of each client [steps, clients], from 1 on."""
        every = torch.arange(1, steps + 1, device=self.taken.device).unsqueeze(-1)
        return (every + self.taken.reshape(1, -1)).expand(steps, clients)


@dataclass(frozen=True)
class LocalOptimiser(Optimiser):
    """How clients step along their gradients.

    Args:
        keep: whether a client keeps its moments between rounds, or begins each round anew.
        clip: the largest norm of a client's gradient, corrections included; None: no limit.
        weight_decay: eta times this times w is taken off w in every step, beside the gradient.
        mu: this times (w_j - w) is added to the gradient: FedProx.
        correction: "inside": what a tracking method corrects is the gradient; "outside": w, after the
            optimiser's step along a gradient that is not corrected, as SCAFFOLD in Flower does.

    Attributes:
        linear: whether its steps are sums of gradients with weights that `reach` adds up.
        by_coordinate: whether `step` does each coordinate by itself, so that it can be taken in pieces.
    """

    keep: bool = False
    clip: float | None = None
    weight_decay: float = 0.0
    mu: float = 0.0
    correction: Literal["inside", "outside"] = "inside"

    section: ClassVar[str] = "local"
    linear: ClassVar[bool] = False
    by_coordinate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settings.check(self)
        for key, value in vars(self).items():
            if key in _SHARES and not 0 <= value < 1:
                raise ConfigError(f"{key} must be in [0, 1); got {value}")
            if key in ("weight_decay", "mu") and value < 0:
                raise ConfigError(f"{key} must be zero or more; got {value}")
            if key in ("clip", "eps", "adamw") and value is not None and value <= 0:
                raise ConfigError(f"{key} must be above 0; got {value}")

    @classmethod
    def registry(cls) -> Registry[Any]:
        return LOCAL_OPTIMISERS

    @property
    def plain(self) -> bool:
        """Whether a step is w - eta g and nothing else."""
        return self == PLAIN_STEPS

    @property
    def shared(self) -> tuple["LocalOptimiser", bool]:
        """What runs of one stack must have in common: all but mu, and whether steps are plain.

        A class that overrides `taken` may use mu as it likes, so there mu must be the same too.
        """
        may_differ = type(self).taken is LocalOptimiser.taken
        return replace(self, mu=0.0) if may_differ else self, self.plain

    @property
    def in_pieces(self) -> bool:
        """Whether a step may be taken some coordinates at a time."""
        return self.by_coordinate and self.clip is None

    def init(self, w: Tensor) -> Vectors:
        """The moments before the first step, by name, each of the shape of w: one row per client."""
        return {}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        """The models and the moments after a step along g."""
        raise NotImplementedError

    def reach(self, steps: Any) -> Any:
        """How far a round of so many steps goes, in steps of SGD: the weights of all gradients in w - w_j.

        With moments that are kept, what it comes to in the long run. If there is no such sum: `steps`.

        Args:
            steps: a number, or a tensor of numbers.
        """
        return steps

    def taken(
        self, w: Tensor, g: Tensor, start: Tensor, moments: Vectors, at: LocalStep
    ) -> tuple[Tensor, Vectors]:
        """The models and the moments after a step, with all that goes around it.

        Args:
            start: the server's model.
        """
        mu = self.mu if at.mu is None else at.mu
        if isinstance(mu, Tensor) and w.is_cuda:  # a pass over the vectors less
            g = torch.addcmul(g, mu, w - start)
        elif isinstance(mu, Tensor) or mu:
            g = g + mu * (w - start)
        if self.clip is not None:
            norm: Tensor = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g = g * (self.clip / (norm + _TINY)).clamp(max=1)
        if self.weight_decay:
            w = descend(w, at.eta * self.weight_decay, w)
        return self.step(w, g, moments, at)


@dataclass(frozen=True)
class PlainSteps(LocalOptimiser):
    """SGD: w - eta g."""

    name: ClassVar[str] = "sgd"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        return descend(w, at.eta, g), {}


@dataclass(frozen=True)
class MomentumSteps(LocalOptimiser):
    """torch.optim.SGD with momentum: b = momentum b + g, and a step of eta b.

    Args:
        momentum: the share of b that each step keeps.
        nesterov: whether the step is eta (g + momentum b) instead.
    """

    momentum: float = 0.9
    nesterov: bool = False

    name: ClassVar[str] = "momentum"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True

    def init(self, w: Tensor) -> Vectors:
        return {"momentum": torch.zeros_like(w)}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        b = torch.add(g, moments["momentum"], alpha=self.momentum)
        along = torch.add(g, b, alpha=self.momentum) if self.nesterov else b
        return descend(w, at.eta, along), {"momentum": b}

    def reach(self, steps: Any) -> Any:
        """The k-th gradient before the end enters with 1 + mu + ... + mu^(k-1), later with 1/(1 - mu)."""
        mu = self.momentum
        if self.keep:
            return steps / (1 - mu)
        missing = mu * (1 - mu**steps) / (1 - mu)  # what would still come of these gradients
        return (steps - (mu if self.nesterov else 1) * missing) / (1 - mu)


@dataclass(frozen=True)
class AdamWSteps(LocalOptimiser):
    """torch.optim.AdamW: Adam with bias correction and decoupled weight decay.

    Args:
        beta1: the share of the mean gradient that each step keeps.
        beta2: the share of the mean square that each step keeps.
        eps: added to the root of the mean square.
    """

    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    name: ClassVar[str] = "adamw"
    by_coordinate: ClassVar[bool] = True

    def init(self, w: Tensor) -> Vectors:
        return {"momentum": torch.zeros_like(w), "square": torch.zeros_like(w)}

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        m = torch.lerp(moments["momentum"], g, 1 - self.beta1)
        v = torch.addcmul(self.beta2 * moments["square"], g, g, value=1 - self.beta2)
        size, root = self.scales(at, w.dtype)
        if v.is_cuda:  # m / (sqrt(v)/root + eps), with a pass over the vectors less
            size, along = size * root, m / v.sqrt().add_(self.eps * root)
        else:  # where v.sqrt() is not rounded as a compiled loop rounds it; v.rsqrt() is
            along = m / ((v.rsqrt() * root).reciprocal() + self.eps)
        return descend(w, size, along), {"momentum": m, "square": v}

    def scales(self, at: LocalStep, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What corrects the moments' bias: the size of the step, and what the root is divided by."""
        size = at.eta / (1 - self.beta1**at.number)
        return size.to(dtype), (1 - self.beta2**at.number).sqrt().to(dtype)


@dataclass(frozen=True)
class MuonSteps(AdamWSteps):
    """torch.optim.Muon for the model's matrices, and AdamW for its other tensors.

    M = momentum M + (1 - momentum) G; a matrix moves by eta sqrt(max(1, rows/columns)) O, with O the nearest
    orthogonal matrix to momentum M + (1 - momentum) G, about: five Newton-Schulz steps, in bfloat16.

    Args:
        momentum: the share of M that each step keeps.
        adamw: eta of the other tensors over that of the matrices.
    """

    weight_decay: float = 0.1
    momentum: float = 0.95
    adamw: float = 1.0

    name: ClassVar[str] = "muon"
    by_coordinate: ClassVar[bool] = False

    def step(self, w: Tensor, g: Tensor, moments: Vectors, at: LocalStep) -> tuple[Tensor, Vectors]:
        split, m, v = at.layout.split, moments["momentum"], moments["square"]
        each = split(at.number.expand_as(w)) if at.number.shape == w.shape else [at.number] * len(split(w))
        parts = zip(at.layout.shapes, split(w), split(g), split(m), split(v), each, strict=True)
        moved = [
            self._tensor(shape, (w, g), {"momentum": m, "square": v}, at._replace(number=number))
            for shape, w, g, m, v, number in parts
        ]
        names = {name: torch.cat([moments[name] for _, moments in moved], dim=-1) for name in moments}
        return torch.cat([w for w, _ in moved], dim=-1), names

    def _tensor(
        self, shape: tuple[int, ...], of: tuple[Tensor, Tensor], moments: Vectors, at: LocalStep
    ) -> tuple[Tensor, Vectors]:
        """A step of one tensor of the model."""
        w, g = of
        if len(shape) != 2:
            return super().step(w, g, moments, at._replace(eta=at.eta * self.adamw))
        m = torch.lerp(moments["momentum"], g, 1 - self.momentum)
        along = orthogonal(torch.lerp(g, m, self.momentum).reshape(-1, *shape))
        eta = at.eta * math.sqrt(max(1, shape[0] / shape[1]))
        return descend(w, eta, along.reshape(w.shape).to(w.dtype)), {**moments, "momentum": m}


def orthogonal(x: Tensor) -> Tensor:
    """Matrices with the singular vectors of those in x, and all singular values near one; in bfloat16.

    On a CPU one by one, which has the bits of torch.optim.Muon.
    """
    if x.is_cuda:
        return _newton_schulz(x, torch.baddbmm)
    return torch.stack([_newton_schulz(matrix, torch.addmm) for matrix in x])


def _newton_schulz(x: Tensor, added: Callable[..., Tensor]) -> Tensor:
    """Five steps towards an orthogonal matrix.

    Args:
        added: (x, a, b) to beta x + alpha a b.
    """
    a, b, c = _NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = x.bfloat16().mT if tall else x.bfloat16()
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = added(x, added(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


PLAIN_STEPS = PlainSteps()
LOCAL_OPTIMISERS: Registry[type[LocalOptimiser]] = Registry(
    "local optimiser",
    "fedcom.local_optimisers",
    {kind.name: kind for kind in (PlainSteps, MomentumSteps, AdamWSteps, MuonSteps)},
    derived_from(LocalOptimiser),
)
