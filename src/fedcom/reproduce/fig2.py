"""Figure 2: FedCOM against FedCOMGATE on homogeneous and heterogeneous MNIST."""

from functools import partial

from fedcom.reproduce.drawing import Chart, lines
from fedcom.reproduce.panels import Panel
from fedcom.reproduce.results import BANDS, StudyResults, Verdict, as_good, better, ends_lowest
from fedcom.reproduce.study import Study

SAME = "fedcom, fedcomgate's rates"


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    best = {m: results.best(p.name, m, "train_loss") for m in p.methods}
    curves = [curve for m in p.methods for curve in results.curves(p.name, m, **best[m])]
    found = ends_lowest({m: results.final_at_best(p.name, m, "train_loss") for m in p.methods})
    title, note = f"{p.name.capitalize()} data: {found}", f"each at its best rates · {BANDS}"
    return [partial(lines, curves=curves, x="round", y="train_loss", title=title, note=note)]


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    loss = {m: results.final_at_best(p.name, m, "train_loss") for m in p.methods}
    if p.name == "homogeneous":
        claim = "On homogeneous data FedCOM does as well as FedCOMGATE."
        checks = [as_good(loss["fedcom"], loss["fedcomgate"])]
        return [Verdict.of(claim, checks, f"Final loss {loss['fedcom']} and {loss['fedcomgate']}.")]
    return [
        Verdict.of(
            "On heterogeneous data FedCOM keeps a residual error that FedCOMGATE does not.",
            [better(loss["fedcomgate"], loss["fedcom"]), better(loss["fedcomgate"], loss[SAME])],
            f"Final loss {loss['fedcomgate']} for FedCOMGATE; FedCOM {loss['fedcom']} at its own best rates "
            f"and {loss[SAME]} at FedCOMGATE's.",
        )
    ]


STUDY = Study.told("fig2", charts=charts, judge_panel=judge)
