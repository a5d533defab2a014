"""The progress of a run: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedcom.formats import megabytes, percent, significant

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PLAIN_LINES = 20


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
