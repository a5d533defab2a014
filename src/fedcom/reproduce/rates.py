"""Tune eta and gamma of each method on each data set; the rates are kept in experiments/rates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcom.config import Table, dumps
from fedcom.errors import unknown
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.study import panel
from fedcom.studies import sweep, sweep_report

SEED = 100  # the first seed of tuning; results are reported on other seeds
LAST = 5  # the score is the mean of this many last evaluations
TUNED = ("fedavg", "fedpaq", "fedgate", "fedcomgate")
# Methods that get the rates of another, as they are the same here: FedCOM is FedPAQ, and SCAFFOLD at full
# participation is FedGATE.
SAME = {"fedcom": "fedpaq", "scaffold": "fedgate"}
_SMALL = {"eta": [0.01, 0.02, 0.05, 0.1, 0.2], "gamma": [1.0, 2.0, 4.0, 8.0]}
GRIDS = {
    "mnist": _SMALL,
    "fashion-mnist": _SMALL,
    "cifar-10": {"eta": [0.02, 0.05, 0.1, 0.2], "gamma": [1.0, 2.0, 4.0]},
}
SEEDS = 5  # seeds on which a best point is confirmed; it is dropped if it diverges on any
TRIES = 8  # how often at most the grid is widened or a best point is confirmed


def tune(data: str, scale: Scale, out: Path, device: str = "auto", quiet: bool = False) -> Path:
    """Sweep every method over a grid, which is widened if the best point is at its edge; the file of rates.

    Args:
        data: the name of the data set, one of GRIDS.
        out: the folder; files go into its subfolder of the data set's name.
    """
    if data not in GRIDS:
        raise unknown("data set to tune for", data, GRIDS)
    base = panel(f"{data}.toml", scale, TUNED, tuned=False)
    table = {**base.table, "methods": {}}
    table["run"] = {**table["run"], "seed": SEED}
    (out / data).mkdir(parents=True, exist_ok=True)
    best: dict[str, Any] = {}
    for method in TUNED:
        best[method] = _tune_one(table, method, GRIDS[data], out / data / f"{method}.jsonl", device, quiet)
    entries = [entry for found in best.values() for entry in found.pop("table")]
    for method, twin in SAME.items():
        best |= (
            {method: {**best[twin], "note": f"{twin}'s: here they are one method"}} if twin in best else {}
        )
    sweep_report.write(entries, out / data)
    path = out / data / f"{data}.toml"
    by = f"test accuracy, the mean of the last {LAST} evaluations; the best on {SEEDS} seeds"
    path.write_text(text(data, GRIDS[data], SEED, by, best), encoding="utf-8")
    return path


def _tune_one(
    table: Table, method: str, grid: Mapping[str, Sequence[float]], path: Path, device: str, quiet: bool
) -> dict[str, Any]:
    """The best point of one method: not at an edge of the grid, and confirmed on several seeds."""
    tried, sure = {key: list(values) for key, values in grid.items()}, list[Table]()
    for _ in range(TRIES):
        some = [Panel(method, table, (method,), tried).runs(1)]
        some += [Panel(method, table, (method,), {k: [v] for k, v in p.items()}).runs(SEEDS) for p in sure]
        trials = list({trial.key: trial for trials in some for trial in trials}.values())
        found = sweep_report.summary(sweep.run_missing(trials, path, LAST, device, quiet))
        best = next((entry for entry in found if entry["best"]), None)
        if best is None or (best["point"] in sure and not best["edges"]):
            break
        for key in best["edges"]:
            tried[key] = widened(tried[key], best["point"][key])
        sure += [] if best["edges"] else [best["point"]]
    if best is None:
        none = {"accuracy": None, "edges": [], "note": "every point diverged", "table": found}
        return {"eta": min(tried["eta"]), "gamma": 1.0, **none}
    added = {key: sorted({*values} - {*grid[key]}) for key, values in tried.items()}
    words = [f"{key} {value:g}" for key, values in added.items() for value in values]
    note = f"grid widened by {', '.join(words)}" if words else "inside the grid"
    accuracy = round(100 * best["test_accuracy"], 2)
    return {**best["point"], "accuracy": accuracy, "edges": best["edges"], "note": note, "table": found}


def widened(values: Sequence[float], edge: float) -> list[float]:
    """A list of rates with one more beyond its edge: twice the largest, or half the smallest."""
    low, high = min(values), max(values)
    step = 2.0 if edge == high else 0.5
    beyond = float(f"{edge * step:.3g}")
    return sorted({*values, beyond}) if edge in (low, high) else list(values)


def text(
    data: str, grid: Mapping[str, Sequence[float]], seed: int, by: str, best: Mapping[str, Mapping[str, Any]]
) -> str:
    """The text of a file of rates: the grid and the rule, then the rates of each method.

    Args:
        by: the rule by which points were compared, in words.
        best: for each method eta, gamma, the accuracy, the edges and a note.
    """
    sections: Table = {
        "tuning": {"data": data, "seed": seed, "chosen_by": by, **{k: list(v) for k, v in grid.items()}}
    }
    for method, found in best.items():
        facts = {"accuracy": found["accuracy"], "edges": list(found["edges"]), "note": found["note"]}
        sections[f"methods.{method}"] = {key: float(found[key]) for key in ("eta", "gamma")}
        sections[f"found.{method}"] = {key: value for key, value in facts.items() if value is not None}
    head = f"# Rates on {data}, two classes per client; `fedcom reproduce rates {data}` writes this file.\n"
    return head + dumps(sections)
