"""VRL-SGD (Liang et al., 2019): FedGATE with global rate 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import AutoRate
from fedcom.algorithms.fedgate import FedGATE


@dataclass(frozen=True, kw_only=True)
class VRLSGD(FedGATE):
    """VRL-SGD: variance-reduced local SGD (FedGATE with gamma 1)."""

    gamma: float | AutoRate = 1.0

    name: ClassVar[str] = "vrl-sgd"
    fixed: ClassVar[Mapping[str, Any]] = {"gamma": 1.0}
