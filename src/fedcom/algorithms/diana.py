"""DIANA (Mishchenko et al., 2019; Horvath et al., 2019): compressed differences to learned shifts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, AutoRate, Round
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class Shift(NamedTuple):
    """A client's shift h: its running estimate of its gradient."""

    h: Tensor


class DianaServer(NamedTuple):
    """The model w, and h, the weighted mean of all clients' shifts."""

    w: Tensor
    h: Tensor


@dataclass(frozen=True, kw_only=True)
class Diana(Algorithm):
    """DIANA: one step per round; the difference to a learned shift is compressed.

    Args:
        shift_rate: how far a shift moves towards what was sent; "auto": 1/(1 + q), with the measured q.
    """

    tau: int | tuple[int, ...] = 1
    shift_rate: float | AutoRate = "auto"

    name: ClassVar[str] = "diana"
    uplink: ClassVar[Mapping[str, Any]] = {"name": "int", "bits": 8}
    fixed: ClassVar[Mapping[str, Any]] = {"tau": 1, "epochs": None}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift_rate != "auto" and not 0 < self.shift_rate <= 1:
            raise ConfigError(f'shift_rate must be "auto" or in (0, 1]; got {self.shift_rate}')

    def init_server(self, w: Tensor) -> DianaServer:
        return DianaServer(w=w, h=w.new_zeros(w.shape))

    def init_client(self, w: Tensor) -> Any:
        return Shift(h=w.new_zeros(w.shape))

    def replica(self, server: DianaServer) -> Vectors:
        return {"w": server.w, "h": server.h}

    def upload(self, client: Shift, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        g = super().upload(client, down, w, rnd)["D"]
        return {"D": g - client.h}

    def server_direction(self, server: DianaServer, mean: Vectors, rnd: Round) -> Tensor:
        return server.h + mean["D"]

    def server_step(self, server: DianaServer, mean: Vectors, rnd: Round) -> DianaServer:
        server = super().server_step(server, mean, rnd)
        return server._replace(h=server.h + rnd.alpha * rnd.share * mean["D"])

    def client_step(self, client: Shift, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round) -> Shift:
        return client._replace(h=client.h + rnd.alpha * sent["D"])

    def smoothing(self) -> float | AutoRate:
        return self.shift_rate
