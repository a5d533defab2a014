"""The progress of a run: a live line on a terminal, a bar in a notebook, plain lines elsewhere."""

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedcom.errors import Stopped
from fedcom.formats import clock, percent, significant, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

_REDRAW = 0.2  # seconds between two pictures of a bar in a notebook
PLAIN_LINES = 20  # about how many lines a run prints where there is no terminal


class Pace:
    """How many tokens of text a run takes per second, evaluations included.

    Args:
        tokens: that all clients of a round are trained on; None: it is no text.
    """

    def __init__(self, tokens: float | None = None) -> None:
        self.tokens, self._first = tokens, (time.monotonic(), 0)
        self._begun = False

    def words(self, round: int) -> list[str]:
        """The tokens per second since the first round that was shown, in words; nothing before the next."""
        if not self._begun:
            self._begun, self._first = True, (time.monotonic(), round)
        began, first = self._first
        seconds = time.monotonic() - began
        if self.tokens is None or round <= first or seconds <= 0:
            return []
        return [f"{significant((round - first) * self.tokens / seconds, 3)} tokens/s"]


class Display:
    """Shows nothing; subclasses show progress in some of these calls."""

    def advance(self, round: int) -> None:
        """Called after every round."""

    def update(self, row: Mapping[str, Any]) -> None:
        """Called with the row of every evaluated round."""

    def close(self) -> None:
        """Called when the run has ended, with or without an error."""


class Plain(Display):
    """Prints about twenty lines per run, for logs and pipes; always the first row and the last."""

    def __init__(self, console: "Console", total_rounds: int, label: str, pace: Pace) -> None:
        self.console, self.total, self.label, self.pace = console, total_rounds, label, pace
        self.started = time.monotonic()
        self.first: int | None = None
        self.due, self.measured, self.said = -1.0, -1, 0  # the next row to print, the last row, the last line
        self.held: Mapping[str, Any] | None = None

    def advance(self, round: int) -> None:
        """Print a line without figures if none was measured for long, as in a sweep."""
        if self.first is None:
            self.first = 0
        if round - max(self.measured, 0) > self._pause <= round - self.said and round < self.total:
            self._print(round, [])

    @property
    def _pause(self) -> float:
        """Rounds between two lines."""
        return max(1.0, self.total / PLAIN_LINES)

    def update(self, row: Mapping[str, Any]) -> None:
        """Print the row if a line is due; else keep it, as it may be the last."""
        self.held, self.measured = row, row["round"]
        if self.first is None:
            self.first = row["round"]
        if row["round"] >= self.due or row["round"] >= self.total:
            self.due = row["round"] + self._pause
            self.close()

    def close(self) -> None:
        """Print the row that was kept, if there is one; raise Stopped if nobody can read it any more."""
        row, self.held = self.held, None
        if row is not None:
            self._print(row["round"], [_figures(row)])

    def _print(self, round: int, figures: list[str]) -> None:
        self.said = round
        figures = [*figures, *self.pace.words(round)]
        line = "  ".join([self.label, f"round {round}/{self.total}", *figures, self._times(round)])
        try:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        except OSError:
            raise Stopped(signal.SIGPIPE, between_rounds=True) from None

    def _times(self, round: int) -> str:
        elapsed = time.monotonic() - self.started
        done = round - (self.first or 0)  # a resumed run does not start at round 0
        if done <= 0 or round >= self.total:
            return f"elapsed {clock(elapsed)}"
        return f"elapsed {clock(elapsed)}  left {clock(elapsed / done * (self.total - round))}"


class Live(Display):
    """One line of a terminal, redrawn in place."""

    def __init__(self, progress: "Progress", total_rounds: int, label: str, pace: Pace) -> None:
        self.progress, self.pace, self.figures = progress, pace, ""
        self.task = progress.add_task(label, total=total_rounds, figures="")
        self.fresh = True

    def advance(self, round: int) -> None:
        """Move the bar."""
        self.progress.update(self.task, completed=round, figures=self._told(round))

    def _told(self, round: int) -> str:
        return "  ".join([self.figures, *self.pace.words(round)])

    def update(self, row: Mapping[str, Any]) -> None:
        """Move the bar and show the row's figures."""
        # A resumed run does not start at round 0. Its first row must not count as progress, or the time left
        # would be wrong.
        show = self.progress.reset if self.fresh else self.progress.update
        self.figures = _figures(row)
        show(self.task, completed=row["round"], figures=self._told(row["round"]))
        self.fresh = False


