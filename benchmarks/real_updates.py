"""Rate and error of the best codecs on real updates, from real bytes; a minute or two.

    FEDCOM_DATA=... python benchmarks/real_updates.py [bits ...]

MNIST, 100 clients of two classes each, MLP 784-200-200-10, FedAvg with tau = 10, batch 50 and eta = 0.1: D of
clients 0 to 9 in rounds 1 and 20. Prints means over these 20 vectors: bits per coordinate, header included,
and q = |Q(x) - x|^2/|x|^2; then the largest message of all, as a share of the bits asked for.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.algorithms.fedavg import FedAvg
from fedcom.codecs import Auto, Codec, Dithered, LowRank, Rotated
from fedcom.config import Config
from fedcom.draws import Draw
from fedcom.engines.simulation import Simulation
from fedcom.errors import ConfigError
from fedcom.runs.prepare import build_task
from fedcom.vectors import Layout, Vectors

RATES = (1.8, 1.0, 0.5, 0.25)
ROUNDS, CLIENTS = (1, 20), 10
SEEN: list[Tensor] = []


@dataclass(frozen=True)
class Watched(FedAvg):
    """FedAvg that appends what its clients send to SEEN."""

    def upload(self, client: object, down: Vectors, w: Tensor, rnd: Round) -> Vectors:
        sent = super().upload(client, down, w, rnd)
        SEEN.append(sent["D"])
        return sent


def updates() -> tuple[list[Tensor], Layout]:
    """The vectors, and where the model's tensors lie in them."""
    data = {"name": "mnist", "clients": 100, "partition": "classes", "classes_per_client": 2}
    task, _ = build_task(Config.of({"data": data, "model": {"name": "mlp", "hidden": [200, 200]}}))
    simulation, found = Simulation(task, Watched(eta=0.1, tau=10, batch=50), device="cpu"), []
    for number in range(1, ROUNDS[-1] + 1):
        SEEN.clear()
        simulation.step()
        found += list(torch.cat(SEEN)[:CLIENTS]) if number in ROUNDS else []
    return found, task.objective.layout


def measured(codec: Codec, xs: list[Tensor], layout: Layout) -> tuple[float, float, float]:
    """Bits per coordinate, mean and largest, and the mean q."""
    bits, errors = [], []
    for i, x in enumerate(xs):
        draw = Draw.seeded(i)
        message = codec.encode(x, layout, draw)
        heard = codec.decode(message, layout, draw).double()
        bits.append(8 * len(message) / layout.size)
        errors.append(float((heard - x).square().sum() / x.double().square().sum()))
    return sum(bits) / len(bits), max(bits), sum(errors) / len(errors)


def main(rates: list[float]) -> None:
    xs, layout = updates()
    print("| bits | rotated | dithered | lowrank 2 | lowrank 4 | auto |\n|--:|--:|--:|--:|--:|--:|")
    largest = 0.0
    for rate in rates:
        cells = []
        for codec in (Rotated(rate), Dithered(bits=rate), LowRank(2, rate), LowRank(4, rate), Auto(rate)):
            try:
                mean, most, q = measured(codec, xs, layout)
            except ConfigError:
                cells.append("")
                continue
            cells.append(f"{q:.3g} at {mean:.3f}")
            largest = max(largest, most / rate)
        print(f"| {rate:g} | {' | '.join(cells)} |", flush=True)
    print(f"\nlargest message: {largest:.4f} of the bits asked for")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(list(map(float, sys.argv[1:])) or list(RATES))
