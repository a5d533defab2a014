"""Client steps per second against the number of ranks and the transport, and the bytes that really travel.

    python -m benchmarks.ranks [--device cuda] [--ranks 1,2] [--transports chain,bytes,reduce] [--job mnist]

Each measurement is a job of its own, one after the other, and all of them again in each repeat. A rank has
one thread.

predicted        one rank's time divided by the ranks, plus the exchange by a model of latency and bandwidth,
                 both measured by sending parcels between two ranks; where ranks share a GPU, one rank's time
                 is not divided
exchange         the time of a round between a rank's own clients and the mean, on the rank that waits least
MB on the wire   per round, what ranks hand to torch.distributed
MB accounted     per round, what the ledger says that clients would send and receive
distance         how far the model is from one process's, relative to how far it went
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.contenders import fedcom_task
from benchmarks.jobs import ETA, JOBS, Job

import fedcom
from fedcom.engines.ranks.engine import RankedEngine
from fedcom.engines.ranks.ranks import Ranks, join, leave

METHODS = {"fedavg": (fedcom.FedAvg, None), "fedcomgate": (fedcom.FedCOMGATE, fedcom.Links(fedcom.Int(8)))}
TRANSPORTS = ("chain", "bytes", "reduce")
_PINGS = 20


@dataclass
class Meter:
    """What a rank handed to torch.distributed, and how long its exchanges took."""

    ranks: Ranks
    bytes: float = 0.0
    seconds: float = 0.0

    def watch(self) -> None:
        """Count what is sent from now on: to all, once per receiver; what is reduced, as in a ring."""
        shares = {
            "send": lambda *a: 1.0,
            "broadcast": lambda x, teller, *a: (self.ranks.size - 1) * (teller == self.ranks.rank),
            "all_reduce": lambda *a: 2 * (self.ranks.size - 1) / self.ranks.size,
        }
        for name, share in shares.items():
            setattr(dist, name, self._counted(getattr(dist, name), share))

    def _counted(self, function: Callable[..., Any], share: Callable[..., float]) -> Callable[..., Any]:
        @wraps(function)
        def counted(x: torch.Tensor, *rest: Any, **options: Any) -> Any:
            self.bytes += x.nbytes * share(x, *rest)
            return function(x, *rest, **options)

        return counted

    def time(self, engine: RankedEngine) -> None:
        """Time the engine's exchanges."""
        exchange = engine.exchange

        def timed(own: Any) -> Any:
            if own.q.is_cuda:
                torch.cuda.synchronize()
            started = perf_counter()
            found = exchange(own)
            self.seconds += perf_counter() - started
            return found

        engine.exchange = timed  # type: ignore[method-assign]


def work(spec: dict[str, Any], out: Path) -> None:
    """One rank of one measurement: writes what it found into a folder."""
    ranks, job, device = join(), JOBS[spec["job"]], spec["device"]
    torch.set_num_threads(1)
    meter = Meter(ranks)
    hop = _hop(ranks, spec["pinged"]) if ranks.size > 1 else {}
    simulation = _simulation(job, spec, ranks)
    meter.watch()
    if isinstance(simulation.engine, RankedEngine):
        meter.time(simulation.engine)
    if ranks.rank:
        simulation.follow()
        total = spec["warmup"] + spec["rounds"]
        part = {"seconds": meter.seconds / total, "bytes": meter.bytes / total}
    else:
        _play(simulation, spec["warmup"], device)
        before = {"seconds": meter.seconds, "bytes": meter.bytes, **_accounted(simulation)}
        lap = _play(simulation, spec["rounds"], device)
        after = {"seconds": meter.seconds, "bytes": meter.bytes, **_accounted(simulation)}
        part = {key: (after[key] - before[key]) / spec["rounds"] for key in after}
        part |= {"lap": lap / spec["rounds"], **hop}
        start = simulation.task.objective.start.cpu()
        torch.save({"w": simulation.server.w.cpu(), "start": start}, out / "0.w")
    leave()
    (out / f"{ranks.rank}.json").write_text(json.dumps(part))


def _simulation(job: Job, spec: dict[str, Any], ranks: Ranks) -> fedcom.Simulation:
    method, links = METHODS[spec["method"]]
    steps: dict[str, Any] = {"epochs": 1} if job.epoch else {"tau": job.steps}
    return fedcom.Simulation(
        fedcom_task(job),
        method(eta=ETA, decay=1.0, batch=job.batch, **steps),
        links,
        device=spec["device"],
        participation=job.sampled / job.clients,
        ranks=ranks,
        transport=spec["transport"],
    )


def _play(simulation: fedcom.Simulation, rounds: int, device: str) -> float:
    started = perf_counter()
    for _ in range(rounds):
        simulation.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - started


def _accounted(simulation: fedcom.Simulation) -> dict[str, int]:
    return {way: simulation.ledger.total(way) for way in ("uplink", "downlink")}


