"""Figures of runs over rounds, bytes and time, and of codecs' error over bits; one colour per method."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedcom.engines.results import Row
from fedcom.formats import MB, is_number
from fedcom.reports.comparison import by_method
from fedcom.reports.looks import COLOURS, SPARE, line_style, marker, palette, readable
from fedcom.runs.curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.text import Text

Array = np.ndarray[Any, np.dtype[np.float64]]

UNITS = {  # for each key of a row: the title of its axis, and what its values are multiplied by
    "round": ("communication round", 1.0),
    "uplink_bytes": ("uplink per client (MB)", 1 / MB),
    "total_bytes": ("up and down per client (MB)", 1 / MB),
    "modelled_seconds": ("modelled time (s)", 1.0),
    "train_loss": ("training loss", 1.0),
    "test_accuracy": ("test accuracy (%)", 100.0),
    "test_perplexity": ("test perplexity", 1.0),
    "test_loss": ("test loss", 1.0),
}
VIEWS = {  # for each figure: its title, and the keys of x and y
    "loss_rounds": ("Training loss by communication round", "round", "train_loss"),
    "loss_bytes": ("Training loss by bytes sent", "uplink_bytes", "train_loss"),
    "accuracy_bytes": ("Test accuracy by bytes sent", "uplink_bytes", "test_accuracy"),
    "perplexity_bytes": ("Test perplexity by bytes sent", "uplink_bytes", "test_perplexity"),
    "loss_time": ("Training loss by modelled time", "modelled_seconds", "train_loss"),
    "accuracy_time": ("Test accuracy by modelled time", "modelled_seconds", "test_accuracy"),
}
SIZE = (8, 4.8)
HUES = (*COLOURS.values(), *SPARE)  # for what is not a method
GREY = "#a3abb3"  # of what is beside the point
CODEC_LOOKS = {  # the codecs that figures of codecs tell apart by colour and marker
    "peaks": ("#0a0a5c", "diamond"),
    "rotated": ("#c2410c", "circle"),
    "int": ("#0e7490", "square"),
    "topk": ("#7e22ce", "triangle"),
}
MARKS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
INK, PALE, FAINT = "#333333", "#767676", "#e6e6e6"


class Stroke(NamedTuple):
    """One line of a figure: the mean of a method's finished runs, or one run that was cut short.

    Args:
        status: as in `Curve`.
        points: one row per point: x, y, and the lowest and highest y over seeds.
    """

    method: str
    colour: str
    status: str
    points: Array


def figures(curves: Sequence[Curve], out: Path, subtitle: str = "") -> list[Path]:
    """Draw every view into a folder and return the files; a view without any point is left out."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (title, x, y) in VIEWS.items():
        strokes = strokes_of(curves, x, y)
        if strokes:
            figure = blank(*SIZE)
            chart(figure, strokes, (title, subtitle, x, y))
            paths.append(out / f"{name}.png")
            figure.savefig(paths[-1])
    return paths


def strokes_of(curves: Sequence[Curve], x: str, y: str) -> list[Stroke]:
    """The lines to draw: one mean per method, and one line for each run that was cut short.

    Args:
        x: the key of the rows to draw along x, one of UNITS.
        y: the key of the rows to draw along y.
    """
    strokes, colours = [], palette(curve.method for curve in curves)
    for method, group in by_method(curves).items():
        runs = [(run.status, rows) for run in group if (rows := _drawable(run.rows, x, y))]
        done = [rows for status, rows in runs if status == "done"]
        lines = [("done", done)] if done else []
        lines += [(status, [rows]) for status, rows in runs if status != "done"]
        for status, parts in lines:
            view = over_seeds(parts, [x], y, {key: UNITS[key][1] for key in (x, y)})
            points = np.stack([view[key] for key in (x, "mean", "low", "high")], axis=1)
            strokes.append(Stroke(method, colours[method], status, points))
    if x != "round" and _decades(strokes) > 1:
        strokes = [s._replace(points=s.points[s.points[:, 0] > 0]) for s in strokes]
    strokes = [stroke for stroke in strokes if len(stroke.points)]
    return _capped(strokes) if y == "train_loss" and strokes else strokes


