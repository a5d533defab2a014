"""SCAFCOM (Huang, Li and Li, 2024): SCAFFOLD with one compressed vector up and momentum, for any codec.

g_j = D_j/tau + c_j - c is the mean gradient of a client's local steps.

    client    v_j = (1 - beta) v_j + beta g_j
    sends     d_j = Q(v_j - c_j)
    client    c_j += d_j
    server    w -= eta gamma tau (c + mean d),  c += share mean d

With an unbiased codec d_j is damped by alpha = 1/(1 + q), which makes it a contraction as this method needs.
The momentum averages minibatches before a biased codec such as top-k sees them. With one local step at full
participation this is EF21-SGDM (Fatkhullin et al., 2023), and with beta 1 EF21 (Richtarik et al., 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.algorithms.scaffold import Control, Scaffold, ScaffoldServer
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class Momentum(NamedTuple):
    """A client's control variate, and the running mean of its gradients."""

    c: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class Scafcom(Scaffold):
    """SCAFCOM: SCAFFOLD with one vector up, through any codec, and momentum.

    Args:
        beta: the weight of this round's gradient in v; with 1 there is no momentum, and clients keep no v.
    """

    beta: float = 0.2

    name: ClassVar[str] = "scafcom"
    uplink: ClassVar[Mapping[str, Any]] = {"name": "topk", "ratio": 0.1}
    uploads: ClassVar[tuple[str, ...]] = ("d",)
    averages: ClassVar[bool] = True
    uses_meant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise ConfigError(f"beta must be in (0, 1]; got {self.beta}")

    def init_client(self, w: Tensor) -> Any:
        control = super().init_client(w)
        return control if self.beta == 1 else Momentum(c=control.c, v=w.new_zeros(w.shape))

    def upload(self, client: Any, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        D = super().upload(client, down, w, rnd)["D"]
        g = D / rnd.tau + client.c - down["c"]
        v = g if self.beta == 1 else (1 - self.beta) * client.v + self.beta * g
        return {"d": v - client.c}

    def server_direction(self, server: ScaffoldServer, mean: Vectors, rnd: Round) -> Tensor:
        return rnd.tau * (server.c + rnd.alpha * mean["d"])

    def server_step(self, server: ScaffoldServer, mean: Vectors, rnd: Round) -> ScaffoldServer:
        d = rnd.alpha * mean["d"]
        w = server.w - rnd.eta * self.global_rate * rnd.tau * (server.c + d)
        return server._replace(w=w, c=server.c + rnd.share * d)

    def client_step(self, client: Any, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round) -> Any:
        c = client.c + rnd.alpha * sent["d"]
        return Control(c) if self.beta == 1 else Momentum(c=c, v=client.c + meant["d"])
