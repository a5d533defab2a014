"""Federated averaging (McMahan et al., 2017), with a global rate that is 1 by default."""

from dataclasses import dataclass
from typing import ClassVar

from fedcom.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Federated averaging: local SGD with sampled clients, client weights and a global rate.

    As in the other methods here, all clients weigh the same by default; McMahan et al. weigh them by size,
    which is weights="size".
    """

    name: ClassVar[str] = "fedavg"
    averages_models: ClassVar[bool] = True
    compresses: ClassVar[str | None] = "fedpaq"
