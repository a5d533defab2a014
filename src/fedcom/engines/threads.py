"""Threads for the groups of clients that a CPU computes side by side."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Do something to every item, one thread an item where there are several workers; results in order.

    So few are begun before the first are asked for that results do not pile up.
    """
    if workers == 1 or len(items) == 1:
        yield from map(work, items)
        return
    waiting = deque[Future[Result]]()
    for item in items:
        if len(waiting) == 2 * workers:
            yield waiting.popleft().result()
        waiting.append(_pool(workers).submit(work, item))
    while waiting:
        yield waiting.popleft().result()


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that leave the other cores to one another."""
    return ThreadPoolExecutor(workers, "fedcom", lambda: torch.set_num_threads(1))
