"""Tables in CSV files, as spreadsheets and pandas write them; what cannot be meant is refused."""

import csv
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcom.errors import DataError

Line = tuple[int, list[str]]  # its number in the file, and its cells
_OTHERS = ";\t|"  # what separates cells in files that are no CSV
_LARGEST = float(np.finfo(np.float32).max)


def read_csv(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a CSV file with a line of headings, by name; those that are all numbers become so.

    Blanks around a cell do not count, and the same letters are the same name however they are composed.
    """
    heading, lines = _cells(path)
    _check_heading(path, heading)
    for number, row in lines:
        if len(row) != len(heading):
            raise DataError(f"line {number} of {path} has {len(row)} cells, the first {len(heading)}")
        if "" in row:
            empty = heading[row.index("")]
            raise DataError(
                f"line {number} of {path} is empty in column {empty!r}; fill it in, or leave the line out"
            )
    if not lines:
        raise DataError(f"{path} has no rows below its headings")
    columns = [_typed([row[i] for _, row in lines]) for i in range(len(heading))]
    for name, column in zip(heading, columns, strict=True):
        if (i := first_unusable(column)) is not None:
            number, row = lines[i]
            raise DataError(
                f"line {number} of {path} holds {row[heading.index(name)]!r} in column {name!r}, which is no "
                "finite number; write one, or leave the line out"
            )
    return dict(zip(heading, columns, strict=True))


def first_unusable(values: NDArray[Any]) -> int | None:
    """The place of the first number that is not finite, or would not be in float32; None if there is none."""
    if values.dtype.kind != "f":
        return None
    bad = np.flatnonzero(~(np.abs(values.astype(np.float64)) <= _LARGEST))
    return int(bad[0]) if len(bad) else None


def _cells(path: Path) -> tuple[list[str], list[Line]]:
    """The headings and the lines that are not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            heading = _stripped(next(reader, []))
            lines = [(reader.line_num, _stripped(row)) for row in reader]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as text in UTF-8: {error}; save it as CSV in UTF-8") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV with a line of headings: {error}") from None
    return heading, [(number, row) for number, row in lines if row not in ([], [""])]


def _stripped(row: list[str]) -> list[str]:
    return [unicodedata.normalize("NFC", cell.strip()) for cell in row]


def _check_heading(path: Path, heading: list[str]) -> None:
    """Refuse headings by which columns would be mixed up."""
    if len(heading) == 1 and (other := next((c for c in _OTHERS if c in heading[0]), None)):
        raise DataError(
            f"the cells of {path} are separated by {other!r}; save it with commas between cells and "
            "points in numbers"
        )
    if "" in heading:
        place = heading.index("") + 1
        raise DataError(
            f"column {place} of {path} has no heading; name it, or leave it out, as index=False does in "
            "pandas"
        )
    name, count = Counter(heading).most_common(1)[0] if heading else ("", 1)
    if count > 1:
        raise DataError(f"{path} has {count} columns {name!r}; give each a name of its own")


def _typed(cells: list[str]) -> NDArray[Any]:
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells)
