"""A low-rank part of every matrix, and the rest by an unbiased codec.

Updates of a few local steps lie near a subspace of few dimensions. The factors of the low-rank part are found
by two power iterations from a random start, and travel as 8-bit integers. Whatever they miss, their own
rounding included, is in the residual. The residual's codec is unbiased, so the whole is.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs import wire
from fedcom.codecs.base import Parts, Sizes, check_range, nested, parts_of, together
from fedcom.codecs.dithered import Dithered, least_bits
from fedcom.codecs.entropy_coded import LOWEST_RATE, EntropyCoded
from fedcom.codecs.rotated import Rotated
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

_TOP = 127  # the largest magnitude of a factor's integers
_RESIDUAL = "residual"  # what the names of its parts begin with


@dataclass(frozen=True)
class LowRank(EntropyCoded):
    """A low-rank part of each matrix in 8 bits, and the residual at a rate or of a variance.

    At a rate the residual is dithered, or rotated where few bits are left for it. At a variance it is
    dithered with the step of the whole vector, so that q is exact.

    Args:
        rank: the number of columns of each factor.
        bits: the bits per coordinate in all; 1 if neither bits nor q is given.
        q: the variance |Q(x) - x|^2 / |x|^2.
    """

    rank: int = 2
    bits: float | None = None
    q: float | None = None

    name: ClassVar[str] = "lowrank"
    id: ClassVar[int] = 8
    dithers: ClassVar[bool] = True
    highest_rate: ClassVar[float] = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rank", self.rank, 1, 64)
        self.take_q_or_bits(self.q, self.bits, default=("bits", 1.0))

    def variance(self, layout: Layout) -> float:
        return self.residual(layout).variance(layout)  # the residual is no larger than x, up to rounding

    def matrices(self, layout: Layout) -> list[tuple[int, int, int]]:
        """The place among the tensors, rows and columns of every matrix that is larger than its factors."""
        shapes = [
            (i, s[0], layout.sizes[i] // s[0]) for i, s in enumerate(layout.shapes) if len(s) > 1 and s[0]
        ]
        return [(i, m, n) for i, m, n in shapes if min(m, n) > self.rank and m * n > 2 * self.rank * (m + n)]

    def residual(self, layout: Layout) -> Dithered | Rotated:
        """The residual's codec, at the rate that the factors leave; below 0.8 bits rotated is better."""
        if self.bits is None:
            return Dithered(q=self.q)
        spent = 8 * sum(field.nbytes for field in self.fields(layout)) / layout.size
        left = self.bits - spent
        needed = LOWEST_RATE if left < 0.8 else least_bits(layout)
        if left < needed:
            raise ConfigError(
                f"factors of rank {self.rank} take {spent:.3f} bits per coordinate of this model and leave "
                f"{left:.3f} of {self.bits}; the residual needs {needed:g}: lower rank or raise bits"
            )
        return Rotated(left) if left < 0.8 else Dithered(bits=left)

    def tables(self, layout: Layout) -> bytes:
        return self.residual(layout).tables(layout)

    def fields(self, layout: Layout) -> list[Field]:
        sides = [m + n for _, m, n in self.matrices(layout)]
        scales = Field("scales", 2 * self.rank * len(sides), 32, floating=True)
        return [scales, Field("factors", self.rank * sum(sides), 8)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        factors = self._factorise(x, layout, draw)
        rest = x - self._low_rank(factors, layout, x.dtype)
        codec, draw = self.residual(layout), draw.fold("residual")
        if isinstance(codec, Dithered) and codec.q:
            step = together(codec.step(x, layout, draw), factors["scales"])
            inner = codec.compress_at(rest, step, draw)
        else:
            inner = codec.compress(rest, layout, draw)
        return factors | nested(_RESIDUAL, inner)

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        rest = self.residual(layout).expand(parts_of(_RESIDUAL, parts), layout, draw.fold("residual"))
        return self._low_rank(parts, layout, layout.dtype) + rest

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        return super().pack(parts, layout) + self.residual(layout).pack(parts_of(_RESIDUAL, parts), layout)

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        size = sum(field.nbytes for field in self.fields(layout))
        factors = wire.unpack(self.fields(layout), body[:size])
        if (factors["factors"] > 2 * _TOP).any():
            raise WireError(f"a lowrank factor is above {2 * _TOP}")
        return factors | nested(_RESIDUAL, self.residual(layout).unpack(body[size:], layout))

    def itemise(self, parts: Parts, layout: Layout, exact: bool = True) -> Sizes:
        items = self.residual(layout).itemise(parts_of(_RESIDUAL, parts), layout, exact)
        own: Sizes = {"header": wire.HEADER, **wire.sizes(self.fields(layout))}
        return own | {f"{_RESIDUAL} {name}": size for name, size in items.items() if name != "header"}

    def _factorise(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        """The factors as integers, with one scale per column.

        Computed in float64, so that a stack and its rows are rounded alike.
        """
        tensors = layout.split(x.double())
        scales, codes = [x.new_zeros((*x.shape[:-1], 0)).float()], [x.new_zeros((*x.shape[:-1], 0)).int()]
        for i, m, n in self.matrices(layout):
            matrix = tensors[i].reshape(*x.shape[:-1], m, n)
            start = draw.fold("start", i).normal(n * self.rank, torch.float64)
            right = start.reshape(*x.shape[:-1], n, self.rank)
            for _ in range(2):
                left = _orthonormal(matrix @ right)
                right = matrix.transpose(-1, -2) @ left
            for factor in (left, right):
                scale = (factor.abs().amax(-2) / _TOP).float()
                whole = factor / scale.double().clamp(min=1e-300).unsqueeze(-2)
                scales.append(scale)
                codes.append((whole.round().nan_to_num(0).clamp(-_TOP, _TOP).int() + _TOP).flatten(-2))
        # What the factors of all matrices make is small enough to be added to the residual without overflow.
        pairs = zip(scales[1::2], scales[2::2], strict=True)
        reach = [
            8 * self.rank * (_TOP * left.to(x.dtype)) * (_TOP * right.to(x.dtype)) for left, right in pairs
        ]
        return {"scales": together(torch.cat(scales, -1), *reach), "factors": torch.cat(codes, -1)}

    def _low_rank(self, parts: Parts, layout: Layout, dtype: torch.dtype) -> Tensor:
        """The products of the factors, as flat vectors that are zero outside the matrices."""
        lead, r = parts["scales"].shape[:-1], self.rank
        x = torch.zeros((*lead, layout.size), dtype=dtype, device=parts["scales"].device)
        tensors, codes, scale = layout.split(x), parts["factors"].double() - _TOP, parts["scales"].double()
        place = column = 0
        for i, m, n in self.matrices(layout):
            sides = []
            for side in (m, n):
                factor = codes[..., place : place + side * r].reshape(*lead, side, r)
                sides.append(factor * scale[..., None, column : column + r])
                place, column = place + side * r, column + r
            tensors[i].copy_((sides[0] @ sides[1].transpose(-1, -2)).flatten(-2))
        return x


def _orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis by Gram and Schmidt, column by column; a column with nothing new stays zero."""
    done: list[Tensor] = []
    for column in columns.unbind(-1):
        for other in done:
            column = column - (column * other).sum(-1, keepdim=True) * other
        size = torch.linalg.vector_norm(column, dim=-1, keepdim=True)
        done.append(column / size.clamp(min=1e-300))
    return torch.stack(done, -1)
