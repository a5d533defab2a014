"""Put the paper's theorems to the test: every error below its bound, rounds that grow with q as stated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcom.reports.comparison import write_csv
from fedcom.reports.figures import INK, PALE, blank
from fedcom.reports.looks import palette
from fedcom.reproduce.bounds.cases import BoundCase, grid
from fedcom.reproduce.bounds.slopes import Slope, slope_cases, slopes
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
        figure(found, grown, out / "theory.png")
        write_csv([_row(*pair) for pair in found], out / "points.csv")
        write_study(out, verdicts, page(found, verdicts, scale.quick))
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


def figure(found: Found, grown: Sequence[Slope], path: Path) -> None:
    """Errors over their bounds, one chart per theorem, and rounds over 1 + q/m or 1 + q."""
    sheet = blank(14, 7.2, dpi=80, layout="constrained")
    places = sheet.subplots(2, 4)
    hues = palette(("quadratic", "logistic", "wave", "flat"))
    for i, theorem in enumerate(THEOREMS):
        axes = places[i // 3][i % 3]
        for objective, hue in hues.items():
            own = [r for c, r in found if c.theorem.name == theorem.name and c.objective == objective]
            if own:
                x, y = [r["bound"] for r in own], [max(r["error"], 1e-12) for r in own]
                axes.plot(x, y, "o", color=hue, markersize=4, alpha=0.7, label=objective)
        _log_axes(axes, "the theorem's bound", "measured error" if i % 3 == 0 else "")
        low, high = min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])
        axes.plot([low, high], [low, high], "--", color=PALE, linewidth=1)
        axes.set_title(f"{_method(theorem.alike)}, {theorem.regime}", color=INK, fontsize=10, loc="left")
    for axes, alike in ((places[0][3], True), (places[1][3], False)):
        for slope in (slope for slope in grown if slope.base.alike == alike):
            hue = hues[slope.base.objective]
            known = [(x, r) for x, r in zip(slope.x, slope.rounds, strict=True) if r]
            axes.plot([x for x, _ in known], [r for _, r in known], "o-", color=hue, markersize=4)
            if known:
                axes.plot(slope.x, [known[0][1] * x for x in slope.x], "--", color=PALE, linewidth=1)
        _log_axes(axes, "1 + q/m" if alike else "1 + q", "rounds")
        axes.set_title(f"{_method(alike)}: rounds and slope 1", color=INK, fontsize=10, loc="left")
    for axes in places.flatten():
        axes.tick_params(colors=PALE, labelsize=8)
    places[0][0].legend(frameon=False, fontsize=8)
    sheet.suptitle(TITLE, color=INK, fontsize=13, weight="bold", x=0.01, ha="left")
    sheet.savefig(path)


def _log_axes(axes: Any, x: str, y: str) -> None:
    from matplotlib.ticker import NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def page(found: Found, verdicts: Sequence[Verdict], quick: bool) -> str:
    """The study's page."""
    command = f"fedcom reproduce theory{' --quick' * quick}"
    lines = [f"# {TITLE}", "", "![errors and bounds](theory.png)", "", _TOLD["notes"]]
    lines += [f"`{command}` repeats this: {len(found)} cases, {found[0][0].seeds} seeds each.", ""]
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
