"""FedExP (Jhunjhunwala, Wang and Joshi, 2023): a global rate that grows with the differences between clients.

    gamma = max(1, mean |Delta_j|^2 / (2 (|mean Delta|^2 + epsilon))),  Delta = eta D

Clients send |D_j|^2 beside D_j. Where all send the same, gamma is 1 and this is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedcom.algorithms.base import Algorithm, Round
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


@dataclass(frozen=True, kw_only=True)
class FedExP(Algorithm):
    """FedExP: FedAvg that goes further the more clients' updates differ; it sets gamma itself.

    Args:
        epsilon: what is added to |mean Delta|^2, in the model's units squared; the larger, the more careful.
    """

    epsilon: float = 1e-3

    name: ClassVar[str] = "fedexp"
    numbers: ClassVar[tuple[str, ...]] = ("square",)
    fixed: ClassVar[Mapping[str, Any]] = {"gamma": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon <= 0:
            raise ConfigError(f"epsilon must be above 0; got {self.epsilon}")

    def measure(self, vectors: Vectors, rnd: Round) -> Vectors:
        return {"square": _square(vectors["D"])}

    def server_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        D, epsilon = mean["D"], self.epsilon / rnd.eta**2
        return (mean["square"] / (2 * (_square(D) + epsilon))).clamp(min=1) * D

    def mean_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"]

    def largest_number(self, number: str, longest: Mapping[str, float], rnd: Round) -> float:
        return (longest["D"] / float(rnd.eta)) ** 2


def _square(x: Tensor) -> Tensor:
    """|x|^2, in one column."""
    return (x * x).sum(-1, keepdim=True)
