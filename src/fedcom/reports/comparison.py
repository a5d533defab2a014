"""The table that `fedcom compare` prints and writes: one line per method, means over its seeds."""

import csv
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedcom.engines.results import Row
from fedcom.formats import NOTHING, duration, html_table, is_number, percent, printable, significant, unit
from fedcom.reports import terminal
from fedcom.reports.markdown import markdown_table
from fedcom.reports.terminal import Fitted
from fedcom.runs.curve import UNFINISHED, Curve, milestones, timed
from fedcom.tasks.scores import FAIRNESS, WORST

if TYPE_CHECKING:
    from rich.console import RenderableType

MethodEntry = Mapping[str, Any]  # one line of the table: the results of one method
T = TypeVar("T")
K = TypeVar("K")


class Column(NamedTuple):
    """A column of the table.

    Args:
        text: of an entry's cell.
        key: of the entry's value, by which the column is sorted.
        best: min or max, which is the best of the values; None if none is better than another.
    """

    heading: str
    text: Callable[[MethodEntry], str]
    key: str
    best: Callable[[Iterable[float]], float] | None = None


SCORES = ("test_perplexity", "test_accuracy", "test_loss", "train_loss")  # see `scored_by`
BASELINES = ("fedavg", "scaffold")  # methods whose bytes the others' are compared with
_OF_TEXT = ("test_perplexity", "test_bits_per_character", "worst_client_perplexity")
_OWN_TESTS = ("test_c_index", *FAIRNESS, *_OF_TEXT)  # scores that only some tasks have
_NAME = 32  # characters of a name that a table shows
_COSTS = ("rounds", "uplink_bytes", "downlink_bytes", "seconds")


def compare_table(curves: Sequence[Curve], target: float | None) -> list[dict[str, Any]]:
    """One flat entry per method, in order of first appearance.

    Args:
        target: the test accuracy, from 0 to 1, that rounds and bytes are counted to; None for no target.
    """
    table = [_entry(method, runs, target) for method, runs in by_method(curves).items()]
    for key in _OWN_TESTS:
        if all(entry[key] is None for entry in table):
            for entry in table:
                del entry[key], entry[f"{key}_spread"]
    if all(entry[WORST] is None for entry in table):
        for entry in table:
            del entry[WORST]
    if not timed(row for curve in curves for row in curve.rows):
        for entry in table:
            del entry["modelled_seconds"], entry["seconds_to_target"]
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
        "diverged_round": min(ends, default=None),
        **{status: statuses.count(status) for status in UNFINISHED},
        "final_loss": _mean(finals, "train_loss"),
        "final_loss_spread": _deviation(finals, "train_loss"),
        "final_test_loss": _mean(finals, "test_loss"),
        "final_test_loss_spread": _deviation(finals, "test_loss"),
        "final_accuracy": _mean(finals, "test_accuracy"),
        "final_accuracy_spread": _deviation(finals, "test_accuracy"),
        "worst_client_accuracy": _mean(finals, "worst_client_accuracy"),
        **{key: _mean(finals, key) for key in _OWN_TESTS},
        **{f"{key}_spread": _deviation(finals, key) for key in _OWN_TESTS},
        WORST: _names(finals),
        "uplink_bytes": _mean(finals, "uplink_bytes"),
        "downlink_bytes": _mean(finals, "downlink_bytes"),
        "modelled_seconds": _mean(finals, "modelled_seconds"),
        "reached_target": len(_values(marks, "rounds_to_target")),
        **{f"{key}_to_target": _mean(marks, f"{key}_to_target") for key in _COSTS},
    }


def _names(rows: Iterable[Row]) -> str | None:
    """The name of the worst client; of several, with how often each was, the most frequent first."""
    names = Counter(str(name) for row in rows if (name := row.get(WORST)) is not None)
    if len(names) < 2:
        return next(iter(names), None)
    return ", ".join(f"{name} ({times})" for name, times in names.most_common())


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Things by a key, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def scored_by(records: Sequence[Mapping[str, Any]]) -> str:
    """The figure by which trials of one task are compared: the first that some record has."""
    return next((key for key in SCORES if any(is_number(record.get(key)) for record in records)), SCORES[-1])


