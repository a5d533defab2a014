"""Local SGD (Stich, 2018): tau local steps, then the mean of the models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import Algorithm


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Algorithm):
    """Local SGD: tau local steps, then the mean of the models (gamma is 1)."""

    name: ClassVar[str] = "local-sgd"
    averages_models: ClassVar[bool] = True
    compresses: ClassVar[str | None] = "fedpaq"
    fixed: ClassVar[Mapping[str, Any]] = {"gamma": 1.0}
