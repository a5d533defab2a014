"""Beyond the paper: for which local steps and numbers of classes per client tracking helps on CIFAR-10."""

import math
import statistics
from collections.abc import Sequence
from functools import partial

from fedcom.config import Table
from fedcom.reproduce.drawing import RAMP, Chart, PlotAxes, PlotPoint, series
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Stat, StudyResults, Verdict, better
from fedcom.reproduce.study import Study, panel

WITHOUT, WITH = "fedavg", "fedgate"
SPLITS: dict[str, Table] = {  # the settings of data, by panel
    "1 class": {"partition": "classes", "classes_per_client": 1},
    "2 classes": {"partition": "classes", "classes_per_client": 2},
    "5 classes": {"partition": "classes", "classes_per_client": 5},
    "iid": {"partition": "iid"},
}
SMALL: Table = {  # settings of the quick form
    "grid": {"tau": [2, 10], "eta": [0.1]},
    "data": {"clients": 10},
    "run": {"rounds": 5},
}


def plan(scale: Scale) -> list[Panel]:
    make = partial(panel, "tracking/cifar-10.toml", scale, (WITHOUT, WITH), tuned=False, quick=SMALL)
    return [make(name=name, over={"data": deal}) for name, deal in SPLITS.items()]


def setting(results: StudyResults) -> str:
    """The task without its partition, in words."""
    return results.setting("iid").replace(" iid", "")


def gains(results: StudyResults, tau: int) -> dict[str, tuple[Stat, Stat]]:
    """The accuracy with tracking and without, by panel, each at its best eta."""
    best = partial(results.final_at_best, tau=tau)
    return {p.name: (best(p.name, WITH), best(p.name, WITHOUT)) for p in results.panels}


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    """One chart of all panels, drawn for the first of them."""
    if p is not results.panels[0]:
        return []
    points: dict[str, list[PlotPoint]] = {p.name: [] for p in results.panels}
    for tau in results.grid_values(p.name, "tau"):
        for name, (a, b) in gains(results, tau).items():
            points[name].append((tau, 100 * (a.mean - b.mean), 100 * math.hypot(a.spread, b.spread)))
    limits = _limits([point for own in points.values() for point in own])
    axis = PlotAxes("local steps, tau", "FedGATE minus FedAvg (points)", log=True, zero=True, limits=limits)
    colours = dict(zip(SPLITS, reversed(RAMP[:4]), strict=True))
    title, note = "What tracking gains on CIFAR-10", setting(results)
    return [partial(series, points=points, title=title, note=note, axis=axis, colours=colours)]


def _limits(points: Sequence[PlotPoint]) -> tuple[float, float] | None:
    """The range of the points whose spread is not far above the usual, and of 0."""
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return None
    usual = statistics.median(spread for _, _, spread in finite)
    ends = [y + s for _, y, spread in finite if spread <= 6 * usual for s in (-spread, spread)] + [0.0]
    pad = max(0.5, 0.12 * (max(ends) - min(ends)))
    return min(ends) - pad, max(ends) + pad


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    """Each claim is about all panels: it is judged once, and only if none is missing."""
    if results.missing or p is not results.panels[0]:
        return []
    verdicts = []
    for tau in results.grid_values(p.name, "tau"):
        found = gains(results, tau)
        numbers = ", ".join(f"{name} {a} against {b}" for name, (a, b) in found.items())
        verdict = Verdict.of(
            f"At tau = {tau} tracking pays wherever clients have 1, 2 or 5 classes (FedGATE above "
            f"FedAvg, each at its best eta).",
            [better(*pair) for name, pair in found.items() if name != "iid"],
            f"{numbers}.",
            setting(results),
        )
        verdicts.append(verdict)
    return verdicts


STUDY = Study.told("tracking", plan=plan, charts=charts, judge_panel=judge)