def by_method(curves: Iterable[Curve]) -> dict[str, list[Curve]]:
    """The curves of each method."""
    return grouped(curves, lambda curve: curve.method)


def _values(rows: Iterable[Row], key: str) -> list[float]:
    return [float(row[key]) for row in rows if is_number(row.get(key))]


def _mean(rows: Iterable[Row], key: str) -> float | None:
    values = _values(rows, key)
    return statistics.fmean(values) if values else None


def _deviation(rows: Iterable[Row], key: str) -> float | None:
    values = _values(rows, key)
    return statistics.stdev(values) if len(values) > 1 else None


def render(table: Sequence[MethodEntry], target: float | None) -> "RenderableType":
    """The table of `compare_table` for a terminal; the headings name the target."""
    shown = columns(table, target)
    # Headings are wrapped, as they are the widest text in most columns and a terminal may have only 80.
    drawn = [
        terminal.Column(textwrap.fill(heading, 6, break_long_words=False), [text(entry) for entry in table])
        for heading, text, *_ in shown
    ]
    return Fitted(drawn, _footnotes(table))


def markdown(table: Sequence[MethodEntry], target: float | None) -> str:
    """The table of `compare_table` in Markdown; the headings name the target."""
    shown = columns(table, target)
    headings = [column.heading for column in shown]
    rows = [[column.text(entry).replace("<", "\\<") for column in shown] for entry in table]
    notes = "\n".join(f"- {note}" for note in _footnotes(table))
    return f"{markdown_table(headings, rows, 'l' + 'r' * (len(shown) - 1))}\n\n{notes}\n"


def html(table: Sequence[MethodEntry], target: float | None) -> str:
    """The table of `compare_table` in HTML, for notebooks."""
    shown = columns(table, target)
    rows = [[column.text(entry) for column in shown] for entry in table]
    notes = "".join(f"<p>{escape(note)}</p>" for note in _footnotes(table))
    return html_table(rows, [column.heading for column in shown]) + notes


def write_csv(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write any table with all digits; None becomes an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]) if table else [])
        writer.writeheader()
        writer.writerows(table)


def columns(table: Sequence[MethodEntry], target: float | None) -> list[Column]:
    """The columns to show; one that would be empty for every method is left out."""
    name, scale = unit(max((e["uplink_bytes"] or 0 for e in table), default=0))
    goal = NOTHING if target is None else f"{100 * target:g}%"
    in_percent = " %" if any(e["final_accuracy"] is not None for e in table) else ""
    wanted = [
        Column("method", lambda e: str(e["method"]), "method"),
        Column("loss", _loss, "final_loss", min),
        Column("test loss", _test_loss, "final_test_loss", min),
        Column("accuracy %", _accuracy, "final_accuracy", max),
        Column("perplexity", lambda e: _plain(e, "test_perplexity"), "test_perplexity", min),
        Column(
            "bits per character",
            lambda e: _plain(e, "test_bits_per_character"),
            "test_bits_per_character",
            min,
        ),
        Column("C-index", lambda e: _share(e, "test_c_index"), "test_c_index", max),
        Column("worst tenth %", _worst_tenth, "worst_client_accuracy", max),
        Column(
            "worst tenth's perplexity",
            lambda e: _plain(e, "worst_client_perplexity"),
            "worst_client_perplexity",
            min,
        ),
        Column(f"client mean{in_percent}", lambda e: _share(e, "client_mean"), "client_mean", max),
        Column(f"worst client{in_percent}", lambda e: _share(e, "client_worst"), "client_worst", max),
        Column("worst client's name", _worst_name, WORST),
        Column(f"client spread{in_percent}", lambda e: _share(e, "client_spread"), "client_spread", min),
        Column(f"up {name}", lambda e: _bytes(e["uplink_bytes"], scale), "uplink_bytes"),
        Column(f"down {name}", lambda e: _bytes(e["downlink_bytes"], scale), "downlink_bytes"),
        Column(f"rounds to {goal}", lambda e: _rounds(e["rounds_to_target"]), "rounds_to_target", min),
        Column(f"up {name} to {goal}", lambda e: _up_to_target(e, scale), "uplink_bytes_to_target", min),
        Column(f"time to {goal}", lambda e: duration(e.get("seconds_to_target")), "seconds_to_target", min),
        *(
            Column(
                f"fewer than {rival}", _times(f"times_fewer_than_{rival}"), f"times_fewer_than_{rival}", max
            )
            for rival in BASELINES
        ),
    ]
    return [c for c in wanted if c.heading in ("method", "loss") or {c.text(e) for e in table} - {NOTHING}]


