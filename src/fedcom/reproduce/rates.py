"""Tune eta and gamma, of each method on each data set and of each point of a study; see experiments/rates."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcom.config import Table, dumps
from fedcom.errors import ConfigError, unknown
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.study import method_rates, panel, rates_in
from fedcom.studies import sweep, sweep_report
from fedcom.studies.compare import method_keys
from fedcom.tasks.task import Task

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
# The grid around a method's rates on which its codecs are tuned: factors of eta and gamma. Runs on CIFAR-10
# cost ten times as much, and gamma 2 was the best for every method tuned there, so gamma is kept.
NEAR = {"eta": (0.5, 1.0, 2.0), "gamma": (0.5, 1.0, 2.0)}
AROUND = {"cifar-10": {"eta": (0.5, 1.0, 2.0), "gamma": (1.0,)}}
DEFAULTS = {"eta": 0.1, "gamma": 1.0}
SEEDS = 5  # seeds on which a best point is confirmed; it is dropped if it diverges on any
CONFIRMED = 3  # the same for the points of a study
TRIES = 8  # how often at most the grid is widened or a best point is confirmed
HEAD = "Rates on {0}, two classes per client; `fedcom reproduce rates {0}` writes this file."
PANEL_HEAD = (
    "Rates of the points of {0}, by label; eta and gamma of [tuning] are factors of the methods' rates."
)
RunTrials = Callable[[Sequence[sweep.Trial]], list[dict[str, Any]]]


def tune(data: str, scale: Scale, out: Path, device: str = "auto", quiet: bool = False) -> Path:
    """Sweep every method over a grid, which is widened if the best point is at its edge; the file of rates.

    Args:
        data: the name of the data set, one of GRIDS.
        out: the folder; files go into its subfolder of the data set's name.
    """
    if data not in GRIDS:
        raise unknown("data set to tune for", data, GRIDS)
    table = _seeded({**panel(f"{data}.toml", scale, TUNED, tuned=False).table, "methods": {}})
    run = _runner(out / data, device, quiet)
    best = {method: tune_one(table, method, GRIDS[data], SEEDS, run) for method in TUNED}
    entries = [entry for found in best.values() for entry in found.pop("table")]
    for method, twin in SAME.items():
        best |= (
            {method: {**best[twin], "note": f"{twin}'s: here they are one method"}} if twin in best else {}
        )
    sweep_report.write(entries, out / data)
    path = out / data / f"{data}.toml"
    path.write_text(text(HEAD.format(data), facts(data, GRIDS[data], SEEDS), best), encoding="utf-8")
    return path


def tune_panel(panel: Panel, out: Path, device: str = "auto", quiet: bool = False) -> Path:
    """Tune every label of a panel that has no rates yet, around its method's; the file, renewed after each.

    Args:
        panel: one with `rates`, of which the last names the file.
        out: the folder; files go into its subfolder of that name.
    """
    *others, name = panel.rates
    data, run, best = str(panel.config.data.name), _runner(out / name, device, quiet), dict[str, Any]()
    path, factors = out / name / f"{name}.toml", AROUND.get(data, NEAR)
    known = {label for file in others for label in rates_in(file)}
    for label in (label for label in panel.methods if label not in known):
        method, keys = panel.table["methods"][label].get("name", label), method_keys(panel.table, label)
        own = {key: values for key, values in factors.items() if key in keys}
        grid = around(method_rates(data, method), own)
        try:
            best[label] = tune_one(_seeded(panel.table), label, grid, CONFIRMED, run)
        except ConfigError as error:
            print(f"fedcom: {panel.name}: {error}", file=sys.stderr)
            continue
        head, tuning = PANEL_HEAD.format(name), facts(data, factors, CONFIRMED)
        path.write_text(text(head, tuning, best), encoding="utf-8")
    return path


def around(rates: Mapping[str, float], factors: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """A grid around rates: each times its factors. Without rates it is around the defaults."""
    start = {**DEFAULTS, **rates}
    return {key: [float(f"{start[key] * factor:.3g}") for factor in own] for key, own in factors.items()}


def _seeded(table: Table) -> Table:
    """The settings with the first seed of tuning."""
    return {**table, "run": {**table["run"], "seed": SEED}}


def _runner(folder: Path, device: str, quiet: bool) -> RunTrials:
    """A function that runs what a folder's results.jsonl does not have yet, and returns all records."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = dict[str, Task]()
    return lambda trials: sweep.run_missing(trials, folder / "results.jsonl", LAST, device, quiet, tasks)


def tune_one(
    table: Table, method: str, grid: Mapping[str, Sequence[float]], seeds: int, run: RunTrials
) -> dict[str, Any]:
    """The best point of one method: not at an edge of the grid, and confirmed on several seeds.

    If every point diverges the grid is widened downwards.
    """
    tried, sure = {key: list(values) for key, values in grid.items()}, list[Table]()
    for _ in range(TRIES):
        some = [Panel(method, table, (method,), tried).runs(1)]
        some += [Panel(method, table, (method,), {k: [v] for k, v in p.items()}).runs(seeds) for p in sure]
        records = run(list({t.key: t for trials in some for t in trials}.values()))
        if all(record["status"] == sweep.FAILED for record in records):
            raise ConfigError(f"{method} cannot be tuned, because none of its runs could be made")
        found = sweep_report.summary(records)
        best = next((entry for entry in found if entry["best"]), None)
        if best and best["point"] in sure and not best["edges"]:
            break
        lowest = {key: min(values) for key, values in tried.items()}
        for key in best["edges"] if best else tried:
            tried[key] = widened(tried[key], (best["point"] if best else lowest)[key])
        sure += [best["point"]] if best and not best["edges"] else []
    if best is None:
        none = {"accuracy": None, "edges": [], "note": "every point diverged", "table": found}
        return {**lowest, **none}
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


def facts(data: str, grid: Mapping[str, Sequence[float]], seeds: int) -> Table:
    """How rates were tuned, for their file."""
    by = f"test accuracy, the mean of the last {LAST} evaluations; the best on {seeds} seeds"
    return {"data": data, "seed": SEED, "chosen_by": by, **{key: list(own) for key, own in grid.items()}}


def text(head: str, tuning: Table, best: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a file of rates: the grid and the rule, then the rates of each method.

    Args:
        head: the first line.
        tuning: see `facts`.
        best: for each method or label eta, gamma if it has one, the accuracy, the edges and a note.
    """
    sections: Table = {"tuning": tuning}
    for method, found in best.items():
        name = method if re.fullmatch(r"[\w-]+", method, re.ASCII) else json.dumps(method, ensure_ascii=False)
        how = {"accuracy": found["accuracy"], "edges": list(found["edges"]), "note": found["note"]}
        sections[f"methods.{name}"] = {key: float(found[key]) for key in ("eta", "gamma") if key in found}
        sections[f"found.{name}"] = {key: value for key, value in how.items() if value is not None}
    return f"# {head}\n{dumps(sections)}"
