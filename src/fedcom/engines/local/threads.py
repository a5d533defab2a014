"""Threads on which a CPU computes groups of clients."""

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


def map_on_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Apply a function to every item on several threads; results in order.

    At most 2 * workers items are begun ahead of the result that is asked for, so that results do not pile up.
    """
    waiting = deque[Future[Result]]()
    with _no_onednn_on_arm():
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
def one_thread() -> Iterator[None]:
    """Let torch compute on the calling thread only, as in each of the threads of `map_on_threads`."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _no_onednn_on_arm():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_onednn_on_arm() -> Iterator[None]:
    """On ARM, do matrix products and convolutions without oneDNN.

    oneDNN divides them among threads of its own there, whatever torch.set_num_threads says, and our threads
    would wait for one another.
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
    """Threads in each of which torch computes on one core."""
    return ThreadPoolExecutor(workers, "fedcom", lambda: torch.set_num_threads(1))
