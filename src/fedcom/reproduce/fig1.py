"""Figure 1: the quantity G_q that Assumption 5 bounds, measured over the rounds of a FedCOMGATE run."""

import statistics
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedcom.draws import Draw
from fedcom.engines.results import Row
from fedcom.engines.simulation import Simulation
from fedcom.errors import Diverged
from fedcom.reproduce.drawing import Chart, PlotAxes, PlotPoint, series
from fedcom.reproduce.panels import Panel, StudyRun
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.reproduce.study import Study
from fedcom.rounds.rules import relative_error
from fedcom.runs.display import progress
from fedcom.runs.prepare import prepare

DRAWS = 8  # of Q, over which E|Q(mean)|² is averaged


class MessageSums:
    """A measure of messages that also sums them over the clients of a round: as decoded, and as meant.

    What additions round off is summed beside: threads call in any order, and the sums are to be the same.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count, self.sums, self.lost = 0, torch.zeros(()), torch.zeros(())

    def __call__(self, heard: Tensor, meant: Tensor) -> Tensor:
        more = torch.stack((heard.double().sum(0), meant.double().sum(0)))
        with self.lock:
            before = self.sums.to(more)
            self.sums = before + more
            added = self.sums - before
            self.lost = self.lost.to(more) + ((before - (self.sums - added)) + (more - added))
            self.count += len(heard)
        return relative_error(heard, meant)

    def means(self) -> tuple[Tensor, Tensor]:
        """The means of the decoded and of the meant messages; the sums start again from zero."""
        heard, meant = (self.sums + self.lost) / self.count
        self.count, self.sums, self.lost = 0, torch.zeros(()), torch.zeros(())
        return heard, meant


def measure(run: StudyRun, device: str, quiet: bool) -> tuple[str, list[Row]]:
    """G_q, the squared norm of the mean update and the measured q, in every round."""
    # Only the eager engine calls the measure in every round; the others replay recorded kernels.
    config = replace(run.config, run=replace(run.config.run, engine="eager"))
    sums, rows = MessageSums(), list[Row]()
    simulation, _ = prepare(config, device, sums)
    with progress(simulation.rounds, run.title, quiet) as show:
        try:
            for _ in range(simulation.rounds):
                simulation.step()
                rows.append(_row(simulation, *sums.means()))
                show.advance(simulation.round)
        except Diverged:
            return "diverged", rows
    return "done", rows


def _row(simulation: Simulation, heard: Tensor, meant: Tensor) -> Row:
    rules, w = simulation.rules, simulation.server.w
    draw = Draw.seeded(simulation.round, w.device).fold("G_q", torch.arange(DRAWS, device=w.device))
    x = meant.to(w.dtype).expand(DRAWS, -1)
    compressed_mean = rules.links.uplink.quantise(x, rules.layout, draw).double().square().sum(-1).mean()
    size = float(meant.square().sum())
    return {
        "round": simulation.round,
        "G_q": float(heard.square().sum() - compressed_mean),
        "mean_square": size,
        "q": simulation.q,
    }


def charts(results: StudyResults, p: Panel) -> list[Chart]:
    g, size, q = (_series(results, key) for key in ("G_q", "mean_square", "q"))
    falls = [a / b for a, b in map(_ends, (g, size)) if b] or [1.0]
    absolute = [(x, abs(y), 0.0) for x, y, _ in g]
    beside = [(x, y / s, 0.0) for (x, y, _), (_, s, _) in zip(absolute, size, strict=True) if s]
    axes = PlotAxes("communication round", "squared norm", every=False, log_y=True)
    return [
        partial(
            series,
            points={"|mean|²": [(x, y, 0.0) for x, y, _ in size], "|G_q|": absolute},
            title=f"|G_q| falls {falls[0]:.0f}-fold, the squared update {falls[-1]:.0f}-fold",
            note=f"{results.setting()} · means over seeds",
            axis=axes,
        ),
        partial(
            series,
            points={"q of a message": [(x, y, 0.0) for x, y, _ in q], "|G_q| / |mean|²": beside},
            title=f"Relative to the update it falls {falls[0] / falls[-1]:.1f}-fold",
            note=f"G_q is below 0 in {sum(y < 0 for _, y, _ in g)} of {len(g)} rounds",
            axis=axes._replace(y="relative to the squared update"),
        ),
    ]


def _series(results: StudyResults, key: str) -> list[PlotPoint]:
    """Round, mean and spread over seeds."""
    values: dict[int, list[float]] = {}
    for record in results.records:
        for row in record["rows"]:
            values.setdefault(row["round"], []).append(row[key])
    return [(r, statistics.fmean(v), statistics.stdev(v) if len(v) > 1 else 0.0) for r, v in values.items()]


def _ends(points: Sequence[PlotPoint]) -> tuple[float, float]:
    """The mean size in the first fifth of the rounds and in the last."""
    n = max(1, len(points) // 5)
    sizes = [abs(y) for _, y, _ in points] or [0.0]
    return statistics.fmean(sizes[:n]), statistics.fmean(sizes[-n:])


def judge(results: StudyResults, p: Panel) -> list[Verdict]:
    g, size = (_series(results, key) for key in ("G_q", "mean_square"))
    if len(g) < 5:
        return [Verdict.of("G_q decreases in training.", [], "The run diverged.")]
    (early, late), (large, small) = _ends(g), _ends(size)
    negative = sum(y < 0 for _, y, _ in g)
    return [
        Verdict.of(
            "|G_q| decreases in training (by half at least, from the first fifth of the rounds to the last).",
            [late < early / 2],
            f"|G_q| {early:.3g} to {late:.3g}.",
        ),
        Verdict.of(
            "It does so because the update does (relative to its squared norm G_q moves by less than a "
            "factor of 3).",
            [1 / 3 < (late / small) / (early / large) < 3],
            f"|mean update|² {large:.3g} to {small:.3g}; G_q over it {early / large:.3g} to "
            f"{late / small:.3g}.",
        ),
        Verdict.of("G_q can be negative.", [negative > 0], f"In {negative} of {len(g)} rounds."),
    ]


STUDY = Study.told("fig1", charts=charts, judge_panel=judge, measure=measure, fill={"draws": DRAWS})
