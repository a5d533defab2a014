"""Figure 5: data by author, a tenth of the authors per round, one fixed rate for all methods."""

from pathlib import Path

from fedcom.data.files import at_hand
from fedcom.reproduce.drawing import Sheet, lines
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.results import StudyResults, Verdict, alike, common_target, list_of
from fedcom.reproduce.study import Study, panel
from fedcom.studies.compare import METHODS

COMPRESSED = ("fedpaq", "fedcomgate")


def authors() -> str:
    """The data set: FEMNIST, the paper's, if its files are there; else MNIST by its 539 writers."""
    return "femnist" if at_hand("femnist") else "mnist-by-writer"


def plan(scale: Scale) -> list[Panel]:
    return [panel(f"fig5/{authors()}.toml", scale, name="authors", tuned=False)]


def draw(results: StudyResults, out: Path) -> list[str]:
    sheet, note = Sheet(1, 2), results.setting()
    for part, y in zip(sheet.parts, ("train_loss", "test_accuracy"), strict=True):
        data = results.panels[0].config.data.name
        title = f"{data}: {'loss' if y == 'train_loss' else 'accuracy'} by bytes"
        lines(part, results.curves("authors"), "uplink_bytes", y, title, note)
    return [sheet.save(out / "fig5.png")]


def judge(results: StudyResults) -> list[Verdict]:
    score = {m: results.final("authors", m) for m in METHODS}
    target = common_target(score.values())
    cost = {m: results.reach("authors", m, target) for m in METHODS}
    others = [m for m in METHODS if m not in COMPRESSED]
    return [
        Verdict.of(
            f"FedCOMGATE and FedPAQ converge fastest by bytes (to {100 * target:.1f}% accuracy).",
            [cost[ours].mean < cost[m].mean for ours in COMPRESSED for m in others],
            f"MB up per client: {list_of(cost, 1e-6)}.",
            results.setting(),
        ),
        Verdict.of(
            "All methods end alike, since authors are nearly homogeneous.",
            [alike(score[METHODS[0]], score[m]) for m in METHODS[1:]],
            f"Accuracy: {list_of(score)}.",
            results.setting(),
        ),
    ]


STUDY = Study(
    "fig5",
    "Figure 5: data split by author",
    (
        "With data of 1000 authors, a tenth of them per round, FedCOMGATE and FedPAQ are fastest by bytes.",
        "All methods end at the same place, since this split is close to homogeneous.",
    ),
    plan,
    draw,
    judge,
    notes="The paper uses EMNIST by author (FEMNIST). If those files are missing, MNIST by its 539 writers "
    "is used instead; the settings say which. Rate 0.01 for all, without decay, gamma 1.",
)
