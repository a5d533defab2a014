"""Figure 4: five methods on MNIST and CIFAR-10, two classes per client, by rounds and by bytes."""

from pathlib import Path

from fedcom.reproduce.drawing import Sheet, lines
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import StudyResults, Verdict, alike, as_good, better, common_target, list_of
from fedcom.reproduce.study import Study, panel
from fedcom.studies.compare import METHODS

VIEWS = [("round", "train_loss"), ("uplink_bytes", "train_loss"), ("uplink_bytes", "test_accuracy")]
TIME = ("modelled_seconds", "test_accuracy")  # drawn if the rows have it
PROPOSED = METHODS[-1]
TWINS = (("fedgate", "fedavg"), ("fedcomgate", "fedpaq"))  # the same method with tracking and without


def plan(scale: Scale) -> list[Panel]:
    return [panel(f"fig4/{data}.toml", scale) for data in ("mnist", "cifar-10")]


def draw(results: StudyResults, out: Path) -> list[str]:
    timed = any(TIME[0] in row for r in results.records for row in r["rows"][:1])
    views = [*VIEWS, TIME] if timed else VIEWS
    sheet = Sheet(-(-len(results.panels) * len(views) // 2), 2)
    names = {"train_loss": "loss", "test_accuracy": "accuracy"}
    over = {"round": "rounds", "uplink_bytes": "bytes", "modelled_seconds": "modelled time"}
    parts = iter(sheet.parts)
    for p in results.panels:
        for x, y in views:
            note = results.setting(p.name) if (x, y) == views[0] else ""
            lines(
                next(parts),
                results.curves(p.name),
                x,
                y,
                f"{p.config.data.name}: {names[y]} by {over[x]}",
                note,
            )
    return [sheet.save(out / "fig4.png")]


def judge(results: StudyResults) -> list[Verdict]:
    return [verdict for p in results.panels for verdict in _judge(results, p.name)]


def _judge(results: StudyResults, name: str) -> list[Verdict]:
    loss = {m: results.final(name, m, "train_loss") for m in METHODS}
    score = {m: results.final(name, m) for m in METHODS}
    data, where, words = results.panel(name).config.data.name, results.setting(name), list_of(loss)
    target = common_target(score.values())
    cost = {m: results.reach(name, m, target) for m in METHODS}
    least = min((m for m in METHODS), key=lambda m: cost[m].mean)
    return [
        Verdict.of(
            f"{data}: by rounds FedCOMGATE, FedGATE and SCAFFOLD do alike.",
            [alike(loss["fedcomgate"], loss["fedgate"]), alike(loss["fedcomgate"], loss["scaffold"])],
            f"Final loss: {words}.",
            where,
        ),
        Verdict.of(
            f"{data}: by rounds FedAvg and FedPAQ do alike.",
            [alike(loss["fedavg"], loss["fedpaq"])],
            f"Final loss {loss['fedavg']} and {loss['fedpaq']}.",
            where,
        ),
        Verdict.of(
            f"{data}: FedGATE and FedCOMGATE converge better than FedAvg and FedPAQ (loss, then accuracy).",
            [better(s[a], s[b]) for s in (loss, score) for a, b in TWINS],
            f"Final loss: {words}; accuracy: {list_of(score)}.",
            where,
        ),
        Verdict.of(
            f"{data}: FedCOMGATE needs the fewest bytes (to {100 * target:.1f}% accuracy, which all reach).",
            [as_good(cost[PROPOSED], cost[m]) for m in METHODS if m != PROPOSED],
            f"Least: {least}. MB up per client: {list_of(cost, 1e-6)}.",
            where,
        ),
    ]


STUDY = Study(
    "fig4",
    "Figure 4: five methods on heterogeneous MNIST and CIFAR-10",
    (
        "By rounds, FedAvg and FedPAQ are close to each other, and so are FedCOMGATE, FedGATE and SCAFFOLD, "
        "which are better.",
        "By bytes FedCOMGATE is far ahead, the more so the larger the model.",
    ),
    plan,
    draw,
    judge,
)
