"""Tables for a terminal: where all columns do not fit beside each other, some go below; no number is cut."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


class Column(NamedTuple):
    """A heading, of one or more lines, and one cell per line of the table."""

    heading: str
    cells: Sequence[str]


class Fitted:
    """A table that rich prints as several if the terminal is narrow, each beginning with the first column.

    Args:
        columns: the first is the name of each line.
        notes: lines below the table.
        left: how many columns are text, which is set to the left.
        title: above the table; empty: none.
    """

    def __init__(
        self, columns: Sequence[Column], notes: Sequence[str] = (), left: int = 1, title: str = ""
    ) -> None:
        self.columns, self.notes, self.left, self.title = list(columns), notes, left, title

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.text import Text

        if self.title:
            yield Text(self.title, "italic")
        first, rest = self.columns[0], list(enumerate(self.columns[1:], 1))
        while rest:
            taken = len(rest)
            while taken > 1 and self._width(console, [(0, first), *rest[:taken]]) > options.max_width:
                taken -= 1
            yield self._table([(0, first), *rest[:taken]])
            rest = rest[taken:]
        yield from map(Text, self.notes)

    def _width(self, console: "Console", columns: Sequence[tuple[int, Column]]) -> int:
        options = console.options.update(max_width=10_000)
        return console.measure(self._table(columns), options=options).maximum

    def _table(self, columns: Sequence[tuple[int, Column]]) -> "Table":
        from rich import box
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=box.SIMPLE_HEAD, padding=0)
        for place, column in columns:
            drawn.add_column(
                column.heading, justify="left" if place < self.left else "right", overflow="fold"
            )
        for cells in zip(*(column.cells for _, column in columns), strict=True):
            drawn.add_row(*map(Text, cells))  # not str: a label such as "fedcom [q8]" is no markup
        return drawn
