"""Figure 9: noise in the quantiser slows convergence; more local steps make up for it."""

from itertools import pairwise
from pathlib import Path

from fedcom.reproduce.drawing import Sheet, lines
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Stat, StudyResults, Verdict, better, list_of
from fedcom.reproduce.study import Study, panel
from fedcom.runs.curve import Curve

METHOD, DAMPED = "fedcomgate", "fedcomgate, damped"


def plan(scale: Scale) -> list[Panel]:
    return [panel("fig9/noise.toml", scale, (METHOD, DAMPED)), panel("fig9/tau.toml", scale, (METHOD,))]


def draw(results: StudyResults, out: Path) -> list[str]:
    views = [
        ("noise", METHOD, "zero_point_noise", "Noise"),
        ("noise", DAMPED, "zero_point_noise", "Noise, damped"),
        ("tau", METHOD, "tau", "Local steps, noise 32"),
    ]
    views = [view for view in views if results.has(view[0])]
    sheet = Sheet(2, 2)  # three charts in a row would be too wide for a page
    for part, (name, method, key, title) in zip(sheet.parts, views, strict=False):
        word = "tau" if key == "tau" else "noise"
        curves = [
            Curve(f"{word} {value}", r["seed"], r["rows"], r["status"])
            for value in results.grid_values(name, key)
            for r in results.runs(name, method, **{key: value})
        ]
        lines(part, curves, "round", "train_loss", f"{title}: training loss", results.setting(name), True)
    return [sheet.save(out / "fig9.png")]


def _losses(results: StudyResults, name: str, method: str, key: str) -> dict[str, Stat]:
    word = "tau" if key == "tau" else "noise"
    return {
        f"{word} {value}": results.final(name, method, "train_loss", **{key: value})
        for value in results.grid_values(name, key)
    }


def judge(results: StudyResults) -> list[Verdict]:
    judges = {"noise": _judge_noise, "tau": _judge_steps}
    return [verdict for p in results.panels for verdict in judges[p.name](results)]


def _judge_noise(results: StudyResults) -> list[Verdict]:
    verdicts = []
    for method, words in ((METHOD, "undamped, as in the paper"), (DAMPED, "with damped tracking")):
        losses = _losses(results, "noise", method, "zero_point_noise")
        stats = list(losses.values())
        checks = [not better(worse, less) for less, worse in pairwise(stats)]
        verdict = Verdict.of(
            f"More noise of the quantiser degrades convergence ({words}: no step up in noise helps, the "
            f"last one hurts).",
            [all(checks), better(stats[0], stats[-1])],
            f"Final loss: {list_of(losses)}.",
            results.setting("noise"),
        )
        verdicts.append(verdict)
    return verdicts


def _judge_steps(results: StudyResults) -> list[Verdict]:
    losses = _losses(results, "tau", METHOD, "tau")
    verdict = Verdict.of(
        "Under the same noise more local steps give a lower loss after as many rounds (at each step up "
        "in tau).",
        [better(more, fewer) for fewer, more in pairwise(losses.values())],
        f"Final loss: {list_of(losses)}.",
        results.setting("tau"),
    )
    return [verdict]


STUDY = Study(
    "fig9",
    "Figure 9: quantisation noise and local steps",
    (
        "Adding a random integer to the quantiser's zero point, in a growing range, degrades convergence.",
        "At a constant level of noise, more local steps make up for it.",
    ),
    plan,
    draw,
    judge,
    notes="Noise r: an integer uniform in [-r, r] is added to the zero point of each tensor. Rates are those "
    "tuned for tau = 10 without noise.",
)
