"""FedCOMGATE (Algorithms 2 and 4): compressed updates with local gradient tracking.

It is FedGATE on what the server heard: delta_j moves by Q(D_j) - mean Q, so the weighted sum of all
delta_j stays zero with every codec, sampling and damping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcom.algorithms.base import AutoRate
from fedcom.algorithms.fedgate import FedGATE
from fedcom.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FedCOMGATE(FedGATE):
    """FedCOMGATE: compressed updates with local gradient tracking (Algorithms 2 and 4).

    Args:
        damping: delta moves by this times the difference; 1 is the paper. "auto": 1/(1 + q), with the q
            measured in this round, which keeps coarse codecs stable (docs/decisions/damped-tracking.md).
    """

    damping: float | AutoRate = "auto"

    name: ClassVar[str] = "fedcomgate"
    uplink: ClassVar[Mapping[str, Any]] = {"name": "int", "bits": 8}
    compresses: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damping != "auto" and not 0 < self.damping <= 1:
            raise ConfigError(f'damping must be "auto" or in (0, 1]; got {self.damping}')

    def smoothing(self) -> float | AutoRate:
        return self.damping
