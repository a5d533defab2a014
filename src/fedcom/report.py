"""A comparison of runs: one table, and figures over rounds and over bytes."""

import csv
import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedcom.display import BASELINES, MB, columns, footnotes, is_number, palette, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from rich.table import Table

Row = Mapping[str, Any]
Array = np.ndarray[Any, np.dtype[np.float64]]

UNITS = {
    "round": ("communication round", 1.0),
    "uplink_bytes": ("uplink per client (MB)", 1 / MB),
    "train_loss": ("training loss", 1.0),
    "test_accuracy": ("test accuracy (%)", 100.0),
}
VIEWS = {
    "loss_rounds": ("Training loss by communication round", "round", "train_loss"),
    "loss_bytes": ("Training loss by bytes sent", "uplink_bytes", "train_loss"),
    "accuracy_bytes": ("Test accuracy by bytes sent", "uplink_bytes", "test_accuracy"),
}
INK, PALE, FAINT = "#333333", "#767676", "#e6e6e6"


@dataclass(frozen=True)
class Curve:
    """One run: one method, one seed."""

    method: str
    seed: int
    rows: Sequence[Row]
    status: str  # "done" | "diverged" | "interrupted"


def milestones(rows: Sequence[Row], target: float | None) -> dict[str, Any]:
    """The best accuracy of a run, and the rounds and bytes per client it took to reach the target."""
    scored = [row for row in rows if is_number(row.get("test_accuracy"))]
    reached = (row for row in scored if target is not None and row["test_accuracy"] >= target)
    first: Row = next(reached, {})
    return {
        "best_accuracy": max((row["test_accuracy"] for row in scored), default=None),
        "rounds_to_target": first.get("round"),
        "uplink_bytes_to_target": first.get("uplink_bytes"),
        "downlink_bytes_to_target": first.get("downlink_bytes"),
    }


def compare_table(curves: Sequence[Curve], target: float | None) -> list[dict[str, Any]]:
    """One flat entry a method, in order of first appearance."""
    table = [_entry(method, runs, target) for method, runs in _by_method(curves).items()]
    for name in BASELINES:
        theirs = next((e["uplink_bytes_to_target"] for e in table if e["method"].lower() == name), None)
        for entry in table:
            ours = entry["uplink_bytes_to_target"]
            entry[f"times_fewer_than_{name}"] = theirs / ours if theirs and ours else None
    return table


def _entry(method: str, runs: Sequence[Curve], target: float | None) -> dict[str, Any]:
    finals = [run.rows[-1] for run in runs if run.status != "diverged" and run.rows]
    marks = [milestones(run.rows, target) for run in runs]
    statuses = [run.status for run in runs]
    ends = [run.rows[-1]["round"] for run in runs if run.status == "diverged" and run.rows]
    return {
        "method": method,
        "status": statuses[0] if len(set(statuses)) == 1 else "mixed",
        "runs": len(runs),
        "diverged": statuses.count("diverged"),
        "diverged_round": min(ends, default=None),
        "interrupted": statuses.count("interrupted"),
        "final_loss": _mean(finals, "train_loss"),
        "final_loss_spread": _spread(finals, "train_loss"),
        "final_accuracy": _mean(finals, "test_accuracy"),
        "final_accuracy_spread": _spread(finals, "test_accuracy"),
        "worst_client_accuracy": _mean(finals, "worst_client_accuracy"),
        "uplink_bytes": _mean(finals, "uplink_bytes"),
        "downlink_bytes": _mean(finals, "downlink_bytes"),
        "reached_target": len(_values(marks, "rounds_to_target")),
        **{key: _mean(marks, key) for key in marks[0] if key.endswith("_to_target")},
    }


def _by_method(curves: Iterable[Curve]) -> dict[str, list[Curve]]:
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.method, []).append(curve)
    return groups


def _values(rows: Iterable[Row], key: str) -> list[float]:
    return [float(row[key]) for row in rows if is_number(row.get(key))]


def _mean(rows: Iterable[Row], key: str) -> float | None:
    values = _values(rows, key)
    return statistics.fmean(values) if values else None


def _spread(rows: Iterable[Row], key: str) -> float | None:
    values = _values(rows, key)
    return statistics.stdev(values) if len(values) > 1 else None


