"""Beyond the paper: a character model on Shakespeare's roles, from 32 bits down to 0.03."""

import math
from functools import partial
from typing import Any

from fedcom.formats import MB
from fedcom.reports.looks import COLOURS
from fedcom.reproduce.drawing import Chart, PlotAxes, PlotPoint, series
from fedcom.reproduce.panels import Panel, Scale, package_data, settings, shown
from fedcom.reproduce.results import Stat, StudyResults, Verdict
from fedcom.reproduce.study import Study, panel

_TOLD = package_data("studies.toml")["language"]
LINES: dict[str, list[str]] = _TOLD["lines"]  # a method's labels, from 32 bits down
PAIRS: dict[str, str] = _TOLD["pairs"]  # uncompressed labels, and the same methods at a tenth of a bit
QUICK: dict[str, Any] = _TOLD["quick"]
KEY, NEAR, TIMES = "test_perplexity", 0.01, 300  # how far above a perplexity, with how many times fewer bytes
BASE, UP, DOWN = "fedavg", "uplink_bytes", "downlink_bytes"


def plan(scale: Scale) -> list[Panel]:
    every = dict.fromkeys(label for own in LINES.values() for label in own)
    asked = dict.fromkeys(label for pair in PAIRS.items() for label in pair)
    labels = _TOLD["asked"] if scale.quick else [*{**every, **asked}]
    follow = {a: {**settings(a), "rates_of": b} for a, b in _TOLD["rates_of"].items() if a in labels}
    # A label is given its rates after the one that it follows.
    labels.sort(key=lambda label: label in follow)
    over = {"methods": follow}
    return [panel("language/shakespeare.toml", scale, labels, rates=("language",), over=over, quick=QUICK)]


def perplexity(results: StudyResults, name: str, label: str) -> Stat:
    """The test perplexity of a label at the end of its runs."""
    return results.final(name, label, KEY)


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per label: rates, perplexity, bits per character, accuracy in %, and bytes both ways."""
    lines = []
    for run in results.panel(name).runs(1):
        label, score = run.method, perplexity(results, name, run.method)
        known = math.isfinite(score.mean)
        accuracy, worst = (
            results.final(name, label, k) for k in ("test_accuracy", "worst_client_perplexity")
        )
        line: dict[str, Any] = {
            "point": label,
            "eta": run.config.algorithm.eta,
            "gamma": run.config.algorithm.gamma if run.config.algorithm.server.uses_gamma else None,
            "perplexity": score.mean if known else str(score),
            "spread": score.spread if known else None,
            "bits_per_character": math.log2(score.mean) if known else None,
            "worst_tenth": worst.mean if known and math.isfinite(worst.mean) else None,
            "accuracy": 100 * accuracy.mean if known else None,
        }
        line |= {
            f"{way}_MB": results.sent(name, label, k).mean / MB for way, k in (("up", UP), ("down", DOWN))
        }
        lines.append(line)
    return lines


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    if BASE not in p.methods:
        return []
    own = {name: [label for label in labels if label in p.methods] for name, labels in LINES.items()}
    points = {name: [_point(results, p.name, label) for label in labels] for name, labels in own.items()}
    hues = dict(zip(LINES, (COLOURS[method] for method in _TOLD["colours"]), strict=True))
    drawn = {name: there for name, there in points.items() if there}
    axis = PlotAxes("bits up per number and round", "test perplexity", log=True, every=True)
    title, note = "Perplexity by bits up", "SCAFFOLD sends two vectors; the others one"
    return [partial(series, points=drawn, title=title, note=note, axis=axis, colours=hues)]


def _point(results: StudyResults, name: str, label: str) -> PlotPoint:
    """The bits per number that a label sends up, as many as it takes beside the 32 of FedAvg; its score."""
    score, sent = perplexity(results, name, label), results.sent(name, label, UP).mean
    bits = 32 * sent / (results.sent(name, BASE, UP).mean or math.inf)
    return float(f"{bits or 32:.2g}"), score.mean, score.spread


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    """Whether each method ends level with itself uncompressed, at a tenth of a bit."""
    return [_level(results, p.name, *pair) for pair in PAIRS.items() if {*pair} <= {*p.methods}]


def _level(results: StudyResults, name: str, whole: str, small: str) -> Verdict:
    base, score = (perplexity(results, name, label) for label in (whole, small))
    sent = [results.sent(name, label, UP).mean for label in (whole, small)]
    finite = math.isfinite(base.mean) and math.isfinite(score.mean)
    more = f"{100 * (score.mean / base.mean - 1):+.2f}%" if finite else "no number"
    return Verdict.of(
        f"{shown(small)} ends within {100 * NEAR:g}% of {shown(whole)}'s perplexity, with "
        f"1/{TIMES} of its uplink bytes.",
        [finite and score.mean <= (1 + NEAR) * base.mean and sent[0] >= TIMES * sent[1]],
        f"{score} against {base}, {more}, with 1/{sent[0] / sent[1]:,.0f} of the bytes.",
    )


STUDY = Study.told("language", plan=plan, judge_panel=judge, charts=charts, table=table, in_part=True)
