"""Figure 9: noise in the quantiser slows convergence; more local steps make up for it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from fedcom.formats import significant
from fedcom.reproduce.drawing import Chart, lines
from fedcom.reproduce.panels import Panel
from fedcom.reproduce.results import BANDS, Stat, StudyResults, Verdict, better, list_of
from fedcom.reproduce.study import Study

METHOD, DAMPED = "fedcomgate", "fedcomgate, damped"
KEYS = {"noise": "zero_point_noise", "tau": "tau"}  # of each panel's grid
TITLES = {
    ("noise", METHOD): "Undamped",
    ("noise", DAMPED): "Damped",
    ("tau", METHOD): "Noise 32",
}


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    key, made = KEYS[p.name], list[Chart]()
    for method in p.methods:
        curves = [
            replace(curve, method=f"{p.name} {value}")
            for value in results.grid_values(p.name, key)
            for curve in results.curves(p.name, method, **{key: value})
        ]
        values = results.grid_values(p.name, key)
        ends = {v: results.final(p.name, method, "train_loss", **{key: v}).mean for v in values}
        title, note = f"{TITLES[p.name, method]}: {_grown(p.name, ends)}", BANDS
        made.append(
            partial(lines, curves=curves, x="round", y="train_loss", title=title, note=note, ramp=True)
        )
    return made


def _grown(name: str, ends: Mapping[Any, float]) -> str:
    """How the last loss of a panel compares with the first that is one, in words."""
    known = {value: loss for value, loss in ends.items() if math.isfinite(loss)}
    first, last = next(iter(known), None), next(reversed(ends))
    if last not in known:
        return f"{name} {last} diverges"
    return f"loss at {name} {last} is {significant(known[last] / known[first], 2)} times that at {first}"


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    key = KEYS[p.name]

    def losses(method: str) -> dict[str, Stat]:
        values = results.grid_values(p.name, key)
        return {f"{p.name} {v}": results.final(p.name, method, "train_loss", **{key: v}) for v in values}

    if p.name == "noise":
        ways = {METHOD: "undamped, as in the paper", DAMPED: "with damped tracking"}
        return [_noise(losses(method), words) for method, words in ways.items()]
    loss = losses(METHOD)
    return [
        Verdict.of(
            "Under the same noise more local steps give a lower loss after as many rounds (at each step up "
            "in tau).",
            [better(more, fewer) for fewer, more in pairwise(loss.values())],
            f"Final loss: {list_of(loss)}.",
        )
    ]


def _noise(loss: dict[str, Stat], words: str) -> Verdict:
    stats = list(loss.values())
    return Verdict.of(
        f"More noise of the quantiser degrades convergence ({words}: no step up in noise helps, the last one "
        "hurts).",
        [all(not better(worse, less) for less, worse in pairwise(stats)), better(stats[0], stats[-1])],
        f"Final loss: {list_of(loss)}.",
    )


STUDY = Study.told("fig9", charts=charts, judge_panel=judge)
