"""Beyond the paper: accuracy and bytes of all methods and many codecs, and which of them are best."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from fedcom.formats import MB
from fedcom.reports.figures import COLOURS
from fedcom.reproduce.drawing import Sheet, scatter
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Results, Stat, Verdict, as_good, common_target
from fedcom.reproduce.study import Study, panel
from fedcom.studies.compare import METHODS

PAPER, TRACKS, PLAIN = "fedcomgate", "fedcomgate", "fedcom"  # at 8 bits; with codecs; without tracking
TARGETS = {"mnist": 0.95, "fashion-mnist": 0.8, "cifar-10": 0.45}
CODECS: dict[str, dict[str, Any]] = {
    "int 4": {"name": "int", "bits": 4},
    "int 2": {"name": "int", "bits": 2},
    "rotated 1": {"name": "rotated", "bits": 1.0},
    "rotated ½": {"name": "rotated", "bits": 0.5},
    "rotated ¼": {"name": "rotated", "bits": 0.25},
    "rotated 0.1": {"name": "rotated", "bits": 0.1},
    "dithered 1": {"name": "dithered", "bits": 1.0},
    "lowrank ¼": {"name": "lowrank", "bits": 0.25},
    "auto ¼": {"name": "auto", "bits": 0.25},
    "qsgd 7": {"name": "qsgd", "levels": 7},
    "natural": {"name": "natural"},
    "topk 10%": {"name": "topk", "ratio": 0.1},
    "randk 10%": {"name": "randk", "ratio": 0.1},
    "terngrad": {"name": "terngrad"},
    "sign": {"name": "sign"},
}
FEW = ("int 2", "rotated ¼", "topk 10%")  # what the quick form tries
MORE = (*FEW, "int 4", "rotated 1", "rotated 0.1", "lowrank ¼", "randk 10%", "sign")  # quick form on MNIST
TRIED = {"mnist": tuple(CODECS), "fashion-mnist": MORE, "cifar-10": (*FEW, "rotated 1", "rotated 0.1")}


def coded(names: Any) -> dict[str, dict[str, Any]]:
    """The settings of FedCOMGATE with each named codec, and of FedCOM with the cheapest ones, by label."""
    own = {f"{TRACKS} {name}": {"name": TRACKS, "uplink": CODECS[name]} for name in names}
    cheap = [name for name in ("rotated ¼", "rotated 0.1") if name in names]
    return own | {f"{PLAIN} {name}": {"name": PLAIN, "uplink": CODECS[name]} for name in cheap}


def plan(data: str, scale: Scale) -> list[Panel]:
    labels = coded(TRIED[data] if not scale.quick else MORE if data == "mnist" else FEW)
    methods = (*METHODS, *([] if scale.quick else [PLAIN]), *labels)
    return [panel(f"frontier-{data}/{data}.toml", scale, methods, over={"methods": labels})]


def front(points: dict[str, tuple[float, float]]) -> list[str]:
    """The names of the points that no other point beats in both bytes and accuracy, in order of bytes.

    Args:
        points: bytes and accuracy by name.
    """
    found, best = [], -math.inf
    for name, (_, score) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if score > best:
            found.append(name)
            best = score
    return found


def points_of(results: Results, name: str) -> dict[str, tuple[float, float]]:
    """Bytes sent and final accuracy of every method that did not diverge, means over seeds."""
    found = {}
    for method in results.panel(name).methods:
        score = results.final(name, method)
        if math.isfinite(score.mean):
            ends = (r["rows"][-1]["uplink_bytes"] for r in results.runs(name, method))
            found[method] = (Stat(tuple(ends), "uplink_bytes").mean, score.mean)
    return found


def draw(results: Results, out: Path) -> list[str]:
    sheet, (p,) = Sheet(1, 1, 1.4), results.panels
    points = points_of(results, p.name)
    places = {name: (sent / MB, 100 * score) for name, (sent, score) in points.items()}
    colours = {
        name: COLOURS.get(name, COLOURS[TRACKS if name.startswith(TRACKS) else PLAIN]) for name in places
    }
    names = {m: m.removeprefix(f"{TRACKS} ") for m in places if m != PLAIN}  # FedCOM at 8 bits is FedPAQ
    title, marked = f"{p.config.data.name}: accuracy by bytes", {PAPER: "int 8, the paper's own"}
    note = f"{results.setting(p.name)} · blue: FedCOMGATE, red: FedCOM"
    scatter(sheet.parts[0], places, front(points), marked, colours, title, note, names)
    return [sheet.save(out / "frontier.png")]


def judge(results: Results) -> list[Verdict]:
    return [_judge(results, p.name) for p in results.panels]


def _judge(results: Results, name: str) -> Verdict:
    """Whether a codec reaches the accuracy of the paper's method with a tenth of its bytes."""
    methods = results.panel(name).methods
    score = {m: results.final(name, m) for m in methods}
    target = min(TARGETS[name], common_target([score[PAPER]]))
    cost = {m: results.reach(name, m, target) for m in methods}
    equals = [m for m in methods if as_good(score[m], score[PAPER])]
    cheapest = min(equals or [PAPER], key=lambda m: cost[m].mean)
    times = cost[PAPER].mean / cost[cheapest].mean if math.isfinite(cost[PAPER].mean) else math.nan
    data = results.panel(name).config.data.name
    return Verdict.of(
        f"{data} (not the paper's claim): a codec ends as accurate as FedCOMGATE at 8 bits and reaches "
        f"{100 * target:.1f}% with a tenth of its bytes.",
        [times >= 10],
        f"{cheapest}: {cost[cheapest].mean / MB:.3g} MB, {times:.3g} times fewer than "
        f"{cost[PAPER].mean / MB:.3g}; final accuracy {score[cheapest]} and {score[PAPER]}.",
        results.setting(name),
    )


def _study(data: str) -> Study:
    return Study(
        f"frontier-{data}",
        f"The frontier on {data}: accuracy and bytes of all methods and codecs",
        (
            "FedCOMGATE at 8 bits is the paper's cheapest point. This study, which the paper does not have, "
            "asks what lies beyond it.",
        ),
        partial(plan, data),
        draw,
        judge,
        notes="Every codec runs at its method's rates; none is tuned for itself.",
    )


STUDIES = tuple(map(_study, TARGETS))
