"""Time and memory of a round with many real clients, a fifth of whose replies are lost.

    python -m benchmarks.participants                    200 and 1,000 clients, 100 rounds each
    python -m benchmarks.participants 500 --rounds 20 --lost 0.5

A coordinator and its clients in one process, with bytes in between and clients' state on disk: FedCOMGATE
with int 8 on five samples each, all clients called in every round, `round.clip_times` as new Flower apps have
it. Each number of clients runs in a process of its own. Clients work one after another; what the server
itself takes is told beside.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fedcom
from fedcom.engines.remote.engine import RemoteEngine
from fedcom.engines.remote.memory import return_large_blocks
from fedcom.engines.remote.participant import Participant
from fedcom.engines.remote.terms import Terms

WARM = 10  # rounds


class Losing:
    """A transport in this process that loses a share of the replies, on the way to the server.

    Attributes:
        working: seconds that clients have worked.
    """

    def __init__(self, clients: list[Participant], lost: float) -> None:
        self.clients, self.lost, self.draw, self.working = clients, lost, random.Random(0), 0.0

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        """A round."""
        for client, call in calls:
            begun = time.perf_counter()
            reply = self.clients[client].answer(call)
            self.working += time.perf_counter() - begun
            if self.draw.random() >= self.lost:
                hear(client, reply)


def measure(clients: int, rounds: int, lost: float, clip_times: float | None, folder: Path) -> dict[str, Any]:
    """Seconds per round, and memory and descriptors by round."""
    return_large_blocks()
    torch.manual_seed(0)
    x, y = torch.randn(5 * clients, 64), torch.arange(5 * clients) % 10
    module = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    task = fedcom.Task.from_arrays(module, x, y, x, y, clients=clients)
    method = fedcom.FedCOMGATE(eta=0.05, gamma=1.0, tau=2, batch=5)

    def simulation() -> fedcom.Simulation:
        return fedcom.Simulation(task, method, fedcom.Int(8), rounds=rounds, device="cpu")

    played, shared = simulation(), simulation().state
    people = [Participant(shared, task.only(range(j, j + 1)), j, folder / f"{j}") for j in range(clients)]
    transport = Losing(people, lost)
    terms = Terms(clip_times=clip_times)
    log = folder / "faults.jsonl"
    played.join(RemoteEngine(played.state, transport, folder / "server", terms, log, task.checksum), 0)
    seconds, memory, descriptors, counted = list[float](), list[int](), list[int](), list[int]()
    for _ in range(rounds):
        begun = time.perf_counter()
        played.step()
        played.save(folder / "checkpoints")
        seconds.append(time.perf_counter() - begun)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
        descriptors.append(len(os.listdir("/proc/self/fd")))
        counted.append(int(played.engine.gauge(0).counts["counted"]))
    return {
        "clients": clients,
        "s_per_round": statistics.median(seconds[WARM:]),
        "server_s_per_round": (sum(seconds) - transport.working) / rounds,
        "counted": statistics.mean(counted),
        "mib_after_10": memory[WARM - 1] / 2**20,
        "mib_at_end": memory[-1] / 2**20,
        "descriptors_gained": descriptors[-1] - descriptors[WARM - 1],
    }


def main() -> None:
    """Measure each number of clients in a process of its own; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", type=int, default=[200, 1000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--lost", type=float, default=0.2)
    parser.add_argument("--clip-times", type=float, default=10.0, help="0: without")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        torch.set_num_threads(1)
        (clients,) = options.clients
        with tempfile.TemporaryDirectory() as folder:
            found = measure(clients, options.rounds, options.lost, options.clip_times or None, Path(folder))
        print(json.dumps(found))
        return
    for clients in options.clients:
        command = [sys.executable, "-m", "benchmarks.participants", str(clients), "--here"]
        command += ["--rounds", str(options.rounds), "--lost", str(options.lost)]
        command += ["--clip-times", str(options.clip_times)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print("  ".join(f"{key} {value:.4g}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