def _drawable(rows: Sequence[Row], x: str, y: str) -> list[Row]:
    """The rows that can be drawn; a loss must be positive, as its axis is logarithmic."""
    known = [row for row in rows if all(is_number(row.get(key)) for key in ("round", x, y))]
    return [row for row in known if y != "train_loss" or 0 < row[y] < 1e30]


def over_seeds(
    runs: Sequence[Sequence[Row]],
    xs: Iterable[str],
    y: str,
    scale: Mapping[str, float],
    most: int | None = None,
) -> dict[str, Array]:
    """One measure at all rounds of some runs: its mean, lowest and highest, and the mean of each x axis.

    A run that stopped early keeps its last y and does not count in x after its end.

    Args:
        runs: the rows of each, at least one, all with a number for y.
        xs: the keys of x axes.
        scale: what the values of each key are multiplied by.
        most: how many rounds at most, evenly spaced; None: all.
    """
    grid = np.unique([row["round"] for rows in runs for row in rows])
    if most is not None:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, most).round().astype(int))]

    def at_rounds(rows: Sequence[Row], key: str, outside: float | None = None) -> Array:
        known = [(row["round"], scale[key] * row[key]) for row in rows if is_number(row.get(key))]
        rounds, values = np.array(known or [(0, np.nan)]).T
        return np.asarray(np.interp(grid, rounds, values, left=outside, right=outside))

    values = np.stack([at_rounds(rows, y) for rows in runs])
    view: dict[str, Array] = {"mean": values.mean(0), "low": values.min(0), "high": values.max(0)}
    for x in xs:
        known = np.ma.masked_invalid([at_rounds(rows, x, np.nan) for rows in runs])
        view[x] = known.mean(0).filled(np.nan)
    return view


def _decades(strokes: Sequence[Stroke]) -> float:
    x = [value for stroke in strokes for value in stroke.points[:, 0] if value > 0]
    return math.log10(max(x) / min(x)) if x else 0.0


