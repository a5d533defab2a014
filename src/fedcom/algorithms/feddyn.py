"""FedDyn (Acar et al., 2021): a local loss whose optimum moves to that of all clients.

A client with the vector h_j takes steps on f_j(y) - <h_j, y> + alpha/2 |y - w|^2, ends at y_j, and sends
D_j = (w - y_j)/eta:

    client    h_j += alpha eta D_j
    server    H += share alpha eta mean D,  w -= eta gamma (mean D + H/(alpha eta))

With gamma 1, w is the mean of the y_j less H/alpha, and H is the mean of all h_j. At rest every y_j is w, h_j
is the gradient of f_j there, and H is zero: w is the optimum, whatever the number of local steps.
Beyond the paper: with a codec h_j moves by what the server heard, so that H stays the mean.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, Oracle, Round
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class Multiplier(NamedTuple):
    """What a client keeps: h, its estimate of its own gradient at the optimum."""

    h: Tensor


class FedDynServer(NamedTuple):
    """The model w, and H, the weighted mean of the clients' h."""

    w: Tensor
    H: Tensor


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """FedDyn: local steps on a loss with a linear and a quadratic term that remove drift.

    Args:
        alpha: how strongly local steps are pulled back to the server's model.
    """

    alpha: float = 0.1

    name: ClassVar[str] = "feddyn"
    tracks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 0:
            raise ConfigError(f"alpha must be above 0; got {self.alpha}")

    def init_server(self, w: Tensor) -> FedDynServer:
        return FedDynServer(w=w, H=w.new_zeros(w.shape))

    def init_client(self, w: Tensor) -> Multiplier:
        return Multiplier(h=w.new_zeros(w.shape))

    def replica(self, server: FedDynServer) -> Vectors:
        return {"w": server.w, "H": server.H}

    def corrections(self, client: Multiplier, down: Vectors) -> tuple[Tensor, ...]:
        return (client.h,)

    def gradient(self, w: Tensor, client: Multiplier, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        return super().gradient(w, client, down, oracle, rnd) + self.alpha * (w - down["w"])

    def upload(self, client: Multiplier, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        return {"D": (down["w"] - w) / rnd.eta}  # not scaled to tau: h_j needs where the client ended

    def server_direction(self, server: FedDynServer, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"] + self._moved(server, mean, rnd) / (self.alpha * rnd.eta)

    def mean_direction(self, server: FedDynServer, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"]

    def server_step(self, server: FedDynServer, mean: Vectors, rnd: Round) -> FedDynServer:
        H = self._moved(server, mean, rnd)
        server = super().server_step(server, mean, rnd)
        return server._replace(H=H)

    def _moved(self, server: FedDynServer, mean: Vectors, rnd: Round) -> Tensor:
        """H after the round."""
        return server.H + rnd.share * self.alpha * rnd.eta * mean["D"]

    def client_step(
        self, client: Multiplier, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round
    ) -> Multiplier:
        return Multiplier(h=client.h + self.alpha * rnd.eta * sent["D"])

    def unit(self, vector: str, rnd: Round) -> float | Tensor:
        return rnd.eta * (1 + rnd.share)  # as the mean, and as a part of H

    def memory_unit(self, vector: str, rnd: Round) -> float | Tensor:
        return rnd.eta
