"""SCAFFOLD (Karimireddy et al., 2020), option II: clients and server keep control variates."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, AutoRate, Round
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class Control(NamedTuple):
    """A client's control variate c."""

    c: Tensor


class ScaffoldServer(NamedTuple):
    """The model w, and c, the server's control variate: the weighted mean of the clients'."""

    w: Tensor
    c: Tensor


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """SCAFFOLD: local steps corrected by client and server control variates.

    Args:
        damping: control variates move by this times what was heard; 1 is the paper. "auto": 1/(1 + q), with
            this round's q, which keeps coarse codecs stable (docs/decisions/damped-tracking.md).
    """

    gamma: float | AutoRate = 4.0
    damping: float | AutoRate = "auto"

    name: ClassVar[str] = "scaffold"
    tracks: ClassVar[bool] = True
    averages_models: ClassVar[bool] = True
    uploads: ClassVar[tuple[str, ...]] = ("D", "dc")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damping != "auto" and not 0 < self.damping <= 1:
            raise ConfigError(f'damping must be "auto" or in (0, 1]; got {self.damping}')

    def init_server(self, w: Tensor) -> ScaffoldServer:
        return ScaffoldServer(w=w, c=w.new_zeros(w.shape))

    def init_client(self, w: Tensor) -> Control:
        return Control(c=w.new_zeros(w.shape))

    def broadcast(self, server: ScaffoldServer) -> Vectors:
        return {"w": server.w, "c": server.c}

    def corrections(self, client: Control, down: Vectors) -> tuple[Tensor, ...]:
        return client.c, -down["c"]

    def upload(self, client: Control, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        D = super().upload(client, down, w, rnd)["D"]
        g = (down["w"] - w) / rnd.path if self.average == "models" else D / rnd.tau
        return {"D": D, "dc": g - down["c"]}

    def server_direction(self, server: ScaffoldServer, mean: Vectors, rnd: Round) -> Tensor:
        return mean["D"]

    def server_step(self, server: ScaffoldServer, mean: Vectors, rnd: Round) -> ScaffoldServer:
        server = super().server_step(server, mean, rnd)
        return server._replace(c=server.c + rnd.alpha * rnd.share * mean["dc"])

    def client_step(
        self, client: Control, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round
    ) -> Control:
        return client._replace(c=client.c + rnd.alpha * sent["dc"])

    def smoothing(self) -> float | AutoRate:
        return self.damping

    def unit(self, vector: str, rnd: Round) -> float | Tensor:
        return rnd.eta if vector == "D" else rnd.eta * rnd.tau

    def memory_unit(self, vector: str, rnd: Round) -> float | Tensor:
        return rnd.eta if vector == "D" else 1.0
