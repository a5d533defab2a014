"""Figure 6: how alike clients' gradients are, by author and with two classes each."""

import statistics
from pathlib import Path
from typing import Any

from fedcom.engines.simulation import Row, pick_device
from fedcom.reproduce.drawing import Sheet, heat
from fedcom.reproduce.fig5 import authors
from fedcom.reproduce.panels import Panel, Scale, StudyRun
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.reproduce.study import Study, panel
from fedcom.runs.prepare import build_task
from fedcom.tasks.similarity import similarity

HIGH = 0.5  # clients with a cosine above this count as highly correlated
CLIENTS = 20


def measure(run: StudyRun, device: str, quiet: bool) -> tuple[str, list[Row]]:
    """The cosines between clients' full gradients at the starting model, one row per client."""
    task = build_task(run.config)[0].to(pick_device(device))
    found = similarity(task, task.objective.start, CLIENTS).tolist()
    return "done", [
        {"client": i, **{f"with {j}": c for j, c in enumerate(row)}} for i, row in enumerate(found)
    ]


def plan(scale: Scale) -> list[Panel]:
    one = ("fedavg",)  # any method will do, as no round is run
    return [
        panel(f"fig6/{authors()}.toml", scale, one, name="authors", tuned=False),
        panel("fig6/mnist.toml", scale, one, name="classes", tuned=False),
    ]


def cosines(results: StudyResults, name: str) -> list[list[list[float]]]:
    """The matrix of cosines of each seed."""
    return [[list(row.values())[1:] for row in record["rows"]] for record in results.runs(name)]


def highly_correlated(matrix: Any) -> list[int]:
    """With how many others each client is highly correlated, one number per client."""
    return [sum(c > HIGH for j, c in enumerate(row) if j != i) for i, row in enumerate(matrix)]


def draw(results: StudyResults, out: Path) -> list[str]:
    sheet = Sheet(1, len(results.panels))
    for part, p in zip(sheet.parts, results.panels, strict=True):
        matrix = cosines(results, p.name)[0]
        mean, high = statistics.fmean(means(matrix)), statistics.fmean(highly_correlated(matrix))
        note = f"mean cosine {mean:.2f} · above {HIGH:g} with {high:.1f} others on average"
        title = {"authors": "by author", "classes": "two classes per client"}[p.name]
        heat(part, matrix, f"{p.config.data.name}, {title}", note)
    return [sheet.save(out / "fig6.png")]


def means(matrix: Any) -> list[float]:
    """The mean cosine with the others, one number per client."""
    return [statistics.fmean(c for j, c in enumerate(row) if j != i) for i, row in enumerate(matrix)]


def judge(results: StudyResults) -> list[Verdict]:
    judges = {"authors": _judge_authors, "classes": _judge_classes}
    return [judges[p.name](cosines(results, p.name), results.setting(p.name)) for p in results.panels]


def _judge_authors(found: Any, where: str) -> Verdict:
    lowest = min(c for matrix in found for row in matrix for c in row)
    own = [mean for matrix in found for mean in means(matrix)]
    return Verdict.of(
        "By author every client correlates with all others, and evenly (no cosine below zero; no "
        "client's mean below half of another's).",
        [lowest > 0, min(own) > max(own) / 2],
        f"The lowest cosine is {lowest:.2f}; clients' means are {min(own):.2f} to {max(own):.2f}.",
        where,
    )


def _judge_classes(found: Any, where: str) -> Verdict:
    most = max(max(highly_correlated(matrix)) for matrix in found)
    unlike = statistics.fmean(mean for matrix in found for mean in means(matrix))
    return Verdict.of(
        f"With two classes each, a client correlates highly (above {HIGH:g}) with at most 4 others.",
        [most <= 4],
        f"The most connected has {most}; mean cosine {unlike:.2f}.",
        where,
    )


STUDY = Study(
    "fig6",
    "Figure 6: cosine similarity of clients' gradients",
    (
        "By author, each client's full gradient correlates with all others'.",
        "With two classes per client, each correlates highly with at most 4 others, and not or negatively "
        "with the rest.",
    ),
    plan,
    draw,
    judge,
    measure,
    notes="Full gradients of 20 clients at the model a run starts from. The paper does not say at which "
    f"model, nor what counts as high; here a cosine above {HIGH:g} does.",
)
