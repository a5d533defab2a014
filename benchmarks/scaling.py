"""How the time of a round grows with the size of the model and with the share of clients that take part.

    python -m benchmarks.scaling [--device cuda] [--sizes 4,5,6,7,8] [--repeats 5]

FedCOMGATE with int 8. Sizes: 10 clients, 2 local steps, batch 10, one hidden layer whose width sets d.
Participation: the MNIST job (100 clients, 10 steps, batch 50), random data. All points are measured one after
the other, as often as --repeats says; ratios are taken within a repeat.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from benchmarks.contenders import fedcom_task
from benchmarks.jobs import JOBS, Job
from benchmarks.peers import spread
from torch import nn

import fedcom

INPUTS, CLASSES = 784, 10
SHARES = (1.0, 0.5, 0.25, 0.1)
_WARM = 3  # rounds before those that are timed; a GPU records its graph in the third
Measure = Callable[[], float]


def seconds(simulation: Any, rounds: int) -> float:
    """The mean time of some rounds, after a few to warm up."""
    while simulation.round < _WARM:
        simulation.step()
    _wait(simulation)
    started = perf_counter()
    for _ in range(rounds):
        simulation.step()
    _wait(simulation)
    return (perf_counter() - started) / rounds


def _wait(simulation: Any) -> None:
    if simulation.server.w.is_cuda:
        torch.cuda.synchronize()


def simulate(task: Any, device: str, job: Job, share: float = 1.0) -> Any:
    """A run of FedCOMGATE with int 8 on a task."""
    algorithm = fedcom.FedCOMGATE(eta=0.01, tau=job.steps, batch=job.batch, decay=1.0)
    links = fedcom.Links(fedcom.Int(8))
    return fedcom.Simulation(task, algorithm, links, participation=share, device=device)


def of_size(d: int, job: Job) -> Any:
    """A task whose model has about d parameters, in one hidden layer."""
    width = max(1, round((d - CLASSES) / (INPUTS + 1 + CLASSES)))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, CLASSES))
    x, y = job.data()
    owner = torch.arange(job.clients).repeat_interleave(job.samples)
    return fedcom.Task.from_arrays(module, x.flatten(0, 1), y.flatten(), groups=owner, partition="natural")


def by_size(sizes: Sequence[int], device: str, rounds: int, repeats: int) -> None:
    """Print the time of a round for models of 10^k parameters; only one at a time is in memory."""
    job = replace(JOBS["mnist"], clients=10, sampled=10, samples=20, batch=10, steps=2)
    points: dict[str, Measure] = {
        f"10^{k}": lambda k=k: seconds(simulate(of_size(10**k, job), device, job), rounds) for k in sizes
    }
    work = {f"10^{k}": 10.0 ** (k - sizes[0]) for k in sizes}
    table("d", "times the coordinates", points, work, repeats)


def by_share(job: Job, device: str, rounds: int, repeats: int) -> None:
    """Print the time of a round for some shares of clients that take part."""
    task = fedcom_task(job)
    runs = {share: simulate(task, device, job, share) for share in SHARES if share * job.clients >= 2}
    points: dict[str, Measure] = {
        f"{share:g}": lambda run=run: seconds(run, rounds) for share, run in runs.items()
    }
    work = {f"{share:g}": share for share in runs}
    table("participation", "times the clients", points, work, repeats)


def table(what: str, unit: str, points: dict[str, Measure], work: dict[str, float], repeats: int) -> None:
    """Measure all points; print times, and for each point the ratios of work and time to the first one."""
    runs = [{name: measure() for name, measure in points.items()} for _ in range(repeats)]
    first = next(iter(points))
    print(f"\n| {what} | ms per round | quartiles | {unit} | times the time | quartiles |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in points:
        middle, low, high = (1e3 * t for t in spread([run[name] for run in runs]))
        ratio, least, most = spread([run[name] / run[first] for run in runs])
        print(
            f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} | {work[name]:g} | {ratio:.3g} "
            f"| {least:.3g} to {most:.3g} |",
            flush=True,
        )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", default="4,5,6,7", help="powers of ten for d")
    parser.add_argument("--job", choices=JOBS, default="mnist", help="of the table by participation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sizes = [int(k) for k in args.sizes.split(",")]
    by_size(sizes, args.device, args.rounds, args.repeats)
    by_share(JOBS[args.job], args.device, args.rounds, args.repeats)


if __name__ == "__main__":
    main()
