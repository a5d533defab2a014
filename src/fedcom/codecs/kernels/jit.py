"""Loops that torch cannot express well: compiled by numba if it is installed, otherwise run by Python."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch
from numpy import uint32 as U
from torch import Tensor

Loop = TypeVar("Loop", bound=Callable[..., Any])


@lru_cache(maxsize=1024)
def placed(table: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant table on a device, copied there once: a round recorded on a GPU cannot copy it."""
    return table.to(device, dtype)


try:
    from numba import njit
except ImportError:  # about a hundred times slower, with the same results
    COMPILED = False

    def jit(function: Loop) -> Loop:
        """Leave a loop to Python."""
        return function

    sum_jit = jit
else:
    COMPILED = True

    def jit(function: Loop) -> Loop:
        """Compile a loop at its first call, and keep the result on disk."""
        return _compiled(function, False)

    def sum_jit(function: Loop) -> Loop:
        """The same, for a sum whose terms may be added in any order."""
        return _compiled(function, {"reassoc", "contract"})

    def _compiled(function: Loop, fastmath: bool | set[str]) -> Loop:
        compiler: Any = njit(cache=True, nogil=True, fastmath=fastmath)
        compiled: Loop = compiler(function)  # it is called just as the function is
        return compiled


@jit
def bits(i: int, low: U, high: U) -> U:
    """Number i of Draw.bits, given the low and the high half of the key.

    Whoever changes this must clear numba's caches: files that call it do not notice the change.
    """
    x = U(U(i) + low)
    x = U(U(U(x ^ (x >> U(17))) * U(0xED5AD4BB)) ^ high)
    x = U(U(x ^ (x >> U(11))) * U(0xAC4C1B51))
    x = U(U(x ^ (x >> U(15))) * U(0x31848BAB))
    return U(x ^ (x >> U(14)))
