"""FedCOMGATE with exact local tracking: the server hears little, but the client knows its own gradients.

FedCOMGATE builds a client's correction from what the server heard of it, so a coarse codec's noise enters
every local step. Here a client keeps two vectors: h_j, what the server could know of it, and delta_j, its own
record, in which only the mean over clients is noisy (docs/decisions/exact-tracking.md).

    local step    w_j <- w_j - eta (g - delta_j)
    own gradient  r_j = (w - w_j)/path_j + delta_j
    upload        D_j = tau (r_j - h_j)
    server        w <- w - eta gamma D,  D = mean of Q(D_j)
    finish        h_j <- h_j + alpha (Q(D_j) - D)/tau,   delta_j <- (1 - beta) delta_j + beta (r_j - D/tau)
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import AutoRate, Round, smaller
from fedcom.algorithms.fedcomgate import FedCOMGATE
from fedcom.errors import ConfigError
from fedcom.vectors import Vectors


class ExactTracker(NamedTuple):
    """What a client keeps: how its gradient differs from the mean over clients, in two versions."""

    h: Tensor  # as far as the server could know it
    delta: Tensor  # as far as the client knows it


@dataclass(frozen=True, kw_only=True)
class FedCOMGATEExact(FedCOMGATE):
    """FedCOMGATE whose clients track their own gradients exactly, for codecs far below a bit.

    Args:
        beta: how far delta moves towards the difference measured in this round. "auto":
            1/(1 + q (1 - s)/s), with this round's q and s the share of clients that take part; with momentum
            at the server at most `fastest_tracking`.
    """

    beta: float | AutoRate = "auto"

    name: ClassVar[str] = "fedcomgate-exact"
    uses_meant: ClassVar[bool] = True
    uses_q: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta != "auto" and not 0 < self.beta <= 1:
            raise ConfigError(f'beta must be "auto" or in (0, 1]; got {self.beta}')

    def init_client(self, w: Tensor) -> ExactTracker:
        return ExactTracker(h=w.new_zeros(w.shape), delta=w.new_zeros(w.shape))

    def upload(self, client: ExactTracker, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        D = super().upload(client, down, w, rnd)["D"]
        return {"D": D + rnd.tau * (client.delta - client.h)}

    def client_step(
        self, client: ExactTracker, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round
    ) -> ExactTracker:
        r, beta = meant["D"] / rnd.tau + client.h, self._beta(rnd)
        h = client.h + rnd.alpha * (sent["D"] - mean["D"]) / rnd.tau
        delta = client.delta + beta * (r - mean["D"] / rnd.tau - client.delta)
        return ExactTracker(h, delta)

    def _beta(self, rnd: Round) -> float | Tensor:
        """A client keeps the noise of its last mean for (1 - s)/s rounds on average, of size q."""
        if self.beta != "auto":
            return self.beta
        q, s = rnd.q, rnd.share
        if isinstance(q, Tensor) and isinstance(s, Tensor):
            s = s.to(q.dtype)  # as it is in a stack of runs, for the same bits
        beta = 1 / (1 + q * (1 - s) / s)
        momentum = isinstance(rnd.mu, Tensor) or rnd.mu  # other runs of a stack may have momentum
        return smaller(beta, self.fastest_tracking(rnd)) if momentum else beta
