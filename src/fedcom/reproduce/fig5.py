"""Figure 5: data by author, a tenth of the authors per round, one fixed rate for all methods."""

from functools import partial

from fedcom.reproduce.drawing import Chart, lines
from fedcom.reproduce.panels import Panel
from fedcom.reproduce.results import (
    BANDS,
    StudyResults,
    Verdict,
    alike,
    common_target,
    ends_lowest,
    fewest_bytes,
    list_of,
)
from fedcom.reproduce.study import Study
from fedcom.studies.compare import METHODS

COMPRESSED = ("fedpaq", "fedcomgate")


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    draw = partial(lines, curves=results.curves(p.name), x="uplink_bytes")
    loss = {m: results.final(p.name, m, "train_loss") for m in METHODS}
    return [
        partial(
            draw, y="train_loss", title=f"Loss: {ends_lowest(loss)}", note=f"{results.setting()} · {BANDS}"
        ),
        partial(draw, y="test_accuracy", title=fewest_bytes(results, p.name), note=BANDS),
    ]


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    score = {m: results.final(p.name, m) for m in METHODS}
    target = common_target(score.values())
    cost = {m: results.reach(p.name, m, target) for m in METHODS}
    others = [m for m in METHODS if m not in COMPRESSED]
    return [
        Verdict.of(
            f"FedCOMGATE and FedPAQ converge fastest by bytes (to {100 * target:.1f}% accuracy).",
            [cost[ours].mean < cost[m].mean for ours in COMPRESSED for m in others],
            f"MB up per client: {list_of(cost, 1e-6)}.",
        ),
        Verdict.of(
            "All methods end alike, since authors are nearly homogeneous.",
            [alike(score[METHODS[0]], score[m]) for m in METHODS[1:]],
            f"Accuracy: {list_of(score)}.",
        ),
    ]


STUDY = Study.told("fig5", charts=charts, judge_panel=judge)
