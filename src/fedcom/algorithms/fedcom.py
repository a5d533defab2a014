"""FedCOM (Algorithm 1): federated averaging of compressed updates, with local and global rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import Algorithm, AutoRate


@dataclass(frozen=True, kw_only=True)
class FedCOM(Algorithm):
    """FedCOM: FedAvg with compressed updates and any global rate (Algorithm 1)."""

    gamma: float | AutoRate = 4.0

    name: ClassVar[str] = "fedcom"
    averages_models: ClassVar[bool] = True
    uplink: ClassVar[Mapping[str, Any]] = {"name": "int", "bits": 8}
