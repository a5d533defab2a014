"""Federated averaging with an optimiser at the server: FedAvgM, FedAdam, FedYogi and FedAdagrad.

Any other method takes the same optimisers (`server.name`); these are their published names. They accept any
codec, and send updates as they are by default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import Algorithm, AutoRate
from fedcom.algorithms.optimisers import Adagrad, Adam, Momentum, ServerOptimiser, Yogi

_MOMENTUM, _ADAM, _YOGI, _ADAGRAD = Momentum(), Adam(), Yogi(), Adagrad()


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm):
    """FedAvgM (Hsu et al., 2019): federated averaging with momentum at the server.

    Momentum is normalised here, so gamma 10 with momentum 0.9 is the published step of rate 1.
    """

    gamma: float | AutoRate = 10.0
    server: ServerOptimiser = _MOMENTUM

    name: ClassVar[str] = "fedavgm"
    averages_models: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class FedAdam(Algorithm):
    """FedAdam (Reddi et al., 2021): federated averaging with Adam at the server; gamma is not used."""

    server: ServerOptimiser = _ADAM

    name: ClassVar[str] = "fedadam"
    averages_models: ClassVar[bool] = True
    fixed: ClassVar[Mapping[str, Any]] = {"gamma": 1.0}


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedYogi (Reddi et al., 2021): federated averaging with Yogi at the server; gamma is not used."""

    server: ServerOptimiser = _YOGI

    name: ClassVar[str] = "fedyogi"


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(FedAdam):
    """FedAdagrad (Reddi et al., 2021): federated averaging with Adagrad at the server; gamma is not used."""

    server: ServerOptimiser = _ADAGRAD

    name: ClassVar[str] = "fedadagrad"
