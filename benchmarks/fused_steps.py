"""Local steps of a fully connected network by fedcom's Triton kernels, beside cuBLAS and torch.compile.

    python -m benchmarks.fused_steps [--clients 100] [--batch 50] [--sizes 784,200,200,10] [--repeats 5]

Prints how far the models are from those of float64 after some steps, and microseconds per local step, each
way replayed as a CUDA graph, the ways in turn. Without a GPU, TRITON_INTERPRET=1 prints the kernels' distance
only.
"""

import argparse
import os
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from benchmarks.codecs import graph, milliseconds
from torch import Tensor, nn

from fedcom.tasks.dense import Dense
from fedcom.tasks.kernels import gpu
from fedcom.vectors import Layout, descend, flatten

ETA = 0.1
STEPS = 10
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Case(NamedTuple):
    """A network, a model that all clients begin with, their corrections and minibatches."""

    dense: Dense
    w: Tensor
    walk: gpu.Walk
    batches: gpu.Minibatches

    def kernels(self) -> Tensor:
        """The clients' models after all steps, by the kernels."""
        return gpu.local_steps(self.dense, self.w, self.walk, self.batches)

    def plain(self, step: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
        """The same by a function of one step."""
        x, y, rows, weight = self.batches
        delta = torch.as_tensor(self.walk.delta).to(dtype)
        w = self.w.to(dtype).expand(rows.shape[1], -1)
        for some, share in zip(rows, weight, strict=True):
            w = step(w, x.to(dtype)[some], y[some], share.to(dtype), delta)
        return w

    def step(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, delta: Tensor) -> Tensor:
        """One local step, by torch."""
        return descend(w, ETA, self.dense.gradients(w, x, y, weight) - delta)

    def distance(self, models: Tensor) -> float:
        """The root of the mean squared error of models, relative to how far the true ones went."""
        right = self.plain(self.step, torch.float64)
        return float((models - right).norm() / (right - self.w).norm())


def case(sizes: list[int], clients: int, batch: int, device: str) -> Case:
    """Random numbers."""
    torch.manual_seed(0)
    layers = [nn.Linear(i, o) for i, o in pairwise(sizes)]
    module = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    dense = Dense.of(module, Layout.of(module))
    assert dense is not None
    samples, rows = 200 * clients, (STEPS, clients, batch)
    x, y = torch.rand(samples, sizes[0]), torch.randint(sizes[-1], (samples,))
    batches = (x, y, torch.randint(samples, rows), torch.full(rows, 1 / batch))
    walk = (torch.full(rows[:2], ETA), 0.01 * torch.randn(clients, dense.layout.size))
    there = [[tensor.to(device) for tensor in group] for group in (walk, batches)]
    return Case(dense, flatten(module).to(device), gpu.Walk(*there[0]), gpu.Minibatches(*there[1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.fused_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--sizes", default="784,200,200,10")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    given = case(sizes, args.clients, args.batch, "cpu" if INTERPRETED else "cuda")
    if INTERPRETED:
        print(f"kernels: distance {given.distance(given.kernels()):.1e}")
        return
    print("| products | way | distance from float64 | us per local step |\n|---|---|--:|--:|")
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        quick = torch.compile(given.step, dynamic=False)
        ways = {
            "cuBLAS and torch.compile": lambda quick=quick: given.plain(quick, torch.float32),
            "kernels": given.kernels,
        }
        replays = {name: graph(way) for name, way in ways.items()}
        times = [
            {name: 1e3 * milliseconds(replay) / STEPS for name, replay in replays.items()}
            for _ in range(args.repeats)
        ]
        for name, way in ways.items():
            us = median(each[name] for each in times)
            print(f"| {'TF32' if tf32 else 'float32'} | {name} | {given.distance(way()):.1e} | {us:.0f} |")


if __name__ == "__main__":
    main()
