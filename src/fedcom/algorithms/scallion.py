"""SCALLION (Huang, Li and Li, 2024): SCAFFOLD with one compressed vector up, for unbiased codecs.

g_j = D_j/tau + c_j - c is the mean gradient of a client's local steps, so g_j - c_j = D_j/tau - c.

    sends     d_j = Q(alpha (g_j - c_j))
    client    c_j += d_j
    server    w -= eta gamma tau (c + mean d),  c += share mean d

The server does not divide d by alpha. At full participation its direction is the new c, on average
(1 - alpha) c + alpha mean g: a running mean of the gradients, in which each round has the weight alpha.
So the codec's noise is alpha times smaller, and the gradient's too. With c + mean d/alpha the direction would
be an unbiased estimate of this round's gradient with all of the codec's noise; DIANA does that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedcom.algorithms.base import AutoRate, Round
from fedcom.algorithms.scaffold import Control, Scaffold, ScaffoldServer
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


@dataclass(frozen=True, kw_only=True)
class Scallion(Scaffold):
    """SCALLION: SCAFFOLD with one vector up, through an unbiased codec.

    Args:
        alpha: the share of the way to this round's gradient that control variates go.
    """

    alpha: float = 0.1
    damping: float | AutoRate = 1.0  # alpha damps already

    name: ClassVar[str] = "scallion"
    uplink: ClassVar[Mapping[str, Any]] = {"name": "int", "bits": 8}
    uploads: ClassVar[tuple[str, ...]] = ("d",)
    averages: ClassVar[bool] = True
    fixed: ClassVar[Mapping[str, Any]] = {"damping": 1.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"alpha must be in (0, 1]; got {self.alpha}")

    def upload(self, client: Control, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        D = super().upload(client, down, w, rnd)["D"]
        return {"d": self.alpha * (D / rnd.tau - down["c"])}

    def server_direction(self, server: ScaffoldServer, mean: Vectors, rnd: Round) -> Tensor:
        return rnd.tau * (server.c + mean["d"])

    def server_step(self, server: ScaffoldServer, mean: Vectors, rnd: Round) -> ScaffoldServer:
        w = server.w - rnd.eta * self.global_rate * rnd.tau * (server.c + mean["d"])
        return server._replace(w=w, c=server.c + rnd.share * mean["d"])

    def client_step(
        self, client: Control, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round
    ) -> Control:
        return client._replace(c=client.c + sent["d"])
