"""The sections of the page: notices, results, bytes, settings and runs."""

import json
import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedcom.config import dumps
from fedcom.formats import MB, NOTHING, clock, is_number, megabytes, percent, significant, size
from fedcom.redaction import redacted_command
from fedcom.reports import comparison
from fedcom.reports.comparison import Column, MethodEntry, compare_table
from fedcom.reports.looks import Look, looks
from fedcom.reports.page.collect import Notice, SavedRun, by_label, flattened, is_usable
from fedcom.reports.page.markup import Cell, Html, join, swatch, table, tag, text
from fedcom.runs.curve import UNFINISHED
from fedcom.runs.status import pace

PARTS = 6  # different shades in a bar


def notices(found: Sequence[Notice]) -> Html:
    """What was skipped: each fault, with the folders that have it."""
    faults = comparison.grouped(found, lambda notice: notice[0])
    lines = [
        tag("li", f"{what} — ", tag("code", _few([where for _, where in own])))
        for what, own in faults.items()
    ]
    title = "Some files were missing or could not be read; the rest is shown."
    return (
        tag("aside", tag("p", title), tag("ul", *lines), class_="notice", role="note") if lines else Html("")
    )


def _few(names: Sequence[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def looks_of(runs: Sequence[SavedRun]) -> dict[str, Look]:
    """The look of each label."""
    return looks({run.label: run.method for run in runs})


def target_of(runs: Sequence[SavedRun]) -> float | None:
    """The target accuracy that most runs have."""
    targets = [goal for run in runs if is_usable(goal := run.config.get("run", {}).get("target_accuracy"))]
    return statistics.mode(targets) if targets else None


def going(runs: Sequence[SavedRun]) -> Html:
    """The runs that go on, one line each: the round and the time left first."""
    shown, lines = looks_of(runs), []
    for run in (run for run in runs if run.status == "running"):
        last, total, rate = (
            run.rows[-1] if run.rows else {},
            run.config.get("run", {}).get("rounds"),
            pace(run.rows),
        )
        total, done = total if is_usable(total) and total >= 1 else None, last.get("round", 0)
        left = "" if total is None or not rate else f"left {clock(max(0.0, total - done) / rate)}"
        known = [f"loss {significant(last['train_loss'], 3)}"] if is_number(last.get("train_loss")) else []
        known += (
            [f"accuracy {percent(last['test_accuracy'])}%"] if is_number(last.get("test_accuracy")) else []
        )
        far = tag("progress", value=done, max=total, aria_label=f"rounds of {run.label}") if total else ""
        parts = [
            tag("b", f"round {done}" + (f"/{total}" if total else "")),
            tag("span", left, class_="left"),
            far,
            _name(f"{run.label}, seed {run.seed}", {f"{run.label}, seed {run.seed}": shown[run.label]}),
            tag("span", ", ".join(known), class_="quiet"),
        ]
        lines.append(tag("div", *parts, class_="going"))
    return tag("section", *lines, aria_label="Runs that go on") if lines else Html("")


def finding(runs: Sequence[SavedRun]) -> str:
    """The page in one sentence: who needed the fewest bytes to the target and stayed, or who ended best.

    Of equal accuracies, as written, the one of fewest bytes is best. It says nothing while runs go on.
    """
    if any(run.status == "running" for run in runs):
        return ""
    target = target_of(runs)
    entries = compare_table([run.curve for run in runs], target)
    sound = [entry for entry in entries if entry["diverged"] < entry["runs"]]
    reached = [e for e in sound if e["reached_target"] == e["runs"] and e["uplink_bytes_to_target"]]
    seeds = sorted({entry["runs"] for entry in sound})
    if not sound:
        return "Every run diverged." if entries else ""
    told = f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seed{'s' * (seeds[-1] > 1)}"
    if seeds == [1] and len(sound) > 1:
        told += " each, so small differences may be chance"
    stayed = [e for e in reached if target is not None and (e["final_accuracy"] or 0.0) >= target]
    if target is not None and stayed:
        first = min(stayed, key=lambda e: e["uplink_bytes_to_target"])
        need = f"{size(first['uplink_bytes_to_target'])} up{_times_less(first, stayed)}"
        return f"{first['method']} reached {100 * target:g}% with {need}; {told}."
    scored = [entry for entry in sound if is_number(entry["final_accuracy"])]
    if not scored:
        lost = [entry for entry in sound if is_number(entry["final_loss"])]
        best = min(lost, key=lambda e: e["final_loss"], default=None)
        return (
            f"{best['method']} ended at the lowest loss, {significant(best['final_loss'], 3)}; {told}."
            if best
            else ""
        )
    best = max(scored, key=lambda e: (round(e["final_accuracy"], 4), -(e["uplink_bytes"] or 0)))
    nobody = (
        ""
        if target is None
        else f"No method {'ended at' if reached else 'reached'} {100 * target:g}% in every run. "
    )
    most = f"{best['method']} ended at {percent(best['final_accuracy'], best['final_accuracy_spread'])}%"
    return f"{nobody}{most} with {size(best['uplink_bytes'])} up; {told}."


def _times_less(first: MethodEntry, reached: Sequence[MethodEntry]) -> str:
    """How many times fewer bytes the first method needed than FedAvg or SCAFFOLD, else than the last."""
    others = [entry for entry in reached if entry is not first]
    named = [entry for name in comparison.BASELINES for entry in others if entry["method"].lower() == name]
    rival = next(iter(named), max(others, key=lambda e: e["uplink_bytes_to_target"], default=None))
    if rival is None:
        return ""
    times = rival["uplink_bytes_to_target"] / first["uplink_bytes_to_target"]
    return f", {significant(times, 2)} times less than {rival['method']}" if times >= 1.05 else ""


def summary(runs: Sequence[SavedRun]) -> Html:
    """One line per method: how it ended, and the columns of the table that `fedcom compare` prints."""
    target, shown = target_of(runs), looks_of(runs)
    entries = compare_table([run.curve for run in runs], target)
    columns = comparison.columns(entries, target)[1:]
    described = {run.label: run.description for run in runs if run.description != run.label}
    sound = [entry for entry in entries if entry["diverged"] < entry["runs"]]
    best = {
        column.key: top
        for column in columns
        if column.best
        and len(values := [v for e in sound if is_number(v := e.get(column.key))]) > 1
        and _alone(column, sound, top := column.best(values))
    }
    chance = all(entry["runs"] == 1 for entry in sound)
    rows = [
        [
            _name(entry["method"], shown, described.get(entry["method"], "")),
            _status(entry),
            Cell(entry["runs"], entry["runs"]),
            *(_figure(entry, column, best.get(column.key), chance) for column in columns),
        ]
        for entry in entries
    ]
    headings = ["method", "status", "seeds", *(column.heading for column in columns)]
    return table("Results by method", headings, rows, names=2)


def _alone(column: Column, entries: Sequence[MethodEntry], top: float) -> bool:
    """Whether one method alone has the best value of a column, also as it is written."""
    (written, *_) = [column.text(entry) for entry in entries if entry.get(column.key) == top]
    return sum(top == entry.get(column.key) or written == column.text(entry) for entry in entries) == 1


def _name(label: str, shown: Mapping[str, Look], more: str = "") -> Html:
    words = tag("span", label, *[tag("small", more)] * bool(more))
    return tag("span", swatch(shown[label]), words, class_="name")


def _figure(entry: MethodEntry, column: Column, best: float | None, chance: bool) -> Cell:
    if column.key == "final_loss" and entry["status"] == "diverged":
        return Cell(NOTHING, None)  # the status says so
    value = entry.get(column.key)
    star = ("one seed" if chance else "seeds") if value is not None and value == best else ""
    return Cell(column.text(entry), value if is_number(value) else None, star)


def _status(entry: MethodEntry) -> Html:
    """How the runs ended, in words; the colour says the same."""
    words = []
    for status in UNFINISHED:
        if count := entry[status]:
            words.append(status if count == entry["runs"] else f"{count} {status}")
    if entry["diverged_round"] is not None:
        words[0] += f" at round {entry['diverged_round']}"
    return tag("span", ", ".join(words) or "done", class_=f"status {entry['status']}")


_ESTIMATED = (
    "Some messages were coded on a GPU. Their bytes are estimates, each within 12 bytes or 0.1% of the real "
    "message, here and wherever this page shows bytes; all others are exact. run.encode=true makes real ones."
)


def traffic(runs: Sequence[SavedRun]) -> Html:
    """Bytes per client by direction, vector and part, as bars and as a table."""
    shown = looks_of(runs)
    itemised = {label: _account(group) for label, group in by_label(runs).items()}
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
            tag("div", _name(label, shown), class_="who"),
            *(
                _bar(way, items, sums[label, way], widest, shown[label].colour)
                for way in ("uplink", "downlink")
            ),
            class_="bars",
        )
        for label, items in itemised.items()
    ]
    rows = [
        [
            label,
            *key,
            Cell(significant(size / MB, 4), size),
            Cell(percent(share := size / sums[label, key[0]]), share),
        ]
        for label, items in itemised.items()
        for key, size in items.items()
    ]
    headings = ["method", "direction", "vector", "part", "MB per client", "% of direction"]
    listed = table("Bytes itemised", headings, rows, names=4)
    shares = tag("div", *bars, class_="traffic", aria_hidden="true")
    estimated = not all(run.ledger.get("exact", True) for run in runs)
    note = [tag("p", _ESTIMATED, class_="quiet")] if estimated else []
    return join([shares, *note, _fold("Itemised, as a table", listed)])