class Notebook(Display):
    """A bar in a notebook, redrawn in place."""

    def __init__(self, total_rounds: int, label: str, pace: Pace) -> None:
        shown: Any = import_module("IPython.display")
        self._html, self.total, self.label, self.pace = shown.HTML, total_rounds, label, pace
        self.started, self.drawn, self.figures = time.monotonic(), 0.0, ""
        self._handle: Any = shown.display(shown.HTML(self._picture(0)), display_id=True)

    def advance(self, round: int) -> None:
        """Move the bar, a few times per second at most."""
        if time.monotonic() - self.drawn > _REDRAW or round >= self.total:
            self._draw(round)

    def update(self, row: Mapping[str, Any]) -> None:
        """Move the bar and show the row's figures."""
        self.figures = _figures(row)
        self.advance(row["round"])

    def _draw(self, round: int) -> None:
        self.drawn = time.monotonic()
        self._handle.update(self._html(self._picture(round)))

    def _picture(self, round: int) -> str:
        told = " ".join([self.figures, *self.pace.words(round)])
        words = f"round {round}/{self.total} {told} {clock(time.monotonic() - self.started)}"
        bar = f'<progress value="{round}" max="{max(self.total, 1)}"></progress>'
        return f"<div>{escape(self.label)} {bar} {escape(words)}</div>"


def _in_notebook() -> bool:
    """Whether this is a notebook's kernel; IPython is not imported for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def progress(
    total_rounds: int,
    label: str,
    quiet: bool = False,
    console: "Console | None" = None,
    tokens: float | None = None,
) -> Iterator[Display]:
    """Show the progress of a run: a live line on a terminal, plain lines elsewhere, nothing when quiet.

    Args:
        label: what the run is called in each line.
        console: where to print; None for standard error.
        tokens: see `Pace`.
    """
    pace = Pace(tokens)
    if quiet:
        yield Display()
        return
    if console is None and _in_notebook():
        yield Notebook(total_rounds, label, pace)
        return
    from rich.console import Console

    class Pipe(Console):
        def on_broken_pipe(self) -> None:
            raise  # else rich would end the process and close standard output

    # Standard error, so that progress is still visible when standard output goes into a pipe.
    console = console or Pipe(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        bar = _bar(console)
        bar.start()
        try:
            yield Live(bar, total_rounds, label, pace)
        finally:
            with suppress(OSError):  # the terminal may be gone
                bar.stop()
        return
    plain = Plain(console, total_rounds, label, pace)
    try:
        yield plain
    finally:
        with suppress(Stopped):  # it is over anyway
            plain.close()


def times() -> "ProgressColumn":
    """A bar's column of the time that has passed and the time left."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            left = task.time_remaining
            return Text(f"{clock(task.elapsed or 0)}  left {'-:--' if left is None else clock(left)}")

    return Times()


def _bar(console: "Console") -> "Progress":
    from rich import progress as rich

    wide = console.width >= 100  # in a narrow terminal the figures matter more than the bar
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=16 if wide else 6),
        rich.TextColumn(f"{'round ' * wide}{{task.completed}}/{{task.total}}"),
        rich.TextColumn("{task.fields[figures]}", markup=False),
        times(),
        console=console,
    )


def _figures(row: Mapping[str, Any]) -> str:
    parts = [f"loss {significant(row.get('train_loss'), 4)}"]
    if row.get("test_perplexity") is not None:
        parts.append(f"perplexity {significant(row['test_perplexity'], 4)}")
    elif row.get("test_accuracy") is not None:
        parts.append(f"acc {percent(row['test_accuracy'])}%")
    elif row.get("test_c_index") is not None:
        parts.append(f"C-index {row['test_c_index']:.3f}")
    return "  ".join([*parts, f"up {size(row.get('uplink_bytes'))}"])
