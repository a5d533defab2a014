"""How auto rates compare with tuned ones: methods x codecs x data sets; needs a GPU to be quick.

    FEDCOM_DATA=... python benchmarks/auto_rates.py --data digits,mnist,fashion-mnist --out runs/auto-rates

Each method with each codec runs at auto rates on three seeds, and over a grid of eta and gamma on one other
seed. Printed are the best of the grid, what auto reached, and the share of runs within 1.5 points of that.
Runs that differ in rates and seed are one stack on a GPU. What is in the folder's results.jsonl is not run
again, so the command can be repeated after an interruption.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcom.algorithms import ALGORITHMS
from fedcom.config import Table
from fedcom.studies import sweep
from fedcom.studies.trials import Trial, points, trials_of
from fedcom.tasks.task import Task

CODECS: dict[str, Table] = {
    "identity": {"name": "identity"},
    "int 8": {"name": "int", "bits": 8},
    "1 bit": {"name": "rotated", "bits": 1},
    "0.25 bit": {"name": "rotated", "bits": 0.25},
}
# FedAvg and FedPAQ are FedCOM where gamma is free; SCAFFOLD and FedCOMGATE-exact without a codec are FedGATE.
METHODS = {
    "local-sgd": ("identity",),
    "vrl-sgd": ("identity",),
    "fedcom": tuple(CODECS),
    "fedcomgate": tuple(CODECS),
    "fedcomgate-exact": tuple(CODECS)[1:],
    "scaffold": tuple(CODECS)[1:],
    "scallion": tuple(CODECS),
    "scafcom": tuple(CODECS),
    "qsparse": tuple(CODECS),
    "diana": tuple(CODECS),
    "vr-diana": tuple(CODECS),
}
SEEDS, TUNING, LAST, NEAR = 3, 100, 5, 0.015
ETAS, GAMMAS = (0.01, 0.02, 0.05, 0.1, 0.2), (1.0, 4.0)
ONE_STEP = (0.1, 0.2, 0.5, 1.0)  # eta of methods with one local step per round


def trials(data: str, method: str, codec: str, rounds: int, tuned: bool) -> list[Trial]:
    """The auto runs of one cell, and those of the grid."""
    label = f"{method}, {codec}"
    own: Table = {"name": method}
    table: Table = {
        "data": {"name": data},
        "run": {"rounds": rounds, "eval_every": max(1, rounds // 50)},
        "methods": {label: own | ({} if CODECS[codec]["name"] == "identity" and _plain(method) else
                                  {"uplink": CODECS[codec]})},
    }  # fmt: skip
    one_step = ALGORITHMS[method].fixed.get("tau") == 1
    grid: Table = {"eta": list(ONE_STEP if one_step else ETAS), "gamma": [1.0] if one_step else list(GAMMAS)}
    if "gamma" in ALGORITHMS[method].fixed:
        del grid["gamma"]
    found = list(trials_of(table, points(dict.fromkeys(grid, "auto")), [label], SEEDS))
    if tuned:
        table["run"]["seed"] = TUNING
        found += trials_of(table, points(grid), [label], 1)
    return found


def _plain(method: str) -> bool:
    return METHODS[method] == ("identity",)


def cell(records: list[dict[str, Any]]) -> dict[str, Any]:
    """What one method with one codec reached."""
    auto = [r for r in records if "auto" in r["point"].values()]
    grid = [r for r in records if r not in auto and r["status"] == "done"]
    best = max(grid, key=lambda r: r["test_accuracy"], default=None)
    scores = [r["test_accuracy"] if r["status"] == "done" else None for r in auto]
    near = [s is not None and best is not None and s >= best["test_accuracy"] - NEAR for s in scores]
    point = {} if best is None else best["point"]
    return {
        "best": best and best["test_accuracy"],
        "at": ", ".join(f"{key} {value:g}" for key, value in point.items()),
        "auto": scores,
        "near": near,
    }


def run(args: argparse.Namespace) -> Iterator[str]:
    """The lines of the report."""
    out, tasks, near, diverged = Path(args.out), dict[str, Task](), list[bool](), 0
    out.mkdir(parents=True, exist_ok=True)
    yield "| data | method | tuned best | at | auto | diverged |"
    yield "|---|---|--:|---|--:|--:|"
    for data in args.data.split(","):
        for method, codecs in METHODS.items():
            for codec in codecs if method in args.methods.split(",") else ():
                jobs = trials(data, method, codec, args.rounds, not args.only_auto)
                path = out / f"{data}.jsonl"
                records = sweep.run_missing(jobs, path, LAST, args.device, not args.progress, tasks)
                found = cell(records)
                done = [s for s in found["auto"] if s is not None]
                near += found["near"]
                lost = len(found["auto"]) - len(done)
                diverged += lost
                mean = f"{100 * statistics.fmean(done):.2f}" if done else "-"
                best = "-" if found["best"] is None else f"{100 * found['best']:.2f}"
                yield f"| {data} | {method}, {codec} | {best} | {found['at']} | {mean} | {lost} |"
    yield f"{sum(near)} of {len(near)} auto runs are within {100 * NEAR:g} points, {diverged} diverged."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="digits,mnist,fashion-mnist")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="runs/auto-rates")
    parser.add_argument("--only-auto", action="store_true", help="run no grid")
    parser.add_argument("--progress", action="store_true")
    for line in run(parser.parse_args()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
