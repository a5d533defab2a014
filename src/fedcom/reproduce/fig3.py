"""Figure 3: what a client sends and receives in a round, as the ledger counts it."""

from pathlib import Path
from typing import Any

from fedcom.engines.simulation import Row
from fedcom.formats import MB
from fedcom.reports.looks import palette
from fedcom.reproduce.drawing import Sheet, bars
from fedcom.reproduce.panels import Panel, Scale, StudyRun
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.reproduce.study import Study, panel
from fedcom.runs.prepare import prepare
from fedcom.studies.compare import METHODS

DOWNLINKS: dict[str, dict[str, Any]] = {  # what the server sends, as settings of a method
    "as run": {},
    "model sent": {"option": "II"},
    "mean, 8 bits": {"downlink": {"name": "int", "bits": 8}},
}


def plan(scale: Scale) -> list[Panel]:
    kept = [f"{m} {kind}" for m in ("fedgate", "fedcomgate") for kind in DOWNLINKS if DOWNLINKS[kind]]
    table = {label: {"name": label.split()[0], **DOWNLINKS[label.partition(" ")[2]]} for label in kept}
    return [panel("fig3/cifar-10.toml", scale, (*METHODS, *kept), over={"methods": table})]


def measure(run: StudyRun, device: str, quiet: bool) -> tuple[str, list[Row]]:
    """Bytes sent and received after every round; the model is not evaluated."""
    simulation, _ = prepare(run.config, device)
    rows = []
    for _ in range(simulation.rounds):
        simulation.step()
        sums = {
            way: simulation.ledger.total(way) / simulation.rules.clients for way in ("uplink", "downlink")
        }
        rows.append({"round": simulation.round, **{f"{way}_bytes": size for way, size in sums.items()}})
    return "done", rows


def each_round(results: StudyResults, method: str, key: str) -> float:
    """Bytes per client in the second round; in the first one, clients also receive the model."""
    one, two = results.runs("cifar-10", method)[0]["rows"][-2:]
    return float(two[key] - one[key])


def draw(results: StudyResults, out: Path) -> list[str]:
    sheet, note = Sheet(1, 2), results.setting()
    up = {m: {m: each_round(results, m, "uplink_bytes") / MB} for m in METHODS}
    bars(sheet.parts[0], up, "Uplink per round and client", note, "MB", palette(METHODS))
    down: dict[str, dict[str, Any]] = {
        m: {"as run": each_round(results, m, "downlink_bytes") / MB} for m in METHODS
    }
    for method in ("fedgate", "fedcomgate"):
        for kind in [kind for kind in DOWNLINKS if DOWNLINKS[kind]]:
            down[method][kind] = each_round(results, f"{method} {kind}", "downlink_bytes") / MB
    hues = dict(zip(DOWNLINKS, ("#333333", "#8a8a8a", "#c4c4c4"), strict=True))
    bars(
        sheet.parts[1],
        down,
        "Downlink per round and client",
        "dark: as run · grey: mean and model (option II) · pale: mean in 8 bits",
        "MB",
        hues,
    )
    return [sheet.save(out / "fig3.png")]


def judge(results: StudyResults) -> list[Verdict]:
    up = {m: each_round(results, m, "uplink_bytes") for m in METHODS}
    twice, eighth = up["scaffold"] / up["fedgate"], up["scaffold"] / up["fedcomgate"]
    quarters = [up["fedavg"] / up[m] for m in ("fedpaq", "fedcomgate")]
    numbers = "MB up per round: " + ", ".join(f"{m} {size / MB:.3g}" for m, size in up.items())
    claim = "SCAFFOLD sends twice what FedGATE does, and 8 times what FedCOMGATE does at 8 bits (within 2%)."
    return [
        Verdict.of(
            claim,
            [abs(twice / 2 - 1) < 0.02, abs(eighth / 8 - 1) < 0.02],
            f"{numbers}: {twice:.3g} and {eighth:.3g} times.",
            results.setting(),
        ),
        Verdict.of(
            "FedPAQ and FedCOMGATE send a quarter of FedAvg's bytes (within 2%).",
            [abs(times / 4 - 1) < 0.02 for times in quarters],
            f"{quarters[0]:.4g} and {quarters[1]:.4g} times fewer.",
            results.setting(),
        ),
    ]


STUDY = Study(
    "fig3",
    "Figure 3: communication of a round, CIFAR-10, MLP with two hidden layers of 500",
    (
        "Without compression SCAFFOLD sends at least twice what FedGATE does; with 8 bits FedCOMGATE sends "
        "an eighth of it.",
        "The downlink is left out as negligible; here it is counted and drawn beside.",
    ),
    plan,
    draw,
    judge,
    measure,
    notes="Bytes are the ledger's, headers and scales included.",
)
