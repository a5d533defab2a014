"""FEMNIST, handwritten characters by writer: TensorFlow Federated's HDF5 files and LEAF's JSON files.

In both, paper is 1.0 and ink 0.0. Here they are swapped, so that ink is bright as in MNIST.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcom.data.dataset import Arrays
from fedcom.data.files import Found, read
from fedcom.errors import DataError
from fedcom.imports import optional

Writers = Iterable[tuple[str, Any, Any]]  # a writer's name, pixels and labels


def read_femnist(found: Found) -> tuple[Arrays, Arrays, NDArray[np.int64]]:
    """Training and test images [N, 1, 28, 28] with their labels, and the writer of each training image."""
    writers_in = leaf_writers if "train" in found.source.files else tff_writers
    training, testing = (found.folder / name for name in found.source.files)
    train, writers = _stack(writers_in(training), training)
    test, _ = _stack(writers_in(testing), testing)
    return train, test, writers


def tff_writers(path: Path) -> Iterator[tuple[str, Any, Any]]:
    """Name, pixels and labels of every writer in an HDF5 file, by name: examples/<writer>/{pixels,label}."""
    h5py = optional("h5py", "'fedcom[femnist]'")
    try:
        with h5py.File(path, "r") as file:
            for writer in sorted(file["examples"]):
                group = file["examples"][writer]
                yield writer, group["pixels"][()], group["label"][()]
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged or not TFF's fed_emnist: {error}; fetch it again") from error


def leaf_writers(folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Name, pixels and labels of every user in a folder of JSON files, file by file."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"{folder} holds no .json file; put the output of LEAF's femnist/preprocess.sh there")
    for path in paths:
        try:
            content = json.loads(read(path))
            for user, count in zip(content["users"], content["num_samples"], strict=True):
                data = content["user_data"][user]
                if not len(data["x"]) == len(data["y"]) == count:
                    raise ValueError(f"num_samples says {count} for {user}, user_data has {len(data['x'])}")
                yield user, data["x"], data["y"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged or not LEAF's format: {error!r}; make it again") from error


def _stack(writers: Writers, where: Path) -> tuple[Arrays, NDArray[np.int64]]:
    """All writers' samples one after the other, ink bright, and the number of each sample's writer."""
    ids: dict[str, int] = {}
    x, y, who = [], [], []
    for writer, pixels, labels in writers:
        arrays = _checked(pixels, labels, f"{where}: writer {writer}")
        x.append(arrays.x)
        y.append(arrays.y)
        who.append(np.full(len(arrays.y), ids.setdefault(writer, len(ids)), np.int64))
    if not x:
        raise DataError(f"{where} holds no writer; fetch it again")
    return Arrays(np.concatenate(x), np.concatenate(y)), np.concatenate(who)


def _checked(pixels: Any, labels: Any, where: str) -> Arrays:
    """One writer's samples as arrays of the right shape and range."""
    try:
        x = 1.0 - np.asarray(pixels, np.float32).reshape(-1, 1, 28, 28)
        y = np.asarray(labels).reshape(-1)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: the samples are not 28 x 28 pixels and a label each: {error}") from error
    if len(x) != len(y) or (y.dtype.kind not in "iu" and len(y)):
        raise DataError(f"{where}: {len(x)} images and {len(y)} labels of {y.dtype}; fetch it again")
    if len(x) and not 0.0 <= x.min() <= x.max() <= 1.0:
        raise DataError(f"{where}: pixels from {1 - x.max()} to {1 - x.min()}; they must be 0 to 1")
    return Arrays(x, y)
