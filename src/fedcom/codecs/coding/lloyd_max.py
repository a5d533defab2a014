"""The quantiser of least squared error at a fixed number of levels (Lloyd, 1957; Max, 1960).

Edges lie midway between levels, and levels at the means of their cells. There is no entropy coder: every code
takes the same number of bits, so sizes are exact and decoding is a look-up.
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
_SETTLED = 1e-12  # the search ends when no level moves by more than this


@dataclass(frozen=True)
class FixedWidthCoder:
    """Codes to bytes and back, `bits` bits each."""

    bits: int

    low: ClassVar[int] = 0
    dtype: ClassVar[torch.dtype] = torch.int8
    frequencies: ClassVar[Tensor] = torch.empty(0)  # it needs none

    def pack(self, codes: Tensor) -> bytes:
        """The bytes of one vector of codes."""
        return self._field(len(codes)).pack(codes)

    def unpack(self, body: memoryview, n: int) -> Tensor:
        """The n codes in a message's bytes."""
        if len(body) != self._field(n).nbytes:
            raise WireError(f"{n} codes of {self.bits} bits cannot have {len(body)} bytes")
        return self._field(n).unpack(body).to(torch.int32)

    def nbytes(self, codes: Tensor, exact: bool = True) -> int:
        """The bytes of each row."""
        return self._field(codes.shape[-1]).nbytes

    def _field(self, n: int) -> Field:
        return Field("codes", n, self.bits)


@dataclass(frozen=True, eq=False)
class LloydMax:
    """The quantiser of a standard normal variable that has 2^bits levels.

    Args:
        centres: the level of each code.
        q: the variance of Gaussian vectors, 1/cos^2 - 1 with the angle between a vector and its levels.
    """

    centres: Tensor
    coder: FixedWidthCoder
    q: float

    def codes(self, y: Tensor, sigma: Tensor) -> Tensor:
        """The codes of Gaussian vectors, given their standard deviations."""
        centres = placed(self.centres, y.device, torch.float64)
        edges = ((centres[1:] + centres[:-1]) / 2).to(y.dtype)
        z = (y / sigma.to(y.dtype)).nan_to_num(0)
        return torch.bucketize(z, edges, out_int32=True)


@lru_cache(maxsize=len(BITS))
def for_bits(bits: int) -> LloydMax:
    """The quantiser with codes of `bits` bits: levels above zero are searched, the others mirror them."""
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
    return LloydMax(torch.tensor(mirrored, dtype=torch.float64, device="cpu"), FixedWidthCoder(bits), q)
