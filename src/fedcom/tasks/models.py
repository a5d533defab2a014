"""The models that the command line knows by name; in the library any torch.nn.Module will do."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedcom.data import Dataset
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.formats import counted
from fedcom.registry import Registry, derived_from
from fedcom.tasks.language import Gru, Transformer
from fedcom.tasks.llama import Llama
from fedcom.tasks.losses import Loss
from fedcom.tasks.model import Model
from fedcom.tasks.own_models import as_model


@runtime_checkable
class OwnData(Protocol):
    """A model that comes with its own data."""

    def data(self, clients: int, draw: Draw) -> Dataset:
        """The data of some number of clients."""


@dataclass(frozen=True)
class Mlp(Model):
    """Fully connected ReLU layers; two of width 200 by default, as in the paper.

    Args:
        hidden: the width of each hidden layer.
    """

    hidden: tuple[int, ...] = (200, 200)

    name: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(
                f"hidden needs one positive width per layer, such as 200,200; got {self.hidden}"
            )

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        widths = [prod(shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@dataclass(frozen=True)
class Logistic(Model):
    """One linear layer: convex, for checking theory on data."""

    name: ClassVar[str] = "logistic"

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


@dataclass(frozen=True)
class Binary(Model):
    """One linear layer with one output, for two classes: logistic regression with a number per feature."""

    name: ClassVar[str] = "binary"

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if classes != 2:
            needed = counted(classes, "output")
            raise ConfigError(f"binary is for two classes, and this data needs {needed}; take logistic")
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 1), nn.Flatten(-2))

    def loss(self) -> Loss:
        return binary_cross_entropy_with_logits


@dataclass(frozen=True)
class Cnn(Model):
    """Two 5x5 convolutions (32, 64 channels), each with 2x2 pooling, and 512 units (McMahan et al.)."""

    name: ClassVar[str] = "cnn"

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise ConfigError(f"cnn needs images of 4x4 pixels or more; one sample has shape {shape}")
        channels, height, width = shape
        return nn.Sequential(
            *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()),
            nn.Linear(512, classes),
        )


@dataclass(frozen=True)
class Lenet(Model):
    """Two 5x5 convolutions (6, 16 channels), each with 2x2 pooling, then 120 and 84 units (NIID-Bench)."""

    name: ClassVar[str] = "lenet"

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise ConfigError(f"lenet needs images of 16x16 pixels or more; one sample has shape {shape}")
        channels, *pixels = shape
        height, width = (((n - 4) // 2 - 4) // 2 for n in pixels)
        return nn.Sequential(
            *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * height * width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
            nn.Linear(84, classes),
        )


class _QuadraticModule(nn.Module):
    """Its output is the sample's loss; a sample is a curvature a and a target z, stacked."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        a, z = x.unbind(1)
        return 0.5 * (a * (self.w - z) ** 2).sum(-1)


@dataclass(frozen=True)
class Quadratic(Model):
    """f_j(w) = 1/2 (w - b_j)^T A_j (w - b_j): known L, mu, sigma and minimum 0, for checking theory.

    A_j is diagonal and differs from client to client, so that local steps drift.

    Args:
        dim: d, the number of parameters.
        L: the largest entry of every A_j.
        mu: the smallest entry of every A_j.
        sigma: a sample's gradient is its client's plus noise with E|noise|^2 = sigma^2.
        spread: the standard deviation of b_j.
        samples: how many each client has.
    """

    dim: int = 20
    L: float = 0.5
    mu: float = 0.05
    sigma: float = 0.0
    spread: float = 1.0
    samples: int = 32

    name: ClassVar[str] = "quadratic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mu <= self.L:
            raise ConfigError(f"quadratic needs 0 < mu <= L; got mu={self.mu}, L={self.L}")
        if min(self.dim, self.samples) < 1 or min(self.sigma, self.spread) < 0:
            raise ConfigError("quadratic needs dim, samples >= 1 and sigma, spread >= 0")

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return _QuadraticModule(self.dim)

    def loss(self) -> Loss:
        return torch.sub  # what is above the minimum; a function with a name, so that tasks can be pickled

    def data(self, clients: int, draw: Draw) -> Dataset:
        """One group per client; y is the constant that makes the minimum of f zero."""
        m, s, d = clients, self.samples, self.dim
        keys = draw.fold(torch.arange(m))
        a = self.mu + (self.L - self.mu) * keys.fold("curvature").uniform(d, torch.float64)
        a[:, 0], a[:, -1] = self.L, self.mu
        b = self.spread * keys.fold("optimum").normal(d, torch.float64)
        noise = keys.fold("noise").normal(s * d, torch.float64).reshape(m, s, d)
        noise = (noise - noise.mean(1, keepdim=True)) * self.sigma * (s / max(s - 1, 1) / d) ** 0.5
        z = b[:, None] + noise / a[:, None]
        x = torch.stack([a[:, None].expand(m, s, d), z], 2).reshape(m * s, 2, d)
        minimum = (0.5 * a[:, None] * (self.optimum(a, b) - z) ** 2).sum(-1).mean()
        y = minimum.expand(m * s).clone()
        groups = torch.arange(m).repeat_interleave(s)
        return Dataset("quadratic", x, y, x[:0], y[:0], classes=0, groups=groups)

    @staticmethod
    def optimum(a: Tensor, b: Tensor) -> Tensor:
        """The minimiser of the mean of the clients' losses."""
        return (a * b).sum(0) / a.sum(0)


MODELS: Registry[type[Model]] = Registry(
    "model",
    "fedcom.models",
    {m.name: m for m in (Mlp, Logistic, Binary, Cnn, Lenet, Llama, Quadratic, Gru, Transformer)},
    derived_from(Model, "or torch.nn.Module, or function that makes one"),
    adapt=as_model,
)
