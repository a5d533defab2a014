"""A method from outside the package, with a correction of its own, beside FedCOMGATE: time per round in turn.

    python -m benchmarks.own_method [--device cuda] [--rounds 20]

Both are given the MNIST job of benchmarks/jobs.py; the method does what FedCOMGATE does, in words of its own.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from benchmarks.in_turn import compare, rates
from torch import Tensor

import fedcom
from fedcom.algorithms.base import Algorithm


class Drift(NamedTuple):
    """How a client's gradient differs from the others'."""

    drift: Tensor


@dataclass(frozen=True, kw_only=True)
class Own(Algorithm):
    """Tracks drift as FedCOMGATE does without damping; derives from no method."""

    name: ClassVar[str] = "own"
    needs_mean: ClassVar[bool] = True

    def init_client(self, w: Tensor) -> Drift:
        return Drift(torch.zeros_like(w))

    def corrections(self, client: Drift, down: Any) -> tuple[Tensor, ...]:
        return (client.drift,)

    def client_step(self, client: Drift, meant: Any, sent: Any, mean: Any, rnd: Any) -> Drift:
        return Drift(client.drift + (sent["D"] - mean["D"]) / rnd.tau)


if __name__ == "__main__":
    compare([fedcom.FedCOMGATE(**rates(), damping=1.0), Own(**rates())], __doc__.splitlines()[0])
