"""PowerSGD (Vogels et al., 2019): one step of power iteration on every matrix, from a random start."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs.base import Codec, Parts, check_range, largest
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout

_NOTHING = 1e-6  # a direction smaller than this, relative to the largest, is a rounding error


@dataclass(frozen=True)
class PowerSgd(Codec):
    """Two factors of every matrix, other tensors as they are; biased, so it needs memory=error-feedback.

    A tensor of two or more dimensions is the matrix [first, rest]. It travels as float32 factors where those
    are fewer numbers than the matrix, else as it is, in the dtype of the run. Every message starts from a
    fresh Gaussian matrix, so senders keep no state; in the paper they start from their last factor.

    Args:
        rank: the number of columns of each factor.
    """

    rank: int = 2

    name: ClassVar[str] = "powersgd"
    id: ClassVar[int] = 12
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("rank", self.rank, 1, 1024)

    def kept(self, layout: Layout) -> float:
        # The share r/min(m, n) that is promised is far below what a message carries of a real update, which
        # is 0.1 to 0.3. In runs with error feedback tracking diverged at 1 and did well at 0.1.
        return 0.1 if any(self.shapes(layout)) else 1.0

    def shapes(self, layout: Layout) -> list[tuple[int, int] | None]:
        """Each tensor's shape as a matrix, or None where it travels dense."""
        shapes = [(shape[0], math.prod(shape[1:])) if shape else (1, 1) for shape in layout.shapes]
        return [(m, n) if self.rank * (m + n) < m * n else None for m, n in shapes]

    def variance(self, layout: Layout) -> float:
        # Let A = M'M, and V an orthonormal basis of the start within M's row space. Projecting on M V keeps
        # tr((V'AV)^-1 V'AAV) >= tr(V'AV) of |M|^2, on average the share r/min(m, n), and no more if M is
        # orthogonal.
        return max((1 - self.rank / min(shape) for shape in self.shapes(layout) if shape), default=0.0)

    def sizes(self, layout: Layout) -> dict[str, list[int]]:
        """How many numbers travel of each tensor, by field."""
        shapes = self.shapes(layout)
        return {
            "left": [self.rank * shape[0] for shape in shapes if shape],
            "right": [self.rank * shape[1] for shape in shapes if shape],
            "values": [size for size, shape in zip(layout.sizes, shapes, strict=True) if not shape],
        }

    def fields(self, layout: Layout) -> list[Field]:
        bits = {"left": 32, "right": 32, "values": 8 * layout.itemsize}
        counts = {name: sum(sizes) for name, sizes in self.sizes(layout).items()}
        return [Field(name, count, bits[name], floating=True) for name, count in counts.items() if count]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        parts: dict[str, list[Tensor]] = {"left": [], "right": [], "values": []}
        for i, (block, shape) in enumerate(zip(layout.split(x), self.shapes(layout), strict=True)):
            if shape is None:
                parts["values"].append(block)
            else:
                p, q = self._factors(block.reshape(-1, *shape).to(torch.float64), draw.fold(i))
                parts["left"].append(p.reshape(*x.shape[:-1], -1))
                parts["right"].append(q.reshape(*x.shape[:-1], -1))
        found = {name: torch.cat(blocks, -1) for name, blocks in parts.items() if blocks}
        # The right factors are not finite if the matrix is not: they are its product with the left ones.
        reach = [largest(part.to(layout.dtype)) for name, part in found.items() if name != "left"]
        finite = (2 * self.rank * torch.cat(reach, -1)).isfinite().all(-1, keepdim=True)
        return {name: torch.where(finite, part, torch.nan) for name, part in found.items()}

    def _factors(self, matrix: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """P and Q of a stack of matrices, in float32; P Q' is the projection on P's columns."""
        n = matrix.shape[-1]
        start = draw.normal(n * self.rank, torch.float64).reshape(-1, n, self.rank)
        p, r = torch.linalg.qr(matrix @ start)
        # Where the matrix has fewer directions than columns, QR fills up with those of rounding errors.
        found = r.diagonal(dim1=-2, dim2=-1).abs().unsqueeze(-2)
        p = p * (found > _NOTHING * found.amax(-1, keepdim=True))
        p = p.to(torch.float32)
        return p, (matrix.mT @ p.to(torch.float64)).to(torch.float32)

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        sizes = self.sizes(layout)
        pieces = {name: iter(torch.split(part, sizes[name], -1)) for name, part in parts.items()}
        blocks = [
            self._product(next(pieces["left"]).to(layout.dtype), next(pieces["right"]).to(layout.dtype))
            if shape
            else next(pieces["values"])
            for shape in self.shapes(layout)
        ]
        return torch.cat(blocks, -1)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """P Q', flat; added up column by column, so that stacks and devices agree to the last bit."""
        p, q = (factor.reshape(*factor.shape[:-1], -1, self.rank) for factor in (left, right))
        product = p[..., :1] * q[..., :1].mT
        for k in range(1, self.rank):
            product = product + p[..., k : k + 1] * q[..., k : k + 1].mT
        return product.flatten(-2)

    def check(self, parts: Parts, layout: Layout) -> None:
        if "left" in parts and (parts["left"].abs() > 1 + 1e-6).any():
            raise WireError("a powersgd message has a left factor that is not orthonormal")
