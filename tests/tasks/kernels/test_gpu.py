"""Local steps by Triton kernels against float64: interpreted on a CPU, compiled on a GPU."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedcom.algorithms.local_optimisers import (
    PLAIN_STEPS,
    AdamWSteps,
    Begun,
    LocalOptimiser,
    LocalStep,
    MomentumSteps,
)
from fedcom.draws import Draw, salt
from fedcom.engines.local.eager import repeatable
from fedcom.tasks.dense import Dense
from fedcom.tasks.kernels import gpu
from fedcom.vectors import Layout, flatten

pytest.importorskip("triton", reason="triton comes with torch for CUDA")
CASES = {  # sizes of the layers, clients, samples and steps, and settings
    "three layers": ([37, 20, 18, 5], 3, 7, 3, {}),
    "nothing beside": ([37, 20, 18, 5], 3, 7, 1, {"bias": False, "shared": False, "tracks": False}),
    "one layer": ([37, 5], 9, 20, 3, {"decay": 0.1}),
    "more than a tile": ([70, 70, 20], 2, 50, 2, {"tracks": False}),
    "four layers": ([20, 70, 33, 34, 4], 2, 33, 2, {"shared": False, "decay": 0.1}),
    "momentum": ([37, 20, 5], 3, 7, 3, {"local": MomentumSteps(momentum=0.7, weight_decay=0.1)}),
    "adamw": ([37, 20, 5], 3, 7, 3, {"local": AdamWSteps(beta1=0.8, eps=1e-3), "decay": 0.1}),
}


def distance(
    sizes: list[int],
    clients: int,
    samples: int,
    steps: int,
    device: str,
    bias: bool = True,
    shared: bool = True,
    tracks: bool = True,
    decay: float = 0.0,
    local: LocalOptimiser = PLAIN_STEPS,
) -> float:
    """The largest error of models and moments after some steps, relative to the largest change."""
    torch.manual_seed(0)
    layers = [nn.Linear(i, o, bias=bias) for i, o in pairwise(sizes)]
    module = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    dense = Dense.of(module, Layout.of(module))
    assert dense is not None
    w = flatten(module).to(device)
    w = w if shared else w + 0.01 * torch.randn(clients, len(w), device=device)
    delta = 0.01 * torch.randn(clients, w.shape[-1], device=device)
    x, y = torch.rand(200, sizes[0], device=device), torch.randint(sizes[-1], (200,), device=device)
    rows = torch.randint(200, (steps, clients, samples), device=device)
    weight = torch.rand(steps, clients, samples, device=device) / samples
    eta = torch.full((steps, clients), 0.1, device=device)
    eta[-1, 0] = 0.0  # this client takes a step less
    whole, taken = w.expand(clients, -1).contiguous(), torch.arange(clients, device=device).unsqueeze(-1)
    begun = Begun({name: x + 0.01 for name, x in local.init(whole).items()}, taken.double())
    exact = {name: x.double() for name, x in begun.moments.items()}
    walk = gpu.walk_of(local, eta, delta if tracks else None, decay, None if local.plain else begun)
    ours = gpu.local_steps(dense, w, walk, gpu.Minibatches(x, y, rows, weight))
    start = right = w.double().expand(clients, -1)
    for step in range(steps):
        g = dense.gradients(right, x.double()[rows[step]], y[rows[step]], weight[step].double())
        g = g + decay * right - (delta.double() if tracks else 0)
        size = eta[step].double().unsqueeze(-1)
        at = LocalStep(size, begun.taken + step + 1, dense.layout, size)
        moved, after = local.taken(right, g, start, exact, at)
        right = torch.where(size > 0, moved, right)
        exact = {name: torch.where(size > 0, x, exact[name]) for name, x in after.items()}
    far = [float((begun.moments[name] - x).abs().max() / x.abs().max()) for name, x in exact.items()]
    return max(float((ours - right).abs().max() / (right - start).abs().max()), *far, 0.0)


def check_draws(device: str) -> None:
    """Keys and minibatches are those of Draw."""
    from fedcom.codecs.kernels import triton_draws

    here = Draw.seeded(3).fold(torch.arange(7))
    for key in (torch.tensor(-5), here.key):
        there = key.to(device)
        assert torch.equal(triton_draws.fold(there, salt("batch")).cpu(), Draw(key).fold("batch").key)
        for ids in (
            torch.arange(7),
            torch.arange(3).unsqueeze(-1),
            torch.tensor(4),
            torch.arange(14)[::2],
        ):
            assert torch.equal(triton_draws.fold(there, ids.to(device)).cpu(), Draw(key).fold(ids).key)
    sizes, offsets = 100 * torch.arange(1, 8), 1000 * torch.arange(7)
    rows = gpu.drawn(Draw(here.key.to(device)), sizes.to(device), offsets.to(device), 4, 50).cpu()
    for step in range(4):
        drawn = here.fold("batch", torch.tensor(step)).integers(sizes, 50)
        assert torch.equal(rows[step], drawn + offsets.unsqueeze(-1))


def interpret(call: str) -> None:
    """Run a function of this file in a process whose Triton interprets kernels."""
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_gpu as t; {call}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES)
def test_steps_interpreted(case: str) -> None:
    interpret(f"*given, more = t.CASES[{case!r}]; assert t.distance(*given, 'cpu', **more) < 1e-5")


def test_draws_interpreted() -> None:
    interpret("t.check_draws('cpu')")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("tf32", "bound"), [(False, 1e-5), (True, 0.05)])
def test_steps_on_a_gpu(case: str, tf32: bool, bound: float) -> None:
    *given, more = CASES[case]
    with repeatable(tf32):
        assert distance(*given, "cuda", **more) < bound


@pytest.mark.gpu
def test_draws_on_a_gpu() -> None:
    check_draws("cuda")
