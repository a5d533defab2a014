"""Measure what tau, m, q and eta do, some minutes on a CPU, and draw it: python docs/make_theory.py.

The numbers are kept in docs/figures/theory-knobs.csv, from which docs/make_figures.py draws it anew.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcom.config import Config
from fedcom.reports.comparison import write_csv
from fedcom.reproduce.bounds.cases import BoundCase
from fedcom.runs.prepare import prepare
from fedcom.theory.auto import echo

FIGURES = Path(__file__).parent / "figures"
KEPT = FIGURES / "theory-knobs.csv"
TAUS, QS, MS = (1, 2, 4, 8, 16, 32), (0.0, 1.0, 3.0, 7.0, 15.0, 31.0), (2, 8, 32)
STEPS = (2, 4, 10)
HUES = ("#0e7490", "#c2410c", "#0a0a5c")
SHARP = (0.25, 0.5, 1.0, 1.5, 1.9, 1.98, 2.02, 2.05, 2.1, 2.2)


def floor(m: int, q: float, tau: int) -> tuple[float, float]:
    """FedCOM's error after 100 rounds on a noisy quadratic, and its bound."""
    found = BoundCase("strongly convex", "quadratic", m, q, tau, 4.0).run()
    return found["error"], found["bound"]


def growth(x: float, tau: int) -> float:
    """By how much the error of FedGATE's delta changes in a round where eta times the sharpness is x."""
    table = {
        "model": {"name": "quadratic", "L": 1.0, "mu": 1.0, "dim": 4, "samples": 1},
        "data": {"clients": 6},
        "algorithm": {"name": "fedgate", "eta": x, "gamma": 1e-9, "tau": tau, "batch": "full", "decay": 1.0},
        "run": {"dtype": "float64"},
    }
    simulation, _ = prepare(Config.of(table), "cpu")
    moves, before = [], None
    for _ in range(8):
        simulation.step()
        delta = simulation.client_states().delta
        moves.append(None if before is None else float((delta - before).norm()))
        before = delta
    known = [move for move in moves if move]
    return known[1] / known[0]


def measured() -> Iterator[dict[str, Any]]:
    """One line per point: its panel, its line, x, what was measured, and what the theory says."""
    for m in MS:
        for tau in TAUS:
            error, bound = floor(m, 0.0, tau)
            yield {"panel": "tau", "line": m, "x": tau, "measured": error, "theory": bound}
        for q in QS:
            error, bound = floor(m, q, 8)
            yield {"panel": "q", "line": m, "x": 1 + q, "measured": error, "theory": bound}
    for tau in STEPS:
        for x in SHARP:
            theory = abs(echo(x, tau))
            yield {"panel": "eta", "line": tau, "x": x, "measured": growth(x, tau), "theory": theory}


def draw() -> None:
    """Draw what is kept."""
    from fedcom.reports.figures import INK, PALE, as_text, blank, frame, ticks
    from fedcom.reproduce.drawing import save_png

    with KEPT.open(encoding="utf-8", newline="") as file:
        points = [
            {k: v if k == "panel" else float(v) for k, v in line.items()} for line in csv.DictReader(file)
        ]
    below = sum(p["measured"] <= p["theory"] for p in points if p["panel"] != "eta")
    every = sum(p["panel"] != "eta" for p in points)
    calm = [p["measured"] < 1 for p in points if p["panel"] == "eta" and p["x"] < 2]
    wild = [p["measured"] > 1 for p in points if p["panel"] == "eta" and p["x"] > 2]
    told = {
        "tau": ("More local steps, less noise", "local steps, tau", "error after 100 rounds"),
        "q": ("A coarser codec, more noise", "1 + q", "error after 100 rounds"),
        "eta": (
            "Tracking is stable below 2, unstable above" if all(calm + wild) else "Tracking near 2",
            "eta times a client's sharpness",
            "growth of its error per round",
        ),
    }
    sheet = blank(15, 4.6)
    for part, (panel, (title, x, y)) in zip(sheet.subfigures(1, 3), told.items(), strict=True):
        about = (
            "dots measured, lines: the theory"
            if panel == "eta"
            else f"dashed: the bound, above {below} of {every}"
        )
        axes = frame(part, title, about)
        axes.set_position((0.16, 0.13, 0.7, 0.68))
        own = [p for p in points if p["panel"] == panel]
        for hue, line in zip(HUES, sorted({p["line"] for p in own}), strict=False):
            mine = [p for p in own if p["line"] == line]
            xs = [p["x"] for p in mine]
            axes.plot(
                xs, [p["measured"] for p in mine], "o" if panel == "eta" else "o-", color=hue, markersize=5
            )
            style = "-" if panel == "eta" else "--"
            axes.plot(xs, [p["theory"] for p in mine], style, color=hue, linewidth=1.2)
            end = mine[1] if panel == "eta" else mine[-1]
            word = f"{'tau' if panel == 'eta' else 'm'} = {line:.0f}"
            place, away = (end["x"], end["measured"]), (6, -9) if panel == "eta" else (9, 0)
            style = {"textcoords": "offset points", "va": "center", "size": 9.5}
            axes.annotate(word, place, away, color=as_text(hue), **style)
        if panel == "eta":
            axes.axhline(1, color=PALE, linestyle=":", linewidth=1)
            axes.set_ylim(0, 1.5)
        else:
            axes.set(xscale="log", yscale="log")
        axes.set_xlabel(x, color=INK)
        axes.set_ylabel(y, color=INK)
        ticks(axes.xaxis)
        ticks(axes.yaxis)
    save_png(sheet, FIGURES / "theory-knobs.png")


if __name__ == "__main__":
    write_csv(list(measured()), KEPT)
    draw()
