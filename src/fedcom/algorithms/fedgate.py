"""FedGATE (Algorithm 3): federated averaging with local gradient tracking."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedcom.algorithms.base import Algorithm, Oracle, Round
from fedcom.vectors import Vectors, descend


class Tracker(NamedTuple):
    """What a tracking client keeps: delta, how its gradient differs from the mean over clients."""

    delta: Tensor


@dataclass(frozen=True, kw_only=True)
class FedGATE(Algorithm):
    """FedGATE: local steps corrected by gradient tracking, uncompressed (Algorithm 3)."""

    gamma: float = 4.0

    name: ClassVar[str] = "fedgate"
    compresses: ClassVar[str | None] = "fedcomgate"
    feedback: ClassVar[bool] = True

    def init_client(self, w: Tensor) -> Tracker:
        return Tracker(delta=w.new_zeros(w.shape))

    def local_step(self, w: Tensor, client: Tracker, down: Vectors, oracle: Oracle, rnd: Round) -> Tensor:
        return descend(w, rnd.eta, oracle.batch(w) - client.delta)

    def client_step(
        self, client: Tracker, meant: Vectors, sent: Vectors, mean: Vectors, rnd: Round
    ) -> Tracker:
        return client._replace(delta=client.delta + rnd.alpha * (sent["D"] - mean["D"]) / rnd.tau)
