"""Loops that torch has no words for; numba compiles them where it is installed, else Python runs them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch
from numpy import uint32 as U
from torch import Tensor

Loop = TypeVar("Loop", bound=Callable[..., Any])


@lru_cache(maxsize=1024)
def placed(table: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant table on a device, copied there once: a recorded round cannot fetch it."""
    return table.to(device, dtype)


try:
    from numba import njit
except ImportError:  # slower by two orders of magnitude, with the same results
    COMPILED = False

    def jit(function: Loop) -> Loop:
        """Leave a loop to Python."""
        return function

    sum_jit = jit
else:
    COMPILED = True

    def jit(function: Loop) -> Loop:
        """Compile a loop at its first call, and keep what was compiled."""
        return _compiled(function, False)

    def sum_jit(function: Loop) -> Loop:
        """The same, for a sum that may be made in any order."""
        return _compiled(function, {"reassoc", "contract"})

    def _compiled(function: Loop, fastmath: bool | set[str]) -> Loop:
        compiler: Any = njit(cache=True, nogil=True, fastmath=fastmath)
        compiled: Loop = compiler(function)  # what it makes is called as the function is
        return compiled


@jit
def bits(i: int, low: U, high: U) -> U:
    """Draw.bits, one number, of a key in two halves.

    Numba does not notice, in the files that call it, that this has changed: clear their caches then.
    """
    x = U(U(i) + low)
    x = U(U(U(x ^ (x >> U(17))) * U(0xED5AD4BB)) ^ high)
    x = U(U(x ^ (x >> U(11))) * U(0xAC4C1B51))
    x = U(U(x ^ (x >> U(15))) * U(0x31848BAB))
    return U(x ^ (x >> U(14)))
