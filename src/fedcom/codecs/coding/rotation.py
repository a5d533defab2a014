"""The two rotations by the fastest of the three ways to do them: numba, Triton, or torch."""

import torch
from torch import Tensor

from fedcom.codecs.coding import hadamard
from fedcom.codecs.kernels import cpu, gpu
from fedcom.codecs.kernels.jit import COMPILED, placed
from fedcom.draws import Draw
from fedcom.vectors import Layout


def rotate(x: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """The rotated vectors, padded, and the sum of squares of each one, as a column of float64."""
    n, b = hadamard.padded(x.shape[-1]), hadamard.block_size(x.shape[-1])
    if gpu.rotates(x, draw, b):
        half, power = gpu.first_half(x, n, b, draw)
        return gpu.turn(half, b, draw), power
    y = hadamard.rotate(x, draw)
    return y, power_of(y, draw)


def power_of(y: Tensor, draw: Draw) -> Tensor:
    """The sum of squares of each row, as a column of float64."""
    fast = y.dtype == torch.float32 and cpu.ready(y, draw)
    return cpu.product(y, y) if fast else y.double().square().sum(-1, keepdim=True)


def unrotate(codes: Tensor, low: int, centres: Tensor, scale: Tensor, layout: Layout, draw: Draw) -> Tensor:
    """The vectors whose rotations are the centres of these codes, times a scale per vector.

    Where the scale is zero they are zeros, none of them minus zero.

    Args:
        codes: integers of any width.
        low: the code of the first centre.
        centres: what each code from low on means.
        scale: a column.
    """
    d, b = layout.size, hadamard.block_size(layout.size)
    if layout.dtype == torch.float32 and cpu.ready(codes, draw):
        x = cpu.unrotate(codes, low, placed(centres, codes.device, torch.float32), scale, d, b, draw)
    elif layout.dtype == torch.float32 and gpu.rotates(scale, draw, b):
        wide, table = codes.to(torch.int32), placed(centres, codes.device, torch.float32)
        x = gpu.unrotate(wide, low, table, d, b, draw) * scale
    else:
        y = image(codes, low, centres, layout.dtype)
        x = hadamard.unrotate(y, d, draw) * scale.to(layout.dtype)
    if not scale.is_cuda and scale.all():
        return x
    return x.masked_fill(scale == 0, 0.0)  # on a GPU always, to save a wait


def image(codes: Tensor, low: int, centres: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes mean: the centre of each one's cell, where low is the code of the first."""
    table = placed(centres, codes.device, dtype)
    if COMPILED and codes.device.type == "cpu" and dtype == torch.float32:
        return cpu.image(codes, low, table)
    return table[(codes.to(torch.int32) - low).to(torch.int64)]
