"""Data of the user's own in a file: arrays in .npz, tables in .csv or .parquet."""

import csv
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcom.data.dataset import Dataset, from_arrays, numbered
from fedcom.data.files import array_header, refuse_too_large
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError, nearest
from fedcom.imports import optional

Columns = dict[str, NDArray[Any]]  # by name, in order
LABEL, Y, CLIENT = "label", "y", "client"  # what the columns are called unless told otherwise
_KINDS = (".npz", ".csv", ".parquet")


def read_own(
    path: str | Path,
    label: str | None,
    client: str | None,
    test: float | str | None,
    draw: Draw,
    time: str | None = None,
    event: str | None = None,
) -> Dataset:
    """The data set in a file.

    In an .npz, x and y are arrays, and test_x, test_y and client may be. In a table, one column is the label,
    one may be the client of each row, and all others are features, which must be numbers. Labels that are
    names or whole numbers are classes, numbered in their order; fractions make it a regression. For survival
    two columns are times and events. If clients are known and the test set is of rows of this file, or its
    file has a column of clients, each client has test samples of its own.

    Args:
        label: the name of the label's column, or of the array in place of y; None: label, or y.
        client: the name of the client's column or array; None: client, if there is one.
        test: a file with the test set, or the share of rows to hold out, drawn at random; None: no test set.
        time: the name of the column of times, for survival, and `event` that of the events; None: labels.
    """
    path = Path(path)
    targets = (label or (Y if path.suffix == ".npz" else LABEL),) if time is None else (time, event or "")
    x, names, groups, test_x, test_names = _halves(path, targets, client)
    test_groups = None
    if isinstance(test, str):
        if test_x is not None:
            raise ConfigError(f"{path} holds test_x already; leave data.test out")
        test_x, test_names, test_groups, *_ = _halves(Path(test), targets, client)
        if groups is None or test_groups is None or not np.isin(test_groups, groups).all():
            test_groups = None  # clients that only the test set has are no clients of this run
    elif test is not None:
        if not 0 < test < 1:
            raise ConfigError(f"data.test is a file or a share of the rows, such as 0.2; got {test}")
        order = draw.permutation(len(x)).numpy()
        held, kept = np.split(order, [max(1, round(test * len(x)))])
        if groups is not None:  # a client whose every row was drawn keeps them
            lonely = ~np.isin(groups[held], groups[kept])
            held, kept = held[~lonely], np.concatenate([kept, held[lonely]])
        test_x, test_names, x, names = x[held], names[held], x[kept], names[kept]
        groups, test_groups = (None, None) if groups is None else (groups[kept], groups[held])
    y, test_y = (names, test_names) if time else _numbered(names, test_names, path)
    lives = time is not None
    return from_arrays(
        x, y, test_x, test_y, groups, path.stem, any_targets=lives, test_groups=test_groups, survival=lives
    )


def _halves(path: Path, targets: tuple[str, ...], client: str | None) -> tuple[Any, Any, Any, Any, Any]:
    """x, targets and clients of a file, and x and targets of the test set if the file has one."""
    if path.suffix not in _KINDS:
        raise DataError(f"{path} is not {', '.join(_KINDS)}; save it as one of them")
    if not path.is_file():
        raise DataError(f"no file {path}; data.path names a file, from the current folder or in full")
    columns = {".npz": read_npz, ".csv": _csv, ".parquet": _parquet}[path.suffix](path)
    if path.suffix == ".npz":
        y = _targets(columns, targets, path)
        x, groups = _column(columns, "x", path), columns.get(client or CLIENT)
        if client is not None and groups is None:
            _column(columns, client, path)
        return x, y, groups, columns.get("test_x"), columns.get("test_y")
    y = _targets(columns, targets, path)
    groups = _column(columns, client, path) if client else columns.get(CLIENT)
    features = {k: v for k, v in columns.items() if k not in (*targets, client or CLIENT)}
    for name, values in features.items():
        if values.dtype.kind not in "biuf":
            bad = next((str(value) for value in values if not _is_number(value)), str(values[0]))
            raise DataError(
                f"column {name!r} of {path} holds {bad!r}, but features must be numbers; leave it out of the "
                "file, or write numbers"
            )
    if not features:
        raise DataError(
            f"{path} has no column beside {', '.join(targets)} and {client or CLIENT}; add features"
        )
    return np.stack([v.astype(np.float32) for v in features.values()], 1), y, groups, None, None


def _targets(columns: Columns, names: tuple[str, ...], path: Path) -> NDArray[Any]:
    """The labels, or times and events side by side."""
    found = [_column(columns, name, path) for name in names]
    if len(found) == 1:
        return found[0]
    for name, values in zip(names, found, strict=True):
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"column {name!r} of {path} holds {str(values[0])!r}; times and events are numbers"
            )
    return np.stack([values.astype(np.float32) for values in found], 1)


def _column(columns: Columns, name: str, path: Path) -> NDArray[Any]:
    if name not in columns:
        raise DataError(
            f"{path} has no {name!r}; {nearest(name, columns)}; set data.label_column or client_column"
        )
    return columns[name]


def _numbered(y: NDArray[Any], test_y: Any, path: Path) -> tuple[Any, Any]:
    """Labels as classes 0, 1, 2, ... in order, or as floats, one column each, if they are fractions."""
    both = y if test_y is None else np.concatenate([y, np.asarray(test_y)])
    if both.dtype.kind == "f" and not np.array_equal(both, np.round(both)):
        numbers: Any = both.reshape(len(both), -1).astype(np.float32)
    elif both.ndim != 1:
        raise DataError(f"the labels of {path} have shape {list(both.shape)}; give one per row")
    else:
        numbers = numbered(both)
    return numbers[: len(y)], None if test_y is None else numbers[len(y) :]


def read_npz(path: Path) -> Columns:
    """The arrays of an .npz by name; one that holds objects, or more than it says, is refused."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip of arrays")
        with zipfile.ZipFile(path) as members:
            for member in members.infolist():
                _refuse_false_header(path, members, member)
            refuse_too_large(path, sum(member.file_size for member in members.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; save plain arrays with np.savez") from None


def _refuse_false_header(path: Path, members: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError if an array's header says that it is longer than what follows."""
    with members.open(member) as file:
        shape, _, dtype = array_header(file)
        length = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and length != member.file_size - file.tell():
            raise ValueError(f"the header of {member.filename} says {shape}, which is not what follows")


def _csv(path: Path) -> Columns:
    """The columns of a CSV file with a line of headings; those that are all numbers become so."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            heading = next(reader, [])
            lines = [(reader.line_num, row) for row in reader if row]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV with a line of headings: {error}") from None
    for number, row in lines:
        if len(row) != len(heading):
            raise DataError(f"line {number} of {path} has {len(row)} cells, the first {len(heading)}")
        if not all(map(str.strip, row)):
            empty = heading[[cell.strip() for cell in row].index("")]
            raise DataError(
                f"line {number} of {path} is empty in column {empty!r}; fill it in, or leave the line out"
            )
    if not lines:
        raise DataError(f"{path} has no rows below its headings")
    columns = zip(*(row for _, row in lines), strict=True)
    return {name: _typed(column) for name, column in zip(heading, columns, strict=True)}


def _typed(cells: tuple[str, ...]) -> NDArray[Any]:
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells)


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> Columns:
    table = optional("pyarrow.parquet", "'fedcom[parquet]'")
    try:
        about = table.ParquetFile(path).metadata
        refuse_too_large(path, 8 * about.num_rows * about.num_columns)
        found = table.read_table(path)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None
    return {name: found[name].to_numpy() for name in found.column_names}
