"""Data sets as tensors, and the ways to split one among clients."""

from fedcom.data.dataset import Dataset, Population, from_arrays
from fedcom.data.partitions import PARTITIONS, SplitRequest, split
from fedcom.data.registry import DATASETS, Request, load

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Population",
    "Request",
    "SplitRequest",
    "from_arrays",
    "load",
    "split",
]
