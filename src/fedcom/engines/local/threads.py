"""Threads for the groups of clients that a CPU computes side by side."""

import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Do something to every item, one thread per item where there are several workers; results in order.

    So few are begun before the first are asked for that results do not pile up.
    """
    waiting = deque[Future[Result]]()
    with _undivided():
        if workers == 1 or len(items) == 1:
            yield from map(work, items)
            return
        for item in items:
            if len(waiting) == 2 * workers:
                yield waiting.popleft().result()
            waiting.append(_pool(workers).submit(work, item))
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def alone() -> Iterator[None]:
    """Let the calling thread compute as one of several would."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _undivided():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _undivided() -> Iterator[None]:
    """Products and convolutions that stay on the thread that asks for them.

    On ARM oneDNN divides them among threads of its own, whatever torch is told, and ours would wait for
    one another over those.
    """
    library: Any = torch.backends.mkldnn
    before, on_arm = library.enabled, platform.machine() in ("aarch64", "arm64")
    library.enabled = before and not on_arm
    try:
        yield
    finally:
        library.enabled = before


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that leave the other cores to one another."""
    return ThreadPoolExecutor(workers, "fedcom", lambda: torch.set_num_threads(1))
