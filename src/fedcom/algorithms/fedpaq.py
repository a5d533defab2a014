"""FedPAQ (Reisizadeh et al., 2020): FedCOM with a global rate that is 1 by default."""

from dataclasses import dataclass
from typing import ClassVar

from fedcom.algorithms.base import AutoRate
from fedcom.algorithms.fedcom import FedCOM


@dataclass(frozen=True, kw_only=True)
class FedPAQ(FedCOM):
    """FedPAQ: federated averaging of quantised updates (FedCOM with gamma 1 by default)."""

    gamma: float | AutoRate = 1.0

    name: ClassVar[str] = "fedpaq"
