"""Data of the user's own in a file: arrays in .npz, tables in .csv or .parquet."""

import math
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcom.data.csv_files import first_unusable, read_csv
from fedcom.data.dataset import Dataset, Legend, from_arrays, names_of, normalised, numbered
from fedcom.data.files import array_header, refuse_too_large
from fedcom.draws import Draw
from fedcom.errors import ConfigError, DataError, nearest
from fedcom.imports import optional

Columns = dict[str, NDArray[Any]]  # by name, in order
LABEL, Y, CLIENT = "label", "y", "client"  # what the columns are called unless told otherwise
INDEX = "__index_level_0__"  # what pandas calls an index that has no name
_SHOWN = 10  # labels that an error names
_FEW = 3  # pairs of names that a warning tells
_EXACT = 2.0**53  # from here on whole numbers are rounded
_MISSING = ("na", "n/a", "nan", "null", "?")  # what a label is in files where it is not known


class _Halves(NamedTuple):
    """What a file holds: samples, their targets and clients, and a test set if it has one of its own."""

    x: NDArray[Any]
    y: NDArray[Any]
    groups: NDArray[Any] | None
    test_x: NDArray[Any] | None = None
    test_y: NDArray[Any] | None = None
    features: tuple[str, ...] = ()  # the columns of x; none if it is an array

    def rows(self, places: NDArray[Any]) -> "_Halves":
        """Some of the samples."""
        return _Halves(self.x[places], self.y[places], None if self.groups is None else self.groups[places])


def read_own(
    path: str | Path,
    label: str | None,
    client: str | None,
    test: float | str | None,
    draw: Draw,
    time: str | None = None,
    event: str | None = None,
    normalise: str | None = None,
    known: Legend | None = None,
) -> Dataset:
    """The data set in a file.

    In an .npz, x and y are arrays, and test_x, test_y and client may be. In a table, one column is the label,
    one may be the client of each row, and all others are features, which must be numbers. Labels that are
    names or whole numbers are classes, numbered in their order; fractions make it a regression. For survival
    two columns are times and events. If clients are known and the test set is of rows of this file, or its
    file has a column of clients, each client has test samples of its own, and rows of other clients are part
    of the whole test set alone.

    Args:
        label: the name of the label's column, or of the array in place of y; None: label, or y.
        client: the name of the client's column or array; None: client, if there is one.
        test: a file with the test set, or the share of each client's rows to hold out, drawn at random; None:
            no test set.
        time: the name of the column of times, for survival, and `event` that of the events; None: labels.
        normalise: see `normalised`; None: features are as they are.
        known: the features and the labels of a model to start from, in its order; None: those of the file.
    """
    path = Path(path)
    targets = (
        (label or (Y if path.suffix.lower() == ".npz" else LABEL),) if time is None else (time, event or "")
    )
    train = _halves(path, targets, client)
    if known is not None and known.features and not _renamed("column", train.features, known.features, path):
        train = _aligned(train, path, known.features, "the model", "a model takes the features it has learnt")
    held = _Halves(train.x[:0], train.y[:0], None)
    if isinstance(test, str):
        if train.test_x is not None:
            raise ConfigError(f"{path} holds test_x already; leave data.test out")
        rule = "a test set has the features of the training rows"
        held = _aligned(_halves(Path(test), targets, client), Path(test), train.features, path, rule)
        held = held if train.groups is not None else held._replace(groups=None)
        if normalise == "client":
            _refuse_strangers(held, train, test)
    elif test is not None:
        if not 0 < test < 1:
            raise ConfigError(f"data.test is a file or a share of the rows, such as 0.2; got {test}")
        train, held = _drawn(train, test, draw)
    with_test = test is not None
    test_x, test_y = (held.x, held.y) if with_test else (train.test_x, train.test_y)
    y, labels = train.y, tuple[str, ...]()
    if time is None:
        y, test_y, labels = _numbered(train.y, test_y, path, known.labels if known else None)
    lives = time is not None
    data = from_arrays(
        train.x,
        y,
        test_x,
        test_y,
        train.groups,
        path.stem,
        any_targets=lives,
        test_groups=held.groups,
        survival=lives,
    )
    classes = len(labels) or data.classes
    data = replace(data, classes=classes, legend=Legend(train.features, labels))
    data = data if normalise is None else normalised(data, normalise)
    return replace(data, x=data.x.float(), test_x=data.test_x.float()) if train.features else data


def _drawn(rows: _Halves, share: float, draw: Draw) -> tuple[_Halves, _Halves]:
    """The rows to train on, and a share drawn at random to test on, of each client's if clients are known.

    Whoever has two rows or more has one or more in each part; a single row is trained on.
    """
    if rows.groups is None or not len(rows.x):
        orders = [draw.permutation(len(rows.x)).numpy()]
    else:
        numbers = numbered(rows.groups)
        places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
        named = zip(names_of(rows.groups), places, strict=True)
        orders = [own[draw.fold(name).permutation(len(own)).numpy()] for name, own in named]
    cut = [np.split(own, [min(max(1, round(share * len(own))), len(own) - 1)]) for own in orders]
    held, kept = (np.concatenate(parts) for parts in zip(*cut, strict=True))
    return rows.rows(kept)._replace(features=rows.features), rows.rows(held)


