"""Seconds for some rounds of FedCOMGATE with int 8 on warm engines, and for a sweep of 8 rates and 3 seeds.

    python -m benchmarks.rounds [--device cuda] [--rounds 100] [--repeats 3]

mlp     784-200-200-10, as on MNIST
wide    3072-500-500-10, as on CIFAR-10

100 clients, 10 local steps, batch 50, random data, no evaluation. The first rounds of an engine are timed
with recording or compiling, then the same number of further rounds, as often as --repeats says. The sweep is
one stack of 24 runs, which is made again for each repeat; the first time warms up.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from benchmarks.contenders import fedcom_task
from benchmarks.jobs import JOBS, Job

import fedcom
from fedcom.engines.stacks import stack_runs

ETAS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08)
SEEDS = range(3)


def seconds(work: Callable[[], object], device: str) -> float:
    """How long some work takes, until the device has finished it."""
    started = perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - started


def simulate(task: Any, job: Job, device: str, engine: str, eta: float = 0.05, **settings: Any) -> Any:
    """A run of the job."""
    algorithm = fedcom.FedCOMGATE(eta=eta, gamma=1.0, tau=job.steps, batch=job.batch)
    links = fedcom.Links(fedcom.Int(8))
    return fedcom.Simulation(task, algorithm, links, device=device, engine=engine, **settings)


def play(step: Callable[[], object], rounds: int) -> None:
    """Play some rounds."""
    for _ in range(rounds):
        step()


def sweep(task: Any, job: Job, device: str, engine: str, rounds: int) -> None:
    """Play every rate with every seed, all runs in step."""
    runs = [
        simulate(task, job, device, engine, eta, seed=seed, rounds=rounds) for eta in ETAS for seed in SEEDS
    ]
    play(stack_runs(runs).step, rounds)


def report(what: str, times: list[float]) -> None:
    """Print one line: the first time, then the others."""
    first, *warm = (f"{value:.3f}" for value in times)
    print(f"| {what} | {first} | {', '.join(warm)} |", flush=True)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.rounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--job", choices=("mnist", "tiny"), default="mnist")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    job, device, on_gpu = JOBS[args.job], args.device, args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("torch sees no GPU; use --device cpu")
    wide = replace(job, samples=500, shape=(3072,), hidden=500) if args.job == "mnist" else job
    tasks = {
        name: fedcom_task(each).to(torch.device(device)) for name, each in (("mlp", job), ("wide", wide))
    }
    engines = (("graph", False), ("compiled", False), ("compiled", True)) if on_gpu else (("eager", False),)
    print(f"{job}\n\n| seconds for {args.rounds} rounds | first | warm |\n|---|--:|--:|")
    for name, engine, tf32 in [*(("mlp", *each) for each in engines), ("wide", *engines[-2:][0])]:
        step = simulate(tasks[name], job, device, engine, tf32=tf32).step
        times = [seconds(lambda step=step: play(step, args.rounds), device) for _ in range(1 + args.repeats)]
        report(f"{name}, {engine}{', TF32' * tf32}", times)
    engine = engines[-1][0]
    times = [
        seconds(lambda: sweep(tasks["mlp"], job, device, engine, args.rounds), device)
        for _ in range(1 + args.repeats)
    ]
    report(f"{len(ETAS)} rates x {len(SEEDS)} seeds, {engine}", times)


if __name__ == "__main__":
    main()
