"""What an outer step costs: coding one worker's message, reading it, and memory, beside the model.

    python -m benchmarks.outer --device cuda --millions 100 --bits 0.25

Each figure is the median of some outer steps of one process, after one to warm up. A worker reads as many
messages as there are workers; the time is that of one.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fedcom.draws import Draw
from fedcom.outer import Outer
from fedcom.outer.shards import divided, trainable


def synchronised(device: torch.device) -> float:
    """The time, once the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--millions", type=float, default=10.0, help="of parameters")
    parser.add_argument("--codec", default="rotated")
    parser.add_argument("--bits", type=float, default=0.25)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    device, width = torch.device(given.device), 1024
    layers = max(1, round(given.millions * 1e6 / width**2))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).to(device)
    numbers = sum(p.numel() for p in model.parameters())
    held = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    outer = Outer(model, given.codec, given.bits, every=1)
    pieces, draw = divided(trainable(model), 1)[0], Draw.seeded(0, device)
    times: dict[str, list[float]] = {"code": [], "read": [], "whole": []}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = synchronised(device)
        found = work()
        times[name].append(synchronised(device) - started)
        return found

    def read(messages: list[bytes]) -> None:
        for piece, message in zip(pieces, messages, strict=True):
            outer.codec.decode(message, piece.layout, draw)

    for _ in range(given.repeats + 1):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)
        timed("whole", outer.step)
        sent = timed("code", lambda: [outer.codec.encode(p.read(), p.layout, draw) for p in pieces])
        timed("read", partial(read, sent))
    code, heard, whole = (statistics.median(times[name][1:]) for name in ("code", "read", "whole"))
    print(f"{numbers / 1e6:.1f} million parameters, {given.codec} at {given.bits:g} bits, {device.type}")
    print(f"coding {code:.3f} s, reading {heard:.3f} s, an outer step of one worker {whole:.3f} s")
    if device.type == "cuda":
        extra = (torch.cuda.max_memory_allocated() - held) / (4 * numbers)
        print(f"memory: {extra:.2f} times the model's float32 beside it at most")


if __name__ == "__main__":
    main()
