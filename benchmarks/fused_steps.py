"""Local steps of a fully connected network as Triton kernels, beside what the compiled engine does on a GPU.

    python -m benchmarks.fused_steps [--clients 100] [--batch 50] [--sizes 784,200,200,10] [--repeats 5]

A step has one kernel per layer in each direction, and one that multiplies errors and inputs and changes the
model at once, so that no gradient is written. Prints how far the result is from torch's in float64, and
microseconds per local step, each way replayed as a CUDA graph, the ways in turn. Without a GPU,
TRITON_INTERPRET=1 prints the first of these only.
"""

# mypy: ignore-errors

import argparse
import os
from collections.abc import Callable
from itertools import pairwise, product
from statistics import median
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from benchmarks.codecs import graph, milliseconds
from torch import Tensor, nn

from fedcom.tasks.dense import Dense
from fedcom.vectors import Layout, descend

ETA = 0.1
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Tiles(NamedTuple):
    """How a kernel divides a product, and how it is run."""

    rows: int = 64
    columns: int = 64
    inner: int = 32
    warps: int = 4
    stages: int = 3


# d is the length of a model; a layer's matrix W [OUT, IN] begins at `place`, its bias follows.


@triton.jit
def forward(
    x,
    w,
    out,
    y,
    weight,
    d,
    place,
    N: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Fill out [clients, N, OUT] with max(x W^T + bias, 0); of the last layer, with the errors."""
    c, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    n, o, k = tl.arange(0, ROWS), first + tl.arange(0, COLUMNS), tl.arange(0, INNER)
    x += c * N * IN
    w += c * d + place
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, IN, INNER):
        i = start + k
        left = tl.load(x + n[:, None] * IN + i, mask=(n[:, None] < N) & (i < IN), other=0.0)
        right = tl.load(w + o * IN + i[:, None], mask=(o < OUT) & (i[:, None] < IN), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    total += tl.load(w + OUT * IN + o, mask=o < OUT, other=0.0)[None, :]
    if LAST:
        total = tl.where(o < OUT, total, float("-inf"))
        share = tl.exp(total - tl.max(total, 1)[:, None])
        share = share / tl.sum(share, 1)[:, None]
        right_one = tl.load(y + c * N + n, mask=n < N, other=0)
        total = tl.where(o == right_one[:, None], share - 1, share)
        total *= tl.load(weight + c * N + n, mask=n < N, other=0.0)[:, None]
    else:
        total = tl.maximum(total, 0.0)
    tl.store(out + c * N * OUT + n[:, None] * OUT + o, total, mask=(n[:, None] < N) & (o < OUT))


@triton.jit
def back(
    errors,
    w,
    x,
    out,
    d,
    place,
    N: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Fill out [clients, N, IN] with the errors of the layer before, where its output x is above zero."""
    c, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    n, i, k = tl.arange(0, ROWS), first + tl.arange(0, COLUMNS), tl.arange(0, INNER)
    errors += c * N * OUT
    w += c * d + place
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, OUT, INNER):
        o = start + k
        left = tl.load(errors + n[:, None] * OUT + o, mask=(n[:, None] < N) & (o < OUT), other=0.0)
        right = tl.load(w + o[:, None] * IN + i, mask=(o[:, None] < OUT) & (i < IN), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    where = c * N * IN + n[:, None] * IN + i
    inside = (n[:, None] < N) & (i < IN)
    above = tl.load(x + where, mask=inside, other=0.0) > 0
    tl.store(out + where, tl.where(above, total, 0.0), mask=inside)


@triton.jit
def step(
    errors,
    x,
    w,
    delta,
    eta,
    d,
    place,
    N: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Subtract eta (errors^T x - delta) from W, and the same of the bias."""
    c, tiles = tl.program_id(0).to(tl.int64), tl.cdiv(IN, COLUMNS)
    o = tl.program_id(1) // tiles * ROWS + tl.arange(0, ROWS)
    i, n = tl.program_id(1) % tiles * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, INNER)
    errors += c * N * OUT
    w += c * d + place
    delta += c * d + place
    left = tl.load(errors + n * OUT + o[:, None], mask=(n < N) & (o[:, None] < OUT), other=0.0)
    right = tl.load(x + c * N * IN + n[:, None] * IN + i, mask=(n[:, None] < N) & (i < IN), other=0.0)
    g = tl.dot(left, right, input_precision=PRECISION)
    where, inside = o[:, None] * IN + i, (o[:, None] < OUT) & (i < IN)
    g -= tl.load(delta + where, mask=inside, other=0.0)
    tl.store(w + where, tl.load(w + where, mask=inside, other=0.0) - eta * g, mask=inside)
    if tl.program_id(1) % tiles == 0:
        at = OUT * IN + o
        bias = tl.sum(left, 1) - tl.load(delta + at, mask=o < OUT, other=0.0)
        tl.store(w + at, tl.load(w + at, mask=o < OUT, other=0.0) - eta * bias, mask=o < OUT)


class Fused:
    """Local steps by the kernels, for a network of these sizes with biases.

    Args:
        precision: of products: "ieee", "tf32x3" or "tf32".
    """

    def __init__(self, sizes: list[int], precision: str, tiles: dict[str, Tiles] | None = None) -> None:
        self.sizes, self.precision, self.tiles = sizes, precision, tiles or {}

    def __call__(self, w: Tensor, delta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Change the clients' models w [clients, d] by one step on minibatches x [clients, N, sizes[0]]."""
        layers = list(pairwise(self.sizes))
        places = [sum(i * o + o for i, o in layers[:k]) for k in range(len(layers))]
        inputs, last = [x], len(layers) - 1
        for k, (i, o) in enumerate(layers):
            out = x.new_empty(*x.shape[:2], o)
            self._run(forward, o, (inputs[-1], w, out, y, weight), w, places[k], i, o, LAST=k == last)
            inputs.append(out)
        errors = [inputs.pop()]
        for k in range(last, 0, -1):
            i, o = layers[k]
            errors.append(torch.empty_like(inputs[k]))
            self._run(back, i, (errors[-2], w, inputs[k], errors[-1]), w, places[k], i, o)
        for k, (i, o) in enumerate(layers):
            self._run(step, (o, i), (errors[last - k], inputs[k], w, delta, ETA), w, places[k], i, o)
        return w

    def _run(self, kernel, across, tensors, w: Tensor, place: int, i: int, o: int, **flags: bool) -> None:
        n, tiles = tensors[0].shape[1], self.tiles.get(kernel.__name__, Tiles())
        wide = max(16, triton.next_power_of_2(n))
        if isinstance(across, tuple):  # the minibatch is what the product sums over
            rows, columns, inner = tiles.rows, tiles.columns, wide
            programs = triton.cdiv(across[0], rows) * triton.cdiv(across[1], columns)
        else:
            rows, inner = wide, tiles.inner
            # The last layer's programs see all classes.
            columns = max(16, triton.next_power_of_2(o)) if flags.get("LAST") else tiles.columns
            programs = triton.cdiv(across, columns)
        kernel[len(w), programs](
            *tensors,
            w.shape[1],
            place,
            N=n,
            IN=i,
            OUT=o,
            PRECISION=self.precision,
            ROWS=rows,
            COLUMNS=columns,
            INNER=inner,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **flags,
        )


class Case(NamedTuple):
    """Models, corrections and a minibatch of some clients."""

    w: Tensor
    delta: Tensor
    x: Tensor
    y: Tensor
    weight: Tensor


def case(sizes: list[int], clients: int, batch: int, device: str) -> tuple[Case, Dense]:
    """Random numbers, and the network as fedcom computes it."""
    torch.manual_seed(0)
    layers = [nn.Linear(i, o) for i, o in pairwise(sizes)]
    module = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
    dense = Dense.of(module, Layout.of(module))
    d = dense.layout.size
    w, delta = 0.05 * torch.randn(clients, d), 0.01 * torch.randn(clients, d)
    x, y = torch.rand(clients, batch, sizes[0]), torch.randint(sizes[-1], (clients, batch))
    weight = torch.full((clients, batch), 1 / batch)
    return Case(*(tensor.to(device) for tensor in (w, delta, x, y, weight))), dense


def distance(fused: Fused, given: Case, dense: Dense) -> float:
    """The largest difference of a step from that of torch in float64, relative to the largest change."""
    wide = Case(*(x.double() if x.is_floating_point() else x for x in given))
    right = wide.w - ETA * (dense.gradients(wide.w, *wide[2:]) - wide.delta)
    ours = fused(given.w.clone(), *given[1:])
    return float((ours - right).abs().max() / (right - wide.w).abs().max())


def compiled(dense: Dense, given: Case) -> Callable[[], Tensor]:
    """A step as the compiled engine takes it: cuBLAS's products, the rest fused."""

    def plain(w: Tensor) -> Tensor:
        return descend(w, ETA, dense.gradients(w, *given[2:]) - given.delta)

    quick = torch.compile(plain, dynamic=False)
    return lambda: given.w.copy_(quick(given.w))


def best_tiles(sizes: list[int], precision: str, given: Case) -> dict[str, Tiles]:
    """The quickest tiles of each kernel, the others left as they are."""
    found: dict[str, Tiles] = {}
    for kernel in ("forward", "back", "step"):
        times: dict[Tiles, float] = {}
        for tiles in map(Tiles._make, product((32, 64, 128), (32, 64, 128), (32, 64), (4, 8), (2, 3))):
            idle = (tiles.inner, tiles.stages) != (32, 3) if kernel == "step" else tiles.rows != 64
            if idle:  # this kernel does not look at it
                continue
            fused = Fused(sizes, precision, found | {kernel: tiles})
            try:
                times[tiles] = milliseconds(graph(lambda fused=fused: fused(*given)))
            except Exception as error:  # too much shared memory, say
                print(f"{kernel} {tuple(tiles)}: {type(error).__name__}")
        found[kernel] = min(times, key=times.__getitem__)
    return found


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
    given, dense = case(sizes, args.clients, args.batch, "cpu" if INTERPRETED else "cuda")
    for precision, tf32 in (("tf32x3", False), ("tf32", True)):
        if INTERPRETED:
            print(f"{precision}: distance {distance(Fused(sizes, precision), given, dense):.1e}")
            continue
        torch.backends.cuda.matmul.allow_tf32 = tf32
        tiles = best_tiles(sizes, precision, given)
        fused = Fused(sizes, precision, tiles)
        print(f"{precision}: distance {distance(fused, given, dense):.1e}, tiles {tiles}")
        ways = {"cuBLAS": graph(compiled(dense, given)), "fused": graph(lambda: fused(*given))}  # noqa: B023
        times = [{name: 1e3 * milliseconds(way) for name, way in ways.items()} for _ in range(args.repeats)]
        for name in ways:
            print(f"| {precision} | {name} | {median(each[name] for each in times):.0f} us |")


if __name__ == "__main__":
    main()
