"""Figure 6: how alike clients' gradients are, by author and with two classes each."""

import statistics
from pathlib import Path
from typing import Any

from fedcom.engines.local import Row, pick_device
from fedcom.prepare import build_task
from fedcom.reproduce.drawing import Sheet, heat
from fedcom.reproduce.fig5 import authors
from fedcom.reproduce.results import Results, Verdict
from fedcom.reproduce.study import Panel, Run, Scale, Study, panel
from fedcom.similarity import similarity

HIGH = 0.5  # a cosine from which clients count as highly correlated
CLIENTS = 20


def measure(run: Run, device: str, quiet: bool) -> tuple[str, list[Row]]:
    """The cosines between clients' full gradients at the first model."""
    task = build_task(run.config)[0].to(pick_device(device))
    return "done", [{"round": 0, "cosines": similarity(task, task.objective.start, CLIENTS).tolist()}]


def plan(scale: Scale) -> list[Panel]:
    one = ("fedavg",)  # whichever: no round is played
    return [
        panel(f"fig6/{authors()}.toml", scale, one, name="authors", tuned=False),
        panel("fig6/mnist.toml", scale, one, name="classes", tuned=False),
    ]


def cosines(results: Results, name: str) -> list[list[list[float]]]:
    """The matrix of each seed."""
    return [record["rows"][0]["cosines"] for record in results.runs(name)]


def friends(matrix: Any) -> list[int]:
    """With how many others each client is highly correlated."""
    return [sum(c > HIGH for j, c in enumerate(row) if j != i) for i, row in enumerate(matrix)]


def mean_cosine(matrix: Any) -> float:
    """Over all pairs of different clients."""
    return statistics.fmean(c for i, row in enumerate(matrix) for j, c in enumerate(row) if i != j)


def draw(results: Results, out: Path) -> list[str]:
    sheet = Sheet(1, 2)
    for part, p in zip(sheet.parts, results.panels, strict=True):
        matrix = cosines(results, p.name)[0]
        note = f"mean cosine {mean_cosine(matrix):.2f} · above {HIGH:g} with {statistics.fmean(friends(matrix)):.1f} others"
        title = {"authors": "by author", "classes": "two classes a client"}[p.name]
        heat(part, matrix, f"{p.config.data.name}, {title}", note)
    return [sheet.save(out / "fig6.png")]


def judge(results: Results) -> list[Verdict]:
    apart, near = (cosines(results, name) for name in ("classes", "authors"))
    most = [max(friends(matrix)) for matrix in apart]
    fewest = [min(friends(matrix)) for matrix in near]
    means = {
        name: statistics.fmean(map(mean_cosine, found)) for name, found in (("apart", apart), ("near", near))
    }
    return [
        Verdict.of(
            f"Clients by author all correlate with one another (cosine above {HIGH:g} with every other).",
            [few >= len(near[0]) - 1 for few in fewest],
            f"The least connected has {min(fewest)} of {len(near[0]) - 1}; mean cosine {means['near']:.2f}.",
            results.setting("authors"),
        ),
        Verdict.of(
            f"With two classes each, a client correlates highly (above {HIGH:g}) with at most 4 others.",
            [many <= 4 for many in most],
            f"The most connected has {max(most)}; mean cosine {means['apart']:.2f}.", results.setting("classes"),
        ),
    ]  # fmt: skip


STUDY = Study(
    "fig6",
    "Figure 6: cosine similarity of clients' gradients",
    (
        "By author, each client's full gradient correlates with all others'.",
        "With two classes a client, each correlates highly with at most 4 others, and not or negatively with the rest.",
    ),
    plan, draw, judge, measure,
    notes="Full gradients of 20 clients at the model a run starts from. The paper does not say at which model, nor what "
    f"counts as high; here a cosine above {HIGH:g} does.",
)  # fmt: skip