def _hop(ranks: Ranks, size: int) -> dict[str, float]:
    """Seconds from one rank to the next, for a small parcel and for one of some size."""
    found = {}
    for name, count in (("latency", 8), ("whole", size)):
        parcel, times = {"x": torch.zeros(count, dtype=torch.uint8)}, []
        for _ in range(_PINGS):
            started = perf_counter()
            if ranks.rank == 0:
                ranks.send(1, {}, parcel)
                ranks.receive(1)
            elif ranks.rank == 1:
                ranks.receive(0)
                ranks.send(0, {}, parcel)
            times.append((perf_counter() - started) / 2)
        found[name] = statistics.median(times)
    return found


def predicted(one: float, ranks: int, transport: str, hop: dict[str, float], shared: bool) -> float | None:
    """Seconds of a round on some ranks, by the model; None where it does not say.

    Args:
        one: seconds of a round on one rank.
        hop: seconds for an empty parcel, and for one that holds a model.
        shared: whether all ranks compute on one device.
    """
    latency, whole = hop["latency"], hop["whole"]
    exchange = {
        "chain": (ranks - 1) * whole + (ranks - 1).bit_length() * whole,
        "reduce": 2 * (ranks - 1) * latency * 2 + 2 * (ranks - 1) / ranks * (whole - latency),
    }
    return None if transport not in exchange else one / (1 if shared else ranks) + exchange[transport]


def measure(spec: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Start a job and read what its ranks found."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
        command = (sys.executable, *torchrun, "-m", "benchmarks.ranks", "--work", json.dumps(spec), folder)
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{command}\n{done.stderr[-3000:]}")
        parts = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
        kept = torch.load(Path(folder) / "0.w")
    return {
        **parts[0],
        "bytes": sum(part["bytes"] for part in parts),
        "exchange": min(part["seconds"] for part in parts),
        **kept,
    }


def machine(device: str) -> str:
    """What the measurements are of."""
    if device == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, torch {torch.__version__}"
    names = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith(("model name", "CPU part"))]
    kind = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores, {kind}, {platform.machine()}, torch {torch.__version__}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _row(method: str, ranks: int, transport: str, found: list[dict[str, Any]], job: Job, one: Any) -> str:
    laps = [each["lap"] for each in found]
    steps = job.sampled * job.steps / statistics.median(laps)
    ratios = sorted(base["lap"] / each["lap"] for base, each in zip(one, found, strict=True))
    far = float((found[0]["w"] - one[0]["w"]).norm() / (one[0]["w"] - one[0]["start"]).norm())
    cells = [
        method,
        f"{ranks}",
        transport if ranks > 1 else "",
        f"{steps:,.0f}",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
    ]
    if ranks == 1:
        cells += ["", "", "", _megabytes(found[0]), ""]
        return f"| {' | '.join(cells)} |"
    shared = found[0]["shared"]
    guess = [
        predicted(base["lap"], ranks, transport, each, shared) for base, each in zip(one, found, strict=True)
    ]
    known = [base["lap"] / g for base, g in zip(one, guess, strict=True) if g is not None]
    cells += [
        f"{statistics.median(known):.2f}" if known else "",
        f"{1e3 * statistics.median(each['exchange'] for each in found):.2f}",
        f"{found[0]['bytes'] / 1e6:.2f}",
        _megabytes(found[0]),
        f"{far:.1e}",
    ]
    return f"| {' | '.join(cells)} |"


def _megabytes(found: dict[str, Any]) -> str:
    return f"{found['uplink'] / 1e6:.2f} up, {found['downlink'] / 1e6:.2f} down"


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.ranks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--job", choices=JOBS, default="mnist")
    parser.add_argument("--ranks", default="1,2", help="the first one must be 1")
    parser.add_argument("--transports", default=",".join(TRANSPORTS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(json.loads(args.work[0]), Path(args.work[1]))
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; use --device cpu")
    counts, transports = [int(n) for n in args.ranks.split(",")], args.transports.split(",")
    if counts[0] != 1:
        parser.error("--ranks begins with 1, which the others are compared with")
    job = JOBS[args.job]
    spec = {"job": args.job, "device": args.device, "warmup": args.warmup, "rounds": args.rounds}
    spec["pinged"] = 4 * sum(p.numel() for p in job.module().parameters())
    plans = [
        (method, n, transport)
        for method in args.methods.split(",")
        for n in counts
        for transport in (transports if n > 1 else transports[:1])
    ]
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {plan: [] for plan in plans}
    for repeat in range(args.repeats):
        for method, n, transport in plans:
            print(f"repeat {repeat + 1}: {method} on {n}, {transport}", file=sys.stderr, flush=True)
            one = measure({**spec, "method": method, "transport": transport}, n)
            shared = args.device == "cuda" and n > torch.cuda.device_count()
            found[method, n, transport].append({**one, "shared": shared})
    print(
        f"{job}\n{machine(args.device)}; {args.rounds} rounds after {args.warmup}, {args.repeats} repeats\n"
    )
    print(
        "| method | ranks | transport | client steps/s | times one rank | predicted | exchange, ms | "
        "MB on the wire | MB accounted | distance |\n|---|--:|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    for method, n, transport in plans:
        one = found[method, 1, transports[0]]
        print(_row(method, n, transport, found[method, n, transport], job, one))


if __name__ == "__main__":
    main()
