"""Beyond the paper: accuracy and bytes of methods, codecs and momentum, and which of them are best."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedcom.formats import MB
from fedcom.reports.figures import GREY, MARKS
from fedcom.reports.looks import COLOURS, marker
from fedcom.reproduce.drawing import Chart, Dot, draw_charts, lowest, scatter
from fedcom.reproduce.panels import MOMENTUM, Panel, Scale, package_data, settings, shown
from fedcom.reproduce.results import StudyResults, Verdict, better, list_of
from fedcom.reproduce.study import Study, panel

BASE, PAPER, CODEC = "scaffold", "fedcomgate", "peaks 0.03"  # the second is at 8 bits
BASELINES = ("fedavg", f"fedavg{MOMENTUM}", BASE, f"{BASE}{MOMENTUM}", PAPER)
OURS, BOTH_WAYS = f"exact {CODEC}{MOMENTUM}", f"fedcom {CODEC}, down rotated 0.35"
# Momentum and tracking together, and each without the other.
PAIRS = {
    OURS: (f"fedcom {CODEC}{MOMENTUM}", f"exact {CODEC}"),
    f"{BASE}{MOMENTUM}": (f"fedavg{MOMENTUM}", BASE),
}
_TOLD = package_data("studies.toml")["frontier"]
ASKED, _ALL, _SMALL, HARDER = _TOLD["points"].values()  # in that order
POINTS = {
    "mnist": (*ASKED, *_ALL, *_SMALL),
    "fashion-mnist": (*ASKED, *_ALL, *_SMALL),
    "cifar-10": (*ASKED, *_ALL),
}
UP, TOTAL = ("uplink_bytes",), ("uplink_bytes", "downlink_bytes")


def plan(data: str, scale: Scale) -> list[Panel]:
    study = f"frontier-{data}"
    make = partial(panel, f"{study}/{data}.toml", scale)
    panels = [make(ASKED if scale.quick else POINTS[data], rates=(study,))]
    for name, over in _TOLD["harder"].items() if data != "cifar-10" else ():
        panels.append(make(HARDER, name=f"{data}-{name}", rates=(f"{study}-{name}",), over=over))
    return panels


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


def points_of(results: StudyResults, name: str, keys: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Bytes sent and final accuracy of every point that did not diverge, means over seeds.

    Args:
        name: of the panel.
        keys: the bytes to count, UP or TOTAL.
    """
    scores = {label: results.final(name, label).mean for label in results.panel(name).methods}
    return {
        label: (results.sent(name, label, *keys).mean, score)
        for label, score in scores.items()
        if math.isfinite(score)
    }


def times_fewer(results: StudyResults, name: str, label: str, keys: tuple[str, ...]) -> float | None:
    """How many times fewer bytes than SCAFFOLD a point sends; None if one of them diverged."""
    points = points_of(results, name, keys)
    return points[BASE][0] / points[label][0] if {BASE, label} <= set(points) else None


def finding(results: StudyResults, name: str, label: str, keys: tuple[str, ...]) -> str:
    """What a point reaches and sends beside SCAFFOLD, in words."""
    score, base = (results.final(name, each) for each in (label, BASE))
    times = times_fewer(results, name, label, keys)
    if times is None:
        return f"{shown(label)}: {score}, {shown(BASE)}: {base}"
    return f"{shown(label)}: {score} with 1/{times:,.0f} of the bytes of {shown(BASE)} ({base})"


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per point of a panel: its rates, accuracy in %, megabytes, and times fewer than SCAFFOLD."""
    lines, axes = [], {"up": UP, "total": TOTAL}
    points = {words: points_of(results, name, keys) for words, keys in axes.items()}
    for run in results.panel(name).runs(1):
        label, score = run.method, results.final(name, run.method)
        known = label in points["up"]
        line: dict[str, Any] = {
            "point": label,
            "eta": run.config.algorithm.eta,
            "gamma": run.config.algorithm.gamma,
            "accuracy": 100 * score.mean if known else str(score),
            "spread": 100 * score.spread if known else None,
            "standard_error": 100 * score.error if known else None,
        }
        for words, keys in axes.items():
            line[f"{words}_MB"] = points[words][label][0] / MB if known else None
            line[f"{words}_times_fewer"] = times_fewer(results, name, label, keys)
        lines.append(line)
    return sorted(lines, key=lambda line: line["up_MB"] or 0.0, reverse=True)


class Frontier(Study):
    """A study with an image for each of its panels, of larger charts."""

    def draw(self, results: StudyResults, out: Path) -> list[str]:
        data = self.name.removeprefix("frontier-")
        return [
            draw_charts(self.charts(results, p), out / f"{p.name.replace(data, 'frontier')}.png", (7.4, 5.6))
            for p in results.panels
        ]


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    axes = {"up and down": TOTAL, "up": UP}
    return [_chart(results, p, words, keys) for words, keys in axes.items()]


def winner(points: dict[str, tuple[float, float]]) -> str:
    """The point that ends highest with a hundredth of SCAFFOLD's bytes; without one, highest of all."""
    most = points.get(BASE, (0.0, 0.0))[0] / 100
    few = {label: score for label, (sent, score) in points.items() if sent <= most}
    return max(few or points, key=lambda label: points[label][1])


