"""Put the paper's theorems to the test: every error below its bound, rounds that grow with q as stated."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcom.reports.comparison import write_csv
from fedcom.reports.figures import FAINT, INK, MARKS, blank, frame, ticks
from fedcom.reports.looks import COLOURS, marker
from fedcom.reproduce.bounds.cases import BoundCase, grid
from fedcom.reproduce.bounds.slopes import Slope, slope_cases, slopes
from fedcom.reproduce.drawing import save_png
from fedcom.reproduce.panels import Scale, package_data
from fedcom.reproduce.results import Verdict
from fedcom.reproduce.small_runs import measure_all
from fedcom.reproduce.study_page import write_study
from fedcom.reproduce.tables.scaling import CONSISTENT, hold
from fedcom.runs.folder import claim
from fedcom.theory import THEOREMS

SEEDS = 20
_TOLD = package_data("studies.toml")["theory"]
TITLE = _TOLD["title"]

Found = Sequence[tuple[BoundCase, dict[str, Any]]]


def reproduce_theory(scale: Scale, out: Path, quiet: bool = False) -> list[Verdict]:
    """Run what is not yet in the folder's results.jsonl, then draw, judge and write the study.

    Args:
        out: the folder of the study.
        quiet: show no progress.
    """
    seeds, log = 3 if scale.quick else SEEDS, out / "results.jsonl"
    cases, growth = grid(seeds, scale.quick), slope_cases(seeds, scale.quick)
    with claim(out, used=True):
        found = measure_all(cases, log, "theory", quiet, time=_time)
        grown = slopes(measure_all(growth, log, "theory", quiet, time=lambda job: job.growth))
        verdicts = judge(found, grown)
        rows = [_row(*pair) for pair in found]
        figure(rows, out / "theory.png")
        write_csv(rows, out / "points.csv")
        write_study(out, verdicts, page(len(rows), seeds, verdicts, scale.quick))
    return verdicts


def judge(found: Found, grown: Sequence[Slope]) -> list[Verdict]:
    """A verdict on each theorem's bound, and on each growth with q."""
    verdicts = []
    for theorem in THEOREMS:
        own = [rows for case, rows in found if case.theorem.name == theorem.name and rows["slack"] >= -1e-12]
        if not own:
            continue
        ratios = sorted(rows["error"] / rows["bound"] for rows in own)
        worst = max((r["error"] - 2 * r["spread_of_error"]) / r["bound"] for r in own)
        verdicts.append(
            Verdict.of(
                f"{_method(theorem.alike)}, {theorem.regime} ({theorem.name}): the error is below the bound "
                "wherever the conditions on the step sizes hold.",
                [worst <= 1],
                f"In {sum(r <= 1 for r in ratios)} of {len(ratios)} cases; error over bound: median "
                f"{ratios[len(ratios) // 2]:.2g}, largest {ratios[-1]:.2g}.",
                f"{max(case.seeds for case, _ in found)} seeds",
            )
        )
    for slope in grown:
        law = "1 + q/m" if slope.base.alike else "1 + q"
        verdicts.append(
            Verdict.of(
                f"{_method(slope.base.alike)} on {slope.base.objective}, {slope.base.column}: rounds grow in "
                f"proportion to {law} at the prescribed step sizes.",
                [hold(slope.line, 1.0) == CONSISTENT],
                f"Slope {slope.line}; rounds {', '.join(str(r or 'never') for r in slope.rounds)}.",
                f"m = {slope.base.m}, q = 0 to 31",
            )
        )
    return verdicts


def figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw every measured error over its bound, one row per theorem.

    Args:
        rows: lines of points.csv.
    """
    told = [row for row in rows if float(row["slack"]) >= -1e-12]
    ratios = [max(float(row["error"]) / float(row["bound"]), 1e-8) for row in told]
    below = sum(ratio <= 1 for ratio in ratios)
    title = f"All {len(told)} below 1" if below == len(told) else f"{below} of {len(told)} below 1"
    sheet = blank(9, 4.6)
    note = "one mark per problem and setting, where the conditions on the step sizes hold; bars: medians"
    axes = frame(sheet, f"Measured error over the theorem's bound: {title.lower()}", note)
    axes.set_position((0.27, 0.13, 0.7, 0.7))
    axes.set_xscale("log")
    for i, theorem in enumerate(THEOREMS):
        own = [r for r, row in zip(ratios, told, strict=True) if row["theorem"] == theorem.name]
        method = "fedcom" if theorem.alike else "fedcomgate"
        heights = [i + 0.5 * ((k * 0.618) % 1 - 0.5) for k in range(len(own))]  # apart, in no order
        shape = MARKS[marker(method)]
        axes.plot(own, heights, shape, color=COLOURS[method], markersize=4, alpha=0.6, markeredgewidth=0)
        axes.plot([sorted(own)[len(own) // 2]] * 2, [i - 0.36, i + 0.36], color=INK, linewidth=2)
    axes.axvspan(1, 1e3, color=FAINT, zorder=0)
    axes.axvline(1, color=INK, linewidth=1.5)
    axes.text(1.25, len(THEOREMS) - 0.55, "above\nthe bound", color=INK, size=9.5, va="bottom")
    names = [f"{_method(t.alike)}, {t.regime}\n{t.name}" for t in THEOREMS]
    axes.set_yticks(range(len(THEOREMS)), names, color=INK)
    axes.set(xlim=(min(ratios) / 2, 10), ylim=(len(THEOREMS) - 0.4, -0.6))
    axes.set_xlabel("measured error / bound", color=INK)
    ticks(axes.xaxis)
    axes.grid(visible=False, axis="y")
    save_png(sheet, path)


def redraw_theory(out: Path) -> None:
    """Draw the study and write its page anew from the points.csv and verdicts.json in its folder."""
    with (out / "points.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    figure(rows, out / "theory.png")
    verdicts = [Verdict(**entry) for entry in json.loads((out / "verdicts.json").read_text(encoding="utf-8"))]
    write_study(out, verdicts, page(len(rows), SEEDS, verdicts, quick=False))


def page(cases: int, seeds: int, verdicts: Sequence[Verdict], quick: bool) -> str:
    """The study's page."""
    command = f"fedcom reproduce theory{' --quick' * quick}"
    lines = [f"# {TITLE}", "", "![errors and bounds](theory.png)", "", _TOLD["notes"]]
    lines += [f"`{command}` repeats this: {cases} cases, {seeds} seeds each.", ""]
    lines += ["| verdict | claim | numbers |", "|---|---|---|"]
    lines += [f"| {v.outcome} | {v.claim} | {v.numbers} |" for v in verdicts]
    return "\n".join([*lines, ""])


def _row(case: BoundCase, rows: dict[str, Any]) -> dict[str, Any]:
    own = {key: getattr(case, key) for key in ("regime", "objective", "m", "q", "tau", "kappa", "spread")}
    return {**own, **rows}


def _method(alike: bool) -> str:
    return "FedCOM" if alike else "FedCOMGATE"


def _time(case: BoundCase) -> float:
    return case.m * (case.tau + 4) * (1 + case.q) * (10 if case.objective == "logistic" else 1)
