"""Figure 8: top-k with memory in FedCOMGATE, against FedGATE."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedcom.reports.looks import COLOURS
from fedcom.reproduce.drawing import Chart, PlotAxes, PlotPoint, percent_point, series
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import BARS, StudyResults, Verdict, better, list_of
from fedcom.reproduce.study import Study, panel

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

RATIOS = (0.1, 0.25, 0.5)  # C_r: bytes of the message over bytes of the dense one
MEMORIES = {"paper": "memory as printed", "error-feedback": "error feedback", "none": "no memory"}
NEAR = 0.01  # a loss of accuracy that counts as almost as good
BASE = "fedgate"
HUES = dict(
    zip([*MEMORIES.values(), "FedGATE"], ("#b03a00", "#009e73", "#6f6f6f", COLOURS[BASE]), strict=True)
)


def label(rule: str, ratio: float) -> str:
    """The label of FedCOMGATE with top-k under a memory rule, at a ratio of bytes."""
    return f"{MEMORIES[rule]}, C_r {ratio:g}"


def sparsified() -> dict[str, dict[str, object]]:
    """The settings of FedCOMGATE with top-k under every memory rule and ratio of bytes, by label.

    The bytes of C_r include where the coordinates are, so fewer than C_r of them are kept.
    """
    kept = {ratio: _kept(ratio) for ratio in RATIOS}
    return {
        label(rule, ratio): {
            "name": "fedcomgate",
            "uplink": {"name": "topk", "ratio": kept[ratio], "memory": rule},
        }
        for rule in MEMORIES
        for ratio in RATIOS
    }


def _kept(ratio: float) -> float:
    """The share of coordinates at a ratio of bytes: values of 32 bits, and an index of 18 bits for each.

    Or one bit for every coordinate, kept or not, where that is less. The coded positions of fedcom's messages
    take less again: they are shorter than C_r says.
    """
    return max(32 * ratio / (32 + 18), (32 * ratio - 1) / 32)


def plan(scale: Scale) -> list[Panel]:
    methods = sparsified()
    return [
        panel(f"fig8/{data}.toml", scale, (BASE, *methods), over={"methods": methods})
        for data in ("mnist", "fashion-mnist")
    ]


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    return [partial(chart, results, p)]


def chart(results: StudyResults, p: Panel, part: "SubFigure") -> None:
    """Accuracy over C_r, one line per memory rule, and FedGATE's accuracy as a dotted line."""
    points = {
        words: [percent_point(ratio, results.final(p.name, label(rule, ratio))) for ratio in RATIOS]
        for rule, words in MEMORIES.items()
    }
    points["FedGATE"] = [percent_point(1.0, results.final(p.name, BASE))]
    limits = _limits(points)
    axis = PlotAxes("C_r, share of FedGATE's bytes", "test accuracy (%)", log=True, limits=limits)
    note = f"{results.setting(p.name)} · {BARS}"
    axes = series(part, points, f"{p.data}: {_finding(points)}", note, axis, HUES)
    axes.axhline(points["FedGATE"][0][1], color=COLOURS[BASE], linestyle=":", linewidth=1)


def _finding(points: Mapping[str, Sequence[PlotPoint]]) -> str:
    """Which memory rule loses least where the fewest bytes are sent, in words."""
    base = points["FedGATE"][0][1]
    lost = {name: base - own[0][1] for name, own in points.items() if name != "FedGATE"}
    known = {name: points for name, points in lost.items() if math.isfinite(points)}
    if not known:
        return f"nothing converged at C_r {RATIOS[0]:g}"
    best = min(known, key=lambda name: known[name])
    return f"at C_r {RATIOS[0]:g}, {best} loses least, {known[best]:.1f} points"


def _limits(points: Mapping[str, Sequence[PlotPoint]]) -> tuple[float, float] | None:
    """The range of all lines but the memory as printed, if that one is far below the others."""
    printed = MEMORIES["paper"]
    high = [y for _, y, _ in points[printed]]
    others = [y + s for name, own in points.items() if name != printed for _, y, e in own for s in (-e, e)]
    if not all(map(math.isfinite, [*high, *others])):
        return None
    low, top = min(others), max(others)
    pad = max(0.1, 0.3 * (top - low))
    return (low - 2 * pad, top + pad) if max(high) < low - 4 * pad else None


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    base, base_loss = results.final(p.name, BASE), results.final(p.name, BASE, "train_loss")
    verdicts = []
    for rule, words in MEMORIES.items():
        scores = {f"C_r {ratio:g}": results.final(p.name, label(rule, ratio)) for ratio in RATIOS}
        claim = (
            f"{p.data}, {words}: top-k comes within {100 * NEAR:g} point of FedGATE's accuracy at some C_r "
            f"of {RATIOS[1]} or more."
        )
        near = [base.mean - s.mean <= NEAR for s in list(scores.values())[1:]]
        verdicts.append(Verdict.of(claim, [any(near)], f"{list_of(scores)}; FedGATE {base}."))
    losses = {
        words: results.final(p.name, label(rule, RATIOS[0]), "train_loss") for rule, words in MEMORIES.items()
    }
    claim = f"{p.data}: at C_r = {RATIOS[0]} a residual error is left (loss above FedGATE's)."
    numbers = f"Loss: {list_of(losses)}; FedGATE {base_loss}."
    return [*verdicts, Verdict.of(claim, [better(base_loss, loss) for loss in losses.values()], numbers)]


STUDY = Study.told("fig8", plan=plan, charts=charts, judge_panel=judge, fill={"kept": 100 * _kept(0.1)})