def render(table: Sequence[Row], target: float | None) -> "Table":
    """The table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = columns(table, target)
    drawn = Table(box=box.SIMPLE_HEAD, padding=0, caption_justify="left")
    drawn.caption = "\n".join(footnotes(table))
    for heading, _ in shown:
        name = heading == "method"
        # Broken by hand: headings are the widest thing in most columns, and eighty characters must do.
        lines = textwrap.fill(heading, 6, break_long_words=False)
        drawn.add_column(lines, justify="left" if name else "right", no_wrap=name)
    for entry in table:
        # Text and not str: a label such as "fedcom [q8]" must not be read as markup.
        drawn.add_row(*(Text(cell(entry)) for _, cell in shown))
    return drawn


def markdown(table: Sequence[Row], target: float | None) -> str:
    """The table for a README."""
    shown = columns(table, target)
    rows = [[heading for heading, _ in shown], [":--", *["--:"] * (len(shown) - 1)]]
    rows += [[cell(entry).replace("|", "\\|") for _, cell in shown] for entry in table]
    notes = "\n".join(f"- {note}" for note in footnotes(table))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{notes}\n"


def write_csv(table: Sequence[Row], path: Path) -> None:
    """The table with every figure unrounded; what is not known is left empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]) if table else [])
        writer.writeheader()
        writer.writerows(table)


class Stroke(NamedTuple):
    """One line of a figure: the mean of a method's finished runs, or one run that was cut short."""

    method: str
    colour: str
    status: str
    points: Array  # x, y, and the lowest and highest y over seeds


