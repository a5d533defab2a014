"""Loops that torch cannot express well: compiled by numba if it is installed, otherwise run by Python."""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from numpy import uint32 as U
from torch import Tensor

Loop = TypeVar("Loop", bound=Callable[..., Any])


@lru_cache(maxsize=1024)
def placed(table: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant table on a device, copied there once: a round recorded on a GPU cannot copy it."""
    return table.to(device, dtype)


COMPILED = find_spec("numba") is not None
_waiting: "list[_Lazy] | None" = []  # loops that numba has not been told of; None once it has been imported
_lock = Lock()


def jit(function: Loop) -> Loop:
    """Compile a loop at its first call, and keep the result on disk.

    Without numba the loop is left to Python: about a hundred times slower, with the same results.
    """
    return _compiled(function, False)


def sum_jit(function: Loop) -> Loop:
    """The same, for a sum whose terms may be added in any order."""
    return _compiled(function, {"reassoc", "contract"})


def fma_jit(function: Loop) -> Loop:
    """The same, for products that are added before they are rounded, as torch's vectorised loops do it.

    As in torch, what is divided by zero is infinite, and no error.
    """
    return _compiled(function, {"contract"}, "numpy")


def _compiled(function: Loop, fastmath: bool | set[str], division: str = "python") -> Loop:
    if not COMPILED:
        return function
    lazy: Any = _Lazy(function, fastmath, division)
    if _waiting is None:
        return cast(Loop, lazy.dispatcher())
    _waiting.append(lazy)
    return cast(Loop, lazy)


class _Lazy:
    """A loop that numba hears of when any loop is first called: importing numba takes a noticeable time."""

    def __init__(self, function: Callable[..., Any], fastmath: bool | set[str], division: str) -> None:
        self.py_func = function
        self._options: dict[str, Any] = {"fastmath": fastmath, "error_model": division}
        self._dispatcher: Any = None

    def dispatcher(self) -> Any:
        """What numba calls the loop by."""
        if self._dispatcher is None:
            from numba import njit

            self._dispatcher = njit(cache=True, nogil=True, **self._options)(self.py_func)
        return self._dispatcher

    def __call__(self, *arguments: Any) -> Any:
        if self._dispatcher is None or _waiting is not None:
            _tell_numba()
        return self._dispatcher(*arguments)


def _tell_numba() -> None:
    """Put numba's version in the place of every loop, also where one loop calls another."""
    global _waiting
    with _lock:
        for lazy in _waiting or ():
            lazy.dispatcher()
            names = lazy.py_func.__globals__
            names |= {name: other.dispatcher() for name, other in names.items() if isinstance(other, _Lazy)}
        _waiting = None


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