def _footnotes(table: Sequence[MethodEntry]) -> list[str]:
    """The lines below the table: the units, and which runs did not finish."""
    units = "bytes are per client, 1 kB = 1000 bytes; ± is the standard deviation over seeds"
    cut = [e for e in table if e["diverged"] < e["runs"] and any(e[status] for status in UNFINISHED)]
    time = ["time is modelled, by the network section of the config"] if timed(table) else []
    own = "client mean, worst client and client spread are of clients' own test samples"
    r2 = all(entry["final_accuracy"] is None and entry.get("test_c_index") is None for entry in table)
    own += ", their r2" * r2
    own_tests = [own] if any("client_mean" in entry for entry in table) else []
    return [units, *own_tests, *time, *(f"{entry['method']}: {_unfinished(entry)}" for entry in cut)]


def _unfinished(entry: MethodEntry) -> str:
    notes, runs = [], entry["runs"]
    for status in UNFINISHED:
        if entry[status]:
            notes.append(status if entry[status] == runs else f"{entry[status]} of {runs} {status}")
            if status == "diverged" and entry["diverged_round"] is not None:
                notes[-1] += f"{' first' if entry[status] > 1 else ''} at round {entry['diverged_round']}"
    return ", ".join(notes)


def _loss(entry: MethodEntry) -> str:
    if entry["status"] == "diverged":
        return _unfinished(entry)
    return _with_spread(entry["final_loss"], entry["final_loss_spread"])


def _test_loss(entry: MethodEntry) -> str:
    """The test loss, unless there is an accuracy, which says more."""
    if entry["final_accuracy"] is not None:
        return NOTHING
    return _with_spread(entry["final_test_loss"], entry["final_test_loss_spread"])


def _with_spread(mean: float | None, spread: float | None) -> str:
    return significant(mean, 4) + ("" if spread is None else f" ±{significant(spread, 2)}")


def _accuracy(entry: MethodEntry) -> str:
    return percent(entry["final_accuracy"], entry["final_accuracy_spread"])


def _plain(entry: MethodEntry, key: str) -> str:
    """A score that only text has, with its spread."""
    return NOTHING if entry.get(key) is None else _with_spread(entry[key], entry.get(f"{key}_spread"))


def _share(entry: MethodEntry, key: str) -> str:
    """A score that only some tasks have: in % if it is of accuracies, else with three digits."""
    mean, spread = entry.get(key), entry.get(f"{key}_spread")
    if entry["final_accuracy"] is not None:
        return percent(mean, spread)
    return NOTHING if mean is None else f"{mean:.3f}" + ("" if spread is None else f" ±{spread:.3f}")


def _worst_tenth(entry: MethodEntry) -> str:
    """On training samples, unless clients have test samples of their own, which say more."""
    return NOTHING if entry.get("client_worst") is not None else percent(entry["worst_client_accuracy"])


def _worst_name(entry: MethodEntry) -> str:
    """The names of the worst clients; what is long is cut."""
    name = entry.get(WORST)
    return NOTHING if name is None else printable(name, _NAME)


def _rounds(mean: float | None) -> str:
    return NOTHING if mean is None else f"{mean:.1f}".removesuffix(".0")


def _bytes(nbytes: float | None, scale: float) -> str:
    return significant(None if nbytes is None else nbytes / scale, 3)


def _up_to_target(entry: MethodEntry, scale: float) -> str:
    reached, runs = entry["reached_target"], entry["runs"]
    text = _bytes(entry["uplink_bytes_to_target"], scale)
    return f"{text} ({reached}/{runs})" if 0 < reached < runs else text


def _times(key: str) -> Callable[[MethodEntry], str]:
    return lambda entry: NOTHING if entry[key] is None else f"{significant(entry[key], 2)}×"  # noqa: RUF001
