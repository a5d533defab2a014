"""Beyond the paper: for which local steps and numbers of classes per client tracking helps on CIFAR-10."""

import math
from functools import partial

from fedcom.config import Table
from fedcom.reproduce.drawing import Chart, GridCell, cell_grid
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
    taus = results.grid_values(p.name, "tau")
    found = {tau: gains(results, tau) for tau in taus}
    cells = [[_cell(*found[tau][panel.name]) for tau in taus] for panel in results.panels]
    every = [cell for row in cells for cell in row]
    more, less = (sum(cell.sure and sign * cell.value > 0 for cell in every) for sign in (1, -1))
    title = f"Tracking gains in {more} of {len(every)} cells, loses in {less}"
    note = f"{setting(results)} · ±: over seeds; bold: larger than that"
    names = [panel.name for panel in results.panels], [f"tau = {tau}" for tau in taus]
    words = title, note, "FedGATE minus FedAvg, points of accuracy"
    return [partial(cell_grid, cells=cells, names=names, words=words)]


def _cell(ours: Stat, theirs: Stat) -> GridCell:
    """What tracking gains, in points; sure if that is a difference that counts."""
    spread = math.hypot(ours.spread, theirs.spread)
    sure = better(ours, theirs) or better(theirs, ours)
    return GridCell(100 * (ours.mean - theirs.mean), 100 * spread, sure)


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
