"""Loops over stacks of float32 vectors on a GPU, as Triton kernels.

A rotation and its quantiser are two kernels in each direction. Results are those of the torch lines in
coding/hadamard.py, bit for bit, because the same numbers are added in the same order. Only the sums |x|^2 and
<y, y'>, which are in float64, are added in another order.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fedcom.draws import Draw, salt

_HAS_TRITON = find_spec("triton") is not None
_SYMBOLS = 256  # what a tally has room for; the last counts the padding
_LARGEST_BLOCK = 1 << 14  # so many coordinates fit in the registers of one program


def ready(x: Tensor, draw: Draw) -> bool:
    """Whether the kernels can take the place of torch: for float32 stacks on a GPU with one key per row."""
    stacked = x.dim() == 2 and draw.key.shape == x.shape[:1]
    return _HAS_TRITON and x.is_cuda and x.dtype == torch.float32 and stacked and draw.strata is None


def rotates(x: Tensor, draw: Draw, b: int) -> bool:
    """Whether the kernels can rotate.

    Args:
        b: the coordinates of a row of the rotation.
    """
    return ready(x, Draw(draw.key)) and 16 <= b <= _LARGEST_BLOCK


def first_half(x: Tensor, n: int, b: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """What the first of the two rotations makes of x, and |x|^2 as a column of float64.

    Args:
        n: the coordinates after padding.
        b: the coordinates of a row of the rotation.
    """
    from fedcom.codecs.kernels import triton_kernels

    clients, d = x.shape
    y, power = x.new_empty(clients, n), x.new_empty(clients, n // b, dtype=torch.float64)
    triton_kernels.first[(n // b, clients)](
        x.contiguous(), y, power, draw.key, salt("first"), d, n // b, **_shape(b)
    )
    return y, power.sum(-1, keepdim=True)


def turn(y: Tensor, b: int, draw: Draw) -> Tensor:
    """What the second of the two rotations makes of y.

    Args:
        y: what first_half made.
        b: the coordinates of a row of the rotation.
    """
    from fedcom.codecs.kernels import triton_kernels

    clients, n = y.shape
    z = torch.empty_like(y)
    triton_kernels.turn[(n // b, clients)](y, z, draw.key, salt("second"), n // b, **_shape(b))
    return z


def second_half(
    y: Tensor, b: int, step: Tensor, low: int, high: int, centres: Tensor, draw: Draw
) -> tuple[Tensor, Tensor]:
    """The codes after the second rotation, and the rotated vector's inner product with their centres.

    Args:
        y: what first_half made.
        b: the coordinates of a row of the rotation.
        step: the quantiser's step for each client, as a column.
        low: the smallest code.
        high: the largest code.
        centres: what each code from low on means.
    """
    from fedcom.codecs.kernels import triton_kernels

    clients, n = y.shape
    codes = torch.empty_like(y, dtype=torch.int32)
    overlap = y.new_empty(clients, n // b, dtype=torch.float64)
    triton_kernels.second[(n // b, clients)](
        y, codes, overlap, draw.key, salt("second"), step, centres, n // b, low, high, **_shape(b)
    )
    return codes, overlap.sum(-1, keepdim=True)


def unrotate(codes: Tensor, low: int, centres: Tensor, d: int, b: int, draw: Draw) -> Tensor:
    """The vectors of d coordinates whose rotations are the centres of these codes."""
    from fedcom.codecs.kernels import triton_kernels

    clients, n = codes.shape
    y, x = torch.empty_like(codes, dtype=torch.float32), centres.new_empty(clients, d)
    grid = (n // b, clients)
    last = len(centres) - 1
    triton_kernels.unsecond[grid](codes, y, draw.key, salt("second"), centres, low, last, n // b, **_shape(b))
    triton_kernels.unfirst[grid](y, x, draw.key, salt("first"), d, n // b, **_shape(b))
    return x


def tally(x: Tensor, step: Tensor, most: int, symbols: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """How often each symbol of the codes round(x/step + u) occurs in each row, and how many raw bits it has.

    Args:
        step: one per row.
        most: the largest code.
        symbols: how many there are.
    """
    from fedcom.codecs.kernels import triton_kernels

    rows, d = x.shape
    counts = torch.zeros(rows, _SYMBOLS, dtype=torch.int64, device=x.device)
    raw = torch.zeros(rows, dtype=torch.int64, device=x.device)
    block = 2048
    grid = (-(-d // block), rows)
    triton_kernels.tally[grid](
        x.contiguous(), step, draw.key, counts, raw, d, float(most), SYMBOLS=_SYMBOLS, BLOCK=block
    )
    return counts[:, :symbols], raw


def _shape(b: int) -> dict[str, Any]:
    """The arguments that are known when a kernel is compiled, and the size of its programs."""
    return {"B": b, "LEVELS": b.bit_length() - 1, "SCALE": b**-0.5, "num_warps": max(1, min(16, b // 1024))}
