"""Figure 2: FedCOM against FedCOMGATE on homogeneous and heterogeneous MNIST."""

from pathlib import Path
from typing import Any

from fedcom.reproduce.drawing import Sheet, lines
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import Stat, StudyResults, Verdict, as_good, better
from fedcom.reproduce.study import Study, panel

SAME = "fedcom, fedcomgate's rates"


def plan(scale: Scale) -> list[Panel]:
    two = ("fedcom", "fedcomgate")
    apart = panel("fig2/heterogeneous.toml", scale, two)
    rates = {k: v for k, v in apart.table["methods"]["fedcomgate"].items() if k in ("eta", "gamma")}
    own = {"methods": {SAME: {"name": "fedcom", **rates}}}
    small = {"grid": {"eta": [0.1], "gamma": [1.0, 2.0]}} if scale.quick else None
    return [
        panel("fig2/homogeneous.toml", scale, two, tuned=False, over=small),
        panel("fig2/heterogeneous.toml", scale, (*two, SAME), over=own),
    ]


def _best(results: StudyResults, name: str, method: str) -> dict[str, Any]:
    return results.best(name, method, "train_loss")


def draw(results: StudyResults, out: Path) -> list[str]:
    sheet = Sheet(1, len(results.panels))
    for part, p in zip(sheet.parts, results.panels, strict=True):
        title = f"{p.name.capitalize()} data: training loss"
        curves = [c for m in p.methods for c in results.curves(p.name, m, **_best(results, p.name, m))]
        lines(part, curves, "round", "train_loss", title, results.setting(p.name))
    return [sheet.save(out / "fig2.png")]


def judge(results: StudyResults) -> list[Verdict]:
    judges = {"homogeneous": _judge_alike, "heterogeneous": _judge_apart}
    return [judges[p.name](_losses(results, p), results.setting(p.name)) for p in results.panels]


def _losses(results: StudyResults, p: Panel) -> dict[str, Stat]:
    return {m: results.final(p.name, m, "train_loss", **_best(results, p.name, m)) for m in p.methods}


def _judge_alike(loss: dict[str, Stat], where: str) -> Verdict:
    return Verdict.of(
        "On homogeneous data FedCOM does as well as FedCOMGATE.",
        [as_good(loss["fedcom"], loss["fedcomgate"])],
        f"Final loss {loss['fedcom']} and {loss['fedcomgate']}.",
        where,
    )


def _judge_apart(loss: dict[str, Stat], where: str) -> Verdict:
    return Verdict.of(
        "On heterogeneous data FedCOM keeps a residual error that FedCOMGATE does not.",
        [better(loss["fedcomgate"], loss["fedcom"]), better(loss["fedcomgate"], loss[SAME])],
        f"Final loss {loss['fedcomgate']} for FedCOMGATE; FedCOM {loss['fedcom']} at its own best rates "
        f"and {loss[SAME]} at FedCOMGATE's.",
        where,
    )


STUDY = Study(
    "fig2",
    "Figure 2: FedCOM and FedCOMGATE on homogeneous and heterogeneous data",
    (
        "FedCOM suits homogeneous data, where it needs no tracking.",
        "With two classes per client it is left with a residual error; FedCOMGATE's tracking removes it.",
    ),
    plan,
    draw,
    judge,
    notes="On homogeneous data each method is shown at the best point of a small grid, chosen on the "
    "seeds that are shown.",
)
