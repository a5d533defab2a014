"""What a person reads: numbers, colours, the cells of a comparison, and the progress of a run."""

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

MB = 1e6
NOTHING = "—"
PLAIN_LINES = 20
BASELINES = ("fedavg", "scaffold")

# Methods that belong together are kin: the lighter shade sends whole vectors, the darker compresses.
COLOURS = {
    "fedcomgate": "#0b4a9b",
    "fedgate": "#2f97d8",
    "fedcom": "#b03a00",
    "fedpaq": "#6e2500",
    "fedavg": "#d98c00",
    "scaffold": "#009e73",
    "diana": "#cc79a7",
    "vr-diana": "#8f2a6b",
    "fedprox": "#8a8a2b",
    "feddyn": "#6f6f6f",
}
SPARE = ("#332288", "#44aa99", "#aa4499", "#661100", "#6699cc", "#117733", "#b59a3c", "#000000", "#cc6677")

Entry = Mapping[str, Any]
Column = tuple[str, Callable[[Entry], str]]


def palette(methods: Iterable[str]) -> dict[str, str]:
    """The colour of each label: fixed for known methods, else picked by the label's checksum."""
    known = {method: COLOURS.get(method.lower(), "") for method in methods}
    free = list(SPARE)
    for method in sorted(method for method, colour in known.items() if not colour):
        free = free or list(SPARE)
        known[method] = free.pop(zlib.crc32(method.encode()) % len(free))
    return known


def short(label: str) -> str:
    """A label cut to what fits beside a figure."""
    return label if len(label) <= 28 else f"{label[:27]}…"


def is_number(value: float | None) -> TypeGuard[float]:
    """Neither missing, nor infinite, nor not a number."""
    return value is not None and math.isfinite(value)


def significant(value: float | None, digits: int) -> str:
    """A number with so many significant digits, without an exponent where that would hinder reading."""
    if not is_number(value):
        return NOTHING
    if 10**digits - 0.5 <= abs(value) < 1e7:  # whole numbers keep their last digits
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".") if value else "0"


def megabytes(nbytes: float | None) -> str:
    """Bytes as a number of MB (10^6 bytes)."""
    return significant(None if nbytes is None else nbytes / MB, 3)


def percent(fraction: float | None, spread: float | None = None) -> str:
    """A fraction in percent, without the sign, and its spread."""
    if not is_number(fraction):
        return NOTHING
    return f"{100 * fraction:.2f}" + (f" ±{100 * spread:.2f}" if spread is not None else "")


def columns(table: Sequence[Entry], target: float | None) -> list[Column]:
    """Headings and the text of a cell under each; columns that would be empty throughout are left out."""
    goal = NOTHING if target is None else f"{100 * target:g}%"
    wanted: list[Column] = [
        ("method", lambda e: str(e["method"])),
        ("loss", _loss),
        ("accuracy %", lambda e: percent(e["final_accuracy"], e["final_accuracy_spread"])),
        ("worst tenth %", lambda e: percent(e["worst_client_accuracy"])),
        ("up MB", lambda e: megabytes(e["uplink_bytes"])),
        ("down MB", lambda e: megabytes(e["downlink_bytes"])),
        (f"rounds to {goal}", lambda e: _rounds(e["rounds_to_target"])),
        (f"up MB to {goal}", _up_to_target),
        *((f"fewer than {name}", _times(f"times_fewer_than_{name}")) for name in BASELINES),
    ]
    return [c for c in wanted if c[0] in ("method", "loss") or {c[1](e) for e in table} - {NOTHING}]


def footnotes(table: Sequence[Entry]) -> list[str]:
    """What stands below the table: the units, and which of a method's runs did not finish."""
    units = "bytes are per client, 1 MB = 10⁶ bytes; ± is the standard deviation over seeds"
    cut = [e for e in table if e["diverged"] < e["runs"] and e["diverged"] + e["interrupted"]]
    return [units, *(f"{entry['method']}: {_unfinished(entry)}" for entry in cut)]


def _unfinished(entry: Entry) -> str:
    notes, runs = [], entry["runs"]
    for status in ("diverged", "interrupted"):
        if entry[status]:
            notes.append(status if entry[status] == runs else f"{entry[status]} of {runs} {status}")
            if status == "diverged" and entry["diverged_round"] is not None:
                notes[-1] += f"{' first' if entry[status] > 1 else ''} at round {entry['diverged_round']}"
    return ", ".join(notes)


