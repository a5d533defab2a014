"""A local step of convolutional networks on one core of a CPU: clients stacked, one by one, and a plain loop.

    python -m benchmarks.convolutions

The stack is five clients of autograd under vmap; the loop is nn.Module, backward() and torch.optim.SGD. All
take turns in every repeat, in processor time of one thread, so that other programs disturb the ratios little.
"""

import argparse
import copy
import time
from collections.abc import Callable
from statistics import median

import torch
from benchmarks.jobs import JOBS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcom.tasks.models import Cnn, Lenet
from fedcom.tasks.objective import Objective
from fedcom.tasks.rehearsal import rehearse
from fedcom.vectors import descend

CLIENTS, ETA = 5, 0.01
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {  # and a sample's shape, the batch
    "lenet, CIFAR-10": (lambda: Lenet().module((3, 32, 32), 10), (3, 32, 32), 64),
    "lenet, MNIST": (lambda: Lenet().module((1, 28, 28), 10), (1, 28, 28), 64),
    "cnn, MNIST": (lambda: Cnn().module((1, 28, 28), 10), (1, 28, 28), 50),
    "cifar-cnn of benchmarks.peers": (JOBS["cifar-cnn"].module, (3, 32, 32), 10),
}


def stepped(objective: Objective, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> None:
    """A step of all clients."""
    for rows, place, g in objective.pieces(w, x, y, weight):
        descend(w[rows, place], ETA, g, out=w[rows, place])


def contenders(
    make: Callable[[], nn.Module], shape: tuple[int, ...], b: int
) -> dict[str, Callable[[], None]]:
    """What is timed: a step of all clients each."""
    torch.manual_seed(0)
    module, x, y = make(), torch.randn(CLIENTS, b, *shape), torch.randint(0, 10, (CLIENTS, b))
    objective, weight = Objective(module), torch.full((CLIENTS, b), 1 / b)
    rehearse(objective, x[0], y[0], 10)
    stacked = copy.copy(objective)
    stacked.convolved = 0  # as if there were no convolutions
    w, optimiser = objective.start.repeat(CLIENTS, 1), torch.optim.SGD(module.parameters(), ETA)

    def loop() -> None:
        for xs, ys in zip(x, y, strict=True):
            optimiser.zero_grad()
            cross_entropy(module(xs), ys).backward()
            optimiser.step()

    return {
        "stacked": lambda: stepped(stacked, w, x, y, weight),
        "one by one": lambda: stepped(objective, w, x, y, weight),
        "loop": loop,
    }


def seconds(work: Callable[[], None]) -> float:
    """Processor time of this thread."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.convolutions", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("| model, batch | stacked, ms | one by one | loop | stacked / one by one | loop / one by one |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, (make, shape, b) in MODELS.items():
        works = contenders(make, shape, b)
        turns = [{key: seconds(work) for key, work in works.items()} for _ in range(repeats + 1)][1:]
        each = {key: 1e3 * median(turn[key] for turn in turns) / CLIENTS for key in works}
        ratios = [median(turn[key] / turn["one by one"] for turn in turns) for key in ("stacked", "loop")]
        figures = [f"{each[key]:.1f}" for key in works] + [f"{ratio:.2f}" for ratio in ratios]
        print(f"| {name}, {b} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
