"""Measure one contender in a process of its own: `python -m benchmarks.worker SPEC` prints the result."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

MARK = "measured "
RANKS = ("RANK", "LOCAL_RANK")


class Clock:
    """Marks when the rounds that warm up end, and when those that are timed end."""

    def __init__(self, warmup: int, rounds: int, device: str) -> None:
        self.marks: list[float] = []
        self.bytes = 0
        self._device, self._at, self._turn = device, (warmup, warmup + rounds), 0

    def tick(self) -> None:
        """A round has ended."""
        self._turn += 1
        if self._turn in self._at:
            if self._device == "cuda":
                import torch

                torch.cuda.synchronize()
            self.marks.append(perf_counter())
        if self._turn == self._at[1]:
            self.bytes = peak_bytes(self._device)


def peak_bytes(device: str) -> int:
    """Peak memory: of torch on the GPU, or of this process and its children."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    held = [status for pid in family(os.getpid()) if (status := _status(pid))]
    private = sum(s["VmHWM"] - s["RssFile"] - s["RssShmem"] for s in held)
    shared = sum(max(s[kind] for s in held) for kind in ("RssFile", "RssShmem"))  # counted once
    return 1024 * (private + shared)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # the process has ended
        return []
    return [pid, *(member for child in children for member in family(child))]


def _status(pid: int) -> dict[str, int]:
    """What the kernel says of a process's memory, in kB; empty if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.endswith(" kB"))
    kilobytes = {key: int(value.split()[0]) for key, value in pairs}
    return kilobytes if "VmHWM" in kilobytes else {}


def start_ranks(ranks: int) -> list[subprocess.Popen[bytes]]:
    """Start further processes that work together with this one, as torchrun would."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {name: str(ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "benchmark"}
    os.environ.update(world | meet | dict.fromkeys(RANKS, "0"))
    command = [sys.executable, "-m", "benchmarks.worker", sys.argv[1]]
    return [
        subprocess.Popen(command, env=os.environ | dict.fromkeys(RANKS, str(rank)), stdout=subprocess.DEVNULL)
        for rank in range(1, ranks)
    ]


def main(spec: dict[str, Any]) -> None:
    """Run a contender and print its seconds and peak bytes."""
    name, device = spec["contender"], spec["device"]
    first = "RANK" not in os.environ
    others = start_ranks(len(os.sched_getaffinity(0))) if name.endswith("-ranks") and first else []
    if name.endswith(("-single", "-ranks")):
        os.environ["OMP_NUM_THREADS"] = "1"  # all of torch's libraries read it when torch is imported
    import torch
    from benchmarks.contenders import CONTENDERS
    from benchmarks.jobs import JOBS

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec["tf32"]
    clock = Clock(spec["warmup"], spec["rounds"], device)
    job, total = JOBS[spec["job"]], spec["warmup"] + spec["rounds"]
    CONTENDERS[name](job, device, total, clock.tick, tf32=spec["tf32"])
    for process in others:
        process.wait()
    if not clock.marks:  # a rank that only follows
        return
    begun, ended = clock.marks
    print(MARK + json.dumps({"seconds": ended - begun, "bytes": clock.bytes}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
