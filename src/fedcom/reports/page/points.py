"""The points, bars and maps of the page: the frontier, bytes to a target, sweeps, clients, classes."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcom.formats import MB, is_number
from fedcom.reports.comparison import BASELINES, compare_table, grouped, scored_by
from fedcom.reports.figures import UNITS
from fedcom.reports.page.collect import JsonObject, SavedRun, SavedSweep, by_label, natural
from fedcom.reports.page.curves import X
from fedcom.reports.page.sections import target_of
from fedcom.runs.curve import milestones

AIMS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)  # accuracies to choose from, beside the runs' own
COSTS = {key: X[key][:2] for key in ("uplink_bytes", "total_bytes")}  # the name and title of each
BINS = 20  # of the clients' accuracies


def frontier(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """Each label's last accuracy, with its standard deviation over seeds, and the bytes it took."""
    found = []
    for entry in compare_table([run.curve for run in runs], None):
        up, down = entry["uplink_bytes"], entry["downlink_bytes"]
        if is_number(entry["final_accuracy"]) and is_number(up):
            costs = {"uplink_bytes": up / MB} | ({"total_bytes": (up + down) / MB} if is_number(down) else {})
            spread = 100 * (entry["final_accuracy_spread"] or 0.0)
            y = 100 * entry["final_accuracy"]
            point = {"method": entry["method"], "y": y, "low": y - spread, "high": y + spread}
            found.append({**point, "runs": entry["runs"], "costs": costs})
    return found


def aims(runs: Sequence[SavedRun]) -> dict[str, Any]:
    """The bytes it took each label to reach one of several accuracies; labels that did not are told too.

    A label has the mean over the runs that reached it, as in the table.
    """
    own = target_of(runs)
    choices = sorted({*AIMS, *([own] if own is not None else [])})
    bars = {aim: found for aim in choices if (found := _bars(runs, aim))}
    shown = own if own in bars else max(bars, default=None)
    listed = [{"target": aim, "bars": found} for aim, found in bars.items()]
    return {"shown": shown, "choices": listed, "baselines": BASELINES}


def _bars(runs: Sequence[SavedRun], aim: float) -> list[dict[str, Any]]:
    """One bar per label; none at all if no run reached the accuracy."""
    bars = []
    for label, group in by_label(runs).items():
        marks = [milestones(run.rows, aim) for run in group]
        costs = {}
        for key in COSTS:
            sizes = [_cost(mark, key) for mark in marks]
            known = [size for size in sizes if size is not None]
            costs[key] = statistics.fmean(known) / MB if known else None
        reached = sum(mark["rounds_to_target"] is not None for mark in marks)
        bars.append({"method": label, "reached": reached, "runs": len(group), "costs": costs})
    return bars if any(bar["reached"] for bar in bars) else []


def _cost(mark: JsonObject, key: str) -> float | None:
    up, down = mark["uplink_bytes_to_target"], mark["downlink_bytes_to_target"]
    if key == "uplink_bytes":
        return up if is_number(up) else None
    return up + down if is_number(up) and is_number(down) else None


def grids(sweeps: Sequence[SavedSweep]) -> list[dict[str, Any]]:
    """Each sweep's points: the mean score over seeds; None where a seed diverged."""
    return [grid for sweep in sweeps if (grid := _grid(sweep))]


def _grid(sweep: SavedSweep) -> dict[str, Any]:
    groups = grouped(sweep.records, lambda r: (r["method"], json.dumps(r["point"], sort_keys=True)))
    if not groups:
        return {}
    score = scored_by(sweep.records)
    keys = dict.fromkeys(key for record in sweep.records for key in record["point"])
    axes = {key: _values(sweep.records, key) for key in keys}
    points = []
    for (method, _), group in groups.items():
        scores = [r[score] for r in group if r["status"] == "done" and is_number(r.get(score))]
        whole = len(scores) == len(group)
        points.append(
            {
                "method": method,
                "at": {key: _plain(value) for key, value in group[0]["point"].items()},
                "score": statistics.fmean(scores) if whole else None,
                "spread": statistics.stdev(scores) if whole and len(scores) > 1 else None,
                "runs": len(group),
                "lost": len(group) - len(scores),
            }
        )
    done = f"{len(sweep.records)} of {sweep.trials} trials"
    return {
        "name": Path(sweep.folder).resolve().name,
        "done": done,
        "score": score,
        "title": UNITS[score][0],
        "axes": axes,
        "points": points,
    }


def _values(records: Sequence[JsonObject], key: str) -> list[str]:
    """The values of a key of the grid, as texts: numbers by size, the rest by name."""
    return sorted({_plain(r["point"][key]) for r in records if key in r["point"]}, key=natural)


def _plain(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else value
        if isinstance(value, str)
        else json.dumps(value, default=str)
    )


def accuracies(runs: Sequence[SavedRun]) -> dict[str, Any]:
    """Each label's clients by accuracy, in bins from `low` to 1, and its confusion of classes; all seeds."""
    known = {
        label: [run.accuracy for run in group if run.accuracy.get("clients")]
        for label, group in by_label(runs).items()
    }
    known = {label: own for label, own in known.items() if own}
    lowest = min(
        (accuracy for own in known.values() for one in own for accuracy in one["clients"]), default=0.0
    )
    low = min(0.95, math.floor(20 * lowest) / 20)
    return {"low": low, "methods": [_accuracy(label, own, low) for label, own in known.items()]}


def _accuracy(label: str, own: Sequence[JsonObject], low: float) -> dict[str, Any]:
    clients = sorted(accuracy for one in own for accuracy in one["clients"])
    named = (pair for one in own for pair in zip(one["clients"], one["names"], strict=True))
    lowest = min(named, key=lambda pair: pair[0])
    bins = [0] * BINS
    for accuracy in clients:
        bins[min(BINS - 1, int(BINS * (accuracy - low) / (1 - low)))] += 1
    sizes = {len(one["confusion"]) for one in own}
    return {
        "method": label,
        "bins": bins,
        "median": statistics.median(clients),
        "least": clients[0],
        "least_name": lowest[1],
        "worst": statistics.fmean(_worst_tenth(one["clients"]) for one in own),
        "confusion": _summed([one["confusion"] for one in own]) if len(sizes) == 1 else [],
    }


def _worst_tenth(accuracies: Sequence[float]) -> float:
    return statistics.fmean(sorted(accuracies)[: max(1, round(0.1 * len(accuracies)))])


def _summed(tables: Sequence[list[list[int]]]) -> list[list[int]]:
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
