"""FedNova (Wang et al., 2020): normalised averaging where clients take different numbers of local steps.

Every method here sends D_j per local step, times the nominal tau (docs/decisions/unequal-steps.md). FedNova
takes the mean number of steps of the round's clients instead, tau_eff = sum over S of p_j tau_j:

    w -= eta gamma (tau_eff/tau) mean D

With equal steps it is FedAvg, and so it is if all clients take part with uniform weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedcom.algorithms.base import Algorithm, Round
from fedcom.vectors import Vectors


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    """FedNova: FedAvg whose step is as long as the mean number of local steps of the round's clients."""

    name: ClassVar[str] = "fednova"
    numbers: ClassVar[tuple[str, ...]] = ("steps",)

    def measure(self, vectors: Vectors, rnd: Round) -> Vectors:
        return {"steps": torch.ones_like(vectors["D"][..., :1]) * rnd.path / rnd.eta}

    def server_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        return mean["steps"] / rnd.tau * mean["D"]

    def mean_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"]

    def largest_number(self, number: str, longest: Mapping[str, float], rnd: Round) -> float:
        return 1.001 * float(rnd.path / rnd.eta)  # room for rounding
