"""Where a round's time goes: fedcom's functions, each timed by itself on one group of clients.

    python -m benchmarks.breakdown --out folder [--device cuda] [--add breakdown.json of another device]

batching    drawing and gathering minibatches
gradients   forward and backward
steps       the algorithm's local step, given the gradient, and its upload
codec       compression and expansion, counting of bytes, the measured q
mean        the weighted mean and the server's step
state       reading, updating and writing what clients keep
rest        the time of the whole round minus all of these

On a CPU one thread does everything, and its processor time is measured, not wall-clock time. On a GPU each
stage, like a round, is replayed as a CUDA graph and timed by events. Prints a table, and writes
breakdown.json and, if matplotlib is installed, breakdown.png.
"""

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

from benchmarks.codecs import graph, milliseconds
from benchmarks.contenders import fedcom_task
from benchmarks.jobs import ETA, JOBS, Job
from benchmarks.peers import spread
from torch import Tensor

import fedcom
from fedcom.draws import Draw
from fedcom.engines.local.eager import Collected
from fedcom.engines.local.stack import map_tensors
from fedcom.engines.local.threads import one_thread
from fedcom.rounds.cohort import Steps
from fedcom.rounds.local import Start, local_work
from fedcom.rounds.round import Mean, Work
from fedcom.rounds.rules import relative_error
from fedcom.tasks.oracle import DataOracle
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Piece, handfuls

Task = Callable[[], object]
STAGES = ("batching", "gradients", "steps", "codec", "mean", "state", "rest")
METHODS = {
    "FedAvg": (fedcom.FedAvg, fedcom.Identity()),
    "FedCOMGATE int 8": (fedcom.FedCOMGATE, fedcom.Int(8)),
    "FedCOMGATE rotated .25": (fedcom.FedCOMGATE, fedcom.Rotated(0.25)),
}


class KnownGradient(NamedTuple):
    """An oracle whose gradient is computed beforehand."""

    gradient: Tensor

    def at(self, step: int) -> "KnownGradient":
        """The same at every step."""
        return self

    def batch(self, w: Tensor) -> Tensor:
        """The known gradient, at any w."""
        return self.gradient

    full = batch

    def pieces(self, w: Tensor) -> Iterator[Piece]:
        """The known gradient, some rows at a time."""
        return (Piece(rows, slice(None), self.gradient[rows]) for rows in handfuls(*w.shape))


def simulate(method: str, job: Job, device: str) -> Any:
    """A run of a method, after some rounds to warm up."""
    algorithm, codec = METHODS[method]
    settings = algorithm(eta=ETA, tau=job.steps, batch=job.batch, decay=1.0)
    simulation = fedcom.Simulation(fedcom_task(job), settings, fedcom.Links(codec), device=device)
    for _ in range(3):
        simulation.step()
    return simulation


def stages(simulation: Any, job: Job) -> list[tuple[str, Task, float]]:
    """The stages of a round, each with its work on one group of clients and how often a round does that."""
    engine, rules, task = simulation.engine, simulation.rules, simulation.task
    algorithm, steps = rules.algorithm, job.steps
    engine.load_inputs()
    begun, rows = engine.begin(), engine.groups.cut(len(engine.stack))[0]
    clients, (first,) = engine.inputs.client[rows], begun
    groups, done = rules.sampled / len(clients), engine.group_work(begun, rows)
    draw = Draw(engine.inputs.key[engine.stack.run_of_row[rows]]).fold(clients)
    oracle = DataOracle.of(task, clients, draw, algorithm)
    w = first.down["w"].expand(len(clients), -1).contiguous()
    minibatch = oracle.minibatch(job.batch, w.dtype)
    known, state = KnownGradient(task.objective.gradients(w, *minibatch)), done.work.state

    def differentiate() -> object:
        if w.is_cuda:
            return task.objective.gradients(w, *minibatch)
        return deque(task.objective.pieces(w, *minibatch), maxlen=0)

    def step() -> object:
        start = Start(w, state, {}, first.down)
        return local_work(algorithm, start, known, Steps(steps), first.rnd, rules.layout)

    upload = algorithm.upload(state, first.down, w - ETA * known.gradient, first.rnd)
    mean = Mean()
    engine.add([mean], begun, done)
    answer = partial(engine.server_answer, 0, first, Collected(mean.vectors, done.work.q.mean()))
    answered = answer()

    def finish() -> None:
        for some in [slice(None)] if w.is_cuda else handfuls(*w.shape):
            part = Work(*(map_tensors(x, itemgetter(some)) for x in done.work))
            engine.store.put(within(rows, some), clients[some], *engine.finished([answered], part))

    return [
        ("batching", lambda: oracle.at(1).minibatch(job.batch, w.dtype), steps * groups),
        ("gradients", differentiate, steps * groups),
        ("steps", step, groups),
        ("codec", partial(send, rules, upload["D"], draw), groups),
        ("mean", lambda: engine.add([Mean()], begun, done), groups),
        ("mean", answer, 1),
        ("state", lambda: engine.store.take(rows, clients), groups),
        ("state", finish, groups),
    ]


def within(rows: slice, some: slice) -> slice:
    """Some of these rows, among all."""
    return slice(*(rows.start + end for end in some.indices(rows.stop - rows.start)[:2]))


def send(rules: Any, up: Tensor, draw: Draw) -> Tensor:
    """Send one message per client through the codec; returns the measured q."""
    codec = rules.links.uplink
    heard = Channel("uplink", [Ledger(rules.clients)]).send("D", up, rules.layout, codec, draw)
    return relative_error(heard, up)


