"""Runs played in turn, so that both have the machine's good and bad moments: the ratio of their times."""

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from benchmarks.contenders import fedcom_task
from benchmarks.jobs import JOBS

import fedcom

TURNS = 9


def compare(methods: Sequence[fedcom.Algorithm], description: str) -> None:
    """Play two methods on the MNIST job of benchmarks/jobs.py in turn; print their times and the ratio.

    The command line gives the device, the engine and how many rounds a turn has.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="", help="compiled on a GPU, if nothing is said")
    parser.add_argument("--rounds", type=int, default=2, help="in a turn")
    options = parser.parse_args()
    task = fedcom_task(JOBS["mnist"]).to(torch.device(options.device))
    engine = options.engine or ("compiled" if options.device == "cuda" else "auto")
    where = {"device": options.device, "engine": engine}
    runs = [fedcom.Simulation(task, one, fedcom.Int(8), **where) for one in methods]
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
    ratios = [second / first for first, second in zip(*seconds, strict=True)]
    for one, times in zip(methods, seconds, strict=True):
        print(f"{one.name:<12} {1000 * statistics.median(times) / options.rounds:.2f} ms per round")
    print(f"ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


def rates() -> dict[str, float]:
    """The rates and local steps of the MNIST job."""
    job = JOBS["mnist"]
    return {"eta": 0.05, "gamma": 1.0, "tau": job.steps, "batch": job.batch}
