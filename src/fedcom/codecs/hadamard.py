"""Two randomised Hadamard rotations: any vector becomes one whose coordinates look Gaussian.

A vector of d coordinates is padded to R rows of a block of B, each row is rotated (random signs, then a
Hadamard transform), the rows are dealt out column by column so that every new row holds a piece of every
old one, and the rows are rotated again. One rotation alone leaves sparse vectors far from Gaussian. Only
additions, subtractions and a power of two are involved, in a fixed order, so that CPU, GPU and any stacking
agree to the last bit.
"""

import math

import torch
from torch import Tensor

from fedcom.codecs import fused
from fedcom.codecs.kernels import COMPILED
from fedcom.draws import Draw


def block(d: int) -> int:
    """B: a power of four near 8 sqrt(d), so that a row's piece of every other has about 64 coordinates."""
    exponent = max(0, round(math.log(max(8 * math.sqrt(d), 1), 4)))
    while exponent and -(-d // 4**exponent) * 4**exponent > 1.3 * d:  # no more than 30% of padding
        exponent -= 1
    return int(4**exponent)


def padded(d: int) -> int:
    """R B, the number of coordinates after padding."""
    return -(-d // block(d)) * block(d)


def rotate(x: Tensor, draw: Draw) -> Tensor:
    """The rotated vector, padded; its norm is that of x."""
    d, n = x.shape[-1], padded(x.shape[-1])
    b = block(d)
    y = _flip(torch.nn.functional.pad(x, (0, n - d)), draw.fold("first"))
    y = _transform(_rows(y, -1, b))
    y = _flip(y.transpose(-1, -2).flatten(-2), draw.fold("second"))
    return _transform(_rows(y, -1, b)).flatten(-2)


def unrotate(y: Tensor, d: int, draw: Draw) -> Tensor:
    """The first d coordinates of what was rotated."""
    b = block(d)
    x = _flip(_transform(_rows(y, -1, b)).flatten(-2), draw.fold("second"))
    x = _rows(x, b, -1).transpose(-1, -2)
    x = _flip(_transform(x.contiguous()).flatten(-2), draw.fold("first"))
    return x[..., :d]


def signs(n: int, draw: Draw, dtype: torch.dtype) -> Tensor:
    """n random signs a key, 32 of each hash."""
    words = draw.bits(-(-n // 32)).unsqueeze(-1) >> torch.arange(32, device=draw.key.device)
    return (1 - 2 * (words & 1)).flatten(-2)[..., :n].to(dtype)


def _rows(x: Tensor, *shape: int) -> Tensor:
    return x.reshape(*x.shape[:-1], *shape)


def _flip(x: Tensor, draw: Draw) -> Tensor:
    """x with random signs."""
    if x.dtype == torch.float32 and fused.ready(x, draw):
        return fused.flip(x, draw)
    return x * signs(x.shape[-1], draw, x.dtype)


def _transform(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of the last axis, whose length is a power of four."""
    if COMPILED and x.device.type == "cpu" and x.dtype == torch.float32:
        return fused.transform(x)
    b, h = x.shape[-1], 1
    while h < b:
        left, right = _rows(x, -1, 2, h).unbind(-2)
        x = torch.stack((left + right, left - right), -2).flatten(-3)
        h *= 2
    return x * 2.0 ** -(b.bit_length() // 2)
