"""Time and memory of a round by number of clients; 100 of them are sampled, and their state is on disk.

    python benchmarks/population.py                      populations of 10^3 to 10^6, 10 rounds each
    python benchmarks/population.py 1000 1000000 --rounds 50

FedCOMGATE with int 8 on synthetic data and a network of about 200,000 parameters. Each number of clients runs
in a process of its own, whose peak of resident memory is printed; the first rounds warm up and are not timed.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from fedcom.config import Config
from fedcom.runs.prepare import prepare

WARM = 2


def table(clients: int, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """The config of a run with some number of clients."""
    return {
        "data": {"name": "synthetic", "clients": clients, "lazy": True},
        "model": {"name": "mlp", "hidden": [410, 410]},
        "algorithm": {"name": "fedcomgate", "tau": options.tau, "batch": 20, "eta": 0.01, "gamma": 1.0},
        "uplink": {"name": "int", "bits": 8},
        "run": {
            "rounds": options.rounds,
            "participation": options.sampled / clients,
            "store": options.store,
            "store_dtype": options.dtype,
            **({"store_folder": options.folder} if options.folder else {}),
        },
    }


def measure(clients: int, options: argparse.Namespace) -> dict[str, float]:
    """Time and memory of a run with some number of clients."""
    started = time.perf_counter()
    simulation, _ = prepare(Config.of(table(clients, options)), options.device)
    built, seconds = time.perf_counter() - started, []
    for _ in range(options.rounds):
        started = time.perf_counter()
        simulation.step()
        if simulation.server.w.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "clients": clients,
        "d": simulation.server.w.numel(),
        "built_s": built,
        "mean_round_s": statistics.mean(seconds[WARM:]),
        "median_round_s": statistics.median(seconds[WARM:]),
        "total_s": sum(seconds),
        "peak_gib": peak / 2**30,
    }


def apart(clients: int) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--inside", str(clients)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("populations", nargs="*", type=int, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sampled", type=int, default=100)
    parser.add_argument("--tau", type=int, default=2)
    parser.add_argument("--store", default="disk")
    parser.add_argument("--dtype", default="model")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        print(json.dumps(measure(options.inside, options)))
        return
    print("clients    d        built s  s/round (mean, median)    ratio  peak GiB")
    first = None
    for clients in options.populations:
        row = apart(clients)
        first = first or row
        ratio = row["mean_round_s"] / first["mean_round_s"]
        print(
            f"{clients:<10,} {row['d']:<8,.0f} {row['built_s']:<8.1f} {row['mean_round_s']:<6.3f} "
            f"{row['median_round_s']:<18.3f} {ratio:<6.2f} {row['peak_gib']:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
