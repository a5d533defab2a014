"""Bytes that are counted are those of the real messages; on a GPU they are near them."""

import math
from functools import cache

import pytest
import torch

from fedcom.codecs import Auto, Codec, Dithered, LowRank, Peaks, Rotated
from fedcom.codecs.coding import entropy
from fedcom.draws import Draw
from fedcom.vectors import Layout
from tests.codecs.cases import keys, label

CODED: list[Codec] = [
    *(Rotated(bits) for bits in (0.25, 1.0, 2.0, 6.0, 8.0)),
    *(Rotated(1.0, "trellis"), Rotated(0.2, "trellis"), Rotated(2, "fixed")),
    *(Dithered(q=10.0), Dithered(q=0.1), Dithered(q=1e-4), Dithered(q=1e-10)),
    *(LowRank(1, q=0.1), Auto(q=0.1), Auto(q=50.0)),
]
BY_RATE: list[Codec] = [Dithered(bits=2.0), LowRank(1), LowRank(1, 3.0), Auto(1.0), Auto(8.0), Peaks(0.5)]
LOW: list[Codec] = [Auto(0.04), Peaks(0.05)]
CASES = [
    *((codec, d) for codec in CODED for d in (10, 100, 1000, 10_000, 200_000)),
    *((codec, d) for codec in BY_RATE for d in (1000, 10_000, 200_000)),
    *((codec, d) for codec in LOW for d in (10_000, 200_000)),
]
each = pytest.mark.parametrize(
    ("codec", "d"), CASES, ids=lambda v: label(v) if isinstance(v, Codec) else None
)


def vectors(d: int) -> tuple[torch.Tensor, Layout]:
    """A Gaussian vector, a heavy-tailed one and zeros, each a matrix and what is left."""
    side = math.isqrt(d - 1)
    x = torch.randn(3, d, generator=torch.Generator().manual_seed(d))
    x[1] **= 5
    x[2] = 0.0
    return x, Layout(("a", "b"), ((side, side), (d - side * side,)))


@cache
def real(codec: Codec, d: int) -> list[int]:
    """The bytes of each row's message."""
    x, where = vectors(d)
    return [len(codec.encode(row, where, keys(3)[i])) for i, row in enumerate(x)]


def counted(codec: Codec, x: torch.Tensor, where: Layout, draw: Draw) -> list[int]:
    """The bytes of each row, without the bytes."""
    sizes = codec.transmit(x, where, draw)[1].values()
    return sum(torch.as_tensor(size).expand(len(x)) for size in sizes).tolist()  # type: ignore[union-attr]


@each
def test_counted_bytes_are_those_of_the_messages(codec: Codec, d: int) -> None:
    x, where = vectors(d)
    assert codec.counts_exactly(x)
    assert counted(codec, x, where, keys(3)) == real(codec, d)


@each
def test_estimates_are_within_12_bytes_or_a_thousandth(
    codec: Codec, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, where = vectors(d)
    sizes = real(codec, d)
    monkeypatch.setattr(entropy, "COMPILED", False)  # what a GPU does, without one
    assert codec.counts_exactly(x) == codec.exact_size
    for about, size in zip(counted(codec, x, where, keys(3)), sizes, strict=True):
        assert abs(about - size) <= (0 if codec.exact_size else max(0.001 * size, 12))
