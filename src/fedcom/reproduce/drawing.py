"""Figures of several charts, in the style of fedcom.reports.figures: curves, bars, heat maps and points."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedcom.reports.figures import FAINT, INK, Stroke, apart, chart, frame, label, palette, strokes_of, ticks
from fedcom.runs.curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from matplotlib.transforms import Bbox

WIDE, TALL, DPI = 6.0, 4.1, 100  # of one chart, in inches
DEEP = 8.0  # points of accuracy below the best that a scatter shows
AROUND = (  # where a point's name may be: its offset in points, and its alignment
    ((6, -7), "left"), ((6, 7), "left"), ((-6, -7), "right"), ((-6, 7), "right"),
    ((0, -13), "center"), ((0, 13), "center"),
)  # fmt: skip
RAMP = ("#e8a76b", "#d0702e", "#9c3f12", "#4f1a05", "#000000")  # colours from less to more

PlotPoint = tuple[float, float, float]  # x, y and the spread of y


class PlotAxes(NamedTuple):
    """The axes of a series.

    Args:
        x: the title of the x axis.
        y: the title of the y axis.
        log: draw x on a logarithmic scale.
        every: draw a mark and a tick for each point.
        zero: draw a line at y = 0.
    """

    x: str
    y: str
    log: bool = False
    every: bool = True
    zero: bool = False


class Sheet:
    """A figure with rows and columns of charts, each drawn on one of its `parts`.

    Args:
        larger: the size of each chart as a multiple of the usual one.
    """

    def __init__(self, rows: int, columns: int, larger: float = 1.0) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure: Figure = Figure(figsize=(WIDE * columns * larger, TALL * rows * larger), dpi=DPI)
        FigureCanvasAgg(self.figure)
        parts: Any = self.figure.subfigures(rows, columns, squeeze=False)
        self.parts: list[SubFigure] = list(parts.flatten())

    def save(self, path: Path) -> str:
        """Write the figure as PNG; return the file's name."""
        from PIL import Image  # a dependency of matplotlib; a palette makes the file three times smaller

        buffer = io.BytesIO()
        self.figure.savefig(buffer)
        Image.open(buffer).convert("RGB").quantize(256).save(path, optimize=True)
        return path.name


def lines(
    part: "SubFigure", curves: Sequence[Curve], x: str, y: str, title: str, note: str, ramp: bool = False
) -> None:
    """Draw runs as curves.

    Args:
        x: the key of the rows to draw along x.
        y: the key of the rows to draw along y.
        note: the subtitle.
        ramp: colour the methods from light to dark, in order of appearance.
    """
    strokes = strokes_of(curves, x, y)
    if ramp:
        hues = dict(zip(dict.fromkeys(curve.method for curve in curves), RAMP, strict=False))
        strokes = [stroke._replace(colour=hues[stroke.method]) for stroke in strokes]
    if strokes:
        chart(part, strokes, (title, note, x, y))


