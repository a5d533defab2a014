"""What checkpoints cost: a million clients, 100 of them per round, their state on disk.

    python benchmarks/checkpoints.py                                       d of 9,950, 150 rounds
    python benchmarks/checkpoints.py --hidden 410,410 --rounds 30 --every 10     d of 197,630

FedCOMGATE with int 8 on synthetic data. Runs with a checkpoint every so many rounds and runs without take
turns in one process; the first pair warms up and is not counted. A run's time ends when its last checkpoint
is on the disk. Where other programs are busy, the ratio of the two times says little. Two shares of the time
of the run with checkpoints say more: for how long its rounds stood still, and the processor time of the
thread that writes, which costs nothing while a core is idle. Their sum is the most that checkpoints can cost.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from fedcom.config import Config
from fedcom.engines.simulation import Simulation
from fedcom.runs.prepare import build_task, simulation_of


def config_of(options: argparse.Namespace) -> Config:
    """The settings of a run."""
    table = {
        "data": {"name": "synthetic", "clients": options.clients, "lazy": True},
        "model": {"name": "mlp", "hidden": [int(width) for width in options.hidden.split(",")]},
        "algorithm": {"name": "fedcomgate", "tau": options.tau, "batch": 20, "eta": 0.01, "gamma": 1.0},
        "uplink": {"name": "int", "bits": 8},
        "run": {
            "rounds": options.rounds,
            "participation": options.sampled / options.clients,
            "store": "disk",
            **({"store_folder": str(options.folder)} if options.folder else {}),
        },
    }
    return Config.of(table)


class Played(NamedTuple):
    """A run's time, for how long it stood still, processor time of the writer, and bytes per checkpoint."""

    seconds: float
    still: float
    writer: float
    sizes: list[int]


def played(simulation: Simulation, options: argparse.Namespace, saves: Path | None) -> Played:
    """Play a run, with checkpoints in a folder or without."""
    still, saved = 0.0, list[int]()
    simulation.step()  # makes the engine
    os.sync()
    started = time.perf_counter()
    while simulation.round < options.rounds:
        simulation.step()
        if saves is not None and simulation.round % options.every == 0:
            begun = time.perf_counter()
            simulation.save(saves, wait=simulation.round == options.rounds)
            still += time.perf_counter() - begun
            saved.append(simulation.round)
    seconds = time.perf_counter() - started
    sizes = [sum(path.stat().st_size for path in saves.glob(f"{r:08d}*")) for r in saved] if saves else []
    return Played(seconds, still, writer_time() if saves else 0.0, sizes)


def writer_time() -> float:
    """Seconds of processor time of the newest thread that writes checkpoints, as Linux counts them."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("fedcom-checkpoint")]
    path = Path(f"/proc/self/task/{threads[-1].native_id}/schedstat")
    return int(path.read_text().split()[0]) / 1e9 if path.exists() else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--sampled", type=int, default=100)
    parser.add_argument("--hidden", default="140", help="widths of the network's layers")
    parser.add_argument("--tau", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--every", type=int, default=50, help="rounds between two checkpoints")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="of the state and of the checkpoints")
    options = parser.parse_args()
    config = config_of(options)
    task, _ = build_task(config)
    d = task.objective.start.numel()
    print(f"d = {d:,}; load {os.getloadavg()[0]:.2f}; {os.cpu_count()} cores")
    print("without s   with s   ratio   stood still   writer   MB per checkpoint")
    ratios, stills, most = list[float](), list[float](), list[float]()
    for turn in range(options.repeats + 1):
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        order = (folder, None) if turn % 2 else (None, folder)
        runs = {saves is None: played(simulation_of(task, config, "cpu"), options, saves) for saves in order}
        shutil.rmtree(folder)
        bare, saving = runs[True], runs[False]
        ratio = saving.seconds / bare.seconds
        still, writer = saving.still / saving.seconds, saving.writer / saving.seconds
        if turn:
            ratios, stills, most = [*ratios, ratio], [*stills, still], [*most, still + writer]
        sizes = ", ".join(f"{size / 1e6:.0f}" for size in saving.sizes) + (" (warms up)" if turn == 0 else "")
        shares = f"{100 * still:11.1f}% {100 * writer:7.1f}%"
        print(f"{bare.seconds:9.2f} {saving.seconds:8.2f} {ratio:7.3f} {shares}   {sizes}", flush=True)
    whole = 4 * d * options.clients
    print(f"ratio: median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    for name, found in (("stood still", stills), ("and writer", most)):
        low, middle, high = (100 * f(found) for f in (min, statistics.median, max))
        print(f"{name}: median {middle:.1f}% ({low:.1f}% to {high:.1f}%)")
    print(f"the rows of all clients would take {whole / 1e9:,.1f} GB; load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
