"""Rotation and quantisation of stacks of float32 vectors on the GPU: two passes each way, in Triton.

Additions are those of the torch lines in hadamard.py, in their order, so that results agree bit for bit; sums
are made in float64 in an order of their own.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fedcom.draws import Draw, salt

_HAS_TRITON = find_spec("triton") is not None
_LARGEST_BLOCK = 1 << 14  # coordinates of a block that fit in the registers of one program


def ready(x: Tensor, draw: Draw, b: int) -> bool:
    """Whether the kernels here can take the place of torch: float32 stacks on a GPU, a key each."""
    stacked = x.dim() == 2 and draw.key.shape == x.shape[:1]
    return _HAS_TRITON and x.is_cuda and x.dtype == torch.float32 and stacked and 16 <= b <= _LARGEST_BLOCK


def first_half(x: Tensor, n: int, b: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """The first of the two rotations, and |x|^2 as a column of float64."""
    from fedcom.codecs.kernels import triton_kernels

    clients, d = x.shape
    y, power = x.new_empty(clients, n), x.new_empty(clients, n // b, dtype=torch.float64)
    triton_kernels.first[(n // b, clients)](
        x.contiguous(), y, power, draw.key, salt("first"), d, n // b, **_shape(b)
    )
    return y, power.sum(-1, keepdim=True)


def second_half(
    y: Tensor, b: int, step: Tensor, low: int, high: int, centres: Tensor, draw: Draw
) -> tuple[Tensor, Tensor]:
    """The codes of what both rotations make, and its inner product with their centres, a column."""
    from fedcom.codecs.kernels import triton_kernels

    clients, n = y.shape
    codes = torch.empty_like(y, dtype=torch.int32)
    overlap = y.new_empty(clients, n // b, dtype=torch.float64)
    triton_kernels.second[(n // b, clients)](
        y, codes, overlap, draw.key, salt("second"), step, centres, n // b, low, high, **_shape(b)
    )
    return codes, overlap.sum(-1, keepdim=True)


def unrotate(codes: Tensor, low: int, centres: Tensor, d: int, b: int, draw: Draw) -> Tensor:
    """The first d coordinates of the vector whose rotation has these codes."""
    from fedcom.codecs.kernels import triton_kernels

    clients, n = codes.shape
    y, x = torch.empty_like(codes, dtype=torch.float32), centres.new_empty(clients, d)
    grid = (n // b, clients)
    last = len(centres) - 1
    triton_kernels.unsecond[grid](codes, y, draw.key, salt("second"), centres, low, last, n // b, **_shape(b))
    triton_kernels.unfirst[grid](y, x, draw.key, salt("first"), d, n // b, **_shape(b))
    return x


def _shape(b: int) -> dict[str, Any]:
    return {"B": b, "LEVELS": b.bit_length() - 1, "SCALE": b**-0.5, "num_warps": max(1, min(16, b // 1024))}
