"""Figure 6: how alike clients' gradients are, by author and with two classes each."""

import statistics
from functools import partial
from typing import Any

from fedcom.engines.arguments import pick_device
from fedcom.engines.results import Row
from fedcom.reproduce.drawing import Chart, heat
from fedcom.reproduce.panels import Panel, StudyRun
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.reproduce.study import Study
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


def cosines(results: StudyResults, name: str) -> list[list[list[float]]]:
    """The matrix of cosines of each seed."""
    return [[list(row.values())[1:] for row in record["rows"]] for record in results.runs(name)]


def highly_correlated(matrix: Any) -> list[int]:
    """With how many others each client is highly correlated, one number per client."""
    return [sum(c > HIGH for j, c in enumerate(row) if j != i) for i, row in enumerate(matrix)]


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    matrix = cosines(results, p.name)[0]
    mean, high = statistics.fmean(means(matrix)), statistics.fmean(highly_correlated(matrix))
    note = f"each client's gradient beside the others' · above {HIGH:g} with {high:.1f} others on average"
    title = {"authors": "by author", "classes": "two classes per client"}[p.name]
    return [partial(heat, matrix=matrix, title=f"{title.capitalize()}: mean cosine {mean:.2f}", note=note)]


def means(matrix: Any) -> list[float]:
    """The mean cosine with the others, one number per client."""
    return [statistics.fmean(c for j, c in enumerate(row) if j != i) for i, row in enumerate(matrix)]


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    found = cosines(results, p.name)
    own = [mean for matrix in found for mean in means(matrix)]
    if p.name == "authors":
        lowest = min(c for matrix in found for row in matrix for c in row)
        claim = (
            "By author every client correlates with all others, and evenly (no cosine below zero; no "
            "client's mean below half of another's)."
        )
        numbers = f"The lowest cosine is {lowest:.2f}; clients' means are {min(own):.2f} to {max(own):.2f}."
        return [Verdict.of(claim, [lowest > 0, min(own) > max(own) / 2], numbers)]
    most = max(max(highly_correlated(matrix)) for matrix in found)
    claim = f"With two classes each, a client correlates highly (above {HIGH:g}) with at most 4 others."
    numbers = f"The most connected has {most}; mean cosine {statistics.fmean(own):.2f}."
    return [Verdict.of(claim, [most <= 4], numbers)]


STUDY = Study.told("fig6", charts=charts, judge_panel=judge, measure=measure, fill={"high": HIGH})
