"""Figures of several charts, in the style of fedcom.reports.figures: curves, bars, heat maps and points."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedcom.reports.figures import (
    FAINT,
    INK,
    MARKS,
    Array,
    Stroke,
    as_text,
    blank,
    chart,
    frame,
    label,
    strokes_of,
    ticks,
)
from fedcom.reports.looks import line_style, marker, palette
from fedcom.reproduce.panels import shown
from fedcom.reproduce.results import Stat
from fedcom.runs.curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

CHART = (6.0, 4.1)  # the size of one chart in inches
RAMP = ("#e8a76b", "#d0702e", "#9c3f12", "#4f1a05", "#000000")  # colours from less to more

PlotPoint = tuple[float, float, float]  # x, y and the spread of y
Chart = Callable[["SubFigure"], object]  # draws one chart on a part of a figure


class PlotAxes(NamedTuple):
    """The axes of a series.

    Args:
        x: the title of the x axis.
        y: the title of the y axis.
        log: draw x on a logarithmic scale.
        every: draw a mark and a tick for each point.
        zero: draw a line at y = 0.
        log_y: draw y on a logarithmic scale.
        limits: of y; points beyond are triangles at the edge, with their values.
    """

    x: str
    y: str
    log: bool = False
    every: bool = True
    zero: bool = False
    log_y: bool = False
    limits: tuple[float, float] | None = None


def percent_point(x: float, score: Stat) -> PlotPoint:
    """The point of an accuracy, in %."""
    return x, 100 * score.mean, 100 * score.spread


def draw_charts(charts: Sequence[Chart], path: Path, size: tuple[float, float] = CHART) -> str:
    """Draw charts into one image, two in a row, as three would be too wide for a page; return its name.

    Args:
        size: the width and height of each chart in inches.
    """
    columns = min(2, len(charts))
    rows = -(-len(charts) // columns)
    figure = blank(size[0] * columns, size[1] * rows)
    parts: Any = figure.subfigures(rows, columns, squeeze=False)
    for draw, part in zip(charts, parts.flatten(), strict=False):
        draw(part)
    save_png(figure, path)
    return path.name


def save_png(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG with a palette, which makes the file three times smaller."""
    from PIL import Image  # a dependency of matplotlib

    buffer = io.BytesIO()
    figure.savefig(buffer)
    Image.open(buffer).convert("RGB").quantize(256).save(path, optimize=True)


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
        chart(part, strokes, (title, note, x, y), shown)


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
    axes.set_xticks(range(len(heights)), [shown(name) for name in heights])
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


class GridCell(NamedTuple):
    """A number in a grid.

    Args:
        spread: what is written after ±, unless it is 0.
        sure: write it bold.
    """

    value: float
    spread: float
    sure: bool


def cell_grid(
    part: "SubFigure",
    cells: Sequence[Sequence[GridCell]],
    names: tuple[Sequence[str], Sequence[str]],
    words: tuple[str, str, str],
) -> None:
    """Draw numbers in a grid, blue where positive and red where negative.

    Args:
        cells: by row.
        names: of the rows and of the columns.
        words: the title, the subtitle, and what the numbers are.
    """
    (title, note, unit), (rows, columns) = words, names
    axes = frame(part, title, note)
    axes.set_position((0.17, 0.1, 0.8, 0.66))
    for i, row in enumerate(cells):
        for k, cell in enumerate(row):
            known = np.isfinite(cell.value)
            share = float(np.clip(abs(cell.value) / 6, 0.04, 1)) if known else 0.0
            colour = "#2b6cb0" if cell.value > 0 else "#c2410c"
            axes.add_patch(_square(k, i, colour, 0.5 * share))
            spread = f" ± {cell.spread:.1f}" if cell.spread else ""
            value = f"{cell.value:+.1f}".replace("-", "\u2212") if round(abs(cell.value), 1) else "0.0"
            style: dict[str, Any] = {"ha": "center", "va": "center", "size": 11 if len(columns) < 4 else 10}
            weight = "bold" if cell.sure else "normal"
            axes.text(k, i, value + spread if known else "diverged", weight=weight, color=INK, **style)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks(range(len(columns)), list(columns))
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelcolor=INK)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.set_xlabel(unit, color=INK)
    axes.xaxis.set_label_position("bottom")


