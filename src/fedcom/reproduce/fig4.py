"""Figure 4: five methods on MNIST and CIFAR-10, two classes per client, by rounds and by bytes."""

from functools import partial

from fedcom.reproduce.drawing import Chart, lines
from fedcom.reproduce.panels import Panel, shown
from fedcom.reproduce.results import (
    BANDS,
    StudyResults,
    Verdict,
    alike,
    as_good,
    better,
    common_target,
    ends_lowest,
    fewest_bytes,
    list_of,
)
from fedcom.reproduce.study import Study
from fedcom.studies.compare import METHODS

PROPOSED = METHODS[-1]
TWINS = (("fedgate", "fedavg"), ("fedcomgate", "fedpaq"))  # the same method with tracking and without


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    """Loss by rounds and accuracy by bytes, each titled by what it shows."""
    draw, loss = (
        partial(lines, curves=results.curves(p.name)),
        {m: results.final(p.name, m, "train_loss") for m in METHODS},
    )
    rounds, sent = f"{p.data}: {ends_lowest(loss)} by rounds", f"{p.data}: {fewest_bytes(results, p.name)}"
    return [
        partial(draw, x="round", y="train_loss", title=rounds, note=f"{results.setting(p.name)} · {BANDS}"),
        partial(draw, x="uplink_bytes", y="test_accuracy", title=sent, note=BANDS),
    ]


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    loss = {m: results.final(p.name, m, "train_loss") for m in METHODS}
    score = {m: results.final(p.name, m) for m in METHODS}
    target = common_target(score.values())
    cost = {m: results.reach(p.name, m, target) for m in METHODS}
    least = min(METHODS, key=lambda m: cost[m].mean)
    return [
        Verdict.of(
            f"{p.data}: by rounds FedCOMGATE, FedGATE and SCAFFOLD do alike.",
            [alike(loss["fedcomgate"], loss["fedgate"]), alike(loss["fedcomgate"], loss["scaffold"])],
            f"Final loss: {list_of(loss)}.",
        ),
        Verdict.of(
            f"{p.data}: by rounds FedAvg and FedPAQ do alike.",
            [alike(loss["fedavg"], loss["fedpaq"])],
            f"Final loss {loss['fedavg']} and {loss['fedpaq']}.",
        ),
        Verdict.of(
            f"{p.data}: FedGATE and FedCOMGATE converge better than FedAvg and FedPAQ (loss, then accuracy).",
            [better(s[a], s[b]) for s in (loss, score) for a, b in TWINS],
            f"Final loss: {list_of(loss)}; accuracy: {list_of(score)}.",
        ),
        Verdict.of(
            f"{p.data}: FedCOMGATE needs the fewest bytes (to {100 * target:.1f}% accuracy, which all "
            "reach).",
            [as_good(cost[PROPOSED], cost[m]) for m in METHODS if m != PROPOSED],
            f"Least: {shown(least)}. MB up per client: {list_of(cost, 1e-6)}.",
        ),
    ]


STUDY = Study.told("fig4", charts=charts, judge_panel=judge)
