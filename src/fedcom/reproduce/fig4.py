"""Figure 4: five methods on MNIST and CIFAR-10, two classes per client, by rounds and by bytes."""

from functools import partial

from fedcom.reproduce.drawing import Chart, lines
from fedcom.reproduce.panels import Panel
from fedcom.reproduce.results import StudyResults, Verdict, alike, as_good, better, common_target, list_of
from fedcom.reproduce.study import Study
from fedcom.studies.compare import METHODS

VIEWS = {  # the keys of x and y, and what the chart is of
    ("round", "train_loss"): "loss by rounds",
    ("uplink_bytes", "train_loss"): "loss by bytes",
    ("uplink_bytes", "test_accuracy"): "accuracy by bytes",
    ("modelled_seconds", "test_accuracy"): "accuracy by modelled time",  # drawn if the rows have it
}
PROPOSED = METHODS[-1]
TWINS = (("fedgate", "fedavg"), ("fedcomgate", "fedpaq"))  # the same method with tracking and without


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    timed = any("modelled_seconds" in row for r in results.records for row in r["rows"][:1])
    curves, made = results.curves(p.name), list[Chart]()
    for (x, y), words in VIEWS.items():
        if timed or x != "modelled_seconds":
            note = "" if made else results.setting(p.name)
            made.append(partial(lines, curves=curves, x=x, y=y, title=f"{p.data}: {words}", note=note))
    return made


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
            f"Least: {least}. MB up per client: {list_of(cost, 1e-6)}.",
        ),
    ]


STUDY = Study.told("fig4", charts=charts, judge_panel=judge)
