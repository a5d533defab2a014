"""The sections of the page: notices, results, bytes, settings and runs."""

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedcom.config import dumps
from fedcom.formats import MB, NOTHING, duration, megabytes, percent, significant
from fedcom.reports.comparison import MethodEntry, compare_table
from fedcom.reports.figures import palette
from fedcom.reports.page.collect import JsonObject, Notice, SavedRun, is_usable
from fedcom.reports.page.markup import Html, join, swatch, table, tag
from fedcom.runs.curve import UNFINISHED

PARTS = 6  # different shades in a bar


def grouped(runs: Sequence[SavedRun]) -> dict[str, list[SavedRun]]:
    """The runs of each label, in order of first appearance."""
    groups: dict[str, list[SavedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def notices(found: Sequence[Notice]) -> Html:
    """What was skipped: each fault, with the folders that have it."""
    faults: dict[str, list[str]] = {}
    for what, where in found:
        faults.setdefault(what, []).append(where)
    lines = [tag("li", f"{what} — ", tag("code", _few(where))) for what, where in faults.items()]
    title = "Some files were missing or could not be read; the rest is shown."
    return (
        tag("aside", tag("p", title), tag("ul", *lines), class_="notice", role="note") if lines else Html("")
    )


def _few(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def summary(runs: Sequence[SavedRun]) -> Html:
    """One line per method: how it ended, its scores and bytes, and what it took to reach the target."""
    targets = [goal for run in runs if is_usable(goal := run.config.get("run", {}).get("target_accuracy"))]
    target = statistics.mode(targets) if targets else None
    goal = NOTHING if target is None else f"{100 * target:g}%"
    colours = palette(run.label for run in runs)
    entries = compare_table([run.curve for run in runs], target)
    times = [duration(entry.get("seconds_to_target")) for entry in entries]
    timed = set(times) != {NOTHING}
    headings = [
        "method",
        "status",
        "seeds",
        "loss",
        "accuracy %",
        "up MB",
        "down MB",
        f"rounds to {goal}",
        f"up MB to {goal}",
        *[f"time to {goal}"] * timed,
    ]
    rows = [
        [_name(entry["method"], colours), _status(entry), entry["runs"], *_figures(entry)] + [time] * timed
        for entry, time in zip(entries, times, strict=True)
    ]
    return table("Results by method", headings, rows, names=2)


def _name(label: str, colours: Mapping[str, str]) -> Html:
    return tag("span", swatch(colours[label]), label, class_="name")


def _figures(entry: MethodEntry) -> list[str]:
    spread, rounds = entry["final_loss_spread"], entry["rounds_to_target"]
    some = 0 < entry["reached_target"] < entry["runs"]
    reached = f" ({entry['reached_target']}/{entry['runs']})" if some else ""
    return [
        significant(entry["final_loss"], 4) + ("" if spread is None else f" ±{significant(spread, 2)}"),
        percent(entry["final_accuracy"], entry["final_accuracy_spread"]),
        megabytes(entry["uplink_bytes"]),
        megabytes(entry["downlink_bytes"]),
        NOTHING if rounds is None else f"{rounds:.1f}".removesuffix(".0") + reached,
        megabytes(entry["uplink_bytes_to_target"]),
    ]


def _status(entry: MethodEntry) -> Html:
    """How the runs ended, in words; the colour says the same."""
    words = []
    for status in UNFINISHED:
        if count := entry[status]:
            words.append(status if count == entry["runs"] else f"{count} {status}")
    if entry["diverged_round"] is not None:
        words[0] += f" at round {entry['diverged_round']}"
    return tag("span", ", ".join(words) or "done", class_=f"status {entry['status']}")


def traffic(runs: Sequence[SavedRun]) -> Html:
    """Bytes per client by direction, vector and part, as bars and as a table."""
    colours = palette(run.label for run in runs)
    itemised = {label: _account(group) for label, group in grouped(runs).items()}
    itemised = {label: items for label, items in itemised.items() if items}
    if not itemised:
        return tag("p", "No run has left a ledger.json.", class_="quiet")
    sums = {
        (label, way): sum(size for (w, *_), size in items.items() if w == way)
        for label, items in itemised.items()
        for way in ("uplink", "downlink")
    }
    widest = max(*sums.values(), 1)
    bars = [
        tag(
            "div",
            tag("div", _name(label, colours), class_="who"),
            *(_bar(way, items, sums[label, way], widest, colours[label]) for way in ("uplink", "downlink")),
            class_="bars",
        )
        for label, items in itemised.items()
    ]
    rows = [
        [label, *key, significant(size / MB, 4), percent(size / sums[label, key[0]])]
        for label, items in itemised.items()
        for key, size in items.items()
    ]
    headings = ["method", "direction", "vector", "part", "MB per client", "% of direction"]
    listed = table("Bytes itemised", headings, rows, names=4)
    return join(
        [tag("div", *bars, class_="traffic", aria_hidden="true"), _fold("Itemised, as a table", listed)]
    )


def _account(runs: Sequence[SavedRun]) -> dict[tuple[str, str, str], float]:
    """The mean bytes per client of each part, largest first within a direction."""
    ledgers = [run.ledger for run in runs if run.ledger]
    total: dict[tuple[str, str, str], float] = {}
    for ledger in ledgers:
        for way in ("uplink", "downlink"):
            for vector, parts in ledger[way].items():
                for part, size in parts.items():
                    key = (way, vector, part)
                    total[key] = total.get(key, 0.0) + size / ledger["clients"] / len(ledgers)
    return dict(
        sorted(((k, v) for k, v in total.items() if v), key=lambda item: (item[0][0] != "uplink", -item[1]))
    )


def _bar(
    way: str, items: Mapping[tuple[str, str, str], float], total: float, widest: float, colour: str
) -> Html:
    own = [(vector, part, size) for (w, vector, part), size in items.items() if w == way]
    pieces = [
        tag(
            "b",
            style=f"width:{100 * size / widest:.3f}%;--c:{colour};--n:{min(i, PARTS)}",
            data_c=colour,
            title=f"{vector} · {part}: {significant(size / MB, 4)} MB",
        )
        for i, (vector, part, size) in enumerate(own)
    ]
    large = [
        f"{vector} {part} {100 * size / total:.0f}%" for vector, part, size in own if size > 0.01 * total
    ]
    size = tag("span", f"{megabytes(total)} MB ", tag("i", ", ".join(large[:2])), class_="size")
    return tag(
        "div",
        tag("span", "up" if way == "uplink" else "down", class_="way"),
        tag("span", *pieces, size, class_="track"),
        class_="bar",
    )


def settings(runs: Sequence[SavedRun]) -> Html:
    """The settings that differ between methods, one per column."""
    groups = grouped(runs)
    flat = {label: _flat(group[0].config) for label, group in groups.items()}
    keys = dict.fromkeys(key for config in flat.values() for key in config if key != "run.seed")
    differ = [key for key in keys if len({_shown(config.get(key)) for config in flat.values()}) > 1]
    if not differ:
        same = "There is one method." if len(flat) == 1 else "All methods have the same settings."
        return tag("p", same, class_="quiet")
    rows = [[label, *(_shown(config.get(key)) for key in differ)] for label, config in flat.items()]
    return table("Settings that differ", ["method", *differ], rows, names=len(differ) + 1)


def _flat(config: JsonObject) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in config.items() for key, value in keys.items()}


def _shown(value: Any) -> str:
    return NOTHING if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def repeat(runs: Sequence[SavedRun]) -> Html:
    """For every run: its folder, the commands that repeat it, its environment and its settings."""
    parts = []
    for label, group in grouped(runs).items():
        folds = [_fold(f"seed {run.seed} · {run.status}", *_facts(run)) for run in group]
        parts.append(_fold(f"{label} ({len(group)} run{'s' * (len(group) > 1)})", *folds))
    return join(parts)


def _facts(run: SavedRun) -> list[Html]:
    command = run.environment.get("command")
    started = [str(word) for word in command] if isinstance(command, list) else []
    name = started[0].replace("\\", "/").rsplit("/", 1)[-1] if started else ""
    words = ["fedcom" if name in ("", "__main__.py") else name, *started[1:]]
    alone = shlex.join(["fedcom", "run", str(run.folder / "config.toml")])
    lines = [("folder", str(run.folder)), ("this run alone", alone)]
    reason = run.summary.get("reason")
    lines += [("why it ended", _shown(reason))] * bool(reason and run.status != "running")
    lines += [("as it was started", shlex.join(words))] * bool(started)
    lines += [(key, _shown(value)) for key, value in run.environment.items() if key != "command"]
    facts = [Html(tag("dt", key) + tag("dd", tag("code", value))) for key, value in lines]
    return [tag("dl", *facts), tag("pre", dumps(run.config), tabindex=0, aria_label="config.toml")]


def _fold(title: str, *content: object) -> Html:
    return tag("details", tag("summary", title), *content)
