"""Qsparse-local-SGD (Basu et al., 2019): FedCOM with top-k, then quantisation, and error feedback."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import AutoRate
from fedcom.algorithms.fedcom import FedCOM


@dataclass(frozen=True, kw_only=True)
class Qsparse(FedCOM):
    """Qsparse-local-SGD: top-k of the update, quantised, with error feedback (gamma is 1)."""

    gamma: float | AutoRate = 1.0

    name: ClassVar[str] = "qsparse"
    uplink: ClassVar[Mapping[str, Any]] = {
        "name": "topk",
        "ratio": 0.1,
        "values": "int",
        "memory": "error-feedback",
    }
    fixed: ClassVar[Mapping[str, Any]] = {"gamma": 1.0}
