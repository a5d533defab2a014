"""What an outer step costs: coding one worker's message, reading it, and memory, beside the model.

    python -m benchmarks.outer --device cuda --millions 100 --bits 0.25

Each figure is the median of some outer steps of one process, after one to warm up. A worker reads as many
messages as there are workers; the time is that of one.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from fedcom.outer import Outer


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
    times: dict[str, list[float]] = {"code": [], "read": [], "whole": []}

    def timed(name: str, work):  # type: ignore[no-untyped-def]
        def spy(*arguments):  # type: ignore[no-untyped-def]
            started = synchronised(device)
            found = work(*arguments)
            spent[name] += synchronised(device) - started
            return found

        return spy

    outer._encode, outer._decoded = timed("code", outer._encode), timed("read", outer._decoded)  # type: ignore[method-assign]
    for turn in range(given.repeats + 1):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=1e-3)
        spent = {"code": 0.0, "read": 0.0}
        started = synchronised(device)
        outer.step()
        spent["whole"] = synchronised(device) - started
        for name, seconds in spent.items() if turn else ():
            times[name].append(seconds)
    code, read, whole = (statistics.median(times[name]) for name in ("code", "read", "whole"))
    print(f"{numbers / 1e6:.1f} million parameters, {given.codec} at {given.bits:g} bits, {device.type}")
    print(f"coding {code:.3f} s, reading {read:.3f} s, an outer step of one worker {whole:.3f} s")
    if device.type == "cuda":
        extra = (torch.cuda.max_memory_allocated() - held) / (4 * numbers)
        print(f"memory: {extra:.2f} times the model's float32 beside it at most")


if __name__ == "__main__":
    main()
