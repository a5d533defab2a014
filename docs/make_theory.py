"""Draw docs/figures/theory-knobs.png: what tau, m, q and eta do, measured; some minutes on a CPU."""

from pathlib import Path
from typing import Any

from fedcom.config import Config
from fedcom.reproduce.bounds.cases import BoundCase
from fedcom.runs.prepare import prepare
from fedcom.theory.auto import echo

PICTURE = Path(__file__).parent / "figures" / "theory-knobs.png"
TAUS, QS, MS = (1, 2, 4, 8, 16, 32), (0.0, 1.0, 3.0, 7.0, 15.0, 31.0), (2, 8, 32)
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


def main() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedcom.reports.figures import INK, PALE, palette

    sheet = Figure(figsize=(12.5, 3.8), dpi=90, layout="constrained")
    FigureCanvasAgg(sheet)
    left, middle, right = sheet.subplots(1, 3)
    hues = palette([f"m = {m}" for m in MS])

    def lines(axes: Any, values: Any, pick: Any) -> None:
        for m, hue in zip(MS, hues.values(), strict=True):
            found = [pick(m, value) for value in values]
            x = [1 + value if values is QS else value for value in values]
            axes.plot(x, [error for error, _ in found], "o-", color=hue, markersize=4, label=f"m = {m}")
            axes.plot(x, [bound for _, bound in found], "--", color=hue, linewidth=1)

    lines(left, TAUS, lambda m, tau: floor(m, 0.0, tau))
    lines(middle, QS, lambda m, q: floor(m, q, 8))
    for axes, title, x in ((left, "more local steps or clients: less noise", "tau"),
                           (middle, "a coarser codec: more noise", "1 + q")):  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(x)
        axes.set_title(title, loc="left", fontsize=10, color=INK)
    left.set_ylabel("error after 100 rounds (dashed: bound)")
    left.legend(frameon=False, fontsize=8)
    for tau, hue in zip((2, 4, 10), palette(["a", "b", "c"]).values(), strict=True):
        right.plot(SHARP, [growth(x, tau) for x in SHARP], "o", color=hue, markersize=4, label=f"tau = {tau}")
        right.plot(SHARP, [abs(echo(x, tau)) for x in SHARP], "-", color=hue, linewidth=1)
    right.axhline(1, color=PALE, linestyle="--", linewidth=1)
    right.set_ylim(0, 2)
    right.set_xlabel("eta times a client's sharpness")
    right.set_ylabel("tracking's error, from round to round")
    right.set_title("above 2 tracking feeds on itself", loc="left", fontsize=10, color=INK)
    right.legend(frameon=False, fontsize=8)
    sheet.savefig(PICTURE)


if __name__ == "__main__":
    main()
