"""Figure 3: what a client sends and receives in a round, as the ledger counts it."""

from functools import partial

from fedcom.engines.results import Row
from fedcom.formats import MB
from fedcom.reports.looks import palette
from fedcom.reproduce.drawing import Chart, bars
from fedcom.reproduce.panels import Panel, StudyRun
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.reproduce.study import Study
from fedcom.runs.prepare import prepare
from fedcom.studies.compare import METHODS

DOWNLINKS = {"as run": "#333333", "model sent": "#8a8a8a", "mean, 8 bits": "#c4c4c4"}  # what goes down


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


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    up = {m: {m: each_round(results, m, "uplink_bytes") / MB} for m in METHODS}
    down: dict[str, dict[str, float]] = {m: {} for m in METHODS}
    for label in p.methods:
        method, _, kind = label.partition(" ")
        down[method][kind or "as run"] = each_round(results, label, "downlink_bytes") / MB
    ours = up["fedcomgate"]["fedcomgate"] / up["scaffold"]["scaffold"]
    words = "down per round · dark: as run · grey: mean and model (option II) · pale: mean in 8 bits"
    least = min(down["fedcomgate"].values()) / down["scaffold"]["as run"]
    title = f"In 8 bits, FedCOMGATE gets {100 * least:.0f} % of SCAFFOLD's bytes"
    draw = partial(bars, unit="MB")
    return [
        partial(
            draw,
            heights=up,
            title=f"FedCOMGATE sends {100 * ours:.0f} % of SCAFFOLD's bytes up",
            note=results.setting(),
            colours=palette(METHODS),
        ),
        partial(draw, heights=down, title=title, note=words, colours=DOWNLINKS),
    ]


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
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
        ),
        Verdict.of(
            "FedPAQ and FedCOMGATE send a quarter of FedAvg's bytes (within 2%).",
            [abs(times / 4 - 1) < 0.02 for times in quarters],
            f"{quarters[0]:.4g} and {quarters[1]:.4g} times fewer.",
        ),
    ]


STUDY = Study.told("fig3", charts=charts, judge_panel=judge, measure=measure)
