"""Results of studies that were not run."""

from typing import Any

from fedcom.reproduce import STUDIES, Scale
from fedcom.reproduce.results import StudyResults

TINY = ("data.name=digits", "data.clients=10", "model.hidden=8", "run.rounds=4")


def made_up(name: str, score: Any) -> StudyResults:
    """Results of a study in which `score(run)` is the final accuracy of every run; 0 for a diverged one."""
    panels = STUDIES[name].plan(Scale(seeds=2))
    records = []
    for panel in panels:
        for run in panel.runs(2):
            accuracy, links = score(run), run.config.table()
            vectors = 2 if run.method == "scaffold" else 1
            rows = [
                {
                    "round": r,
                    "test_accuracy": accuracy * r / 10,
                    "test_perplexity": 10 / accuracy if accuracy else None,
                    "train_loss": 1.1 - accuracy * r / 10,
                    "uplink_bytes": r * vectors * links["uplink"].get("bits", 32),
                    "downlink_bytes": r * vectors * links["downlink"].get("bits", 32),
                }
                for r in (0, 5, 10)
            ]
            records.append({**run.facts, "status": "done" if accuracy else "diverged", "rows": rows})
    return StudyResults(panels, records, Scale(seeds=2))


def outcomes(name: str, score: Any) -> list[str]:
    return [verdict.outcome for verdict in STUDIES[name].judge(made_up(name, score))]
