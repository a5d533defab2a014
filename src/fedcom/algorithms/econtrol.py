"""EControl (Gao, Islamov and Stich, 2024): error feedback of a set strength, for codecs such as top-k.

A client keeps h_j, what the server knows of its update, and e_j, what the codec has dropped so far.

    sends     d_j = Q(feedback e_j + D_j - h_j)
    client    e_j += D_j - h_j - d_j,  h_j += d_j
    server    w -= eta gamma (h + mean d),  h += share mean d

With an unbiased codec d_j is damped by alpha = 1/(1 + q), which makes it a contraction as this method needs.
Without loss e_j stays zero and, if all clients take part, the server steps along the mean D: this is FedAvg.
With feedback 0 and one local step it is EF21 (Richtarik et al., 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, AutoRate, Round
from fedcom.algorithms.diana import DianaServer
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class Controlled(NamedTuple):
    """What a client keeps: what the server knows of its update, and what the codec has dropped."""

    h: Tensor
    e: Tensor


@dataclass(frozen=True, kw_only=True)
class EControl(Algorithm):
    """EControl: differences to what the server knows, with a set share of what the codec dropped before.

    Args:
        feedback: the share of the dropped that is sent again each round, eta in the paper; 0 is EF21.
    """

    feedback: float = 0.1

    name: ClassVar[str] = "econtrol"
    uplink: ClassVar[Mapping[str, Any]] = {"name": "topk", "ratio": 0.1}
    uses_meant: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.feedback <= 1:
            raise ConfigError(f"feedback must be in [0, 1]; got {self.feedback}")

    def init_server(self, w: Tensor) -> DianaServer:
        return DianaServer(w=w, h=w.new_zeros(w.shape))

    def init_client(self, w: Tensor) -> Controlled:
        return Controlled(h=w.new_zeros(w.shape), e=w.new_zeros(w.shape))

    def replica(self, server: DianaServer) -> Vectors:
        return {"w": server.w, "h": server.h}

    def upload(self, client: Controlled, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        D = super().upload(client, down, w, rnd)["D"]
        return {"D": self.feedback * client.e + D - client.h}

    def server_direction(self, server: DianaServer, mean: Vectors, rnd: Round) -> Tensor:
        return server.h + rnd.alpha * mean["D"]

    def server_step(self, server: DianaServer, mean: Vectors, rnd: Round) -> DianaServer:
        h = server.h + rnd.share * rnd.alpha * mean["D"]
        server = super().server_step(server, mean, rnd)
        return server._replace(h=h)

    def client_step(
        self, client: Controlled, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round
    ) -> Controlled:
        d, difference = rnd.alpha * sent["D"], meant["D"] - self.feedback * client.e
        return Controlled(h=client.h + d, e=client.e + difference - d)

    def smoothing(self) -> float | AutoRate:
        return "auto"
