"""What `fedcom run` plays by default beside what it played before; needs a GPU to be quick.

    FEDCOM_DATA=... python -m benchmarks.defaults --data digits,mnist,fashion-mnist --device cuda

Any other argument is an override, as in model.hidden=64 run.rounds=60.
"""

import argparse
import statistics
from dataclasses import replace

from fedcom.config.methods import alone
from fedcom.runs.prepare import prepare

SEEDS, LAST = 3, 3
KINDS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "before": ("paper", ()),
    "now": (None, ()),
    "before, auto": ("paper", ("algorithm.eta=auto", "algorithm.gamma=auto")),
    "before, auto, momentum": (
        "paper",
        ("algorithm.eta=auto", "algorithm.gamma=auto", "server.name=momentum"),
    ),
}


def score(kind: str, overrides: list[str], seed: int, device: str) -> float:
    """The accuracy of one run in percent, the mean of its last evaluations."""
    path, more = KINDS[kind]
    config = alone(path, [*overrides, *more, f"run.seed={seed}"])
    every = max(1, config.run.rounds // 10)
    simulation, _ = prepare(replace(config, run=replace(config.run, eval_every=every)), device)
    rows = list(simulation.run())[-LAST:]
    return 100 * statistics.fmean(row["test_accuracy"] for row in rows)


def main() -> None:
    """Print one line per data set and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="digits,mnist,fashion-mnist")
    parser.add_argument("--device", default="auto")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    print("| data | kind | mean | spread |\n|---|---|--:|--:|")
    for data in args.data.split(","):
        for kind in KINDS:
            given = [f"data.name={data}", *args.overrides]
            found = [score(kind, given, seed, args.device) for seed in range(SEEDS)]
            print(
                f"| {data} | {kind} | {statistics.fmean(found):.2f} | {statistics.stdev(found):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