def figures(curves: Sequence[Curve], out: Path, subtitle: str = "") -> list[Path]:
    """Draw loss over rounds and bytes and accuracy over bytes; a figure without a point is left out."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (title, x, y) in VIEWS.items():
        strokes = _strokes(curves, x, y)
        if strokes:
            paths.append(out / f"{name}.png")
            _draw(strokes, (title, subtitle, x, y), paths[-1])
    return paths


def _strokes(curves: Sequence[Curve], x: str, y: str) -> list[Stroke]:
    strokes, colours = [], palette(curve.method for curve in curves)
    for method, runs in _by_method(curves).items():
        points = [(run.status, _points(run.rows, x, y)) for run in runs]
        done = [p for status, p in points if status == "done" and len(p)]
        lines = [("done", _average(done))] if done else []
        lines += [(status, p[:, [1, 2, 2, 2]]) for status, p in points if status != "done" and len(p)]
        strokes += [Stroke(method, colours[method], *line) for line in lines]
    if x == "uplink_bytes" and _decades(strokes) > 1:
        strokes = [s._replace(points=s.points[s.points[:, 0] > 0]) for s in strokes]
    strokes = [stroke for stroke in strokes if len(stroke.points)]
    return _capped(strokes) if y == "train_loss" and strokes else strokes


def _points(rows: Sequence[Row], x: str, y: str) -> Array:
    """Round, x and y of the rows that can be drawn: a loss to a logarithmic scale, so none that is zero."""
    keys = ("round", x, y)
    known = [[row[key] for key in keys] for row in rows if all(is_number(row.get(key)) for key in keys)]
    points: Array = np.array(known, dtype=float).reshape(-1, 3) * [UNITS[key][1] for key in keys]
    loss = points[:, 2]
    return points[(loss > 0) & (loss < 1e30)] if y == "train_loss" else points


def _average(runs: Sequence[Array]) -> Array:
    """Mean and range over seeds; a run that stopped early keeps its last model, so its values are held."""
    grid = np.unique(np.concatenate([run[:, 0] for run in runs]))
    x = np.stack([np.interp(grid, run[:, 0], run[:, 1], left=np.nan, right=np.nan) for run in runs])
    y = np.stack([np.interp(grid, run[:, 0], run[:, 2]) for run in runs])
    return np.stack([np.nanmean(x, axis=0), y.mean(0), y.min(0), y.max(0)], axis=1)


def _decades(strokes: Sequence[Stroke]) -> float:
    x = [value for stroke in strokes for value in stroke.points[:, 0] if value > 0]
    return math.log10(max(x) / min(x)) if x else 0.0


def _draw(strokes: list[Stroke], view: tuple[str, str, str, str], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    title, subtitle, x, y = view
    figure = Figure(figsize=(8, 4.8), dpi=160)
    FigureCanvasAgg(figure)
    figure.text(0.015, 0.935, title, size=13, weight="bold", color=INK)
    figure.text(0.015, 0.885, subtitle, size=9.5, color=PALE, parse_math=False)
    axes = figure.add_axes((0.095, 0.12, 0.7, 0.71))
    axes.spines[:].set_visible(False)
    axes.margins(x=0.02)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.tick_params(length=0, labelcolor=INK)
    for stroke in strokes:
        _trace(axes, stroke)
    by_decade = x == "uplink_bytes" and _decades(strokes) > 1
    axes.set(xscale="log" if by_decade else "linear", yscale="log" if y == "train_loss" else "linear")
    axes.set_xlabel(UNITS[x][0], color=INK)
    axes.set_ylabel(UNITS[y][0], color=INK)
    _ticks(axes.xaxis, whole=x == "round")
    _ticks(axes.yaxis)
    _label(axes, strokes)
    figure.savefig(path)


def _capped(strokes: list[Stroke]) -> list[Stroke]:
    """Stop a run on its way to infinity above the others, lest it press them flat."""
    sound = [s.points for s in strokes if s.status != "diverged"] or [s.points[:1] for s in strokes]
    top = 3 * max(points[:, 1].max() for points in sound)
    shown = [int((s.points[:, 1] < top).cumprod().sum()) + 1 for s in strokes]
    cut = [np.minimum(s.points[:n], [np.inf, top, top, top]) for s, n in zip(strokes, shown, strict=True)]
    return [s._replace(points=points) for s, points in zip(strokes, cut, strict=True)]


def _trace(axes: "Axes", stroke: Stroke) -> None:
    x, y, low, high = stroke.points.T
    mean = stroke.status == "done"
    axes.plot(x, y, color=stroke.colour, linewidth=2 if mean else 1, solid_capstyle="round")
    if mean:
        axes.fill_between(x, low, high, color=stroke.colour, alpha=0.15, linewidth=0)
    cross = {"marker": "x", "markersize": 8, "markeredgewidth": 2}
    end: dict[str, Any] = cross if stroke.status == "diverged" else {"marker": "o", "markersize": 4}
    axes.plot(x[-1:], y[-1:], color=stroke.colour, clip_on=False, zorder=3, **end)


def _ticks(axis: "Axis", whole: bool = False) -> None:
    """Ticks a person would choose, written as 0.1, 1, 10 and not as powers of ten."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high > 5 * low:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
    else:
        axis.set_major_locator(ticker.MaxNLocator(6, integer=whole, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
    axis.set_minor_locator(ticker.NullLocator())


def _label(axes: "Axes", strokes: list[Stroke]) -> None:
    """Write the methods' names beside the plot, each on a dotted thread from the end of its line."""
    first = list({s.method: s for s in reversed(strokes)}.values())  # a method's mean, if it has one
    style: dict[str, Any] = {"size": 9.5, "va": "center", "parse_math": False}
    texts = [axes.text(0, 0, short(s.method), color=s.colour, **style) for s in first]
    width, height = np.max([text.get_window_extent().size for text in texts], axis=0)
    left, bottom, _, tall = axes.get_position().bounds
    axes.set_position((left, bottom, 0.965 - left - width / axes.figure.bbox.width, tall))
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # what is drawn from here on must not move them
    tips = axes.transData.transform([s.points[-1, :2] for s in first])
    places = _apart(tips[:, 1], 1.1 * height, axes.bbox.ymin, axes.bbox.ymax)
    for text, tip, place in zip(texts, tips, places, strict=True):
        edge = axes.bbox.xmax
        thread = [tip, (edge, tip[1]), (edge + 20, place), (edge + 24, place)]
        x, y = axes.transData.inverted().transform(thread).T
        axes.plot(x[:3], y[:3], ":", color=text.get_color(), linewidth=1, clip_on=False, zorder=1.5)
        text.set(x=x[3], y=y[3])


def _apart(heights: Array, gap: float, low: float, high: float) -> Array:
    """Move labels as little as it takes, keeping their order, until each is a gap from the next."""
    order = np.argsort(heights, kind="stable")
    moved = heights[order]
    for _ in range(500):
        push = np.maximum(gap - np.diff(moved), 0) / 2
        moved = np.clip(moved + np.append(0, push) - np.append(push, 0), low, high)
    return moved[np.argsort(order)]
