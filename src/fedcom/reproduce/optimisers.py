"""Beyond the paper: optimisers in the clients and at the server, with and without tracking and a codec."""

import itertools
from typing import Any

from fedcom.reproduce.panels import Panel, Scale, package_data, shown
from fedcom.reproduce.results import StudyResults, Verdict, better, list_of, near
from fedcom.reproduce.study import Study, panel

_TOLD = package_data("studies.toml")["optimisers"]
METHODS, LOCAL, SERVER = (tuple(_TOLD[key]) for key in ("methods", "local", "server"))
POINTS = tuple(map("".join, itertools.product(METHODS, LOCAL, SERVER)))
LEVEL = 0.005  # the difference in accuracy that a claim allows


def plan(scale: Scale) -> list[Panel]:
    points = [label for label in POINTS if "adam" not in label] if scale.quick else POINTS
    return [panel("frontier-fashion-mnist/fashion-mnist.toml", scale, points, rates=("optimisers",))]


def table(results: StudyResults, name: str) -> list[dict[str, Any]]:
    """One line per method and local optimiser: accuracy in % by the server's."""
    kept = results.panel(name).methods
    return [
        {"method": f"{method}{local}"}
        | {
            server.removeprefix(", ") or "sgd": str(results.final(name, f"{method}{local}{server}"))
            for server in SERVER
            if f"{method}{local}{server}" in kept
        }
        for method, local in itertools.product(METHODS, LOCAL)
        if f"{method}{local}" in kept
    ]


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    scores = {label: results.final(p.name, label) for label in p.methods}
    fine, coarse, local, momentum = METHODS[:2], METHODS[2:], LOCAL[1], SERVER[1]
    tracked = {label: scores[label] for label in (f"{fine[0]}{local}", f"{fine[1]}{local}")}
    gains = {f"{m}{x}": (scores[f"{m}{x}{momentum}"], scores[f"{m}{x}"]) for m in METHODS for x in LOCAL[:2]}
    best = [max((scores[k] for k in scores if k.startswith(m)), key=lambda s: s.mean) for m in (fine, coarse)]
    return [
        Verdict.of(
            "With momentum in the clients' steps tracking ends above averaging.",
            [better(tracked[f"{fine[1]}{local}"], tracked[f"{fine[0]}{local}"])],
            f"{list_of(tracked)}.",
        ),
        Verdict.of(
            "Momentum at the server helps whether or not clients have it.",
            [better(*pair) for pair in gains.values()],
            f"{', '.join(f'{shown(label)}: {a} against {b}' for label, (a, b) in gains.items())}.",
        ),
        Verdict.of(
            f"With the best optimisers 0.03 bit ends within {100 * LEVEL:g} points of 32 bits.",
            [near(best[1], best[0], LEVEL)],
            f"{best[1]} against {best[0]}.",
        ),
    ]


STUDY = Study.told("optimisers", plan=plan, judge_panel=judge, table=table)