def _chart(results: StudyResults, p: Panel, words: str, keys: tuple[str, ...]) -> Chart:
    points = points_of(results, p.name, keys)
    if keys is UP:  # a codec for the downlink would put a second dot at the same bytes
        points = {label: point for label, point in points.items() if ", down " not in label}
    line = front(points)
    best = winner(points) if points else OURS
    named = {*line, *BASELINES, OURS, best}
    dots = {
        label: Dot(
            shown(f"{PAPER} int 8" if label == PAPER else label),
            sent / MB,
            100 * score,
            100 * results.final(p.name, label).spread,
            COLOURS[settings(label)["name"]] if label in named else GREY,
            label == best,
            MARKS[marker(settings(label)["name"])],
            label in named,
        )
        for label, (sent, score) in points.items()
    }
    return partial(
        scatter,
        dots=list(dots.values()),
        front=[dots[label].name for label in line],
        words=(
            _title(results, p.name, best, keys),
            f"{p.name} · bars: standard deviation over {results.scale.seeds} seeds · thick line: the "
            "frontier · grey: other points",
            f"{words} per client, all rounds (MB)",
        ),
        limits=_limits([100 * score for _, score in points_of(results, p.name, TOTAL).values()]),
    )


def _limits(scores: Sequence[float]) -> tuple[float, float] | None:
    """The range of y in both charts of a panel; what is far below is a triangle at the edge."""
    if not scores:
        return None
    low, high = min(y for y in scores if y >= lowest(scores)), max(scores)
    pad = max(0.1, 0.15 * (high - low))
    return low - pad, high + pad


def _title(results: StudyResults, name: str, label: str, keys: tuple[str, ...]) -> str:
    """What the best point reaches and saves."""
    if not math.isfinite(results.final(name, label).mean):
        return "Nothing converged"
    times = times_fewer(results, name, label, keys) or 1.0
    score, base = (f"{100 * results.final(name, each).mean:.1f} %" for each in (label, BASE))
    if times < 100:
        return f"{shown(label)} ends highest: {score}"
    return f"{score} with {times:,.0f} times fewer bytes than SCAFFOLD ({base})"


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    """What momentum gains, with and without tracking; on the first panel also beside every SCAFFOLD."""
    asked = BOTH_WAYS in p.methods
    above = [_above(results, p.name, OURS, UP), _above(results, p.name, BOTH_WAYS, TOTAL)] if asked else []
    return [*above, _gains(results, p), _pairs(results, p.name)]


def _above(results: StudyResults, name: str, label: str, keys: tuple[str, ...]) -> Verdict:
    """Whether a compressed point ends above SCAFFOLD as published; told beside the uncompressed ones."""
    least, words = (2000, "uplink bytes") if keys is UP else (180, "bytes up and down")
    others = {each: results.final(name, each) for each in (f"fedavg{MOMENTUM}", f"{BASE}{MOMENTUM}")}
    return Verdict.of(
        f"{shown(label)} ends above SCAFFOLD as published with 1/{least:,} of its {words}.",
        [
            better(results.final(name, label), results.final(name, BASE)),
            (times_fewer(results, name, label, keys) or 0) >= least,
        ],
        f"{finding(results, name, label, keys)}; uncompressed, with momentum: {list_of(others)}.",
    )


def _gains(results: StudyResults, p: Panel) -> Verdict:
    """Whether every method ends higher with momentum than without."""
    pairs = {
        label: [results.final(p.name, each) for each in (f"{label}{MOMENTUM}", label)]
        for label in p.methods
        if f"{label}{MOMENTUM}" in p.methods
    }
    numbers = [f"{shown(label)}: {ours} against {theirs}" for label, (ours, theirs) in pairs.items()]
    return Verdict.of(
        "With momentum each method ends above itself without.",
        [better(*pair) for pair in pairs.values()],
        f"{', '.join(numbers)}.",
    )


def _pairs(results: StudyResults, name: str) -> Verdict:
    """Whether tracking and momentum together are not below the better of the two by a standard error."""
    checks, numbers = list[bool](), list[str]()
    for label, halves in PAIRS.items():
        own = results.final(name, label)
        best = max((results.final(name, half) for half in halves), key=lambda score: score.mean)
        level = own.mean >= best.mean - math.hypot(own.error, best.error)
        checks.append(math.isfinite(own.mean) and level)
        numbers.append(f"{shown(label)}: {own}, the better half: {best}")
    return Verdict.of(
        "Tracking and momentum together are not below the better of the two by more than a standard error.",
        checks,
        f"{', '.join(numbers)}.",
    )


def _study(data: str) -> Study:
    own = {"plan": partial(plan, data), "charts": charts, "judge_panel": judge, "table": table}
    return Frontier.told(f"frontier-{data}", words="frontier", fill={"data": data}, **own)


STUDIES = tuple(map(_study, POINTS))