def blank(width: float, height: float, dpi: int = 200, **options: Any) -> "Figure":
    """An empty figure, to be written to a file.

    Args:
        width: in inches, as the height.
        dpi: dots per inch.
        options: others of matplotlib's figures.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, **options)
    FigureCanvasAgg(figure)
    return figure


def chart(
    part: "Figure | SubFigure",
    strokes: list[Stroke],
    view: tuple[str, str, str, str],
    named: Callable[[str], str] | None = None,
) -> "Axes":
    """Draw lines on a figure or a part of one.

    Args:
        view: the title, the subtitle, and the keys of x and y.
        named: returns what is written for a method; None for its own name.
    """
    title, subtitle, x, y = view
    axes = frame(part, title, subtitle)
    for stroke in strokes:
        _trace(axes, stroke)
    by_decade = x != "round" and _decades(strokes) > 1
    axes.set(xscale="log" if by_decade else "linear", yscale="log" if y == "train_loss" else "linear")
    axes.set_xlabel(UNITS[x][0], color=INK)
    axes.set_ylabel(UNITS[y][0], color=INK)
    ticks(axes.xaxis, whole=x == "round")
    ticks(axes.yaxis)
    label(axes, strokes, named)
    return axes


def frame(figure: "Figure | SubFigure", title: str, subtitle: str) -> "Axes":
    """Axes under a title, with room for names at the right; long titles are smaller, so that none is cut."""
    told = figure.text(0.015, 0.935, title, size=13, weight="bold", color=INK, parse_math=False)
    fitted(told, figure)
    fitted(figure.text(0.015, 0.885, subtitle, size=9.5, color=PALE, parse_math=False), figure)
    axes = figure.add_axes((0.095, 0.12, 0.7, 0.71))
    axes.spines[:].set_visible(False)
    axes.margins(x=0.02)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.tick_params(length=0, labelcolor=INK)
    return axes


def fitted(text: "Text", figure: "Figure | SubFigure") -> None:
    """Make a text smaller until it ends within its figure."""
    size = float(text.get_fontsize())
    while size > 3 and text.get_window_extent().width > 0.97 * figure.bbox.width:
        size *= 0.97  # step by step, as letters' widths are rounded
        text.set_fontsize(size)


def _capped(strokes: list[Stroke]) -> list[Stroke]:
    """Cut a diverging run off above the others, so that the scale of the axis suits the others."""
    sound = [s.points for s in strokes if s.status != "diverged"] or [s.points[:1] for s in strokes]
    top = 3 * max(points[:, 1].max() for points in sound)
    shown = [int((s.points[:, 1] < top).cumprod().sum()) + 1 for s in strokes]
    cut = [np.minimum(s.points[:n], [np.inf, top, top, top]) for s, n in zip(strokes, shown, strict=True)]
    return [s._replace(points=points) for s, points in zip(strokes, cut, strict=True)]


def _trace(axes: "Axes", stroke: Stroke) -> None:
    x, y, low, high = stroke.points.T
    mean, style = stroke.status == "done", line_style(stroke.method)
    axes.plot(x, y, color=stroke.colour, linewidth=2 if mean else 1, solid_capstyle="round", **style)
    if mean:
        axes.fill_between(x, low, high, color=stroke.colour, alpha=0.15, linewidth=0)
    cross = {"marker": "x", "markersize": 8, "markeredgewidth": 2}
    dot = {"marker": MARKS[marker(stroke.method)], "markersize": 5}
    end: dict[str, Any] = cross if stroke.status == "diverged" else dot
    axes.plot(x[-1:], y[-1:], color=stroke.colour, clip_on=False, zorder=3, **end)


def ticks(axis: "Axis", whole: bool = False) -> None:
    """Set ticks at round numbers, written as 0.1, 1, 10 and not as powers of ten.

    Args:
        whole: only whole numbers.
    """
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high > 5 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
    else:
        axis.set_major_locator(ticker.MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
    axis.set_minor_locator(ticker.NullLocator())


def label(axes: "Axes", strokes: list[Stroke], named: Callable[[str], str] | None = None) -> None:
    """Write the methods' names beside the plot, each joined to the end of its line by a dotted line.

    Args:
        named: as in `chart`.
    """
    first = list({s.method: s for s in reversed(strokes)}.values())  # a method's mean, if it has one
    style: dict[str, Any] = {"size": 9.5, "va": "center", "parse_math": False}
    texts = [axes.text(0, 0, (named or short)(s.method), color=as_text(s.colour), **style) for s in first]
    width, height = np.max([text.get_window_extent().size for text in texts], axis=0)
    left, bottom, _, tall = axes.get_position().bounds
    axes.set_position((left, bottom, 0.965 - left - width / axes.figure.bbox.width, tall))
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # fixed: what follows must not change them
    tips = axes.transData.transform([s.points[-1, :2] for s in first])
    places = spaced(tips[:, 1], 1.1 * height, axes.bbox.ymin, axes.bbox.ymax)
    for text, tip, place in zip(texts, tips, places, strict=True):
        edge, dot = axes.bbox.xmax, axes.figure.dpi / 160
        thread = [tip, (edge, tip[1]), (edge + 20 * dot, place), (edge + 24 * dot, place)]
        x, y = axes.transData.inverted().transform(thread).T
        axes.plot(x[:3], y[:3], ":", color=text.get_color(), linewidth=1, clip_on=False, zorder=1.5)
        text.set(x=x[3], y=y[3])


def as_text(colour: str) -> str:
    """A colour in which text can be read on white."""
    return readable(colour, "#ffffff", 4.5)


def spaced(heights: Array, gap: float, low: float, high: float) -> Array:
    """Move labels as little as needed, in the same order, until neighbours are at least a gap apart.

    Args:
        low: no label is moved below this height.
        high: no label is moved above this height.
    """
    order = np.argsort(heights, kind="stable")
    moved = heights[order]
    for _ in range(500):
        push = np.maximum(gap - np.diff(moved), 0) / 2
        moved = np.clip(moved + np.append(0, push) - np.append(push, 0), low, high)
    return moved[np.argsort(order)]


def rate_distortion(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the codecs' error over bits, one panel per vector; four codecs are coloured and the rest grey.

    Args:
        points: of the codec report card. Those without error are left out, as the axis is logarithmic.
    """
    shown = [point for point in points if is_number(point["q"]) and point["q"] > 0]
    vectors = list(dict.fromkeys(point["vector"] for point in shown))
    if not vectors:
        return
    figure = blank(SIZE[0], SIZE[1] * len(vectors))
    for vector, part in zip(vectors, figure.subfigures(len(vectors), squeeze=False)[:, 0], strict=True):
        _panel(part, [point for point in shown if point["vector"] == vector])
    figure.savefig(path)


