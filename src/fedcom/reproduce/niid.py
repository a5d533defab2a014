"""NIID-Bench, a table that others published: five ways to deal three data sets, and four methods."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fedcom.config import read
from fedcom.errors import ConfigError
from fedcom.reproduce.drawing import Chart, GridCell, cell_grid
from fedcom.reproduce.panels import Panel, Scale, package_data, shown
from fedcom.reproduce.results import Stat, StudyResults, Verdict
from fedcom.reproduce.study import Study, experiment_file, panel, rates_in

_TOLD = package_data("studies.toml")["niid-bench"]
SETS: dict[str, dict[str, list[float]]] = _TOLD["published"]  # accuracies by data set and deal
DEALS: dict[str, dict[str, Any]] = _TOLD["deals"]  # the settings of [data], by their names
PUBLISHED: tuple[str, ...] = tuple(_TOLD["order"])  # the methods, in the order of the accuracies
METHODS: tuple[str, ...] = tuple(_TOLD["methods"])  # and ours: FedProx once for each mu
_SMALL = package_data("studies.toml")["niid-compressed"]
FORMS: dict[str, dict[str, Any]] = _SMALL["forms"]  # how epochs are dealt to rounds; labels; what to tune
VECTORS = {"scaffold": 2}  # that a client sends per round, if not one
PARAMETERS: dict[str, int] = _SMALL["parameters"]  # of the model, by data set
LEVEL, TIMES = 0.005, 100  # how far below the best published accuracy, with how many times fewer bytes
NEAR, ENOUGH = 0.02, 5 / 6  # how far below a published accuracy ours may be, and in what share of the cells
QUICK = {"algorithm": {"epochs": 1}, "run": {"rounds": 5}}
BOTH = ("uplink_bytes", "downlink_bytes")
GUESS = 0.1  # the accuracy of a model that is not finite: it takes all images for the first class


def plan(data: str, scale: Scale) -> list[Panel]:
    make = partial(panel, f"niid-bench/{data}.toml", scale, METHODS, tuned=False, quick=QUICK)
    return [make(name=f"{data}, {deal}", over={"data": own}) for deal, own in DEALS.items()]


def published(name: str) -> dict[str, float]:
    """The accuracies that were published for a panel, by method."""
    data, _, deal = name.partition(", ")
    return dict(zip(PUBLISHED, (x / 100 for x in SETS[data][deal]), strict=True))


def labels_of(method: str) -> list[str]:
    """The labels of our runs of a published method: its name, or one for each mu that they chose from."""
    return [label for label in METHODS if re.fullmatch(rf"{method}( [0-9.]+)?", label)]


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


class Cell(NamedTuple):
    """A published accuracy and ours."""

    panel: str
    label: str  # of our best run of the method
    ours: Stat
    theirs: float

    @property
    def above(self) -> float:
        """How far ours is above theirs."""
        return self.ours.mean - self.theirs


def cells(results: StudyResults) -> list[Cell]:
    """All cells of the table of a data set, panel by panel."""
    return [
        Cell(p.name, *best(results, p.name, method), value)
        for p in results.panels
        for method, value in published(p.name).items()
    ]


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    """One chart of all panels, drawn for the first of them."""
    if p is not results.panels[0]:
        return []
    every, (data, _, _) = cells(results), p.name.partition(", ")
    reached = sum(cell.above >= -NEAR for cell in every)
    gaps = [GridCell(100 * c.above, 100 * c.ours.spread, abs(c.above) > NEAR) for c in every]
    rows = [gaps[i : i + len(PUBLISHED)] for i in range(0, len(gaps), len(PUBLISHED))]
    title = f"{reached} of {len(every)} published accuracies: within {100 * NEAR:g} points or above"
    seeds = results.setting().rpartition(", ")[2]
    spread = "" if seeds == "1 seed" else "±: standard deviation over seeds · "
    note = f"{data}, {seeds} · {spread}bold: more than {100 * NEAR:g} points apart"
    names = [panel.name.partition(", ")[2] for panel in results.panels], [*map(shown, PUBLISHED)]
    words = title, note, "ours minus published, points of accuracy"
    return [partial(cell_grid, cells=rows, names=names, words=words)]


class NiidBench(Study):
    """A study with one verdict on all cells of a data set."""

    def judge(self, results: StudyResults) -> list[Verdict]:
        every = cells(results)
        far = [cell for cell in every if cell.above < -NEAR]
        above, reached = sum(cell.above > NEAR for cell in every), len(every) - len(far)
        told = ", ".join(
            f"{c.panel}, {c.label}: {100 * c.ours.mean:.1f} against {100 * c.theirs:.1f}" for c in far
        )
        return [
            Verdict.of(
                f"Of {len(every)} published accuracies at least {math.ceil(ENOUGH * len(every))} are reached "
                f"but for {100 * NEAR:g} points, or exceeded.",
                [reached >= ENOUGH * len(every)],
                f"{reached} are, {above} of them exceeded by more than {100 * NEAR:g} points"
                f"{'; below: ' * bool(far)}{told}.",
                results.setting(),
            )
        ]


def candidates(data: str, scale: Scale) -> list[Panel]:
    """The deals of a data set in every form; a label that was not tuned runs at the published rates."""
    panels = []
    for deal, form in itertools.product(DEALS, FORMS):
        if FORMS[form].get("vectors", 1) > vectors(f"{data}, {deal}"):
            continue
        tuning, over = FORMS[form]["tuning"], {**FORMS[form]["over"], "data": DEALS[deal]}
        labels, rates = over["methods"], f"niid-{data}-{deal}-{form}".replace(" ", "-")
        limits: dict[str, Any] = {"tunes": {}, "seeds": 1} if collapses(f"{data}, {deal}") else {}
        limits |= {"tuned": False, "quick": QUICK, "near": tuning, "rates": (rates,)}
        p = panel(
            f"niid-bench/{data}.toml", scale, [*labels], name=f"{data}, {deal}, {form}", over=over, **limits
        )
        for label, found in rates_in(rates).items():
            if label in labels:
                p.table["methods"][label] |= found
        panels.append(p)
    return panels


def compressed_plan(data: str, scale: Scale) -> list[Panel]:
    """The deals of a data set, each with the form and the label that were best on held-out samples."""
    every, panels = candidates(data, scale), []
    for name in (f"{data}, {deal}" for deal in DEALS):
        own = ((p, label) for p in every if p.name.startswith(f"{name}, ") for label in p.methods)
        p, label = max(own, key=lambda one: held_out(*one))
        panels.append(replace(p, name=name, methods=(label,)))
    return panels


def held_out(p: Panel, label: str) -> float:
    """The accuracy of a label on held-out samples; 0 if it was not tuned."""
    try:
        found = read(experiment_file(f"rates/{p.rates[-1]}.toml"))["found"]
    except ConfigError:
        return 0.0
    return float(found.get(label, {}).get("accuracy", 0.0))


def collapses(name: str) -> bool:
    """Whether two or more of the methods that were published for a panel are at a guess."""
    return sorted(published(name).values())[1] <= GUESS


def vectors(name: str) -> int:
    """How many vectors a client sends per round in the best of the methods published for a panel."""
    return VECTORS.get(best_published(name)[0], 1)


def best_published(name: str) -> tuple[str, float]:
    """The best of the methods that were published for a panel, and its accuracy.

    Of equally good ones it is the first of those that send fewest vectors.
    """
    return max(published(name).items(), key=lambda item: (item[1], -VECTORS.get(item[0], 1)))


def fewer(results: StudyResults, name: str, label: str, ways: Sequence[str] = ("uplink_bytes",)) -> float:
    """How many times as many bytes the best published method sends, at 32 bits per number.

    Of runs that diverged the rounds before count; 0 if none ran.

    Args:
        ways: the columns of rows whose bytes are added.
    """
    ends = [run["rows"][-1] for run in results.runs(name, label) if run["rows"]]
    data = name.partition(", ")[0]
    ours, theirs = (p.config.run.rounds for p in (results.panel(name), plan(data, results.scale)[0]))
    rounds = sum(row["round"] for row in ends) * theirs / ours
    sent = sum(row[way] for row in ends for way in ways)
    return 4 * PARAMETERS[data] * vectors(name) * rounds * len(ways) / sent if sent else 0.0


def compressed_table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """The chosen label's line: accuracy in % beside the best published one, and times fewer bytes."""
    method, theirs = best_published(name)
    lines = []
    for run in results.panel(name).runs(1):
        score = accuracy(results, name, run.method)
        lines.append(
            {
                "point": run.method,
                "rounds": run.config.run.rounds,
                "gamma": run.config.algorithm.gamma,
                "accuracy": 100 * score.mean,
                "spread": 100 * score.spread,
                "best_published": f"{method} {100 * theirs:.1f}",
                "times_fewer_up": fewer(results, name, run.method),
                "times_fewer_both_ways": fewer(results, name, run.method, BOTH),
            }
        )
    return lines