def bars(
    part: "SubFigure",
    heights: Mapping[str, Mapping[str, float]],
    title: str,
    note: str,
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Draw groups of bars with their heights written on them.

    Args:
        heights: the height of each bar by its group's name and its own name.
        note: the subtitle.
        unit: the title of the y axis.
        colours: by a bar's own name; None for the usual colours.
    """
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
    axes.set_axisbelow(True)
    axes.margins(y=0.1)
    axes.set_ylabel(unit, color=INK)


def heat(part: "SubFigure", matrix: Any, title: str, note: str) -> None:
    """Draw a matrix of cosines between clients as a heat map; `note` is the subtitle."""
    axes = frame(part, title, note)
    axes.set_position((0.1, 0.1, 0.72, 0.73))
    image = axes.imshow(np.asarray(matrix), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    axes.grid(visible=False)
    for each in (axes.xaxis, axes.yaxis):
        ticks(each, whole=True)
    axes.set_xlabel("client", color=INK)
    axes.set_ylabel("client", color=INK)
    bar = part.colorbar(image, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.set_label("cosine of gradients", color=INK)


def series(
    part: "SubFigure",
    points: Mapping[str, Sequence[PlotPoint]],
    title: str,
    note: str,
    axis: PlotAxes,
    colours: Mapping[str, str] | None = None,
) -> "Axes":
    """Draw one line per name through its points; points that are not finite are crosses at the bottom.

    Args:
        points: the points of each line by its name.
        note: the subtitle.
        colours: by name; None for the usual colours.
    """
    axes = frame(part, title, note)
    axes.set_position((0.13, 0.12, 0.7, 0.71))
    hues, strokes = colours or palette(points), []
    if axis.zero:
        axes.axhline(0, color=INK, linewidth=1)
    axes.set_xscale("log" if axis.log else "linear")
    for name, own in points.items():
        known = [p for p in sorted(own) if np.isfinite(p[1])]
        if known:
            x, y, spread = np.array(known).T
            style: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2} if axis.every else {}
            axes.errorbar(x, y, spread if spread.any() else None, color=hues[name], linewidth=2, **style)
            strokes.append(Stroke(name, hues[name], "done", np.array(known)[:, :2]))
        for x in (x for x, y, _ in own if not np.isfinite(y)):  # diverged
            axes.plot(x, 0.02, "x", color=hues[name], markersize=8, transform=axes.get_xaxis_transform())
    axes.set_xlabel(axis.x, color=INK)
    axes.set_ylabel(axis.y, color=INK)
    if axis.every:
        tried = sorted({x for own in points.values() for x, _, _ in own})
        axes.set_xticks(tried, [f"{x:g}" for x in tried])
        axes.minorticks_off()
    ticks(axes.yaxis)
    if strokes:
        label(axes, strokes)
    return axes


def scatter(
    part: "SubFigure",
    places: Mapping[str, tuple[float, float]],
    best: Sequence[str],
    marked: Mapping[str, str],
    colours: Mapping[str, str],
    title: str,
    note: str,
    also: Mapping[str, str],
) -> None:
    """Draw accuracy over bytes, one point per name. Points far below the best are triangles at the bottom.

    Args:
        places: megabytes and accuracy in % by name.
        best: names of points to join by a line and to label, in order of bytes.
        marked: names of points to draw a ring around, with their labels.
        colours: by name.
        note: the subtitle.
        also: labels of further points, or labels of the best that differ from their names.
    """
    axes = frame(part, title, note)
    axes.set_position((0.12, 0.13, 0.84, 0.7))
    axes.set_xscale("log")
    floor = max((y for _, y in places.values()), default=0.0) - DEEP
    shown = {name: (x, max(y, floor)) for name, (x, y) in places.items()}
    front = [name for name in best if places[name][1] > floor]
    if front:
        line = np.array([places[name] for name in front])
        axes.plot(*line.T, color=FAINT, linewidth=5, zorder=0, solid_capstyle="round")
    for name, (x, y) in shown.items():
        axes.plot(x, y, "o" if places[name][1] > floor else "v", color=colours[name], markersize=6)
        if name in marked:
            axes.plot(x, y, "o", markerfacecolor="none", markeredgecolor=INK, markersize=13)
    axes.margins(x=0.25, y=0.15)
    style: dict[str, Any] = {"textcoords": "offset points", "size": 8.5, "va": "center", "parse_math": False}
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed, as labels are placed in pixels
    labels = [
        axes.annotate(marked[name], shown[name], (-4, 15), color=INK, ha="center", **style)
        for name in marked
        if name in places
    ]
    joined = [name for name in front if name not in marked]
    heights = axes.transData.transform([shown[name] for name in joined])[:, 1] if joined else np.zeros(0)
    for name, height, place in zip(joined, heights, apart(heights, 15, *axes.bbox.intervaly), strict=True):
        above = (place - height) * 72 / axes.figure.dpi
        thread = {"arrowstyle": "-", "color": FAINT, "shrinkB": 4}
        text = axes.annotate(
            also.get(name, name),
            shown[name],
            (-14, above + 4),
            color=colours[name],
            ha="right",
            arrowprops=thread,
            **style,
        )
        labels.append(text)
    rest = {n: also[n] for n in also if n in places and n not in (*marked, *front)}
    _name_around(axes, rest, shown, colours, style, [text.get_window_extent() for text in labels])
    axes.set_xlabel("uplink per client, all rounds (MB)", color=INK)
    axes.set_ylabel("test accuracy (%)", color=INK)
    ticks(axes.xaxis)
    ticks(axes.yaxis)


def _name_around(
    axes: "Axes",
    names: Mapping[str, str],
    places: Mapping[str, tuple[float, float]],
    colours: Mapping[str, str],
    style: Mapping[str, Any],
    taken: "Sequence[Bbox]",
) -> None:
    """Label points, each on the side where its label covers the fewest points and labels."""
    from matplotlib.transforms import Bbox

    dots = axes.transData.transform([*places.values()])
    taken = [*taken, *(Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in dots)]
    for name, text in names.items():
        tried = [
            axes.annotate(text, places[name], offset, color=colours[name], ha=side, **style)
            for offset, side in AROUND
        ]
        boxes = [written.get_window_extent() for written in tried]
        hits = [sum(box.overlaps(other) for other in taken) for box in boxes]
        kept = hits.index(min(hits))
        taken.append(boxes[kept])
        for written in tried[:kept] + tried[kept + 1 :]:
            written.remove()
