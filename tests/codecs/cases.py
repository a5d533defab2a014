"""The codecs, layouts and vectors every codec test runs over."""

from dataclasses import astuple

import pytest
import torch
from torch import Tensor

from fedcom.codecs import (
    Codec,
    CountSketch,
    Dithered,
    Identity,
    Int,
    Natural,
    Peaks,
    PowerSgd,
    Qsgd,
    RandK,
    Rotated,
    Sign,
    TernGrad,
    TopK,
)
from fedcom.draws import Draw
from fedcom.vectors import Layout

FIXED: list[Codec] = [  # those that draw nothing
    Identity(),
    Int(2, "nearest"),
    Int(8, "nearest", "vector"),
    TopK(0.05),
    TopK(0.4),
    TopK(1.0),
    TopK(0.2, chunk=16),
    TopK(0.1, "levels"),
    TopK(0.3, "levels", chunk=25),
    RandK(1.0),
    Sign(),
    Sign("vector"),
]
RANDOM: list[Codec] = [
    *(Int(bits) for bits in (1, 2, 4, 5, 8, 12, 16)),
    Int(4, scale="vector"),
    Int(8, zero_point_noise=3),
    Int(5, "nearest", zero_point_noise=3),
    *(Qsgd(levels) for levels in (1, 3, 127, 1000)),
    Qsgd(2, "vector"),
    Qsgd(127, "vector"),
    Natural(),
    TopK(0.05, "int", 8),
    TopK(0.05, "int", 5),
    TopK(0.4, "int", 8),
    TopK(0.4, "int", 5),
    TopK(0.2, "int", 4, chunk=16),
    RandK(0.1),
    RandK(0.37),
    TernGrad(),
    TernGrad("vector"),
    CountSketch(0.1),
    CountSketch(0.4, rows=3),
]
MATRIX: list[Codec] = [PowerSgd(1), PowerSgd(2)]  # those that draw only where there is a matrix
DITHERED: list[Codec] = [Dithered(q=q) for q in (1e-4, 0.1, 10.0)]  # by bits: test_dithered.py
# A rotation makes a vector Gaussian, and these unbiased, only from about a thousand coordinates on.
PACKED: list[Codec] = [Rotated(bits, "fixed") for bits in (1, 2, 3, 4)]
PEAKS: list[Codec] = [Peaks(50.0)]  # a rate that serves a single coordinate; lower ones: test_peaks.py
ROTATED: list[Codec] = [*(Rotated(bits) for bits in (0.25, 1.0, 2.0, 6.0)), *PACKED, *PEAKS]
CODECS_TESTED = FIXED + RANDOM + MATRIX + DITHERED + ROTATED

LAYOUTS = {
    "one": ((97,),),
    "several": ((7, 8), (29,), (3, 3, 3)),
    "ones": ((1,), (5,), (), (1, 1)),
    "single": ((1,),),
}


LONG = Layout(("a", "b", "c", "d"), ((40, 50), (50,), (1500,), (7, 9)))  # for codecs that rotate


def label(codec: Codec) -> str:
    return "-".join(map(str, (codec.name, *astuple(codec))))


def layout(name: str, dtype: torch.dtype) -> Layout:
    shapes = LAYOUTS[name]
    return Layout(tuple(f"{name}.{i}" for i in range(len(shapes))), shapes, dtype)


def keys(n: int, seed: int = 0) -> Draw:
    """A stack of n keys, one per client."""
    return Draw.seeded(seed).fold(torch.arange(n))


def gaussian(where: Layout, seed: int = 0, n: int | None = None) -> Tensor:
    """Normal numbers, each tensor a thousand times larger than the one before."""
    shape = (where.size,) if n is None else (n, where.size)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scales = [torch.full((size,), 1e-3 * 1e3**i, dtype=torch.float64) for i, size in enumerate(where.sizes)]
    return (x * torch.cat(scales)).to(where.dtype)


def shaped(kind: str, where: Layout) -> Tensor:
    """Vectors that are hard in different ways."""
    x = gaussian(where)
    if kind == "heavy-tailed":
        return x**3
    if kind == "sparse":
        return x * (torch.arange(where.size) % (where.size // 3 + 1) == 0)
    return torch.full_like(x, -0.7) if kind == "constant" else x


KINDS = ("gaussian", "heavy-tailed", "sparse", "constant")


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree bit for bit: -0.0 is not 0.0."""
    bits = {4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(bits), b.view(bits))


each_codec = pytest.mark.parametrize("codec", CODECS_TESTED, ids=label)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=("float32", "float64"))
each_layout = pytest.mark.parametrize("name", LAYOUTS)
