"""Results in Python, shown: the HTML page about them, and curves as a figure."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.engines.results import Results
from fedcom.engines.simulation import Simulation
from fedcom.errors import ConfigError, nearest
from fedcom.formats import MB
from fedcom.reports import page
from fedcom.reports.figures import UNITS, chart, strokes_of
from fedcom.reports.page.collect import CollectedRuns, SavedSweep, collect, unsaved
from fedcom.runs.curve import Curve
from fedcom.runs.record import Outcome
from fedcom.studies import sweep_report
from fedcom.studies.compare import Comparison
from fedcom.studies.sweep_report import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {
    "downlink_bytes": "downlink per client (MB)",
}
Drawn = Comparison | Simulation | Results | Outcome | str | Path
Plottable = Drawn | Sweep | Mapping[str, Drawn]


def report(what: Plottable | Sequence[Plottable], out: str | Path | None = None) -> Path:
    """Write one HTML page about runs, as `fedcom report` does; returns its path.

    Args:
        what: folders that contain runs at any depth, comparisons, sweeps, results, or mappings from labels to
            results; one of these, or a list.
        out: the file; None: report.html in the folder, or here if there are several or none.
    """
    alone = isinstance(what, str | Path | Comparison | Sweep | Results | Outcome | Mapping)
    folders, also = list[Path](), CollectedRuns()
    many: list[Any] = list(what) if isinstance(what, Sequence) and not alone else [what]
    if not many:
        raise ConfigError("there is nothing to report; name a folder of runs, or give results")
    for one in many:
        if isinstance(one, str | Path | Comparison):
            folders.append(one.folder if isinstance(one, Comparison) else Path(one))
        elif isinstance(one, Sweep):
            name = Path(f"sweep-{len(also.sweeps) + 1}")
            also.sweeps.append(SavedSweep(name, one.records, len(one.records)))
        else:
            for curve in _curves(one):
                also.runs.append(unsaved(curve, f"results-{len(also.runs) + 1}"))
    place = None if out is None else Path(out)
    return page.write(folders, place, lambda notice: warnings.warn(notice, stacklevel=4), also)


def plot(
    what: Plottable, x: str | None = None, y: str | None = None, *, title: str | None = None
) -> "Figure":
    """Draw runs as curves, one colour per method; seeds are averaged, with their range as a band.

    Args:
        what: a comparison, the results of a run, a folder that contains runs at any depth, or a mapping from
            labels to any of these; or a sweep, whose scores are drawn over its grid.
        x: the figure of the rows along x: "round", "modelled_seconds", ...; None: "uplink_bytes".
        y: the figure along y: "train_loss", "test_loss", or a metric of your own; None: "test_accuracy".

    Returns:
        A matplotlib figure: `plot(...).savefig("curves.png")`. Notebooks show it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            data = io.BytesIO()
            self.savefig(data)
            return data.getvalue()

    if isinstance(what, Sweep):
        if x is not None or y is not None:
            raise ConfigError("a sweep's scores are drawn over its grid; leave x and y out")
        drawn = sweep_report.figure(what.table, Picture())
        drawn.suptitle(title or "")
        return drawn
    curves, x, y = _curves(what), x or "uplink_bytes", y or "test_accuracy"
    known = {key for curve in curves for row in curve.rows for key in row}
    if not known:
        raise ConfigError(f"there is nothing to draw: {what!r} has no rows")
    for key in (x, y):
        if key not in known:
            raise ConfigError(f"the rows have no {key!r}; {nearest(key, known)}")
        UNITS.setdefault(key, (_TITLES.get(key, key), 1 / MB if key.endswith("_bytes") else 1.0))
    strokes = strokes_of(curves, x, y)
    if not strokes:
        raise ConfigError(f"there is nothing to draw: {y!r} is None in every row; choose another y")
    figure = Picture(figsize=(8, 4.8), dpi=110)
    FigureCanvasAgg(figure)
    words = (UNITS[y][0], UNITS[x][0])
    chart(figure, strokes, (title or f"{words[0]} by {words[1]}".capitalize(), "", x, y))
    return figure


def _curves(what: Any) -> list[Curve]:
    if isinstance(what, Comparison):
        return what.curves
    if isinstance(what, Outcome):
        return [what.curve]
    if isinstance(what, Simulation):
        return [Curve(what.algorithm.name, what.settings["seed"], list(what.results), "done")]
    if isinstance(what, Mapping):
        return [replace(curve, method=label) for label, one in what.items() for curve in _curves(one)]
    if isinstance(what, str | Path):
        return [run.curve for run in collect([Path(what)]).runs]
    if isinstance(what, Sequence) and all(isinstance(row, Mapping) for row in what):
        return [Curve("", 0, list(what), "done")]
    raise ConfigError(
        "expected a Comparison, a Sweep, Results, a folder of runs, or a mapping from labels to results; got "
        f"{what!r}"
    )