def on_cpu(work: Task, times: int = 3) -> float:
    """Processor milliseconds of this thread, the mean over some calls."""
    started = thread_time()
    for _ in range(times):
        work()
    return 1e3 * (thread_time() - started) / times


def breakdowns(job: Job, device: str, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds per round of each stage, and of the whole round, by method: medians over repeats.

    The methods take turns in each repeat, so that other programs slow all of them alike.
    """
    measures = {method: measure_of(method, job, device) for method in METHODS}
    runs = [{method: measure() for method, measure in measures.items()} for _ in range(repeats)]
    bars = {}
    for method in METHODS:
        bar = {name: spread([run[method][name] for run in runs])[0] for name in runs[0][method]}
        bars[method] = bar | {"rest": bar["round"] - sum(bar[stage] for stage in STAGES)}
        ratio = spread([run["FedAvg"]["round"] / run[method]["round"] for run in runs])[0]
        print(f"rounds of {method} per round of FedAvg in the same time: {ratio:.2f}")
    return bars


def measure_of(method: str, job: Job, device: str) -> Callable[[], dict[str, float]]:
    """A function that times the stages and the round of one method once."""
    simulation = simulate(method, job, device)
    on_gpu, parts = device == "cuda", stages(simulation, job)
    clock = milliseconds if on_gpu else on_cpu
    works = [(stage, graph(work) if on_gpu else work, count) for stage, work, count in parts]

    def measure() -> dict[str, float]:
        run = dict.fromkeys(STAGES, 0.0) | {"round": clock(simulation.step)}
        for stage, work, count in works:
            run[stage] += count * clock(work)
        return run

    return measure


def digits(bar: dict[str, float]) -> int:
    """How many decimals of milliseconds to print."""
    return 0 if bar["round"] > 100 else 3


def show(bars: dict[str, dict[str, float]]) -> None:
    """Print milliseconds per round and shares."""
    print(f"| ms per round | {' | '.join(bars)} |\n|---|{'--:|' * len(bars)}")
    for stage in (*STAGES, "round"):
        cells = [
            f"{bar[stage]:,.{digits(bar)}f} ({100 * bar[stage] / bar['round']:.0f}%)" for bar in bars.values()
        ]
        print(f"| {stage} | {' | '.join(cells)} |")


def draw_figure(bars: dict[str, dict[str, float]], path: Path, subtitle: str) -> None:
    """Draw one bar per run, divided into the shares of its round."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedcom.reports.figures import INK, PALE, SIZE
    from fedcom.reports.looks import SPARE

    figure = Figure(figsize=(SIZE[0], 1.9 + 0.55 * len(bars)), dpi=200)
    FigureCanvasAgg(figure)
    top = figure.bbox_inches.height
    figure.text(0.015, 1 - 0.33 / top, "Where a round's time goes", size=13, weight="bold", color=INK)
    figure.text(0.015, 1 - 0.58 / top, subtitle, size=9.5, color=PALE)
    axes = figure.add_axes((0.28, 0.5 / top, 0.69, 1 - 1.65 / top))
    axes.spines[:].set_visible(False)
    left = [0.0] * len(bars)
    wholes = [sum(max(0.0, bar[stage]) for stage in STAGES) for bar in bars.values()]
    for stage, colour in zip(STAGES, (*SPARE[:4], SPARE[6], SPARE[4], PALE), strict=True):
        share = [100 * max(0.0, bar[stage]) / whole for bar, whole in zip(bars.values(), wholes, strict=True)]
        axes.barh(range(len(bars)), share, left=left, height=0.6, color=colour, label=stage)
        for i, (start, width) in enumerate(zip(left, share, strict=True)):
            if width > 5:
                axes.text(
                    start + width / 2, i, f"{width:.0f}", color="white", size=9, ha="center", va="center"
                )
        left = [start + width for start, width in zip(left, share, strict=True)]
    labels = [f"{name}\n{bar['round']:,.{digits(bar)}f} ms per round" for name, bar in bars.items()]
    axes.set_yticks(range(len(bars)), labels, size=9.5, color=INK)
    axes.invert_yaxis()
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xlabel("% of a round", color=INK)
    axes.legend(
        ncols=len(STAGES),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        loc="lower right",
        bbox_to_anchor=(1.02, 0.98),
        handlelength=0.8,
        handletextpad=0.4,
        columnspacing=1.0,
    )
    figure.savefig(path)


def main() -> None:
    """Measure, print, write and draw."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.breakdown",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/breakdown"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--job", choices=("mnist", "tiny"), default="mnist")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--add", type=Path, nargs="*", default=[], help="results of other machines, to be drawn too"
    )
    args = parser.parse_args()
    job = JOBS[args.job]
    where = "GPU" if args.device == "cuda" else "CPU"
    with one_thread():
        found = breakdowns(job, args.device, args.repeats)
    bars = {f"{name}, {where}": bar for name, bar in found.items()}
    for path in args.add:
        bars |= json.loads(path.read_text())
    show(bars)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "breakdown.json").write_text(json.dumps(bars, indent=2) + "\n")
    if find_spec("matplotlib"):
        subtitle = f"{job.clients} clients, {job.steps} local steps, batch {job.batch}, random data"
        draw_figure(bars, args.out / "breakdown.png", subtitle)


if __name__ == "__main__":
    main()
