"""Data sets as tensors, and the ways to split one among clients."""

from fedcom.data.dataset import Dataset, Population, from_arrays
from fedcom.data.partitions import (
    PARTITIONS,
    Partition,
    SplitRequest,
    check_parts,
    client_names,
    indices,
    split,
)
from fedcom.data.registry import DATASETS, Request, load
from fedcom.data.text import from_text
from fedcom.data.token_files import read_tokens, save_tokens
from fedcom.data.tokens import Tokens

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "Partition",
    "Population",
    "Request",
    "SplitRequest",
    "Tokens",
    "check_parts",
    "client_names",
    "from_arrays",
    "from_text",
    "indices",
    "load",
    "read_tokens",
    "save_tokens",
    "split",
]