def _square(x: float, y: float, colour: str, alpha: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, alpha=alpha, linewidth=0)


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
    axes.set(xscale="log" if axis.log else "linear", yscale="log" if axis.log_y else "linear")
    tried = sorted({x for own in points.values() for x, _, _ in own})
    if axis.log and len(tried) == 1:  # else matplotlib has no room beside it
        axes.set_xlim(tried[0] / 10, tried[0] * 10)
    low, high = axis.limits or (-np.inf, np.inf)
    for name, own in points.items():
        known = [p for p in sorted(own) if np.isfinite(p[1])]
        if known:
            x, y, spread = np.array(known).T
            style: dict[str, Any] = _dots(name) if axis.every else {}
            style |= line_style(name)
            axes.errorbar(x, y, spread if spread.any() else None, color=hues[name], linewidth=2, **style)
            strokes.append(Stroke(name, hues[name], "done", np.stack([x, y.clip(low, high)], axis=1)))
            _beyond(axes, [p for p in known if not low <= p[1] <= high], (low, high), hues[name])
        for x in (x for x, y, _ in own if not np.isfinite(y)):  # diverged
            axes.plot(x, 0.02, "x", color=hues[name], markersize=8, transform=axes.get_xaxis_transform())
    axes.set_xlabel(axis.x, color=INK)
    axes.set_ylabel(axis.y, color=INK)
    if axis.every:
        axes.set_xticks(tried, [f"{x:g}" for x in tried])
        axes.minorticks_off()
    if axis.limits:
        axes.set_ylim(axis.limits)
    ticks(axes.yaxis)
    if strokes:
        label(axes, strokes, shown)
    return axes


def _dots(name: str) -> dict[str, Any]:
    """The marks of a line's points: those of its method's family."""
    return {"marker": MARKS[marker(name)], "markersize": 5, "capsize": 2}


def _beyond(axes: "Axes", points: Sequence[PlotPoint], limits: tuple[float, float], colour: str) -> None:
    """Mark points that are beyond the limits by triangles at the edge, with their values beside them."""
    inset = 0.03 * (limits[1] - limits[0])
    for i, (x, y, spread) in enumerate(points):
        below = y < limits[0]
        place = limits[0] + inset if below else limits[1] - inset
        words = f"{y:.3g}" + (f" ± {spread:.2g}" if spread else "")
        axes.plot(x, place, "v" if below else "^", color=colour, markersize=8, zorder=3)
        side = "right" if len(points) == 1 else "center" if i else "left"
        style: dict[str, Any] = {"ha": side, "va": "center", "size": 8.5}
        away = ({"right": -9, "left": -4, "center": 0}[side], 11 if below else -11)
        axes.annotate(words, (x, place), away, textcoords="offset points", color=as_text(colour), **style)


class Dot(NamedTuple):
    """A point of a scatter.

    Args:
        x: megabytes.
        y: accuracy in %.
        spread: the length of its error bar, up and down.
        ring: draw a ring around it and its name in bold.
        shape: of the dot, as in matplotlib.
        named: write its name; a dot without one is small, without a bar.
    """

    name: str
    x: float
    y: float
    spread: float
    colour: str
    ring: bool = False
    shape: str = "o"
    named: bool = True