def judge_compressed(results: StudyResults, p: Panel) -> list[Verdict]:
    if collapses(p.name):
        return []
    (_, theirs), (label,) = best_published(p.name), p.methods
    score, times = accuracy(results, p.name, label), fewer(results, p.name, label)
    return [
        Verdict.of(
            f"1/{TIMES} of the bytes reach the best published accuracy but for {100 * LEVEL:g} points.",
            [score.mean >= theirs - LEVEL and times >= TIMES],
            f"{shown(label)}: {score} with 1/{times:.0f} of the bytes, published {100 * theirs:.1f}%.",
        )
    ]


def _study(data: str) -> Study:
    own = {
        "plan": partial(plan, data),
        "charts": charts,
        "judge_panel": lambda results, p: [],
        "table": table,
    }
    return NiidBench.told(f"niid-bench-{data}", words="niid-bench", fill={"data": data}, **own)


def _compressed(data: str) -> Study:
    own: dict[str, Any] = {"plan": partial(compressed_plan, data), "tuned": partial(candidates, data)}
    own |= {"judge_panel": judge_compressed, "table": compressed_table}
    return Study.told(f"niid-compressed-{data}", words="niid-compressed", fill={"data": data}, **own)


STUDIES = (*map(_study, SETS), *map(_compressed, SETS))