def _loss(entry: Entry) -> str:
    if entry["status"] == "diverged":
        return _unfinished(entry)
    spread = entry["final_loss_spread"]
    return significant(entry["final_loss"], 4) + ("" if spread is None else f" ±{significant(spread, 2)}")


def _rounds(mean: float | None) -> str:
    return NOTHING if mean is None else f"{mean:.1f}".removesuffix(".0")


def _up_to_target(entry: Entry) -> str:
    reached, runs = entry["reached_target"], entry["runs"]
    text = megabytes(entry["uplink_bytes_to_target"])
    return f"{text} ({reached}/{runs})" if 0 < reached < runs else text


def _times(key: str) -> Callable[[Entry], str]:
    return lambda entry: NOTHING if entry[key] is None else f"{significant(entry[key], 2)}×"  # noqa: RUF001


class Display:
    """Shows nothing; the others show something at some of its calls."""

    def advance(self, round: int) -> None:
        """A round is over."""

    def update(self, row: Mapping[str, Any]) -> None:
        """A round was evaluated."""

    def close(self) -> None:
        """The run is over, well or not."""


class Plain(Display):
    """Some twenty lines a run, for logs and pipes; the first row and the last are always among them."""

    def __init__(self, console: "Console", total_rounds: int, label: str) -> None:
        self.console, self.total, self.label = console, total_rounds, label
        self.started = time.monotonic()
        self.first: int | None = None
        self.due = -1.0
        self.held: Mapping[str, Any] | None = None

    def update(self, row: Mapping[str, Any]) -> None:
        """Print the row if one is due, or hold it: it may prove to be the last."""
        self.held = row
        if self.first is None:
            self.first = row["round"]
        if row["round"] >= self.due or row["round"] >= self.total:
            self.due = row["round"] + self.total / PLAIN_LINES
            self.close()

    def close(self) -> None:
        """Print the row held back, if there is one."""
        if self.held is not None:
            round = f"round {self.held['round']}/{self.total}"
            line = "  ".join([self.label, round, _figures(self.held), self._times(self.held["round"])])
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self.held = None

    def _times(self, round: int) -> str:
        elapsed = time.monotonic() - self.started
        done = round - (self.first or 0)  # a resumed run does not start at round 0
        if done <= 0 or round >= self.total:
            return f"elapsed {_clock(elapsed)}"
        return f"elapsed {_clock(elapsed)}  left {_clock(elapsed / done * (self.total - round))}"


class Live(Display):
    """One line of a terminal, redrawn in place."""

    def __init__(self, progress: "Progress", total_rounds: int, label: str) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=total_rounds, figures="")
        self.fresh = True

    def advance(self, round: int) -> None:
        """Move the bar."""
        self.progress.update(self.task, completed=round)

    def update(self, row: Mapping[str, Any]) -> None:
        """Move the bar and show the row's figures."""
        # The first row may be that of a resumed run; counted as progress it would spoil the time left.
        show = self.progress.reset if self.fresh else self.progress.update
        show(self.task, completed=row["round"], figures=_figures(row))
        self.fresh = False


@contextmanager
def progress(
    total_rounds: int, label: str, quiet: bool = False, console: "Console | None" = None
) -> Iterator[Display]:
    """Show a run as it goes: a live line on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        yield Display()
        return
    from rich.console import Console

    # Standard error, so that what a command prints can be piped while its progress is watched.
    console = console or Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        with _bar(console) as bar:
            yield Live(bar, total_rounds, label)
        return
    plain = Plain(console, total_rounds, label)
    try:
        yield plain
    finally:
        plain.close()


def _bar(console: "Console") -> "Progress":
    from rich import progress as rich

    wide = console.width >= 100  # in a narrow terminal the figures matter more than the bar
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        *([rich.BarColumn(bar_width=16)] if wide else []),
        rich.TextColumn("round {task.completed}/{task.total}"),
        rich.TextColumn("{task.fields[figures]}", markup=False),
        rich.TimeElapsedColumn() if wide else rich.TextColumn("{task.elapsed:.0f}s"),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(compact=True),
        console=console,
    )


def _figures(row: Mapping[str, Any]) -> str:
    parts = [f"loss {significant(row.get('train_loss'), 4)}"]
    if row.get("test_accuracy") is not None:
        parts.append(f"acc {percent(row['test_accuracy'])}%")
    return "  ".join([*parts, f"up {megabytes(row.get('uplink_bytes'))} MB"])


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