def _aligned(held: _Halves, test: Path, features: tuple[str, ...], path: Path | str, rule: str) -> _Halves:
    """Rows with their columns in the order of others, which must be the same.

    Args:
        test: the file of the rows.
        features: the columns of the others.
        path: whose they are, for errors, and `rule` why they must be the same.
    """
    if not (held.features and features):
        return held
    for has, lacks, file, other in (
        (features, held.features, path, test),
        (held.features, features, test, path),
    ):
        if alone := [name for name in has if name not in lacks]:
            raise DataError(f"{file} has the column {alone[0]!r}, and {other} has not; {rule}")
    return held._replace(x=held.x[:, [held.features.index(name) for name in features]], features=features)


def _refuse_strangers(held: _Halves, train: _Halves, test: str) -> None:
    """Raise DataError if a test row is of a client without a training row, which would tell its scale."""
    if held.groups is None or train.groups is None:
        return
    known = set(names_of(train.groups))
    if strangers := [name for name in names_of(held.groups) if name not in known]:
        raise DataError(
            f"{test} has rows of {strangers[0]!r}, who has no training row to scale them by; leave them out, "
            "or set data.normalise=all"
        )


def _halves(path: Path, targets: tuple[str, ...], client: str | None) -> _Halves:
    """What a file holds, checked."""
    readers: dict[str, Callable[[Path], Columns]] = {".npz": read_npz, ".csv": read_csv, ".parquet": _parquet}
    if path.is_dir():
        raise DataError(
            f"{path} is a folder; put the rows of all clients into one file, with a column that names the "
            "client (data.client_column)"
        )
    kind = path.suffix.lower()
    if kind not in readers:
        raise DataError(f"{path} is not {', '.join(readers)}; save it as one of them")
    if not path.is_file():
        raise DataError(f"no file {path}; data.path names a file, from the current folder or in full")
    columns = readers[kind](path)
    y = _targets(columns, targets, path)
    groups = _clients(columns, client, path)
    if kind == ".npz":
        x = _column(columns, "x", path)
        _check_lengths(path, {"x": x, " and ".join(targets): y, client or CLIENT: groups})
        return _Halves(x, y, groups, columns.get("test_x"), columns.get("test_y"))
    features = {k: v for k, v in columns.items() if k not in (*targets, client or CLIENT)}
    clients = "" if groups is not None else " name it in data.client_column if it says whose rows these are,"
    rule = f"features must be numbers; leave it out of the file,{clients} or"
    for name, values in features.items():
        _refuse_words(values, f"column {name!r} of {path}", rule)
    if not features:
        raise DataError(
            f"{path} has no column beside {', '.join(targets)} and {client or CLIENT}; add features"
        )
    x = np.stack([v.astype(np.float64) for v in features.values()], 1)  # float32 once they are scaled
    return _Halves(x, y, groups, features=tuple(features))


def _check_lengths(path: Path, found: dict[str, NDArray[Any] | None]) -> None:
    """Refuse arrays that are not of the same samples, or hold what is no number."""
    arrays = {name: values for name, values in found.items() if values is not None}
    lengths = {name: len(values) if values.ndim else None for name, values in arrays.items()}
    if None in lengths.values() or len({*lengths.values()}) > 1:
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in arrays.items())
        raise DataError(
            f"the arrays of {path} have the shapes {shapes}; the first axis is the samples of each"
        )
    x = arrays["x"]
    if x.dtype.kind == "f" and len(bad := np.argwhere(~np.isfinite(x))):
        raise DataError(f"x of {path} holds NaN or infinity, first in sample {bad[0][0]}; clean it first")


def _clients(columns: Columns, name: str | None, path: Path) -> NDArray[Any] | None:
    """The client of each row; whole numbers may have been written as 1.0."""
    found = _column(columns, name, path) if name else columns.get(CLIENT)
    if found is None or found.dtype.kind != "f":
        return found
    if not np.array_equal(found, np.round(found)):
        odd = next(value for value in found.tolist() if value != round(value))
        raise DataError(f"{name or CLIENT!r} of {path} holds {odd}; clients are names or whole numbers")
    if float(np.abs(found).max(initial=0)) >= _EXACT:
        raise DataError(
            f"{name or CLIENT!r} of {path} holds numbers of {_EXACT:.0f} or more, which are not told apart; "
            "write a letter before each, so that they are names"
        )
    return found.astype(np.int64)


def _targets(columns: Columns, names: tuple[str, ...], path: Path) -> NDArray[Any]:
    """The labels, or times and events side by side."""
    found = [_column(columns, name, path) for name in names]
    if len(found) == 1:
        return found[0]
    for name, values in zip(names, found, strict=True):
        _refuse_words(values, f"column {name!r} of {path}", "times and events are numbers;")
    return np.stack([values.astype(np.float32) for values in found], 1)


