"""The rows of a run, as a sequence and as a pandas frame."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from fedcom.errors import ConfigError, nearest
from fedcom.formats import html_table
from fedcom.imports import optional

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = 5  # rows at each end that a notebook shows
Row = dict[str, Any]  # what was measured after one round, by name: one line of metrics.jsonl


class Results(Sequence[Row]):
    """The rows of a run in order of rounds: `results[-1]["train_loss"]`, `results["train_loss"]`.

    Args:
        index: the figure that tells rows apart.
    """

    def __init__(self, rows: Iterable[Row] = (), index: str = "round") -> None:
        self._rows, self._index = list(rows), index

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> "Results": ...

    @overload
    def __getitem__(self, index: str) -> list[Any]: ...

    def __getitem__(self, index: int | slice | str) -> Any:
        """A row, some rows, or one figure of every row, None where a row lacks it."""
        if isinstance(index, str):
            known = {key for row in self._rows for key in row}
            if self._rows and index not in known:
                raise ConfigError(f"the rows have no {index!r}; {nearest(index, known)}")
            return [row.get(index) for row in self._rows]
        return Results(self._rows[index], self._index) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._rows == list(other)

    def __repr__(self) -> str:
        ends = [self._rows[i].get(self._index) for i in (0, -1)] if self._rows else []
        return f"Results({len(self._rows)} rows{f': {self._index} {ends[0]} to {ends[1]}' if ends else ''})"

    def _repr_html_(self) -> str:
        """The first and last rows as a table, for notebooks."""
        some = (
            self._rows if len(self._rows) <= 2 * _SHOWN else [*self._rows[:_SHOWN], {}, *self._rows[-_SHOWN:]]
        )
        keys = list(dict.fromkeys(key for row in self._rows for key in row))
        lines = [[row.get(key) if row else "⋮" for key in keys] for row in some]
        return html_table(lines, keys, f"{len(self._rows)} rows")

    def add(self, row: Row) -> None:
        """Append a row; one of the same round as the last takes its place."""
        if self._rows and self._rows[-1][self._index] == row[self._index]:
            self._rows.pop()
        self._rows.append(row)

    def frame(self) -> "DataFrame":
        """The rows as a pandas frame, indexed by round; needs `pip install 'fedcom[pandas]'`."""
        return frame(self._rows).set_index(self._index)


def frame(rows: Iterable[Row]) -> "DataFrame":
    """A pandas frame with one line per row; None becomes NaN where a column holds numbers."""
    found: DataFrame = optional("pandas", "'fedcom[pandas]'", ConfigError).DataFrame(list(rows))
    empty = [name for name in found if found[name].isna().all()]
    return found.astype(dict.fromkeys(empty, float))
