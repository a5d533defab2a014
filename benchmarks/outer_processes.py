"""Outer steps of processes that share a device: codec time of a message, memory, bytes, and the same bits.

    torchrun --nproc-per-node 2 benchmarks/outer_processes.py --device cuda --millions 100

Each process is a worker with a model of its own and sends its messages by gloo. Memory is what a process has
at most beside its model, in copies of the model in float32: outer parameters, momentum, and what codecs need.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

from fedcom.draws import Draw
from fedcom.outer import Outer, start
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
    parser.add_argument("--bits", type=float, default=0.25)
    parser.add_argument("--turns", type=int, default=5, help="outer steps, after one to warm up")
    given = parser.parse_args()
    start()
    device, width = torch.device(given.device), 1024
    torch.manual_seed(0)
    layers = max(1, round(given.millions * 1e6 / width**2))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).to(device)
    numbers = sum(p.numel() for p in model.parameters())
    held = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    outer = Outer(model, "rotated", given.bits, every=1)
    rank, times = outer.process, list[float]()
    for turn in range(given.turns + 1):
        torch.manual_seed(1 + turn * outer.workers + rank)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)
        started = synchronised(device)
        outer.step()
        times.append(synchronised(device) - started)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    pieces, draw, coding = (
        divided(trainable(model), 1)[0],
        Draw.seeded(0, device),
        list[tuple[float, float]](),
    )
    for _ in range(given.turns + 1):
        begun = synchronised(device)
        sent = [outer.codec.encode(piece.read(), piece.layout, draw) for piece in pieces]
        coded = synchronised(device)
        for piece, message in zip(pieces, sent, strict=True):
            outer.codec.decode(message, piece.layout, draw)
        coding.append((coded - begun, synchronised(device) - coded))
    sums = [sum(float(p.detach().double().sum()) for p in model.parameters())] * outer.workers
    if dist.is_initialized():
        dist.all_gather_object(sums, sums[0])
    code, read = (statistics.median(some) for some in zip(*coding[1:], strict=True))
    lines = [
        f"{numbers / 1e6:.1f} million parameters, {outer.workers} processes on {device.type}",
        f"process {rank}: coding a message {code:.3f} s, reading one {read:.3f} s, an outer step "
        f"{statistics.median(times[1:]):.3f} s; {outer}",
        f"the same model in all processes: {len(set(sums)) == 1}",
    ]
    if device.type == "cuda":
        lines.append(f"memory: {(peak - held) / (4 * numbers):.2f} copies of the model beside it at most")
    print("\n".join(lines), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
