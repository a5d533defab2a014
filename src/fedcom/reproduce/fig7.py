"""Figure 7: five methods when only some of the clients take part in a round."""

from pathlib import Path

from fedcom.reports.looks import palette
from fedcom.reproduce.drawing import PlotAxes, PlotPoint, Sheet, series
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Stat, StudyResults, Verdict, list_of, margin
from fedcom.reproduce.study import Study, panel
from fedcom.studies.compare import METHODS

OURS = ("fedgate", "fedcomgate")


def plan(scale: Scale) -> list[Panel]:
    ends = {"grid": {"run": {"participation": [1.0, 0.1]}}} if scale.quick else None
    return [panel(f"fig7/{data}.toml", scale, over=ends) for data in ("mnist", "cifar-10")]


def draw(results: StudyResults, out: Path) -> list[str]:
    sheet = Sheet(1, len(results.panels))
    for part, p in zip(sheet.parts, results.panels, strict=True):
        points: dict[str, list[PlotPoint]] = {m: [] for m in METHODS}
        for m in METHODS:
            for k in results.grid_values(p.name, "participation"):
                score = accuracy(results, p.name, m, k)
                points[m].append((100 * k, 100 * score.mean, 100 * score.spread))
        title = f"{p.config.data.name}: accuracy by participation"
        axes = PlotAxes("clients per round (%)", "test accuracy (%)", log=True)
        series(part, points, title, results.setting(p.name), axes, palette(METHODS))
    return [sheet.save(out / "fig7.png")]


def accuracy(results: StudyResults, name: str, method: str, share: float) -> Stat:
    """The accuracy of a method if this share of the clients takes part, at its best gamma."""
    return results.final(name, method, **results.best(name, method, participation=share))


def drop(results: StudyResults, name: str, method: str) -> Stat:
    """The accuracy a method loses from full to least participation; 0 if it diverges even at full."""
    shares = results.grid_values(name, "participation")
    full, least = (accuracy(results, name, method, k).values for k in (max(shares), min(shares)))
    pairs = zip(full, least, strict=True)
    lost = (0.0 if a is None else None if b is None else a - b for a, b in pairs)
    return Stat(tuple(lost), "drop of accuracy", "all")


def judge(results: StudyResults) -> list[Verdict]:
    return [verdict for p in results.panels for verdict in _judge(results, p.name)]


def _more(a: Stat, b: Stat) -> bool:
    """Whether a loses more than b, by more than the spread and 0.3 points."""
    return b.mean < a.mean and a.mean - b.mean > max(margin(a, b), 0.003)


def _judge(results: StudyResults, name: str) -> list[Verdict]:
    drops = {m: drop(results, name, m) for m in METHODS}
    least = min(results.grid_values(name, "participation"))
    data, where = results.panel(name).config.data.name, results.setting(name)
    words = f"Points of accuracy lost from 100% to {100 * least:g}%: {list_of(drops, 100)}."
    return [
        Verdict.of(
            f"{data}: every method loses accuracy when fewer clients take part.",
            [s.mean > max(s.spread, 0.003) for s in drops.values()],
            words,
            where,
        ),
        Verdict.of(
            f"{data}: SCAFFOLD loses more than FedGATE and FedCOMGATE.",
            [_more(drops["scaffold"], drops[m]) for m in OURS],
            words,
            where,
        ),
        Verdict.of(
            f"{data}: FedPAQ loses more than FedGATE and FedCOMGATE.",
            [_more(drops["fedpaq"], drops[m]) for m in OURS],
            words,
            where,
        ),
    ]


STUDY = Study(
    "fig7",
    "Figure 7: client sampling",
    (
        "With fewer clients per round all methods get worse after as many rounds; FedGATE and FedCOMGATE are "
        "robust, SCAFFOLD and FedPAQ much less so.",
    ),
    plan,
    draw,
    judge,
    notes="Eta is that of full participation. On MNIST gamma is each method's best at every share, chosen on "
    "the seeds shown, since it should be smaller if few clients are averaged; on CIFAR-10 it is 2.",
)
