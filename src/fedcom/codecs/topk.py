"""Top-k: the coordinates of largest magnitude of a vector, or of each of its chunks, and where they are."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, check_range, check_share, kept_count, largest, spread_out
from fedcom.codecs.coding import normal, subsets
from fedcom.codecs.coding.subsets import Run, Runs
from fedcom.codecs.identity import Identity
from fedcom.codecs.integers import Int
from fedcom.codecs.two_levels import TwoLevels
from fedcom.codecs.wire import Field, check_length
from fedcom.draws import Draw
from fedcom.vectors import Layout


@dataclass(frozen=True)
class TopK(Codec):
    """The coordinates of largest magnitude, and where they are; biased, so it needs a memory or damping.

    All messages have the same size: positions take log2 C(d, k) bits, whatever they are.

    Args:
        ratio: the share of coordinates that is kept. The paper's C_r is a ratio of bytes instead, and counts
            the positions too.
        values: how kept values travel: as floats, as integers that are rounded stochastically, or as levels:
            the sign and one of two magnitudes that suit the chunk best, in 2 bits.
        bits: the bits of each kept value where values are integers.
        chunk: keep the share of each so many neighbouring coordinates, as if they were a vector of their own;
            None: of the whole vector.
    """

    ratio: float = 0.1
    values: Literal["float", "int", "levels"] = "float"
    bits: int = 8
    chunk: int | None = None

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 15
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("ratio", self.ratio)
        check_range("bits", self.bits, 1, 16)
        if self.chunk is not None:
            check_range("chunk", self.chunk, 1, 2**31)

    def at(self, bits: float) -> Self | None:
        value = {"float": 32, "int": self.bits, "levels": 2}[self.values]
        scales = TwoLevels.overhead / (self.chunk or math.inf) if self.values == "levels" else 0.0
        ratio = _ratio(bits - scales, value)
        return None if ratio is None else replace(self, ratio=ratio)

    def runs(self, layout: Layout) -> Runs:
        """The chunks: those of full size, then a smaller one if any coordinates are left."""
        size = min(self.chunk or layout.size, layout.size)
        full, rest = divmod(layout.size, size)
        runs = (Run(full, size, kept_count(self.ratio, size)),)
        return (*runs, Run(1, rest, kept_count(self.ratio, rest))) if rest else runs

    def kept(self, layout: Layout) -> float:
        return self.kept_layout(layout).size / layout.size

    def inner(self, layout: Layout) -> Codec:
        """The codec of the kept values."""
        if self.values == "levels":
            return TwoLevels(tuple((run.chunks, run.kept) for run in self.runs(layout)))
        return Int(self.bits) if self.values == "int" else Identity()

    def kept_layout(self, layout: Layout) -> Layout:
        """The kept values as a vector of their own."""
        return Layout.vector(sum(run.chunks * run.kept for run in self.runs(layout)), layout.dtype)

    def variance(self, layout: Layout) -> float:
        # A chunk keeps at least its share of |x|^2, and what a contraction makes of them keeps a share again.
        share, inner = min(run.kept / run.size for run in self.runs(layout)), self.inner(layout)
        lost = inner.variance(self.kept_layout(layout))
        return 1 - share + lost if inner.unbiased else 1 - share * (1 - lost)

    def fields(self, layout: Layout) -> list[Field]:
        positions = Field("positions", subsets.nbytes(self.runs(layout)), 8)
        return [positions, *self.inner(layout).fields(self.kept_layout(layout))]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        size, found, start = x.abs(), list[Tensor](), 0
        for run in self.runs(layout):
            end = start + run.chunks * run.size
            chunks = size[..., start:end].reshape(*x.shape[:-1], run.chunks, run.size)
            inside = chunks.topk(run.kept, dim=-1).indices.sort(dim=-1).values
            starts = torch.arange(start, end, run.size, device=x.device)
            found.append((inside + starts.unsqueeze(-1)).flatten(-2))
            start = end
        indices = found[0] if len(found) == 1 else torch.cat(found, -1)
        values = x.gather(-1, indices)  # with what is not finite: it counts as the largest
        if self.values == "float":
            values = torch.where(largest(values).isfinite(), values, torch.nan)
        inner = self.inner(layout).compress(values, self.kept_layout(layout), draw)
        return {"indices": indices, **inner}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        values = self.inner(layout).expand(parts, self.kept_layout(layout), draw)
        return spread_out(values, parts["indices"].reshape(values.shape), layout.size)

    def refuse_not_finite(self, parts: Parts, layout: Layout) -> None:
        self.inner(layout).refuse_not_finite(parts, self.kept_layout(layout))

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        indices = parts["indices"].cpu().reshape(-1).to(torch.int64)
        positions = subsets.pack(indices.numpy(), self.runs(layout))
        return positions.tobytes() + self.inner(layout).pack(parts, self.kept_layout(layout))

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        fields, inner = self.fields(layout), self.inner(layout)
        check_length(body, sum(field.nbytes for field in fields))
        end = fields[0].nbytes
        values = inner.unpack(body[end:], self.kept_layout(layout))
        indices = subsets.unpack(np.frombuffer(body[:end], np.uint8), self.runs(layout))
        return {"indices": torch.from_numpy(indices), **values}


@lru_cache(maxsize=256)
def _ratio(bits: float, value: int) -> float | None:
    """The share of kept coordinates for which values and positions take so many bits per coordinate.

    Rounded to four digits, since log2 may differ in the last bit from one machine to another.

    Args:
        value: the bits of a kept value.
    """

    def rate(share: float) -> float:
        rest = 1 - share
        return share * value - (share * normal.log2(share) + rest * normal.log2(rest) if rest else 0.0)

    low, high = 0.0, 1 / (1 + 2.0**-value)  # up to here more coordinates take more bits
    if not 0 < bits <= rate(high):
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) < bits else (low, middle)
    return float(f"{high:.4g}")
