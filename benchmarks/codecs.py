"""Speeds of codecs on one CPU thread, relative to an 8-bit min-max encoding in plain torch.

    python benchmarks/codecs.py [repeats]

Times are processor times of the thread, not wall-clock times, so that other programs hardly matter. Every
repeat times the yardstick and all codecs one after the other; ratios are taken within a repeat, and their
median and quartiles are printed.

If there is a GPU: times of rotating and quantising 100 vectors at once, as multiples of the time of copying
them on the device, each replayed as a CUDA graph; the median and quartiles over as many repeats.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median, quantiles
from time import thread_time

import torch
from torch import Tensor

from fedcom.codecs import Codec, Dithered, Int, Peaks, Rotated
from fedcom.draws import Draw
from fedcom.vectors import Layout

D = 200_000
LAYOUT = Layout.vector(D)
DRAW = Draw.seeded(0)
CODECS: dict[str, Codec] = {
    "dithered q=0.1": Dithered(q=0.1),
    "rotated 2": Rotated(2.0),
    "rotated 0.1": Rotated(0.1),
    "peaks 0.02": Peaks(0.02),
    "int 8": Int(8),
}


def min_max(x: Tensor) -> Tensor:
    """The yardstick: eight bits, rounded to the nearest level, without making a message."""
    low, high = x.min(), x.max()
    return ((x - low) * (255 / (high - low))).round().to(torch.uint8)


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """The shortest of a few calls, in processor seconds."""
    marks = [thread_time()]
    for _ in range(times):
        work()
        marks.append(thread_time())
    return min(after - before for before, after in pairwise(marks))


def tasks(x: Tensor) -> dict[str, Callable[[], object]]:
    """What is timed on one vector; the first is the yardstick."""
    work: dict[str, Callable[[], object]] = {"torch min-max": partial(min_max, x)}
    for name, codec in CODECS.items():
        data = codec.encode(x, LAYOUT, DRAW)
        work[f"{name} encode"] = partial(codec.encode, x, LAYOUT, DRAW)
        work[f"{name} decode"] = partial(codec.decode, data, LAYOUT, DRAW)
    return work


def report(kind: str, x: Tensor, repeats: int) -> None:
    """Print one line per task: rate, ratio to the yardstick, its quartiles."""
    work = tasks(x)
    runs = [{name: seconds(job) for name, job in work.items()} for _ in range(repeats)]
    print(f"{kind:<24}    MB/s   ratio  quartiles")
    for name in work:
        rate = median(4 * D / run[name] / 1e6 for run in runs)
        ratios = [run["torch min-max"] / run[name] for run in runs]
        low, _, high = quantiles(ratios, n=4)
        print(f"{name:<24} {rate:>7.0f} {median(ratios):>7.3f}  {low:.3f} to {high:.3f}")


def graph(work: Callable[[], object]) -> Callable[[], object]:
    """Work on the GPU, recorded as a CUDA graph and launched as a whole."""
    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        work()
    return captured.replay


def milliseconds(work: Callable[[], object], times: int = 20) -> float:
    """The mean time of some calls on the GPU, after a few to warm up."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(times + 3):
        if i == 3:
            start.record()
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / times


def report_gpu(codec: Codec, d: int, repeats: int, clients: int = 100) -> None:
    """Print the times of compressing and expanding a stack, as multiples of the time of copying it."""
    x, layout = torch.randn(clients, d, device="cuda"), Layout.vector(d)
    draw, copy = Draw.seeded(0, "cuda").fold(torch.arange(clients)), torch.empty_like(x)
    parts = codec.compress(x, layout, draw)
    yardstick = graph(partial(copy.copy_, x))
    for name, work in {
        "compress": partial(codec.compress, x, layout, draw),
        "expand": partial(codec.expand, parts, layout, draw),
    }.items():
        replay = graph(work)
        ratios = [milliseconds(replay) / milliseconds(yardstick) for _ in range(repeats)]
        low, _, high = quantiles(ratios, n=4)
        print(f"GPU {codec} {name}, {clients} x {d}: {median(ratios):.2f} copies, {low:.2f} to {high:.2f}")


def main(repeats: int) -> None:
    """Time every codec on a Gaussian and on a heavy-tailed vector, and the rotations on a GPU."""
    torch.set_num_threads(1)
    x = torch.randn(D, generator=torch.Generator().manual_seed(0))
    report("Gaussian", x, repeats)
    report("heavy-tailed (x^3)", x**3, repeats)
    for d in (D, 1_797_010) if torch.cuda.is_available() else ():
        report_gpu(Rotated(2.0), d, repeats)
        report_gpu(Peaks(0.02), d, repeats)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 31)
