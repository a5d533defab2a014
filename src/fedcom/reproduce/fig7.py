"""Figure 7: five methods when only some of the clients take part in a round."""

from functools import partial

from fedcom.reports.looks import palette
from fedcom.reproduce.drawing import Chart, PlotAxes, percent_point, series
from fedcom.reproduce.panels import Panel
from fedcom.reproduce.results import BARS, Stat, StudyResults, Verdict, leaders, list_of, margin
from fedcom.reproduce.study import Study
from fedcom.studies.compare import METHODS

OURS = ("fedgate", "fedcomgate")


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    shares = results.grid_values(p.name, "participation")
    points = {
        m: [percent_point(100 * k, results.final_at_best(p.name, m, participation=k)) for k in shares]
        for m in METHODS
    }
    least = min(shares)
    names = leaders({m: results.final_at_best(p.name, m, participation=least) for m in METHODS})
    words = f"{names or 'none'} {'lead' if ' and ' in names else 'leads'} at {100 * least:g} %"
    title, note = f"{p.data}: {words}", f"each at its best gamma · {BARS}"
    axes = PlotAxes("clients per round (%)", "test accuracy (%)", log=True)
    return [partial(series, points=points, title=title, note=note, axis=axes, colours=palette(METHODS))]


def drop(results: StudyResults, name: str, method: str) -> Stat:
    """The accuracy a method loses from full to least participation, each at its best gamma.

    0 if it diverges even at full participation.
    """
    shares = results.grid_values(name, "participation")
    full, least = (results.final_at_best(name, method, participation=k) for k in (max(shares), min(shares)))
    pairs = zip(full.values, least.values, strict=True)
    lost = (0.0 if a is None else None if b is None else a - b for a, b in pairs)
    return Stat(tuple(lost), "drop of accuracy", "all")


def _more(a: Stat, b: Stat) -> bool:
    """Whether a loses more than b, by more than the spread and 0.3 points."""
    return b.mean < a.mean and a.mean - b.mean > max(margin(a, b), 0.003)


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    drops = {m: drop(results, p.name, m) for m in METHODS}
    least = min(results.grid_values(p.name, "participation"))
    words = f"Points of accuracy lost from 100% to {100 * least:g}%: {list_of(drops, 100)}."
    return [
        Verdict.of(
            f"{p.data}: every method loses accuracy when fewer clients take part.",
            [s.mean > max(s.spread, 0.003) for s in drops.values()],
            words,
        ),
        Verdict.of(
            f"{p.data}: SCAFFOLD loses more than FedGATE and FedCOMGATE.",
            [_more(drops["scaffold"], drops[m]) for m in OURS],
            words,
        ),
        Verdict.of(
            f"{p.data}: FedPAQ loses more than FedGATE and FedCOMGATE.",
            [_more(drops["fedpaq"], drops[m]) for m in OURS],
            words,
        ),
    ]


STUDY = Study.told("fig7", charts=charts, judge_panel=judge)
