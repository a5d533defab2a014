"""FedCM (Xu et al., 2021): clients mix the last round's mean direction G into every local step.

    local step    w_j -= eta (alpha g + (1 - alpha) G)
    server        w -= eta gamma mean D,  G = mean D/tau

The server sends G beside the model; clients that repeat its step (option I) make it from the mean they hear.
G begins at zero, so the first rounds are shorter steps. With alpha 1 this is FedAvg.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, Round
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class DirectedServer(NamedTuple):
    """The model w, and G, the mean gradient of the last round's local steps."""

    w: Tensor
    G: Tensor


@dataclass(frozen=True, kw_only=True)
class FedCM(Algorithm):
    """FedCM: FedAvg with momentum in the clients' steps, the same for all.

    Args:
        alpha: the weight of a client's own gradient in its steps; 1: no momentum.
    """

    alpha: float = 0.1

    name: ClassVar[str] = "fedcm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"alpha must be in (0, 1]; got {self.alpha}")

    def init_server(self, w: Tensor) -> DirectedServer:
        return DirectedServer(w=w, G=w.new_zeros(w.shape))

    def broadcast(self, server: DirectedServer) -> Vectors:
        return {"w": server.w, "G": server.G}

    def direction(self, g: Tensor, client: Any, down: Vectors) -> Tensor:
        return self.alpha * g + (1 - self.alpha) * down["G"]

    def server_direction(self, server: DirectedServer, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"]

    def server_step(self, server: DirectedServer, mean: Vectors, rnd: Round) -> DirectedServer:
        server = super().server_step(server, mean, rnd)
        return server._replace(G=mean["D"] / rnd.tau)
