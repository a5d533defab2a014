"""VR-DIANA (Horvath et al., 2019): DIANA with the loopless SVRG gradient."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedcom.algorithms.base import Oracle, Round
from fedcom.algorithms.diana import Diana
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class Reference(NamedTuple):
    """What a client keeps."""

    h: Tensor  # its shift
    point: Tensor  # the reference point
    gradient: Tensor  # the full gradient there
    fresh: Tensor  # 1 before the reference point is first set, then 0


@dataclass(frozen=True, kw_only=True)
class VRDiana(Diana):
    """VR-DIANA: DIANA with variance-reduced gradients.

    Args:
        refresh_probability: of a new reference point, in each round, for all clients at once.
    """

    refresh_probability: float = 0.1

    name: ClassVar[str] = "vr-diana"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.refresh_probability <= 1:
            raise ConfigError(f"refresh_probability must be in (0, 1]; got {self.refresh_probability}")

    def init_client(self, w: Tensor) -> Reference:
        zeros = w.new_zeros(w.shape)
        return Reference(h=zeros, point=zeros, gradient=zeros, fresh=w.new_ones((*w.shape[:-1], 1)))

    def begin(self, client: Reference, down: Vectors, oracle: Oracle, rnd: Round) -> Reference:
        renew = (client.fresh > 0) | (rnd.coin < self.refresh_probability)
        if not renew.any():
            return client
        w = down["w"].expand_as(client.point)
        point = torch.where(renew, w, client.point)
        gradient = torch.where(renew, oracle.full(w), client.gradient)
        return client._replace(point=point, gradient=gradient, fresh=torch.zeros_like(client.fresh))

    def gradient(self, w: Tensor, client: Reference, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        return oracle.batch(w) - oracle.batch(client.point) + client.gradient
