"""One model trained in several places: DiLoCo, MuLoCo and SparseLoCo.

They are federated averaging with optimisers at both ends: workers keep the moments of theirs between rounds,
and the server steps along the mean of their changes. Outer momentum is normalised here, so the published
rate 0.7 with momentum 0.9 is gamma 7. `fedcom.outer` takes the same steps in a training loop of your own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import Algorithm, AutoRate
from fedcom.algorithms.local_optimisers import AdamWSteps, LocalOptimiser, MuonSteps
from fedcom.algorithms.optimisers import PLAIN, Nesterov, ServerOptimiser

_ADAMW, _MUON, _NESTEROV = AdamWSteps(keep=True), MuonSteps(keep=True), Nesterov()


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Algorithm):
    """DiLoCo (Douillard et al., 2023): workers take AdamW's steps, the server Nesterov's along their mean."""

    eta: float | AutoRate = 1e-3
    gamma: float | AutoRate = 7.0
    tau: int | tuple[int, ...] = 50
    local: LocalOptimiser = _ADAMW
    server: ServerOptimiser = _NESTEROV

    name: ClassVar[str] = "diloco"
    averages_models: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class MuLoCo(DiLoCo):
    """MuLoCo (Therien et al., 2025): DiLoCo whose workers take Muon's steps, at two bits with a memory."""

    eta: float | AutoRate = 0.02
    local: LocalOptimiser = _MUON

    name: ClassVar[str] = "muloco"
    uplink: ClassVar[Mapping[str, Any]] = {
        "name": "int",
        "bits": 2,
        "rounding": "nearest",
        "memory": "decayed-feedback",
    }


@dataclass(frozen=True, kw_only=True)
class SparseLoCo(DiLoCo):
    """SparseLoCo (Sarfi et al., 2025): 64 of each 4,096 numbers in two bits, a memory, no outer momentum."""

    gamma: float | AutoRate = 1.0
    server: ServerOptimiser = PLAIN

    name: ClassVar[str] = "sparseloco"
    uplink: ClassVar[Mapping[str, Any]] = {
        "name": "topk",
        "ratio": 64 / 4096,
        "chunk": 4096,
        "values": "levels",
        "memory": "decayed-feedback",
    }
