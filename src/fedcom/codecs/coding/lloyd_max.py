"""The quantiser of least squared error at a fixed number of levels (Lloyd, 1957; Max, 1960), packed as it is.

Edges lie midway between levels, and levels at the means of their cells. No entropy coder: a code takes its
bits whatever it is, so that sizes are exact and decoding is a look-up.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs.coding import normal
from fedcom.codecs.kernels.jit import placed
from fedcom.codecs.wire import Field
from fedcom.errors import WireError

BITS = (1, 2, 3, 4)
_SETTLED = 1e-12  # less than this a level moves in the last pass


@dataclass(frozen=True)
class FixedWidthCoder:
    """Codes of a fixed width."""

    bits: int

    low: ClassVar[int] = 0

    def pack(self, codes: Tensor) -> bytes:
        """The bytes of one vector of codes."""
        return self._field(len(codes)).pack(codes)

    def unpack(self, body: memoryview, n: int) -> Tensor:
        """The n codes of a message's bytes, or a WireError."""
        if len(body) != self._field(n).nbytes:
            raise WireError(f"{n} codes of {self.bits} bits cannot have {len(body)} bytes")
        return self._field(n).unpack(body).to(torch.int32)

    def nbytes(self, codes: Tensor) -> int:
        """The size of each row's codes."""
        return self._field(codes.shape[-1]).nbytes

    def _field(self, n: int) -> Field:
        return Field("codes", n, self.bits)


@dataclass(frozen=True, eq=False)
class LloydMax:
    """2^bits levels of a standard normal variable."""

    centres: Tensor
    coder: FixedWidthCoder
    q: float  # 1/cos^2 - 1 between a Gaussian vector and its image

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What sender and receiver must agree on."""
        return (self.centres,)

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations."""
        centres = placed(self.centres, y.device, torch.float64)
        edges = ((centres[1:] + centres[:-1]) / 2).to(y.dtype)
        z = (y / sigma.to(y.dtype)).nan_to_num(0)
        return torch.bucketize(z, edges, out_int32=True)


@lru_cache(maxsize=len(BITS))
def for_bits(bits: int) -> LloydMax:
    """The quantiser of so many bits: levels above zero are found, those below mirror them."""
    levels = [4.0 * (i + 0.5) / 2**bits for i in range(2 ** (bits - 1))]
    moved = 1.0
    while moved > _SETTLED:
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(levels))]
        mass, means = normal.cells(edges)
        moved = max(abs(a - b) for a, b in zip(levels, means, strict=True))
        levels = means
    centres = [normal.rounded(level) for level in levels]
    q = normal.variance([2 * m for m in mass], means, centres)
    mirrored = [-c for c in reversed(centres)] + centres
    return LloydMax(torch.tensor(mirrored, dtype=torch.float64), FixedWidthCoder(bits), q)
