"""Beyond the paper: accuracy and bytes of all methods and many codecs, and which of them are best."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from fedcom.formats import MB
from fedcom.reports.looks import COLOURS
from fedcom.reproduce.drawing import Chart, Dot, draw_charts, scatter
from fedcom.reproduce.panels import Panel, Scale, package_data, settings
from fedcom.reproduce.rates import AROUND
from fedcom.reproduce.results import Stat, StudyResults, Verdict, better, list_of, near
from fedcom.reproduce.study import Study, panel
from fedcom.studies.compare import METHODS

BASE, PAPER, OURS = "scaffold", "fedcomgate", "exact peaks 0.03"  # the second is at 8 bits
BOTH_WAYS = f"{OURS}, down rotated 0.35"
COARSE = ("rotated 0.1", "peaks 0.03")  # codecs far below a bit, with and without exact tracking
_TOLD = package_data("studies.toml")["frontier"]
ASKED, _CIFAR, _FASHION, _MNIST = _TOLD["points"].values()  # in that order
_SOME = (*METHODS, *ASKED, *_CIFAR, *_FASHION)
POINTS = {"mnist": (*_SOME, *_MNIST), "fashion-mnist": _SOME, "cifar-10": (*ASKED, *_CIFAR)}
NEAR, HALF = 0.003, 0.005  # differences in accuracy that claims allow
UP, TOTAL = ("uplink_bytes",), ("uplink_bytes", "downlink_bytes")


def plan(data: str, scale: Scale) -> list[Panel]:
    study = f"frontier-{data}"
    make = partial(panel, f"{study}/{data}.toml", scale)
    panels = [make(ASKED if scale.quick else tuple(dict.fromkeys(POINTS[data])), rates=(data, study))]
    for harder in _TOLD["harder"] if data != "cifar-10" else ():
        name = harder["name"]
        panels.append(make(**{**harder, "name": f"{data}-{name}", "rates": (f"{study}-{name}",)}))
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
        return f"{label}: {score}, {BASE}: {base}"
    return f"{label}: {score} with 1/{times:,.0f} of the bytes of {BASE} ({base})"


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
    axes = {"all bytes, up and down": TOTAL, "bytes up": UP}
    return [_chart(results, p, words, keys) for words, keys in axes.items()]


def _chart(results: StudyResults, p: Panel, words: str, keys: tuple[str, ...]) -> Chart:
    points = points_of(results, p.name, keys)
    if keys is UP:  # a codec for the downlink would put a second dot at the same bytes
        points = {label: point for label, point in points.items() if ", down " not in label}
    dots = {
        label: Dot(
            "int 8, the paper's codec" if label == PAPER else label.removeprefix(f"{PAPER} "),
            sent / MB,
            100 * score,
            100 * results.final(p.name, label).spread,
            COLOURS[settings(label)["name"]],
            label in (PAPER, OURS, BOTH_WAYS),
            "D" if label.startswith("exact") else "o",
        )
        for label, (sent, score) in points.items()
    }
    told = BOTH_WAYS if keys is TOTAL and BOTH_WAYS in p.methods else OURS
    return partial(
        scatter,
        dots=list(dots.values()),
        front=[dots[label].name for label in front(points)],
        title=f"{p.name}: accuracy by {words}",
        note=finding(results, p.name, told, keys),
        x=f"{words} per client, all rounds (MB) · a codec by itself is FedCOMGATE with it",
    )


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    name = p.name
    if name not in POINTS:
        return [_judge_harder(results, name)]
    return [
        _judge_bytes(results, name, OURS, UP, 2000, "uplink bytes"),
        _judge_bytes(results, name, BOTH_WAYS, TOTAL, 150, "bytes up and down, the first model included"),
        _judge_coarse(results, name),
        _judge_rivals(results, name),
    ]


def _judge_bytes(
    results: StudyResults, name: str, label: str, keys: tuple[str, ...], times: float, words: str
) -> Verdict:
    """Whether a point is as accurate as SCAFFOLD at a fraction of its bytes."""
    close = near(results.final(name, label), results.final(name, BASE), NEAR)
    return Verdict.of(
        f"{label} ends within {100 * NEAR:g} points of SCAFFOLD with 1/{times:,.0f} of its {words}.",
        [close, (times_fewer(results, name, label, keys) or 0) >= times],
        f"{finding(results, name, label, keys)}.",
    )


def _judge_coarse(results: StudyResults, name: str) -> Verdict:
    """Whether exact tracking is better than FedCOMGATE with codecs far below a bit."""
    pairs = [[results.final(name, f"{method} {codec}") for method in ("exact", PAPER)] for codec in COARSE]
    numbers = [
        f"{codec}: {ours} against {theirs}" for codec, (ours, theirs) in zip(COARSE, pairs, strict=True)
    ]
    return Verdict.of(
        "Far below one bit FedCOMGATE gives way where exact tracking does not: with the same codec exact "
        "tracking ends above it.",
        [better(*pair) for pair in pairs],
        f"{', '.join(numbers)}.",
    )


def _judge_rivals(results: StudyResults, name: str) -> Verdict:
    """Whether no other method is both cheaper and better than a point of exact tracking."""
    beaten = {words: beats(results, name, keys) for words, keys in (("up", UP), ("in total", TOTAL))}
    numbers = [f"{words}: {', '.join(pairs) or 'none'}" for words, pairs in beaten.items()]
    return Verdict.of(
        "No other method beats a point of exact tracking in both bytes and accuracy, neither by bytes up nor "
        "by all bytes.",
        [not pairs and OURS in points_of(results, name, UP) for pairs in beaten.values()],
        f"Beaten {'; '.join(numbers)}.",
    )


def beats(results: StudyResults, name: str, keys: tuple[str, ...]) -> list[str]:
    """Which other method beats which point of exact tracking, in bytes and in accuracy, one sentence each."""
    points = points_of(results, name, keys)
    ours = [label for label in points if label.startswith("exact")]
    return [
        f"{label} by {rival}"
        for label in ours
        for rival in points
        if rival not in ours
        and points[rival][0] <= points[label][0]
        and better(results.final(name, rival), results.final(name, label))
    ]


def _judge_harder(results: StudyResults, name: str) -> Verdict:
    """Whether exact tracking holds with one class per client, or when few clients take part."""
    sampled = name.endswith("sampled")
    base, label = ("fedgate", "exact rotated ¼") if sampled else (BASE, "exact rotated 0.1")
    scores: dict[str, Stat] = {each: results.final(name, each) for each in results.panel(name).methods}
    checks = [near(scores[label], scores[base], HALF)]
    claim = f"{label} ends within {100 * HALF:g} points of {base}"
    if name == "mnist-1-class":
        checks, claim = [*checks, scores[label].mean >= 0.963], f"{claim}, and at 96.3% or more"
    where = "when a tenth of the clients take part" if sampled else "with one class per client"
    return Verdict.of(f"{claim} {where}.", checks, f"{list_of(scores)}.")


def _study(data: str) -> Study:
    kept = " Only eta is tuned here, at the method's gamma." if data in AROUND else ""
    own = {"plan": partial(plan, data), "charts": charts, "judge_panel": judge, "table": table}
    return Frontier.told(f"frontier-{data}", words="frontier", fill={"data": data, "kept": kept}, **own)


STUDIES = tuple(map(_study, POINTS))
