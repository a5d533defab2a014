"""The curves of the page: means and ranges over seeds, as the script draws them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcom.engines.results import Row
from fedcom.formats import is_number
from fedcom.reports.comparison import by_method
from fedcom.reports.figures import UNITS, Array, over_seeds
from fedcom.reports.page.collect import SavedRun, called
from fedcom.reports.page.sections import looks_of

X = {  # the first that has values is shown when the page opens
    "uplink_bytes": ("Uplink", *UNITS["uplink_bytes"]),
    "total_bytes": ("Up + down", *UNITS["total_bytes"]),
    "round": ("Rounds", *UNITS["round"]),
    "modelled_seconds": ("Modelled time", *UNITS["modelled_seconds"]),
}
Y = {
    "test_accuracy": ("Accuracy", *UNITS["test_accuracy"]),
    "test_perplexity": ("Perplexity", *UNITS["test_perplexity"]),
    "test_bits_per_character": ("Bits", "test bits per character", 1.0),
    "test_c_index": ("C-index", "test C-index", 1.0),
    "train_loss": ("Loss", *UNITS["train_loss"]),
    "client_mean": ("Clients' mean", "test score, mean over clients", 1.0),
    "client_worst": ("Worst client", "test score of the worst client", 1.0),
    "worst_client_perplexity": ("Worst tenth's perplexity", "test perplexity, worst tenth of clients", 1.0),
    "worst_client_accuracy": ("Worst tenth", "training accuracy, worst tenth of clients (%)", 100.0),
}
MOST = 600  # points per curve


def curves(runs: Sequence[SavedRun]) -> dict[str, Any]:
    """The axes that some run has values for, and every line to draw, for the page's script."""
    axes = [
        [
            {"key": key, "name": name, "title": title}
            for key, (name, title, _) in choices.items()
            if any(is_number(row.get(key)) for run in runs for row in run.rows)
        ]
        for choices in (X, Y)
    ]
    lines = []
    for method, group in by_method(run.curve for run in runs).items():
        done = [curve.rows for curve in group if curve.status == "done"]
        parts: list[tuple[str, list[Sequence[Row]], int | None]] = [("done", done, None)] if done else []
        parts += [(curve.status, [curve.rows], curve.seed) for curve in group if curve.status != "done"]
        for status, rows, seed in parts:
            views = {y: view for y in Y if (view := _view(rows, y))}
            lines.append(
                {"method": method, "status": status, "seed": seed, "runs": len(rows), "views": views}
            )
    methods = [{"label": label, **look._asdict()} for label, look in looks_of(runs).items()]
    return {"x": axes[0], "y": axes[1], "methods": methods, "lines": lines, "what": called(runs)}


def _view(runs: Sequence[Sequence[Row]], y: str) -> dict[str, list[float | None]]:
    """The mean, lowest and highest of one measure over seeds, and the values of every x axis."""
    scored = [[row for row in rows if is_number(row.get(y))] for rows in runs]
    scored = [rows for rows in scored if rows]
    if not scored:
        return {}
    scale = {key: unit for key, (_, _, unit) in {**X, **Y}.items()}
    view = over_seeds(scored, X, y, scale, MOST)
    return {key: _plain(numbers) for key, numbers in view.items() if np.isfinite(numbers).any()}


def _plain(numbers: Array) -> list[float | None]:
    """Numbers with six digits, which is enough for a screen; None for those that are not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in numbers]
