"""Beyond the paper: for which local steps and numbers of classes per client tracking helps on CIFAR-10."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedcom.config import Table
from fedcom.reproduce.drawing import RAMP, PlotAxes, PlotPoint, Sheet, series
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Stat, StudyResults, Verdict, better
from fedcom.reproduce.study import Study, panel

WITHOUT, WITH = "fedavg", "fedgate"
SPLITS = {"1 class": 1, "2 classes": 2, "5 classes": 5, "iid": None}
SMALL: Table = {  # settings of the quick form
    "grid": {"tau": [2, 10], "eta": [0.1]},
    "data": {"clients": 10},
    "run": {"rounds": 5},
}


def plan(scale: Scale) -> list[Panel]:
    panels = []
    for name, classes in SPLITS.items():
        deal = (
            {"partition": "iid"}
            if classes is None
            else {"partition": "classes", "classes_per_client": classes}
        )
        small = SMALL if scale.quick else {}
        over = {**small, "data": {**deal, **small.get("data", {})}}
        methods = (WITHOUT, WITH)
        panels.append(panel("tracking/cifar-10.toml", scale, methods, name=name, tuned=False, over=over))
    return panels


def best(results: StudyResults, name: str, method: str, tau: int) -> Stat:
    """The accuracy of a method in a panel at its best eta."""
    return results.final(name, method, **results.best(name, method, tau=tau))


def setting(results: StudyResults) -> str:
    """The task without its partition, in words."""
    return results.setting("iid").replace(" iid", "")


def gains(results: StudyResults, tau: int) -> dict[str, tuple[Stat, Stat]]:
    """The accuracy with tracking and without, by panel."""
    return {
        p.name: (best(results, p.name, WITH, tau), best(results, p.name, WITHOUT, tau))
        for p in results.panels
    }


def draw(results: StudyResults, out: Path) -> list[str]:
    sheet = Sheet(1, 1)
    points: dict[str, list[PlotPoint]] = {p.name: [] for p in results.panels}
    for tau in results.grid_values(results.panels[0].name, "tau"):
        for name, (a, b) in gains(results, tau).items():
            points[name].append((tau, 100 * (a.mean - b.mean), 100 * math.hypot(a.spread, b.spread)))
    limits = _limits([point for own in points.values() for point in own])
    axis = PlotAxes("local steps, tau", "FedGATE minus FedAvg (points)", log=True, zero=True, limits=limits)
    colours = dict(zip(SPLITS, reversed(RAMP[:4]), strict=True))
    note = setting(results)
    series(sheet.parts[0], points, "What tracking gains on CIFAR-10", note, axis, colours)
    return [sheet.save(out / "tracking.png")]


def _limits(points: Sequence[PlotPoint]) -> tuple[float, float] | None:
    """The range of the points whose spread is not far above the usual, and of 0."""
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return None
    usual = statistics.median(spread for _, _, spread in finite)
    ends = [y + s for _, y, spread in finite if spread <= 6 * usual for s in (-spread, spread)] + [0.0]
    pad = max(0.5, 0.12 * (max(ends) - min(ends)))
    return min(ends) - pad, max(ends) + pad


def judge(results: StudyResults) -> list[Verdict]:
    verdicts = []
    if results.missing:  # each claim is about all panels
        return []
    for tau in results.grid_values(results.panels[0].name, "tau"):
        found = gains(results, tau)
        numbers = ", ".join(f"{name} {a} against {b}" for name, (a, b) in found.items())
        unlike = [pair for name, pair in found.items() if name != "iid"]
        verdict = Verdict.of(
            f"At tau = {tau} tracking pays wherever clients have 1, 2 or 5 classes (FedGATE above "
            f"FedAvg, each at its best eta).",
            [better(*pair) for pair in unlike],
            f"{numbers}.",
            setting(results),
        )
        verdicts.append(verdict)
    return verdicts


STUDY = Study(
    "tracking",
    "Where tracking pays on CIFAR-10",
    (
        "Gradient tracking helps on heterogeneous data. Beyond the paper: for which tau and for how many "
        "classes per client does it?",
    ),
    plan,
    draw,
    judge,
    notes="The best eta of each method at every setting is chosen on the seeds that are reported; gamma "
    "is 2.",
)
