"""SCAFFOLD with momentum in the clients (Cheng et al., 2024, arXiv 2306.16504).

    local step    w_j -= eta (beta (g - c_j + c) + (1 - beta) G)
    sends         D_j, and dc_j = (D_j/tau - (1 - beta) G)/beta - c, which is g_j - c_j
    server        w -= eta gamma mean D,  c += share mean dc,  G = mean D/tau
    client        c_j += dc_j

g_j is the mean gradient of a client's local steps. With beta 1 this is SCAFFOLD.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.algorithms.scaffold import Control, Scaffold
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class ScaffoldMServer(NamedTuple):
    """The model w, the server's control variate c, and G, the last round's mean direction per local step."""

    w: Tensor
    c: Tensor
    G: Tensor


@dataclass(frozen=True, kw_only=True)
class ScaffoldM(Scaffold):
    """SCAFFOLD-M: SCAFFOLD with momentum in the clients' steps, the same for all.

    Args:
        beta: the weight of a client's corrected gradient in its steps; 1: no momentum.
    """

    beta: float = 0.1

    name: ClassVar[str] = "scaffold-m"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise ConfigError(f"beta must be in (0, 1]; got {self.beta}")

    def init_server(self, w: Tensor) -> Any:
        return ScaffoldMServer(w=w, c=w.new_zeros(w.shape), G=w.new_zeros(w.shape))

    def broadcast(self, server: Any) -> Vectors:
        return {"w": server.w, "c": server.c, "G": server.G}

    def direction(self, g: Tensor, client: Control, down: Vectors) -> Tensor:
        return self.beta * super().direction(g, client, down) + (1 - self.beta) * down["G"]

    def upload(self, client: Control, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        D = super().upload(client, down, w, rnd)["D"]
        return {"D": D, "dc": (D / rnd.tau - (1 - self.beta) * down["G"]) / self.beta - down["c"]}

    def server_direction(self, server: Any, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"]

    def server_step(self, server: Any, mean: Vectors, rnd: Round) -> Any:
        after: Any = super().server_step(server, mean, rnd)
        return after._replace(G=mean["D"] / rnd.tau)

    def unit(self, vector: str, rnd: Round) -> float | Tensor:
        return super().unit(vector, rnd) * (1.0 if vector == "D" else self.beta)
