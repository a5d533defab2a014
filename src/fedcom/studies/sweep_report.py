"""What a sweep found, as a table and a figure: means over seeds, and the best point of each method."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.engines.results import frame
from fedcom.formats import counted, duration, percent, significant, unit
from fedcom.reports.comparison import scored_by, write_csv
from fedcom.reports.figures import FAINT, INK, PALE, UNITS
from fedcom.reports.looks import palette
from fedcom.reports.markdown import markdown_table
from fedcom.reports.terminal import Column, Fitted
from fedcom.runs.curve import timed
from fedcom.saving.whole import write_json, write_text
from fedcom.studies.sweep import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import RenderableType

PointSummary = Mapping[str, Any]  # one method at one point of the grid: means and spreads over seeds
_MEANS = ("test_accuracy", "train_loss", "uplink_bytes")
_PERPLEXITY, _LOSS = "test_perplexity", "test_loss"  # which some tasks are scored by


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Args:
        records: one per method, point and seed.
        table: one entry per method and point: means and spreads over seeds; `best` marks the best points.
    """

    records: list[dict[str, Any]] = field(repr=False)
    table: list[dict[str, Any]] = field(repr=False)

    def __repr__(self) -> str:
        return f"Sweep({counted(len(self.records), 'run')}; best: {self.best or 'none'})"

    def __str__(self) -> str:
        """The table, as text; the best points are in bold."""
        return markdown(self.table)

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """The best point of each method that has one: {"fedavg": {"eta": 0.1}}."""
        return {entry["method"]: dict(entry["point"]) for entry in self.table if entry["best"]}

    @property
    def warnings(self) -> list[str]:
        """What to know before the best points are trusted, such as that one is at the grid's edge."""
        return warnings_of(self.table)

    def frame(self) -> "DataFrame":
        """The table as a pandas frame, with a column per key of the grid; see Results.frame."""
        hidden = ("point", "edges", "score")
        return frame(
            {"method": e["method"], **e["point"], **{k: v for k, v in e.items() if k not in hidden}}
            for e in self.table
        )

    def rows(self) -> "DataFrame":
        """All records as a pandas frame, one line per run."""
        hidden = ("key", "point")
        return frame({**{k: v for k, v in r.items() if k not in hidden}, **r["point"]} for r in self.records)


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per method and point of the grid.

    `best` marks the best point of each method; its `edges` are the keys whose value is the smallest or
    largest of the grid.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["method"], json.dumps(record["point"])), []).append(record)
    score = scored_by(records)
    means = dict.fromkeys((*_MEANS, *["modelled_seconds"] * timed(records), score))
    table = [_entry(method, runs, [*means], score) for (method, _), runs in groups.items()]
    for method in methods(table):
        own = [entry for entry in table if entry["method"] == method]
        scored = [entry for entry in own if entry["score"] is not None]
        if scored:
            best = max(scored, key=rank)
            tried = {key: [e["point"][key] for e in own if key in e["point"]] for key in best["point"]}
            best |= {"best": True, "edges": edges_of(best["point"], tried)}
    return table


def rank(entry: PointSummary) -> tuple[float, float]:
    """What points with a score are compared by: the score, then the training loss."""
    return entry["score"], -(entry["train_loss"] or 0)


def methods(table: Sequence[PointSummary]) -> list[str]:
    """The methods in a summary, in order."""
    return list(dict.fromkeys(entry["method"] for entry in table))


def warnings_of(table: Sequence[PointSummary]) -> list[str]:
    """What a reader should know before trusting the best points, one sentence each."""
    notes = []
    for method in methods(table):
        best = next((e for e in table if e["method"] == method and e["best"]), None)
        if best is None:
            notes.append(f"{method}: every point diverged; try smaller rates")
        elif best["edges"]:
            at = ", ".join(f"{key}={best['point'][key]:g}" for key in best["edges"])
            notes.append(
                f"{method}: the best is at the grid's edge ({at}); a better one may be beyond: widen the grid"
            )
    return notes


def write(table: Sequence[PointSummary], out: Path) -> None:
    """Write the summary as JSON, CSV and Markdown, and the figure, into a folder."""
    write_json(out / "table.json", table)
    flat = [{**{k: v for k, v in e.items() if k not in ("point", "edges")}, **e["point"]} for e in table]
    write_csv(
        [{key: row.get(key) for key in dict.fromkeys(k for r in flat for k in r)} for row in flat],
        out / "table.csv",
    )
    write_text(out / "table.md", markdown(table))
    figure(table).savefig(out / "sweep.png")


def render(table: Sequence[PointSummary]) -> "RenderableType":
    """The best point of each method, for a terminal."""
    rows = [_cells(entry, table) for entry in table if entry["best"]]
    columns = zip(_headings(table), zip(*rows, strict=True) if rows else [()] * 7, strict=False)
    return Fitted([Column(*column) for column in columns], left=2, title="the best of each method")


def _headings(table: Sequence[PointSummary]) -> list[str]:
    up = f"up {_unit(table)[0]}"
    perplexity = ["perplexity"] * any(_PERPLEXITY in entry for entry in table)
    perplexity += ["test loss"] * any(_LOSS in entry for entry in table)
    return ["method", "point", "accuracy %", *perplexity, "loss", up, *["time"] * timed(table), "runs"]


