"""How long `fedcom reproduce niid-bench` takes: rounds of its stacks, on random images of the same numbers.

    python -m benchmarks.niid --device cuda
    python -m benchmarks.niid --device cuda --data mnist --methods fedavg --profile

The five ways to deal the data are one stack of 50 clients, and methods that differ in mu alone join it. A
round is played, one is recorded, and the time of those after them, times the rounds of the study, with its
evaluations, is the time of the table.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fedcom.config.methods import variant
from fedcom.data import Dataset, split
from fedcom.draws import Draw
from fedcom.engines.simulation import Simulation
from fedcom.engines.stacks import stack_runs
from fedcom.reproduce.niid import DEALS, METHODS, SETS
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.study import panel
from fedcom.runs.prepare import simulation_of
from fedcom.studies.trials import Trial, stacks
from fedcom.tasks.objective import Objective
from fedcom.tasks.task import Task

SHAPES = {"mnist": (60_000, 1, 28, 28), "fashion-mnist": (60_000, 1, 28, 28), "cifar-10": (50_000, 3, 32, 32)}


def tasks_of(data: str, samples: int | None, device: torch.device) -> list[Task]:
    """A task for each way to deal random images of as many labels to clients."""
    (count, *shape), config = (
        SHAPES[data],
        panel(f"niid-bench/{data}.toml", Scale(), METHODS, tuned=False).config,
    )
    count, draw = samples or count, Draw.seeded(0)
    x, y = torch.rand(count, *shape), draw.fold("labels").integers(10, count)
    images = Dataset(data, x, y, x[: count // 6], y[: count // 6], 10)
    torch.manual_seed(0)
    objective, tasks = Objective(config.model.module(tuple(shape), 10)), []
    for deal in DEALS.values():
        own = {"classes_per_client": deal["classes_per_client"]} if "classes_per_client" in deal else {}
        task = Task.build(objective, images, split(deal["partition"], y, None, 10, draw, **own))
        tasks.append((task.augmented() if config.data.augment else task).to(device))
    return tasks


def groups(data: str, methods: list[str], tf32: bool) -> list[list[Trial]]:
    """The methods, those together that share a stack."""
    table = panel(f"niid-bench/{data}.toml", Scale(), METHODS, tuned=False).table
    table["run"] = {**table["run"], "tf32": tf32}
    return stacks([Trial(method, (), 0, variant(table, method)) for method in methods])


def simulations(group: list[Trial], tasks: list[Task], device: str) -> list[Simulation]:
    """A run of each method on each task."""
    return [simulation_of(task, trial.config, device) for trial in group for task in tasks]


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long some work takes, on the device too."""
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(data: str, group: list[Trial], tasks: list[Task], given: argparse.Namespace) -> float:
    """Print how long a stack takes; returns that of the whole run, in seconds."""
    device = torch.device(given.device)
    runs, method = simulations(group, tasks, given.device), ", ".join(trial.method for trial in group)
    engine = stack_runs(runs)
    first, second = (seconds(engine.step, device) for _ in range(2))
    each = seconds(lambda: [engine.step() for _ in range(given.rounds)], device) / given.rounds
    runs[0].row()  # libraries set themselves up in the first
    row = seconds(lambda: [run.row() for run in runs], device) / len(runs)
    steps = [run.state.cohort.steps for run in runs]
    most = max(s.most for s in steps)
    taken = sum(int(s.per_client.sum()) if s.per_client is not None else 10 * s.most for s in steps)
    run, refused = runs[0], getattr(engine, "refused", None)
    rows = len(runs) * (1 + run.rounds // run.eval_every)
    total = first + second + (run.rounds - 2) * each + rows * row
    print(
        f"{data:14} {method:16} {len(runs)} runs, at most {most} steps, {taken} in all: "
        f"first round {first:.2f} s, second {second:.2f} s, others {each:.3f} s "
        f"({1e3 * each / most:.3f} ms a stacked step, {1e6 * each / taken:.1f} us a client's), "
        f"evaluation {row:.3f} s; a whole run {total:.0f} s"
        + (f"; NOT RECORDED: {refused}" if refused else ""),
        flush=True,
    )
    return total


def profile(group: list[Trial], tasks: list[Task], given: argparse.Namespace) -> None:
    """Print which kernels a round of the eager engine spends its time in."""
    runs = simulations(group, tasks, given.device)
    short = [r.replaced(engine="eager", algorithm=replace(r.algorithm, epochs=1)) for r in runs]
    engine = stack_runs(short)
    engine.step()
    with torch.profiler.profile() as found:
        engine.step()
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=80))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default=",".join(SETS), help="names, with commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="labels, with commas")
    parser.add_argument("--rounds", type=int, default=2, help="that are timed, after two")
    parser.add_argument("--samples", type=int, help="of each set; all of them unless given")
    parser.add_argument("--tf32", action="store_true", help="allow matrix products of ten bits")
    parser.add_argument("--profile", action="store_true", help="say which kernels take the time instead")
    given = parser.parse_args()
    total = 0.0
    for data in given.data.split(","):
        tasks = tasks_of(data, given.samples, torch.device(given.device))
        for group in groups(data, given.methods.split(","), given.tf32):
            if given.profile:
                profile(group, tasks, given)
            else:
                total += measure(data, group, tasks, given)
    print(f"in all {total / 60:.1f} minutes")


if __name__ == "__main__":
    main()
