"""The forms in which people have samples and targets, besides two arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate
from torch.utils.data import Dataset as TorchDataset

from fedcom.errors import ConfigError, DataError

_TARGETS = ("y", "label", "labels", "target", "targets")  # what the targets of a table are called


def unpacked(x: Any, y: Any, name: str) -> tuple[Any, Any]:
    """Samples and targets as two arrays: of a Dataset, a DataLoader, a table, pairs, or as they are given.

    Args:
        name: of x, for errors.
    """
    if isinstance(x, nn.Module):
        raise ConfigError(f"{name} is a module; the order is Task.from_arrays(module, x, y)")
    x = _dataset_of(x, name) if isinstance(x, DataLoader) else x
    if y is not None:
        _refuse_both(x, name)
        return _dense(x), _dense(y)
    two = isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], tuple)
    if two and (isinstance(x[0], Mapping) or _length(x[0]) == _length(x[1])):
        return _dense(x[0]), _dense(x[1])
    if _names(x):
        return _columns(x, name)
    listed = isinstance(x, list | tuple) and len(x) > 0 and isinstance(x[0], tuple | Mapping)
    return _pairs(x, name) if listed or isinstance(x, TorchDataset) else (x, y)


def _dataset_of(loader: Any, name: str) -> Any:
    """The data set of a loader that goes through all of it, in whatever order."""
    whole = isinstance(loader.sampler, SequentialSampler) or (
        isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement
    )
    if isinstance(loader.dataset, IterableDataset) or not whole or loader.collate_fn is not default_collate:
        raise DataError(
            f"{name} is a DataLoader with a sampler, a collate_fn or a stream of its own; give its data set, "
            "with a length, or arrays"
        )
    return loader.dataset


def _refuse_both(x: Any, name: str) -> None:
    """Refuse data that holds the targets already."""
    if isinstance(x, TorchDataset):
        raise DataError(f"{name} is a torch Dataset, which holds the targets too; leave them out")
    if _names(x) and not isinstance(x, Mapping):
        raise DataError(f"{name} has the columns {', '.join(_names(x))}; give one of them, as an array")


def _columns(table: Any, name: str) -> tuple[Any, Any]:
    """Samples and targets of a table with two columns, one of which has the name of targets."""
    columns = _names(table)
    if "train" in columns:
        raise DataError(f"{name} has the parts {', '.join(columns)}; give them apart, as x=data['train']")
    targets = [column for column in columns if column.lower() in _TARGETS]
    if len(columns) != 2 or len(targets) != 1:
        raise DataError(
            f"{name} has the columns {', '.join(columns)}, and must have two, samples and one of "
            f"{', '.join(_TARGETS)}; give x and y as arrays, or a mapping of inputs as x, and y"
        )
    (samples,) = set(columns) - set(targets)
    return _dense(table[samples]), _dense(table[targets[0]])


def _names(table: Any) -> list[str]:
    """The columns of a mapping or of a table of Hugging Face's; none if it is neither."""
    columns = table if isinstance(table, Mapping) else getattr(table, "column_names", ())
    return [str(column) for column in columns]


def _pairs(items: Any, name: str) -> tuple[Any, Any]:
    """Samples and targets of pairs, or of mappings with two keys."""
    try:
        found = [items[i] for i in range(len(items))]
        if found and isinstance(found[0], Mapping):
            found = list(zip(*_columns({k: [one[k] for one in found] for k in found[0]}, name), strict=True))
        samples, targets = zip(*((np.asarray(a), np.asarray(b)) for a, b in found), strict=True)
        return np.stack(samples), np.stack(targets)
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"{name} must have a length, and its items must be pairs of a sample and a target, as tensors or "
            f"arrays of one shape ({error}); give such a Dataset, or arrays"
        ) from None


def _dense(x: Any) -> Any:
    """A sparse tensor of torch, or matrix of scipy, with its zeros; anything else as it is."""
    if isinstance(x, Tensor):
        return x if x.layout is torch.strided else x.to_dense()
    return x.toarray() if hasattr(x, "toarray") and hasattr(x, "nnz") else x


def _length(x: Any) -> int:
    return len(x) if hasattr(x, "__len__") and getattr(x, "ndim", None) != 0 else -1
