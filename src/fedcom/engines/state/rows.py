"""Numbered rows that take memory once they are written: on the host, or in a mapped file without a name."""

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedcom.saving.whole import disk_errors

_AHEAD = 2**22  # bytes of a file that are reserved on the disk ahead of need


class Rows:
    """Numbered rows of one shape, on the host.

    Args:
        like: a tensor of a row's shape.
        dtype: of the rows as they are kept.
        planned: how many are expected; there may be more. A row costs nothing before it is written.
        folder: of the file; None: in memory.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype, planned: int, folder: Path | None = None) -> None:
        self._shape, self._dtype, self._per_block, self._folder = like.shape, dtype, max(1, planned), folder
        self._blocks: list[_Block] = []

    def reserve(self, rows: int) -> None:
        """Make room for the first `rows` rows."""
        while len(self._blocks) * self._per_block < rows:
            self._blocks.append(_Block(self._shape, self._dtype, self._per_block, self._folder))
        for i, block in enumerate(self._blocks):
            block.reserve(min(self._per_block, rows - i * self._per_block))

    def read(self, row: int, out: Tensor) -> None:
        """Copy a row that was written into `out`."""
        self._blocks[row // self._per_block].read(row % self._per_block, out)

    def write(self, row: int, value: Tensor) -> None:
        """Write a row that was reserved."""
        self._blocks[row // self._per_block].write(row % self._per_block, value)


class _Block:
    """Some rows as one tensor; the system provides its memory as rows are touched."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, rows: int, folder: Path | None) -> None:
        self._bytes, self._ready = dtype.itemsize * torch.Size(shape).numel(), 0
        self._folder = folder if rows * self._bytes else None
        if self._folder is None:
            self._rows = torch.empty((rows, *shape), dtype=dtype)
            return
        with disk_errors(self._folder):
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as this block lives
            weakref.finalize(self, file.close)
            self._descriptor = file.fileno()
            os.truncate(self._descriptor, rows * self._bytes)
        self._map = mmap.mmap(self._descriptor, rows * self._bytes)
        self._rows = torch.frombuffer(self._map, dtype=dtype).view(rows, *shape)

    def reserve(self, rows: int) -> None:
        """Reserve the first `rows` rows on the disk: writing to a full one would kill the process."""
        if self._folder is None or rows <= self._ready or not hasattr(os, "posix_fallocate"):
            return
        start, rows = self._ready, min(len(self._rows), rows + _AHEAD // self._bytes)
        with disk_errors(self._folder):
            os.posix_fallocate(self._descriptor, start * self._bytes, (rows - start) * self._bytes)
        self._ready = rows

    def read(self, row: int, out: Tensor) -> None:
        out.copy_(self._rows[row])
        self._let_go(row)

    def write(self, row: int, value: Tensor) -> None:
        self._rows[row].copy_(value)
        self._let_go(row)

    def _let_go(self, row: int) -> None:
        """Give a row's pages back to the system's cache: they would count as the process's memory."""
        if self._folder is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = row * self._bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, (row + 1) * self._bytes - start)
