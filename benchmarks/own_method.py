"""A method from outside the package, with a correction of its own, beside FedCOMGATE: time per round in turn.

    python -m benchmarks.own_method [--device cuda] [--rounds 20]

Both are given the MNIST job of benchmarks/jobs.py; the method does what FedCOMGATE does, in words of its own.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from benchmarks.contenders import fedcom_task
from benchmarks.jobs import JOBS
from torch import Tensor

import fedcom
from fedcom.algorithms.base import Algorithm

TURNS = 9


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


def main() -> None:
    """Play both in turn; print the ratio of their times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=2, help="in a turn")
    options = parser.parse_args()
    job = JOBS["mnist"]
    task = fedcom_task(job).to(torch.device(options.device))
    rates = {"eta": 0.05, "gamma": 1.0, "tau": job.steps, "batch": job.batch}
    methods = [fedcom.FedCOMGATE(**rates, damping=1.0), Own(**rates)]
    engine = {"engine": "compiled"} if options.device == "cuda" else {}
    runs = [fedcom.Simulation(task, one, fedcom.Int(8), device=options.device, **engine) for one in methods]
    seconds = [list[float](), list[float]()]
    for turn in range(TURNS + 2):
        for i, run in enumerate(runs):
            begun = time.perf_counter()
            for _ in range(options.rounds):
                run.step()
            if options.device == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:  # the first ones warm up
                seconds[i].append(time.perf_counter() - begun)
    ratios = [own / theirs for theirs, own in zip(*seconds, strict=True)]
    for one, times in zip(methods, seconds, strict=True):
        print(f"{one.name:<12} {1000 * statistics.median(times) / options.rounds:.2f} ms per round")
    print(f"ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
