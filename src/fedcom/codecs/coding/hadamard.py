"""Two random rotations, after which the coordinates of any vector look Gaussian.

A vector of d coordinates is padded to R rows of B coordinates. Each row is rotated: random signs, then a
Hadamard transform. Then the matrix of the rows is read column by column into new rows, so that every new row
holds a piece of every old one, and the new rows are rotated. One rotation alone leaves sparse vectors far
from Gaussian. All this takes additions, subtractions and a power of two, in a fixed order, so a CPU, a GPU
and a stack of any size agree to the last bit.
"""

from functools import lru_cache

import torch
from torch import Tensor

from fedcom.codecs.kernels import cpu
from fedcom.draws import Draw


@lru_cache(maxsize=256)
def block_size(d: int) -> int:
    """B: a power of four near 8 sqrt(d), so that a new row has about 64 coordinates of every old one."""
    exponent = ((64 * d - 1).bit_length() + 1) // 4  # log4(8 sqrt(d)), rounded
    while exponent and -(-d // 4**exponent) * 4**exponent > 1.3 * d:  # at most 30% of padding
        exponent -= 1
    return int(4**exponent)


def padded(d: int) -> int:
    """R B, the number of coordinates after padding."""
    return -(-d // block_size(d)) * block_size(d)


def rotate(x: Tensor, draw: Draw) -> Tensor:
    """The rotated vector, padded; it has the norm of x."""
    d, n = x.shape[-1], padded(x.shape[-1])
    b = block_size(d)
    if x.dtype == torch.float32 and cpu.ready(x, draw):
        return cpu.rotate(x, n, b, draw)
    y = torch.nn.functional.pad(x, (0, n - d)) * signs(n, draw.fold("first"), x.dtype)
    y = _transform(_rows(y, -1, b))
    y = y.transpose(-1, -2).flatten(-2) * signs(n, draw.fold("second"), x.dtype)
    return _transform(_rows(y, -1, b)).flatten(-2)


def unrotate(y: Tensor, d: int, draw: Draw) -> Tensor:
    """The vector of d coordinates whose rotation is y."""
    n, b = y.shape[-1], block_size(d)
    x = _transform(_rows(y, -1, b)).flatten(-2) * signs(n, draw.fold("second"), y.dtype)
    x = _rows(x, b, -1).transpose(-1, -2)
    x = _transform(x).flatten(-2) * signs(n, draw.fold("first"), y.dtype)
    return x[..., :d]


def signs(n: int, draw: Draw, dtype: torch.dtype) -> Tensor:
    """n random signs per key, 32 of them from each random number."""
    words = draw.bits(-(-n // 32)).unsqueeze(-1) >> torch.arange(32, device=draw.key.device)
    return (1 - 2 * (words & 1)).flatten(-2)[..., :n].to(dtype)


def _rows(x: Tensor, *shape: int) -> Tensor:
    """x with its last axis in another shape."""
    return x.reshape(*x.shape[:-1], *shape)


def _transform(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of the last axis, whose length is a power of four."""
    b, h = x.shape[-1], 1
    while h < b:
        left, right = _rows(x, -1, 2, h).unbind(-2)
        x = torch.stack((left + right, left - right), -2).flatten(-3)
        h *= 2
    return x * 2.0 ** -(b.bit_length() // 2)