def _account(runs: Sequence[SavedRun]) -> dict[tuple[str, str, str], float]:
    """The mean bytes per client of each part, largest first within a direction."""
    ledgers = [run.ledger for run in runs if run.ledger]
    total: dict[tuple[str, str, str], float] = {}
    for ledger in ledgers:
        for way in ("uplink", "downlink"):
            for vector, parts in ledger[way].items():
                for part, nbytes in parts.items():
                    key = (way, vector, part)
                    total[key] = total.get(key, 0.0) + nbytes / ledger["clients"] / len(ledgers)
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


def samples(runs: Sequence[SavedRun]) -> Html:
    """How each language model goes on with a text, before its run and after it; one seed of each label."""
    told = {label: own for label, group in by_label(runs).items() if (own := [r for r in group if r.samples])}
    if not told:
        return Html("")
    parts = []
    for label, (first, *_) in told.items():
        lines = [(which, first.samples[which]) for which in ("before", "after")]
        texts = [Html(tag("dt", which) + tag("dd", tag("pre", words))) for which, words in lines]
        parts.append(tag("div", tag("h3", label), tag("dl", *texts)))
    about = f"How models go on with “{first.samples['prompt']}”, by their likeliest tokens, before and after."
    return tag("section", tag("h2", "Text"), tag("p", about, class_="quiet"), *parts, id="text")


