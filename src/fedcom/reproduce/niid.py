"""NIID-Bench, a table that others published: five ways to deal three data sets, and four methods."""

import math
from functools import partial
from typing import Any

from fedcom.reproduce.panels import Panel, Scale, package_data
from fedcom.reproduce.results import Stat, StudyResults, Verdict
from fedcom.reproduce.study import Study, panel

_TOLD = package_data("studies.toml")["niid-bench"]
SETS: dict[str, dict[str, list[float]]] = _TOLD["published"]  # accuracies by data set and deal
DEALS: dict[str, dict[str, Any]] = _TOLD["deals"]  # the settings of [data], by their names
PUBLISHED: tuple[str, ...] = tuple(_TOLD["order"])  # the methods, in the order of the accuracies
METHODS: tuple[str, ...] = tuple(_TOLD["methods"])  # and ours: FedProx once for each mu
NEAR, ENOUGH = 0.02, 5 / 6  # how far below a published accuracy ours may be, and in what share of the cells
GUESS = (
    0.1  # the accuracy of a model that takes all images for one class, as one that is no longer finite does
)


def plan(data: str, scale: Scale) -> list[Panel]:
    make = partial(panel, f"niid-bench/{data}.toml", scale, METHODS, tuned=False)
    return [make(name=f"{data}, {deal}", over={"data": own}) for deal, own in DEALS.items()]


def published(name: str) -> dict[str, float]:
    """The accuracies that were published for a panel, by method."""
    data, _, deal = name.partition(", ")
    return dict(zip(PUBLISHED, (x / 100 for x in SETS[data][deal]), strict=True))


def labels_of(method: str) -> list[str]:
    """The labels of our runs of a published method: one, or one for each value that they chose from."""
    return [
        label
        for label in METHODS
        if label == method or label.startswith(f"{method} 0") or label == f"{method} 1"
    ]


def best(results: StudyResults, name: str, method: str) -> tuple[str, Stat]:
    """Our best run of a published method, and its accuracy; of several, chosen on the test set, as theirs."""
    scores = {label: accuracy(results, name, label) for label in labels_of(method)}
    return max(scores.items(), key=lambda item: item[1].mean)


def accuracy(results: StudyResults, name: str, label: str) -> Stat:
    """The final accuracy of a run; that of a guess for seeds in which the model was no longer finite."""
    found = results.final(name, label)
    return Stat(tuple(GUESS if value is None else value for value in found.values), found.key)


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per method: its published accuracy and ours in %, and how far apart they are."""
    theirs, lines = published(name), list[dict[str, Any]]()
    for method in dict.fromkeys((*PUBLISHED, *METHODS)):
        if method not in PUBLISHED and any(method in labels_of(other) for other in PUBLISHED):
            continue
        label, score = best(results, name, method)
        lost = results.final(name, label).values.count(None)
        line: dict[str, Any] = {"method": label, "accuracy": 100 * score.mean, "spread": 100 * score.spread}
        line |= {"published": None, "difference": None, "in_spreads": None, "not_finite": lost}
        if method in theirs:
            apart = score.mean - theirs[method]
            line |= {"published": 100 * theirs[method], "difference": 100 * apart}
            line["in_spreads"] = apart / score.spread if score.spread else None
        lines.append(line)
    return lines


class NiidBench(Study):
    """A study with one verdict on all cells of a data set."""

    def judge(self, results: StudyResults) -> list[Verdict]:
        cells = {
            f"{p.name}, {best(results, p.name, method)[0]}": (best(results, p.name, method)[1], value)
            for p in results.panels
            for method, value in published(p.name).items()
        }
        far = {
            cell: f"{100 * ours.mean:.1f} against {100 * theirs:.1f}"
            for cell, (ours, theirs) in cells.items()
            if ours.mean < theirs - NEAR
        }
        above = sum(ours.mean > theirs + NEAR for ours, theirs in cells.values())
        reached = len(cells) - len(far)
        told = f"; below: {', '.join(f'{cell}: {text}' for cell, text in far.items())}" if far else ""
        return [
            Verdict.of(
                f"Of {len(cells)} published accuracies at least {math.ceil(ENOUGH * len(cells))} are reached "
                f"but for {100 * NEAR:g} points, or exceeded.",
                [reached >= ENOUGH * len(cells)],
                f"{reached} are, {above} of them exceeded by more than {100 * NEAR:g} points{told}.",
                results.setting(),
            )
        ]


def _study(data: str) -> Study:
    own = {"plan": partial(plan, data), "judge_panel": lambda results, p: [], "table": table}
    return NiidBench.told(f"niid-bench-{data}", words="niid-bench", fill={"data": data}, **own)


STUDIES = tuple(map(_study, SETS))