def scatter(
    part: "SubFigure",
    dots: Sequence[Dot],
    front: Sequence[str],
    words: tuple[str, str, str],
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw accuracy over bytes, dots with their names. Dots far below the best are triangles at the bottom.

    Args:
        front: names of dots to join by a line, in order of bytes.
        words: the title, the subtitle and the title of the x axis.
        limits: of y; None for those that suit the dots.
    """
    title, note, x = words
    axes = frame(part, title, note)
    axes.set_position((0.09, 0.12, 0.88, 0.72))
    axes.set_xscale("log")
    floor = limits[0] if limits else lowest(dot.y for dot in dots)
    edge = floor + 0.04 * (limits[1] - floor) if limits else floor
    places = {dot.name: (dot.x, dot.y if dot.y >= floor else edge) for dot in dots}
    line = [places[dot.name] for name in front for dot in dots if dot.name == name and dot.y >= floor]
    if line:
        axes.plot(*np.array(line).T, color=FAINT, linewidth=5, zorder=0, solid_capstyle="round")
    for dot in dots:
        high = dot.y >= floor
        place, bar = places[dot.name], dot.spread if high and dot.named and dot.spread else None
        style: dict[str, Any] = {"elinewidth": 1, "capsize": 2, "markersize": 7 if dot.named else 4}
        axes.errorbar(*place, bar, fmt=dot.shape if high else "v", color=dot.colour, **style)
        if dot.ring:
            axes.plot(*place, "o", markerfacecolor="none", markeredgecolor=INK, markersize=13)
    axes.margins(x=0.12, y=0.12)
    if limits:
        axes.set_ylim(limits)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel("test accuracy (%)", color=INK)
    ticks(axes.xaxis)
    ticks(axes.yaxis)
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed, as names are placed in pixels
    names = [_name_of(dot, dot.y < floor) for dot in dots]
    _write_names(axes, dots, names, places)


def _name_of(dot: Dot, below: bool) -> str:
    """What is written beside a dot: its name, and its height if it is below what is shown."""
    return ": ".join([dot.name] * dot.named + [f"{dot.y:.1f}"] * below)


def lowest(scores: Iterable[float]) -> float:
    """The lowest accuracy to show: four times as far below the best as the median is, at least 1.5 points."""
    known = sorted(scores)
    return known[-1] - max(1.5, 4 * (known[-1] - known[len(known) // 2])) if known else 0.0


def _write_names(
    axes: "Axes", dots: Sequence[Dot], names: Sequence[str], places: Mapping[str, tuple[float, float]]
) -> None:
    """Write names beside their dots; a name that had to move away is joined to its dot by a thin line."""
    if not dots:
        return
    style: dict[str, Any] = {"size": 9.5, "ha": "center", "va": "center", "parse_math": False}
    weights = ["bold" if dot.ring else "normal" for dot in dots]
    texts = [
        axes.annotate(
            name,
            places[dot.name],
            (0, 0),
            textcoords="offset points",
            color=as_text(dot.colour),
            weight=w,
            **style,
        )
        for name, dot, w in zip(names, dots, weights, strict=True)
    ]
    told = np.array([bool(name) for name in names])[:, None]
    sizes = np.where(told, np.array([text.get_window_extent().size for text in texts]) + 3, 0.1)
    points = axes.transData.transform([places[dot.name] for dot in dots])
    unit = axes.figure.dpi / 72
    tips = axes.transData.transform([(1, places[dot.name][1] + dot.spread) for dot in dots])
    marks = np.stack(
        [[(15 if dot.ring else 11 if dot.named else 5) * unit for dot in dots], 2 * (tips - points)[:, 1]], 1
    )
    marks[:, 1] = marks.max(1)
    centres = beside(points, sizes, marks, np.array(axes.bbox.extents), unit)
    for text, dot, point, centre, size in zip(texts, dots, points, centres, sizes, strict=True):
        text.set_position((centre - point) / unit)
        near = np.clip(point, centre - size / 2, centre + size / 2)  # the side of the name next to the dot
        if text.get_text() and np.hypot(*(near - point)) > 12 * unit:
            ends = axes.transData.inverted().transform([point, near])
            axes.plot(*ends.T, color=dot.colour, linewidth=0.5, alpha=0.6, zorder=1)


def beside(points: Array, sizes: Array, marks: Array, bounds: Array, unit: float) -> Array:
    """Where to write names: the centre of each, near its point, such that none covers another or a point.

    Each name in turn takes the best of some places around its point, given where the others are, three times
    over. A place is bad if it overlaps names or points or leaves the bounds, then if it is far away.

    Args:
        points: one row per name, x and y in pixels.
        sizes: the width and height of each name.
        marks: the width and height of what is drawn at each point.
        bounds: left, bottom, right and top of what names may cover.
        unit: pixels per point.
    """
    angles, rings = (
        np.linspace(0, 2 * np.pi, 24, endpoint=False),
        unit * np.array([7, 11, 17, 25, 35, 48, 64, 84]),
    )
    turns, far = np.stack([np.cos(angles), np.sin(angles)], 1), np.repeat(rings / rings[-1], len(angles))
    centres: Array = np.full_like(points, np.inf)
    for i in 3 * list(range(len(points))):
        half = sizes[i] / 2
        places = (points[i] + turns * (rings[:, None, None] + half)).reshape(-1, 2)
        names = _covered(places, sizes[i], np.delete(centres, i, 0), np.delete(sizes, i, 0))
        out = np.maximum(bounds[:2] - places + half, 0) + np.maximum(places + half - bounds[2:], 0)
        cost = far + 5 * _covered(places, sizes[i], points, marks) + 10 * names + out.sum(1)
        centres[i] = places[np.argmin(cost)]
    return centres


def _covered(places: Array, size: Array, centres: Array, sizes: Array) -> Array:
    """The part of a box of this size, at each of some places, that other boxes cover."""
    known = np.isfinite(centres).all(1)
    gaps = np.abs(places[:, None] - centres[known][None])
    over = np.clip((size + sizes[known]) / 2 - gaps, 0, np.minimum(size, sizes[known]))
    part: Array = over.prod(-1).sum(1) / size.prod()
    return part
