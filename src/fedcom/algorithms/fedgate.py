"""FedGATE (Algorithm 3): federated averaging with local gradient tracking."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, AutoRate, Round, has_loop
from fedcom.vectors import Vectors


class Tracker(NamedTuple):
    """What a tracking client keeps: delta, how its gradient differs from the mean over clients."""

    delta: Tensor


class TrackingServer(NamedTuple):
    """The model, and H, the weighted sum of the clients' corrections: zero unless the downlink is lossy."""

    w: Tensor
    H: Tensor


@dataclass(frozen=True, kw_only=True)
class FedGATE(Algorithm):
    """FedGATE: local steps corrected by gradient tracking, uncompressed (Algorithm 3).

    Beyond the paper, the server makes up for a lossy downlink (docs/decisions/downlink.md). Clients then hear
    D~ instead of the mean D, and the sum of their corrections, H, is no longer zero. The server knows H and
    sends D + tau H instead of D.
    """

    gamma: float | AutoRate = 4.0

    name: ClassVar[str] = "fedgate"
    compresses: ClassVar[str | None] = "fedcomgate"
    needs_mean: ClassVar[bool] = True
    tracks: ClassVar[bool] = True
    corrects_downlink: ClassVar[bool] = True

    def init_server(self, w: Tensor) -> TrackingServer:
        return TrackingServer(w=w, H=w.new_zeros(w.shape))

    def init_client(self, w: Tensor) -> Any:
        return Tracker(delta=w.new_zeros(w.shape))

    def corrections(self, client: Tracker, down: Vectors) -> tuple[Tensor, ...]:
        return (client.delta,)

    @has_loop("track")
    def client_step(self, client: Any, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round) -> Any:
        return client._replace(delta=client.delta + rnd.alpha * (sent["D"] - mean["D"]) / rnd.tau)

    def smoothing(self) -> float | AutoRate:
        return "auto"

    def reply(self, server: TrackingServer, mean: Vectors, rnd: Round) -> Vectors:
        return {**mean, "D": mean["D"] + rnd.tau * server.H}

    def settle_server(
        self, server: TrackingServer, mean: Vectors, heard: Vectors, rnd: Round
    ) -> TrackingServer:
        return server._replace(H=server.H + rnd.share * rnd.alpha * (mean["D"] - heard["D"]) / rnd.tau)
