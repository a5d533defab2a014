"""FLamby's two small data sets by hospital: heart disease (UCI) and breast cancer (TCGA-BRCA)."""

import csv
import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcom.data.dataset import Dataset
from fedcom.data.files import Found
from fedcom.errors import DataError
from fedcom.imports import optional

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_CELLS = 14
_DROPPED = (10, 11, 12)  # columns that most hospitals left empty
_LEVELS = {2: (2, 3, 4), 6: (1, 2)}  # of chest pain and of the resting electrocardiogram, but the first
_TRAIN = 0.66  # the share of each hospital's patients to train on
_SPLIT_SEED = 43  # FLamby's
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")  # TCGA-BRCA's, as FLamby numbers them


def read_heart(found: Found) -> Dataset:
    """Four hospitals' patients, as FLamby splits them; features are not normalised."""
    parts: dict[str, list[Any]] = {"train": [], "test": []}
    for hospital, name in enumerate(HOSPITALS):
        file = f"processed.{name}.data"
        x, y = _patients(_lines(found, file), f"{found.folder / file}")
        for part, rows in zip(parts.values(), _split(y), strict=True):
            part.append((x[rows], y[rows], np.full(len(rows), hospital)))
    train, test = ([np.concatenate(own) for own in zip(*part, strict=True)] for part in parts.values())
    return _dataset("heart-disease", train, test, classes=2, names=HOSPITALS)


def read_brca(found: Found) -> Dataset:
    """Six regions' patients, as FLamby splits them: 39 features, and time (in days) and event as targets."""
    heading, *rows = _lines(found, "brca.csv")
    where = found.folder / "brca.csv"
    if heading[:1] + heading[-2:] != ["pid", "E", "T"] or len(heading) < 4:
        raise DataError(f"{where} must have the columns pid, features, E and T; fetch it again")
    folds = {pid: fold for pid, _, fold in _lines(found, "train_test_split.csv")[1:]}
    kept = [row for row in rows if row[0] in folds]
    numbers = _numbers([row[1:] for row in kept], len(heading) - 1, f"{where}")
    fold = np.array([folds[row[0]] for row in kept])
    halves = []
    for half in ("train", "test"):
        own = [np.flatnonzero(fold == f"{half}_{region}") for region in range(len(REGIONS))]
        order, region = np.concatenate(own), np.repeat(np.arange(len(REGIONS)), [len(part) for part in own])
        halves.append([numbers[order, :-2], numbers[order, :-3:-1], region])
    return _dataset("tcga-brca", *halves, classes=0, survival=True, names=REGIONS)


def _dataset(name: str, train: list[Any], test: list[Any], **kind: Any) -> Dataset:
    """A data set of two halves, each of features, targets and hospitals."""
    (x, y, groups), (test_x, test_y, test_groups) = train, test
    x, test_x = (torch.from_numpy(half.astype(np.float32)) for half in (x, test_x))
    y, test_y = (
        torch.from_numpy(half.astype(np.int64 if kind["classes"] else np.float32)) for half in (y, test_y)
    )
    owners = (torch.from_numpy(half.astype(np.int64)) for half in (groups, test_groups))
    if not len(x) or not len(test_x):
        raise DataError(f"{name} has no patients to train on or none to test on; fetch its files again")
    ids, test_ids = owners
    return Dataset(name, x, y, test_x, test_y, groups=ids, test_groups=test_ids, **kind)


def _patients(lines: list[list[str]], where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The features of the patients without a gap in a column that is kept, and whether each is ill."""
    kept = [[cell for i, cell in enumerate(line) if i not in _DROPPED] for line in lines]
    numbers = _numbers([row for row in kept if "?" not in row], _CELLS - len(_DROPPED), where)
    levels = [numbers[:, column] == level for column, own in _LEVELS.items() for level in own]
    plain = [numbers[:, i] for i in range(numbers.shape[1] - 1) if i not in _LEVELS]
    return np.stack([*plain, *levels], 1), (numbers[:, -1] > 0).astype(np.int64)


def _split(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rows of a hospital to train and to test on, in order; stratified if each label has 3 patients."""
    counts = np.bincount(y, minlength=2)
    train, test = optional("sklearn.model_selection", "scikit-learn").train_test_split(
        np.arange(len(y)),
        test_size=1.0 - _TRAIN,
        train_size=_TRAIN,
        random_state=_SPLIT_SEED,
        stratify=y if counts.min() > 2 else None,
    )
    return np.sort(train), np.sort(test)


def _lines(found: Found, file: str) -> list[list[str]]:
    """The cells of each line of a verified CSV file."""
    try:
        lines = [line for line in csv.reader(io.StringIO(found.content(file).decode())) if line]
    except (ValueError, csv.Error) as error:
        raise DataError(f"{found.folder / file} is not CSV: {error}; fetch it again") from None
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise DataError(f"{found.folder / file} is damaged: its lines differ in length; fetch it again")
    return lines


def _numbers(rows: list[list[str]], columns: int, where: str) -> NDArray[np.float64]:
    """Cells as numbers, a row per patient."""
    try:
        return np.array(rows, dtype=np.float64).reshape(-1, columns)
    except ValueError as error:
        raise DataError(f"{where} is not what it should be: {error}; fetch it again") from None
