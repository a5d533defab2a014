"""Loops that torch has no words for; numba compiles them where it is installed, else Python runs them."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

try:
    from numba import njit
except ImportError:  # slower by two orders of magnitude, with the same results
    COMPILED = False

    def jit(function: F) -> F:
        """Leave a loop to Python."""
        return function
else:
    COMPILED = True

    def jit(function: F) -> F:
        """Compile a loop at its first call, and keep what was compiled."""
        compiler: Any = njit(cache=True, nogil=True)  # what it makes is called as the function is
        compiled: F = compiler(function)
        return compiled
