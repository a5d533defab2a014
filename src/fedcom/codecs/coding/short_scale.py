"""Scales of two bytes: nine bits of exponent, from 2^-256 to 2^255, and seven of mantissa.

They are the high bits of a float64 without its sign, the exponent counted from another zero. Rounding is
stochastic, so that the scale is right on average; it is off by less than 0.8%.
"""

import torch
from torch import Tensor

from fedcom.draws import Draw

BITS = 16
NOT_FINITE = 2**BITS - 1  # stands for NaN, for infinity, and for scales too large to be written
_DROPPED = 45  # of the 52 bits of a float64's mantissa
_LEAST = (1023 - 256) << 7  # the high bits of 2^-256, which code 1 comes just after; code 0 is zero


def to_code(scale: Tensor, draw: Draw) -> Tensor:
    """The codes of scales that are not negative.

    Args:
        scale: a column of float64, one per key.
    """
    low = (draw.bits(1).to(torch.int64) & (2**32 - 1)) << (_DROPPED - 32)
    code = ((scale.view(torch.int64) + low) >> _DROPPED) - _LEAST
    return torch.where(scale.isfinite(), code.clamp(0, NOT_FINITE), NOT_FINITE)


def from_code(code: Tensor, dtype: torch.dtype) -> Tensor:
    """The scales that codes stand for."""
    scale = ((code.to(torch.int64) + _LEAST) << _DROPPED).view(torch.float64)
    scale = torch.where(code > 0, scale, 0.0)
    return torch.where(code < NOT_FINITE, scale, torch.nan).to(dtype)
