"""How near a round on a CPU comes to what the processor can do: operations and bytes per second.

    python -m benchmarks.bounds [--rounds 3] [--repeats 3]

Measured on both sides in the same run, with as many threads as fedcom uses:

peak        a large matrix product
products    the matrix products of a local step alone, over and over in each core's cache, as torch makes them
copying     bytes read and written per second, with vectors that no cache holds
rounds      whole rounds of FedAvg and of FedCOMGATE, in turn

The bound of a round is the time of its products at their own speed, plus the time of the bytes that it must
move besides: for every client, reading and writing its model and reading its correction once per local step,
and reading or writing each whole vector once in the upload, the codec, the mean and the state.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from threading import Barrier
from time import perf_counter

import torch
from benchmarks.breakdown import METHODS, simulate
from benchmarks.jobs import JOBS, Job
from torch import Tensor

from fedcom.engines.local.threads import one_thread

STEP_PASSES = {"FedAvg": 2, "FedCOMGATE int 8": 3, "FedCOMGATE rotated .25": 3}  # w twice; delta
ROUND_PASSES = {  # upload 2, mean 1; codec 2, q 2, state 3
    "FedAvg": 3,
    "FedCOMGATE int 8": 10,
    "FedCOMGATE rotated .25": 10,
}


def products(job: Job) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The factors of a local step of one client, each pair with room for its product."""
    sizes = [p.shape for p in job.module().parameters() if p.dim() == 2]
    found, b = [], job.batch
    for i, (rows, columns) in enumerate(sizes):
        x, w, e = (torch.rand(1, *shape) for shape in ((b, columns), (rows, columns), (b, rows)))
        pairs = [(x, w.mT), (e.mT, x)] + ([(e, w)] if i else [])
        found += [(left, right, torch.bmm(left, right)) for left, right in pairs]
    return found


def operations(job: Job) -> float:
    """What the products of a local step take, additions and multiplications."""
    return sum(2.0 * left.numel() * right.shape[-1] for left, right, _ in products(job))


def on_all_cores(prepare: Callable[[], Callable[[], object]], times: int) -> float:
    """Seconds in which every core does some work so many times; each prepares its own, which is not timed."""
    cores = torch.get_num_threads()
    ready = Barrier(cores + 1)

    def play() -> None:
        work = prepare()
        work()
        ready.wait()
        for _ in range(times):
            work()

    with one_thread(), ThreadPoolExecutor(cores, initializer=lambda: torch.set_num_threads(1)) as pool:
        jobs = [pool.submit(play) for _ in range(cores)]
        ready.wait()
        started = perf_counter()
        for job in jobs:
            job.result()
        return perf_counter() - started


def multiplier(job: Job) -> Callable[[], object]:
    """Work that makes the products of a local step of one client."""
    factors = products(job)
    return lambda: [torch.bmm(left, right, out=room) for left, right, room in factors]


def large_product() -> Callable[[], object]:
    """Work that makes a large product."""
    left, right, room = torch.rand(3, 1024, 1024)
    return lambda: torch.mm(left, right, out=room)


def seconds_of(work: Callable[[], object], times: int) -> float:
    """Seconds that some work takes so many times."""
    started = perf_counter()
    for _ in range(times):
        work()
    return perf_counter() - started


def measured(job: Job, rounds: int, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Operations and bytes per second, and the seconds of a round by method: medians over repeats."""
    runs = {method: simulate(method, job, "cpu") for method in METHODS}
    here, flops = torch.rand(1 << 25), operations(job)
    there, cores = torch.empty_like(here), torch.get_num_threads()
    speeds: dict[str, list[float]] = {"peak": [], "products": [], "copying": []}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(repeats):
        speeds["peak"].append(cores * 10 * 2 * 1024**3 / on_all_cores(large_product, 10))
        speeds["products"].append(cores * 200 * flops / on_all_cores(partial(multiplier, job), 200))
        speeds["copying"].append(4 * 2 * here.nbytes / seconds_of(lambda: there.copy_(here), 4))
        for method, run in runs.items():
            seconds[method].append(seconds_of(run.step, rounds) / rounds)
    return {name: median(x) for name, x in speeds.items()}, {name: median(x) for name, x in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.bounds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", choices=("mnist", "tiny"), default="mnist")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    job = JOBS[args.job]
    speeds, seconds = measured(job, args.rounds, args.repeats)
    peak, multiplied, copied = (speed / 1e9 for speed in speeds.values())
    cores = torch.get_num_threads()
    print(f"{cores} cores: peak {peak:.0f} GFLOP/s, products {multiplied:.0f}, copying {copied:.1f} GB/s\n")
    steps, d = job.sampled * job.steps, sum(p.numel() for p in job.module().parameters())
    flops = steps * operations(job)
    print("| | ms per round | GFLOP | GB | by the peak | by products | and bytes | share reached |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for method, whole in seconds.items():
        moved = 4 * d * (steps * STEP_PASSES[method] + job.sampled * ROUND_PASSES[method])
        at_peak, at_products = flops / speeds["peak"], flops / speeds["products"]
        bound = at_products + moved / speeds["copying"]
        times = " | ".join(f"{1e3 * x:,.0f}" for x in (at_peak, at_products, bound))
        print(
            f"| {method} | {1e3 * whole:,.0f} | {flops / 1e9:.0f} | {moved / 1e9:.1f} | {times} | "
            f"{bound / whole:.2f} |"
        )


if __name__ == "__main__":
    main()
