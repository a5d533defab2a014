"""Messages of pieces, coded and read: a device's work piece by piece, the host's by threads beside it.

Entropy coders run on the host, one symbol after another. Where tensors are on a GPU, threads pack some pieces
while the calling thread compresses the next, and unpack some while it expands those before. They touch
tensors on the CPU alone. What comes out, and its order, are those of one thread.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.codecs.base import Parts
from fedcom.codecs.wire import Data
from fedcom.draws import Draw
from fedcom.outer.shards import Piece
from fedcom.vectors import Layout

_MOST = 8  # threads: with so many the device's own work takes longer than theirs

Result = TypeVar("Result")


def threads(pieces: Sequence[Piece]) -> int:
    """How many threads should do the host's work: this process's CPUs beside a GPU, none where they train."""
    if all(piece.device.type == "cpu" for piece in pieces):
        return 0
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes on this machine, as torchrun says
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(cpus // here, 1), _MOST)


class Coders:
    """Code and read messages, one for each vector, in order.

    A codec that has an encode or decode of its own is asked for it by the calling thread.

    Args:
        count: of threads that do the host's work; 0: the calling thread does it.
    """

    def __init__(self, count: int) -> None:
        # What a thread sets for gradients holds for itself alone.
        begin = partial(torch.set_grad_enabled, False)
        self._pool = ThreadPoolExecutor(count, "fedcom-coder", begin) if count else None
        self._most = 2 * count  # pieces that the host has at a time

    def encoded(self, codec: Codec, given: Iterable[tuple[Tensor, Layout, Draw]]) -> Iterator[bytes]:
        """The messages of some vectors."""
        if self._pool is None or type(codec).encode is not Codec.encode:
            return (codec.encode(*one) for one in given)
        return self._ahead(self._pool, (_packing(codec, *one) for one in given))

    def decoded(self, codec: Codec, given: Iterable[tuple[Data, Layout, Draw]]) -> Iterator[Tensor]:
        """The vectors of some messages."""
        if self._pool is None or type(codec).decode is not Codec.decode:
            return (codec.decode(*one) for one in given)
        return self._read(self._pool, codec, given)

    def _read(
        self, pool: ThreadPoolExecutor, codec: Codec, given: Iterable[tuple[Data, Layout, Draw]]
    ) -> Iterator[Tensor]:
        known = deque[tuple[Layout, Draw]]()  # of the messages that are being unpacked

        def unpacking() -> Iterator[Callable[[], Parts]]:
            for data, layout, draw in given:
                known.append((layout, draw))
                yield partial(codec.unpack_message, data, layout)

        for parts in self._ahead(pool, unpacking()):
            yield codec.decode_parts(parts, *known.popleft())

    def _ahead(self, pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """The results of jobs in their order, while threads do the next ones."""
        waiting = deque[Future[Result]]()
        try:
            for job in jobs:
                waiting.append(pool.submit(job))
                if len(waiting) == self._most:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _packing(codec: Codec, x: Tensor, layout: Layout, draw: Draw) -> Callable[[], bytes]:
    """The host's half of coding a vector, once the device has done its own."""
    parts = codec.on_host(codec.encode_parts(x, layout, draw), layout)
    return partial(codec.pack_message, parts, layout)