def _refuse_words(values: NDArray[Any], whose: str, rule: str) -> None:
    """Raise DataError if these are not all numbers."""
    if values.dtype.kind not in "biuf":
        bad = next((str(value) for value in values if not _is_number(value)), str(values[0]))
        raise DataError(f"{whose} holds {bad!r}, but {rule} write numbers")


def _column(columns: Columns, name: str, path: Path) -> NDArray[Any]:
    if name not in columns:
        raise DataError(
            f"{path} has no {name!r}; {nearest(name, columns)}; set data.label_column or client_column"
        )
    return columns[name]


def _numbered(
    y: NDArray[Any], test_y: Any, path: Path, known: tuple[str, ...] | None
) -> tuple[Any, Any, tuple[str, ...]]:
    """Labels as classes 0, 1, 2, ... in order, and their names; fractions as floats, one column each.

    Args:
        known: the names of a model's classes, which then are the only ones; empty: it has none, so that whole
            numbers are floats too; None: no model is known.
    """
    names = tuple[str, ...]()
    if test_y is not None and len(test_y) and (y.dtype.kind in "biuf") != (test_y.dtype.kind in "biuf"):
        raise DataError(
            f"labels of training and test samples of {path} are not of one kind: {y[0]!s} and {test_y[0]!s}; "
            "write them alike"
        )
    both = y if test_y is None else np.concatenate([y, test_y])
    if both.dtype.kind not in "biuf" and (gaps := [v for v in both.astype(str) if v.lower() in _MISSING]):
        raise DataError(f"a label of {path} is {gaps[0]!s}, which stands for none; leave such rows out")
    fractions = both.dtype.kind == "f" and not np.array_equal(both, np.round(both))
    if fractions or (known == () and both.dtype.kind in "biuf"):
        numbers: Any = both.reshape(len(both), -1).astype(np.float32)
    elif both.ndim != 1:
        raise DataError(f"the labels of {path} have shape {list(both.shape)}; give one per row")
    else:
        numbers, names = numbered(both), names_of(both.astype(np.int64) if both.dtype.kind == "f" else both)
        if known and not _renamed("label", names, known, path):
            numbers, names = _places(names, known, path)[numbers], known
    return numbers[: len(y)], None if test_y is None else numbers[len(y) :], names


def _renamed(what: str, names: tuple[str, ...], known: tuple[str, ...], path: Path) -> bool:
    """Whether a file has as many names as a model and none of its; then each stands for one, in order."""
    if not names or len(names) != len(known) or {*names} & {*known}:
        return False
    (first, *others) = zip(names, known, strict=True)
    pairs = [f"{first[0]!r} stands for {first[1]!r}", *(f"{new!r} for {old!r}" for new, old in others)]
    told = ", ".join(pairs[:_FEW]) + ", ..." * (len(pairs) > _FEW)
    warnings.warn(f"{path} has no {what} of the model's, so they are taken in order: {told}", stacklevel=2)
    return True


def _places(names: tuple[str, ...], known: tuple[str, ...], path: Path) -> NDArray[np.int64]:
    """The numbers that a model has for some labels."""
    if strange := [name for name in names if name not in known]:
        raise DataError(
            f"{path} has the label {strange[0]!r}, and the model has {', '.join(known[:_SHOWN])}"
            f"{', ...' if len(known) > _SHOWN else ''}; write the labels as it was trained with"
        )
    return np.array([known.index(name) for name in names], dtype=np.int64)


def read_npz(path: Path) -> Columns:
    """The arrays of an .npz by name; one that holds objects, or more than it says, is refused."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip of arrays")
        with zipfile.ZipFile(path) as members:
            for member in members.infolist():
                _refuse_false_header(members, member)
            refuse_too_large(path, sum(member.file_size for member in members.infolist()))
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; save plain arrays with np.savez") from None


def _refuse_false_header(members: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError if an array's header says that it is longer than what follows."""
    with members.open(member) as file:
        shape, _, dtype = array_header(file)
        length = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and length != member.file_size - file.tell():
            raise ValueError(f"the header of {member.filename} says {shape}, which is not what follows")


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _plain(column: Any) -> Any:
    """A column of Parquet, of floating-point numbers in place of decimals, as databases write them."""
    return column.cast("float64") if str(column.type).startswith("decimal") else column


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
    for name in found.column_names:
        if found[name].null_count:
            raise DataError(f"column {name!r} of {path} has empty cells; fill them in, or leave the rows out")
    columns = {name: _plain(found[name]).to_numpy() for name in found.column_names}
    for name, values in columns.items():
        if (row := first_unusable(values)) is not None:
            raise DataError(
                f"row {row} of {path} holds {values[row]} in column {name!r}, which is no finite number; "
                "write one, or leave the row out"
            )
    if INDEX in columns:
        raise DataError(f"{path} has an index of pandas beside its columns; leave it out, by index=False")
    return columns
