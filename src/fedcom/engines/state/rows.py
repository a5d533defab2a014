"""Rows that exist from their first use on: in memory, or in a mapped file without a name."""

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedcom.errors import ConfigError

_AHEAD = 2**22  # bytes of a file that are asked of the disk at once


class Rows:
    """Numbered rows of one shape, on the host; those planned for lie side by side, more can come.

    Args:
        like: a row.
        dtype: how rows are kept.
        planned: how many there will be, as far as one knows; a row costs nothing before it is written.
        folder: of the file; None: in memory.
    """

    def __init__(self, like: Tensor, dtype: torch.dtype, planned: int, folder: Path | None = None) -> None:
        self._shape, self._dtype, self._each, self._folder = like.shape, dtype, max(1, planned), folder
        self._parts: list[_Part] = []

    def reserve(self, rows: int) -> None:
        """Make room for so many rows in all."""
        while len(self._parts) * self._each < rows:
            self._parts.append(_Part(self._shape, self._dtype, self._each, self._folder))
        for i, part in enumerate(self._parts):
            part.reserve(min(self._each, rows - i * self._each))

    def read(self, row: int, out: Tensor) -> None:
        """Copy a row that was written."""
        self._parts[row // self._each].read(row % self._each, out)

    def write(self, row: int, value: Tensor) -> None:
        """Keep a row that was reserved."""
        self._parts[row // self._each].write(row % self._each, value)


class _Part:
    """Some rows as one tensor, whose memory the system provides as they are touched."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, rows: int, folder: Path | None) -> None:
        self._bytes, self._ready = dtype.itemsize * torch.Size(shape).numel(), 0
        self._folder = folder if rows * self._bytes else None
        if self._folder is None:
            self._rows = torch.empty((rows, *shape), dtype=dtype)
            return
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the rows are
        weakref.finalize(self, file.close)
        self._descriptor = file.fileno()
        os.truncate(self._descriptor, rows * self._bytes)
        self._map = mmap.mmap(self._descriptor, rows * self._bytes)
        self._rows = torch.frombuffer(self._map, dtype=dtype).view(rows, *shape)

    def reserve(self, rows: int) -> None:
        """Ask the disk for the first so many rows: a full one would otherwise end the process."""
        if self._folder is None or rows <= self._ready or not hasattr(os, "posix_fallocate"):
            return
        start, rows = self._ready, min(len(self._rows), rows + _AHEAD // self._bytes)
        try:
            os.posix_fallocate(self._descriptor, start * self._bytes, (rows - start) * self._bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise full(self._folder, (rows - start) * self._bytes) from None
        self._ready = rows

    def read(self, row: int, out: Tensor) -> None:
        out.copy_(self._rows[row])
        self._let_go(row)

    def write(self, row: int, value: Tensor) -> None:
        self._rows[row].copy_(value)
        self._let_go(row)

    def _let_go(self, row: int) -> None:
        """Leave a row to the system's cache: what is mapped counts as this process's memory."""
        if self._folder is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = row * self._bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, (row + 1) * self._bytes - start)


def full(folder: Path, needed: int) -> ConfigError:
    """The error for a disk that cannot hold something."""
    free = shutil.disk_usage(folder).free
    return ConfigError(
        f"clients' state may need {needed:,} bytes in {folder}, where {free:,} are free; choose another "
        "run.store_folder, fewer rounds or clients a round, or run.store_dtype=bfloat16"
    )