def _unit(table: Sequence[PointSummary]) -> tuple[str, float]:
    return unit(max((entry["uplink_bytes"] or 0 for entry in table), default=0))


def _cells(entry: PointSummary, table: Sequence[PointSummary]) -> list[str]:
    point = ", ".join(f"{key} {value}" for key, value in entry["point"].items())
    spread = entry["train_loss_spread"]
    loss = significant(entry["train_loss"], 4) + ("" if spread is None else f" ±{significant(spread, 2)}")
    runs = f"{entry['runs']}" + (f", {entry['diverged']} diverged" if entry["diverged"] else "")
    accuracy = percent(entry["test_accuracy"], entry["test_accuracy_spread"])
    sent = entry["uplink_bytes"]
    up = significant(None if sent is None else sent / _unit(table)[1], 3)
    time = [duration(entry["modelled_seconds"])] if timed([entry]) else []
    perplexity = [significant(entry[_PERPLEXITY], 4)] if _PERPLEXITY in entry else []
    perplexity += [significant(entry[_LOSS], 4)] if _LOSS in entry else []
    return [entry["method"], point, accuracy, *perplexity, loss, up, *time, runs]


def markdown(table: Sequence[PointSummary]) -> str:
    headings = _headings(table)
    rows = [[f"**{c}**" if entry["best"] else c for c in _cells(entry, table)] for entry in table]
    notes = "".join(f"- {note}\n" for note in [*warnings_of(table), "± is the standard deviation over seeds"])
    return f"{markdown_table(headings, rows, 'll' + 'r' * (len(headings) - 2))}\n\n{notes}"


def _entry(method: str, runs: Sequence[Record], means: Sequence[str], score: str) -> dict[str, Any]:
    done = [run for run in runs if run["status"] == "done"]
    entry: dict[str, Any] = {"method": method, "point": runs[0]["point"], "runs": len(runs)}
    entry |= {"diverged": len(runs) - len(done), "best": False, "edges": []}
    for key in means:
        values = [run[key] for run in done if run.get(key) is not None]
        entry[key] = statistics.fmean(values) if values else None
        entry[f"{key}_spread"] = statistics.stdev(values) if len(values) > 1 else None
    whole = entry[score] is not None and len(done) == len(runs)  # a diverged seed leaves no score
    entry["score"] = (entry[score] if score == "test_accuracy" else -entry[score]) if whole else None
    return entry


def edges_of(point: Mapping[str, Any], tried: Mapping[str, Sequence[Any]]) -> list[str]:
    """The keys whose value at a point is the smallest or largest of those tried, if these are numbers."""
    numbers = {k: v for k, v in tried.items() if all(isinstance(value, int | float) for value in v)}
    ends = {key: (min(values), max(values)) for key, values in numbers.items() if len({*values}) > 1}
    return [key for key, end in ends.items() if point[key] in end]


def figure(table: Sequence[PointSummary], made: "Figure | None" = None) -> "Figure":
    """One panel per method: its score over the grid's first key, one line per combination of the others.

    Args:
        made: an empty figure to draw on; None: a new one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, drawn = methods(table), made or Figure()
    drawn.set(size_inches=(4.6 * len(names) + 0.8, 4.4), dpi=140, layout_engine="constrained")
    FigureCanvasAgg(drawn)
    panels = drawn.subplots(1, len(names), squeeze=False, sharey=True)[0]
    score = scored_by(table)
    for name, axes in zip(names, panels, strict=True):
        _panel(axes, [entry for entry in table if entry["method"] == name], score, palette(names)[name])
        axes.set_title(name, loc="left", color=INK, weight="bold")
    panels[0].set_ylabel(UNITS[score][0], color=INK)
    return drawn


def _panel(axes: "Axes", entries: Sequence[PointSummary], key: str, colour: str) -> None:
    first, *others = dict.fromkeys(k for entry in entries for k in entry["point"]) or ["point"]
    scale = UNITS[key][1]
    lines: dict[str, list[tuple[Any, float, float]]] = {}
    for entry in entries:
        label = ", ".join(f"{k} {entry['point'][k]}" for k in others if k in entry["point"])
        if entry[key] is not None:
            spread = scale * (entry[f"{key}_spread"] or 0.0)
            lines.setdefault(label, []).append((entry["point"].get(first, ""), scale * entry[key], spread))
    numeric = all(isinstance(x, int | float) and x > 0 for line in lines.values() for x, _, _ in line)
    for i, (label, line) in enumerate(lines.items()):
        places = sorted(line) if numeric else [(str(value), *rest) for value, *rest in line]
        x, y, error = zip(*places, strict=True)
        shade = 0.35 + 0.65 * (i + 1) / len(lines)
        axes.errorbar(x, y, error, color=colour, alpha=shade, marker="o", capsize=2)
        axes.annotate(
            label, (x[-1], y[-1]), (5, 0), textcoords="offset points", color=PALE, size=8, va="center"
        )
    if numeric and lines:
        tried = sorted({x for line in lines.values() for x, _, _ in line})
        axes.set_xscale("log")
        axes.set_xticks(tried, [f"{x:g}" for x in tried])
        axes.minorticks_off()
    axes.set_xlabel(first, color=INK)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
