"""The IDX format of MNIST: a magic number, big-endian sizes, then the numbers."""

import math

import numpy as np
from numpy.typing import NDArray

from fedcom.errors import DataError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse_idx(content: bytes, where: object) -> NDArray[np.generic]:
    """The array in an IDX file's content; `where` names the file in errors."""
    axes = content[3] if len(content) >= 4 else 0
    if content[:2] != b"\0\0" or not 1 <= axes <= 4 or content[2] not in _TYPES:
        raise DataError(f"{where} is not an IDX file: it begins with {content[:4].hex() or 'nothing'}")
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError(f"{where} is truncated: it has {len(content)} bytes, fewer than its header's {start}")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    dtype = np.dtype(_TYPES[content[2]])
    want = start + math.prod(shape) * dtype.itemsize
    if len(content) != want or 0 in shape:
        raise DataError(
            f"{where} has {len(content)} bytes; its header says {shape}, so {want}; fetch it again"
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)
