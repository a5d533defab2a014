"""Speeds of fedcom, a plain PyTorch loop, pfl-research and Flower's simulation on the same job.

    python -m benchmarks.peers                                  # on a CPU
    python -m benchmarks.peers --device cuda --peers carried    # on a GPU, pfl from a folder of wheels
    python -m benchmarks.peers --device cuda --peers carried --job cifar-cnn

Each contender runs in a process of its own, one after the other, and all of them as often as --repeats says,
so that other programs slow all of them alike. Ratios are taken within a repeat. A client step is one local
step of one client; the rounds that warm up are not timed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.jobs import JOBS, Job
from benchmarks.worker import MARK

ROOT = Path(__file__).parent.parent
NEEDS = {"fedcom": "fedcom", "pfl": "pfl", "flower": "flwr"}  # the module that a family of contenders needs
HOW = {
    "fedcom": "pip install -e .",
    "pfl": "pip install -r benchmarks/requirements.txt, or python -m benchmarks.fetch_peers FOLDER "
    "and --peers FOLDER",
    "flower": "pip install -r benchmarks/requirements.txt",
}
FIELD = {  # the contenders on each device
    "cpu": (
        "fedcom-fedavg",
        "fedcom-fedcomgate",
        "fedcom-rotated",
        "fedcom-fedavg-ranks",
        "fedcom-fedcomgate-ranks",
        "loop",
        "loop-single",
        "pfl",
        "pfl-single",
        "pfl-ranks",
        "flower",
        "flower-plain",
    ),
    "cuda": (
        "fedcom-fedavg",
        "fedcom-fedavg-compiled",
        "fedcom-fedcomgate",
        "fedcom-rotated",
        "fedcom-compiled",
        "loop",
        "pfl",
    ),
}
LENGTH = {  # rounds to warm up and rounds timed, by default
    "cpu": (1, 3),
    "cuda": (5, 50),
    "cifar-cnn": (10, 150),
}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONWARNINGS": "ignore",
}
Result = dict[str, float]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line, with defaults for the job and the device."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", choices=JOBS, default="mnist")
    parser.add_argument("--device", choices=FIELD, default="cpu")
    parser.add_argument("--rounds", type=int, help="timed in each repeat")
    parser.add_argument("--warmup", type=int, help="rounds before those that are timed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help="contenders or families of them, such as fedcom,loop")
    parser.add_argument(
        "--tf32", action="store_true", help="matrix products and convolutions in TF32, for all"
    )
    parser.add_argument("--peers", help="a folder of unpacked wheels; PEERS in the environment does the same")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a contender is stopped")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    chosen = parser.parse_args(argv)
    warmup, rounds = LENGTH.get(chosen.job) or LENGTH[chosen.device]
    chosen.warmup = warmup if chosen.warmup is None else chosen.warmup
    chosen.rounds = chosen.rounds or rounds
    chosen.peers = chosen.peers or os.environ.get("PEERS")
    if chosen.warmup < 1 or chosen.rounds < 1 or chosen.repeats < 1:
        parser.error("warmup, rounds and repeats must be 1 or more")
    return chosen


def family(contender: str) -> str:
    """fedcom, loop, pfl or flower."""
    return contender.split("-")[0]


def field(args: argparse.Namespace) -> list[str]:
    """The contenders that are asked for and installed; prints how to install the others."""
    wanted = args.only.split(",") if args.only else list(FIELD[args.device])
    known = FIELD[args.device]
    unknown = [name for name in wanted if not any(name in (c, family(c)) for c in known)]
    if unknown:
        sys.exit(f"no contender {', '.join(unknown)} on {args.device}; known: {', '.join(known)}")
    chosen = [c for c in known if c in wanted or family(c) in wanted]
    absent = {f for f in map(family, chosen) if f in NEEDS and find_spec(NEEDS[f]) is None}
    for name in sorted(absent):
        print(f"not installed: {name}; {HOW[name]}")
    return [c for c in chosen if family(c) not in absent]


def folders(args: argparse.Namespace) -> list[str]:
    """Where modules are searched for first: this checkout, and the folder of --peers."""
    return [str(ROOT), str(ROOT / "src"), *([args.peers] if args.peers else [])]


def measure(contender: str, args: argparse.Namespace) -> Result | None:
    """One measurement of one contender; None if it fails or takes too long, with its last output printed."""
    spec = {key: getattr(args, key) for key in ("job", "device", "warmup", "rounds", "tf32")}
    before = os.environ.get("PYTHONPATH", "")
    env = os.environ | QUIET | {"PYTHONPATH": os.pathsep.join([*folders(args), before])}
    command = [sys.executable, "-m", "benchmarks.worker", json.dumps(spec | {"contender": contender})]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, cwd=ROOT, text=True, start_new_session=True, **pipes) as worker:
        try:
            out, errors = worker.communicate(timeout=args.limit)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)  # with its children
            out, errors = "", f"it took more than {args.limit:g} s"
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    if not lines:
        print(f"{contender} failed: {out[-1000:]}{errors[-3000:]}", flush=True)
        return None
    result: Result = json.loads(lines[-1].removeprefix(MARK))
    return result


def turns(names: list[str], args: argparse.Namespace) -> list[dict[str, Result]]:
    """Measure all contenders, one after the other, as often as asked; one that fails is dropped."""
    runs: list[dict[str, Result]] = []
    for repeat in range(args.repeats):
        results = {name: measure(name, args) for name in names}
        names = [name for name in names if results[name] is not None]
        runs.append({name: result for name, result in results.items() if result is not None})
        seconds = ", ".join(f"{name} {result['seconds']:.2f}" for name, result in runs[-1].items())
        print(f"repeat {repeat + 1}, load {os.getloadavg()[0]:.1f}, seconds: {seconds}", flush=True)
    return [{name: run[name] for name in names} for run in runs]


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median and quartiles."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return median(values), low, high


def rates(runs: list[dict[str, Result]], job: Job, rounds: int) -> dict[str, list[float]]:
    """Client steps per second of each contender in each repeat."""
    steps = job.sampled * job.steps * rounds
    return {name: [steps / run[name]["seconds"] for run in runs] for name in runs[0]}


def ratio(ours: list[float], theirs: list[float]) -> str:
    """How many times as fast the first is as the second: median and quartiles."""
    middle, low, high = spread([a / b for a, b in zip(ours, theirs, strict=True)])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def report(runs: list[dict[str, Result]], job: Job, rounds: int) -> None:
    """Print rates and memory, and how many times as fast fedcom is as each of the others."""
    speed = rates(runs, job, rounds)
    base = "loop" if "loop" in speed else next(iter(speed))
    print(f"\n| contender | client steps/s | quartiles | times {base} | peak MB |\n|---|--:|--:|--:|--:|")
    for name, values in speed.items():
        middle, low, high = spread(values)
        peak = max(run[name]["bytes"] for run in runs) / 1e6
        times = ratio(values, speed[base])
        print(f"| {name} | {middle:,.0f} | {low:,.0f} to {high:,.0f} | {times} | {peak:,.0f} |")
    ours, others = ([n for n in speed if (family(n) == "fedcom") is own] for own in (True, False))
    if ours and others:
        print(f"\n| times as fast as | {' | '.join(others)} |\n|---|{'--:|' * len(others)}")
        for name in ours:
            print(f"| {name} | {' | '.join(ratio(speed[name], speed[other]) for other in others)} |")


def main(argv: list[str] | None = None) -> None:
    """Measure every contender, as often as asked, and print a report."""
    args = arguments(argv)
    sys.path[:0] = folders(args)
    job, names = JOBS[args.job], field(args)
    if not names:
        sys.exit("no contender is installed")
    print(
        f"{job}\n{args.device}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; "
        f"{args.warmup} rounds to warm up, {args.rounds} timed, {args.repeats} repeats",
        flush=True,
    )
    runs = turns(names, args)
    if not runs[0]:
        sys.exit("every contender failed")
    report(runs, job, args.rounds)
    if args.json:
        facts: dict[str, Any] = {"job": job.name, "rounds": args.rounds, "device": args.device, "runs": runs}
        args.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
