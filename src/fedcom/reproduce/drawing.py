"""Sheets of several charts in the one style of fedcom's figures: curves, bars, heat maps and points."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcom.figures import FAINT, INK, Stroke, chart, frame, label, palette, strokes_of, ticks
from fedcom.report import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

WIDE, TALL, DPI = 6.0, 4.1, 80


class Sheet:
    """A figure of rows and columns of charts, each a part of it."""

    def __init__(self, rows: int, columns: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure: Figure = Figure(figsize=(WIDE * columns, TALL * rows), dpi=DPI)
        FigureCanvasAgg(self.figure)
        parts: Any = self.figure.subfigures(rows, columns, squeeze=False)
        self.parts: list[SubFigure] = list(parts.flatten())

    def save(self, path: Path) -> str:
        """Write the sheet; its name."""
        self.figure.savefig(path)
        return path.name


def lines(part: "SubFigure", curves: Sequence[Curve], x: str, y: str, title: str, note: str) -> None:
    """Runs over rounds, bytes or time."""
    strokes = strokes_of(curves, x, y)
    if strokes:
        chart(part, strokes, (title, note, x, y))


def bars(
    part: "SubFigure", heights: Mapping[str, Mapping[str, float]], title: str, note: str, unit: str,
    colours: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Groups of bars with their heights written on them: a group a key, a bar an inner key."""
    axes = frame(part, title, note)
    axes.set_position((0.11, 0.16, 0.86, 0.67))
    names = list(dict.fromkeys(name for group in heights.values() for name in group))
    hues = colours or palette(names)
    width = 0.8 / max(len(group) for group in heights.values())
    for i, group in enumerate(heights.values()):
        for k, (name, height) in enumerate(group.items()):
            x = i + (k - (len(group) - 1) / 2) * width
            axes.bar(x, height, 0.9 * width, color=hues[name])
            axes.text(x, height, f"{height:.3g}", ha="center", va="bottom", size=8.5, color=INK)
    axes.set_xticks(range(len(heights)), list(heights))
    axes.grid(visible=False, axis="x")
    axes.set_ylabel(unit, color=INK)


def heat(part: "SubFigure", matrix: Any, title: str, note: str) -> None:
    """A matrix of cosines from -1 to 1, in colours that print in grey too."""
    axes = frame(part, title, note)
    axes.set_position((0.1, 0.1, 0.72, 0.73))
    image = axes.imshow(np.asarray(matrix), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xlabel("client", color=INK)
    axes.set_ylabel("client", color=INK)
    bar = part.colorbar(image, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("cosine of gradients", color=INK)


def series(
    part: "SubFigure", points: Mapping[str, Sequence[tuple[float, float, float]]], title: str, note: str,
    axis: tuple[str, str], *, log: bool = False, every: bool = True, colours: Mapping[str, str] | None = None,
) -> "Axes":  # fmt: skip
    """A line a name through points x, y and the spread of y; axis: what x and y are; every: a tick a point."""
    axes = frame(part, title, note)
    hues, strokes = colours or palette(points), []
    axes.set_xscale("log" if log else "linear")
    for name, own in points.items():
        known = [p for p in sorted(own) if np.isfinite(p[1])]
        if known:
            x, y, spread = np.array(known).T
            style = {"marker": "o", "markersize": 4, "capsize": 2} if every else {}
            axes.errorbar(x, y, spread if spread.any() else None, color=hues[name], linewidth=2, **style)
            strokes.append(Stroke(name, hues[name], "done", np.array(known)[:, :2]))
    axes.set_xlabel(axis[0], color=INK)
    axes.set_ylabel(axis[1], color=INK)
    if every:
        tried = sorted({x for own in points.values() for x, _, _ in own})
        axes.set_xticks(tried, [f"{x:g}" for x in tried])
        axes.minorticks_off()
    ticks(axes.yaxis)
    if strokes:
        label(axes, strokes)
    return axes


def scatter(
    part: "SubFigure", places: Mapping[str, tuple[float, float]], best: Sequence[str], marked: Mapping[str, str],
    colours: Mapping[str, str], title: str, note: str, axis: tuple[str, str],
) -> None:  # fmt: skip
    """Points, the best of them joined and named, some marked with a ring; bytes to a logarithmic scale."""
    axes = frame(part, title, note)
    axes.set_position((0.12, 0.13, 0.84, 0.7))
    axes.set_xscale("log")
    worst = max(0.0, min(places[name][1] for name in best) - 3) if best else 0.0
    front = np.array([places[name] for name in best])
    if len(front):
        axes.plot(*front.T, color=FAINT, linewidth=5, zorder=0, solid_capstyle="round")
    for name, (x, y) in places.items():
        axes.plot(x, max(y, worst), "v" if y < worst else "o", color=colours[name], markersize=6)
        if name in marked:
            axes.plot(x, y, "o", markerfacecolor="none", markeredgecolor=INK, markersize=13)
    named = {name: marked.get(name, name) for name in (*best, *marked) if name in places}
    for i, (name, words) in enumerate(named.items()):
        below = i % 2
        axes.annotate(words, places[name], (0, -14 if below else 9), textcoords="offset points", size=8.5,
                      color=colours[name] if name in marked else INK, ha="center", va="center")  # fmt: skip
    axes.margins(x=0.12, y=0.12)
    axes.set_xlabel(axis[0], color=INK)
    axes.set_ylabel(axis[1], color=INK)
    ticks(axes.xaxis)
    ticks(axes.yaxis)