def settings(runs: Sequence[SavedRun]) -> Html:
    """The settings that differ between methods, one per column."""
    groups = by_label(runs)
    flat = {label: flattened(group[0].config) for label, group in groups.items()}
    keys = dict.fromkeys(key for config in flat.values() for key in config if key != "run.seed")
    differ = [key for key in keys if len({_shown(config.get(key)) for config in flat.values()}) > 1]
    if not differ:
        same = "There is one method." if len(flat) == 1 else "All methods have the same settings."
        return tag("p", same, class_="quiet")
    rows = [[label, *(_worded(_shown(config.get(key))) for key in differ)] for label, config in flat.items()]
    heads = [Html(re.sub(r"([._])", r"\1<wbr>", text(key))) for key in differ]
    return table("Settings that differ", ["method", *heads], rows, names=len(differ) + 1)


def _worded(value: str) -> str:
    """A setting's value; a long one may be broken."""
    return tag("span", value, class_="long") if len(value) > 24 else value


def _shown(value: Any) -> str:
    return NOTHING if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def repeat(runs: Sequence[SavedRun]) -> Html:
    """For every run: its folder, the commands that repeat it, its environment and its settings."""
    parts = []
    for label, group in by_label(runs).items():
        folds = [_fold(f"seed {run.seed} · {run.status}", *_facts(run)) for run in group]
        parts.append(_fold(f"{label} ({len(group)} run{'s' * (len(group) > 1)})", *folds))
    return join(parts)


def _facts(run: SavedRun) -> list[Html]:
    command = run.environment.get("command")
    words = redacted_command([str(word) for word in command]) if isinstance(command, list) else None
    alone = shlex.join(["fedcom", "run", str(run.folder / "config.toml")])
    lines = [("folder", str(run.folder)), ("this run alone", alone)]
    reason = run.summary.get("reason")
    lines += [("why it ended", _shown(reason))] * bool(reason and run.status != "running")
    void = run.summary.get("void")
    lines += [("void rounds", f"{void}: too few clients replied")] if void else []
    lines += [("as it was started", shlex.join(words))] if words else []
    lines += [(key, _shown(value)) for key, value in run.environment.items() if key != "command"]
    facts = [Html(tag("dt", key) + tag("dd", tag("code", value))) for key, value in lines]
    return [tag("dl", *facts), tag("pre", dumps(run.config), tabindex=0, aria_label="config.toml")]


def _fold(title: str, *content: object) -> Html:
    return tag("details", tag("summary", title), *content)