def _panel(figure: "SubFigure", points: Sequence[Mapping[str, Any]]) -> None:
    """The panel of one vector: one line per codec, through its settings."""
    note = f"{points[0]['vector']}, {points[0]['d']:,} coordinates · dots: settings, hollow if biased"
    axes = frame(figure, _nearest(points), note)
    axes.set_position((0.12, 0.12, 0.7, 0.71))
    places = np.array([(point["bits"], point["q"]) for point in points])
    (left, low), (right, high) = places.min(0), places.max(0)
    axes.set(xscale="log", yscale="log", xlim=(left / 1.15, right * 1.15), ylim=(low / 3, high * 3))
    strokes: list[Stroke] = []
    for codec in dict.fromkeys(point["codec"] for point in points):
        own = [point for point in points if point["codec"] == codec]
        line: Array = np.array(sorted((point["bits"], point["q"]) for point in own))
        colour, kind = CODEC_LOOKS.get(codec, (GREY, "circle"))
        style: dict[str, Any] = {"zorder": 2 if colour == GREY else 3}
        face = colour if all(point["unbiased"] for point in own) else "white"
        axes.plot(*_between(line).T, color=colour, linewidth=1 if colour == GREY else 2.4, **style)
        axes.plot(*line.T, MARKS[kind], color=colour, markersize=5, markerfacecolor=face, **style)
        strokes.append(Stroke(codec, colour, "done", line))
    _bound(axes)
    axes.set_xlabel("bits per coordinate, as sent", color=INK)
    axes.set_ylabel("q = |Q(x) - x|² / |x|²", color=INK)
    ticks(axes.xaxis)
    ticks(axes.yaxis)
    label(axes, strokes)


def _nearest(points: Sequence[Mapping[str, Any]]) -> str:
    """Which unbiased codec has the least q beside the bound's at the same bits, in words.

    The geometric mean over its settings counts.
    """
    ratios: dict[str, list[float]] = {}
    for point in points:
        if point["unbiased"]:
            ratio = math.log(point["q"]) + math.log(math.expm1(math.log(4) * point["bits"]))
            ratios.setdefault(point["codec"], []).append(ratio)
    if not ratios:
        return "Error by bits sent"
    best = min(ratios, key=lambda codec: float(np.mean(ratios[codec])))
    times = math.exp(float(np.mean(ratios[best])))
    return f"Least error: {best}, {times:.2g} times the bound for Gaussian vectors"


def _between(points: Array) -> Array:
    """The line through a codec's settings: log q is linear in bits, so that no line crosses the bound."""
    bits, q = points.T
    grid = np.geomspace(bits[0], bits[-1], 200)
    return np.stack([grid, np.exp(np.interp(grid, bits, np.log(q)))], axis=1)


def _bound(axes: "Axes") -> None:
    """Mark what no unbiased codec can reach on a Gaussian vector: q below 1/(2^(2R) - 1) at R bits."""
    bits = np.geomspace(*axes.get_xlim(), 200)
    with np.errstate(over="ignore"):
        q = 1 / np.expm1(math.log(4) * bits)
    axes.plot(bits, q, color=PALE, linewidth=1, zorder=1)
    axes.fill_between(bits, q, axes.get_ylim()[0], color=FAINT, linewidth=0, zorder=0)
    words = "impossible for unbiased codecs\non Gaussian vectors"
    axes.text(0.03, 0.05, words, transform=axes.transAxes, color=INK, size=9.5)


def short(label: str) -> str:
    """A label cut to a length that fits beside a figure."""
    return label if len(label) <= 28 else f"{label[:27]}…"
