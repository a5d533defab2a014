"""A uniform quantiser with subtractive dither and an entropy coder (after Ziv, 1985): q is an argument.

Sender and receiver draw the same dither u, uniform in [-1/2, 1/2): the code is round(x/step + u) and the
receiver sees (code - u) step. The error is then uniform over a step whatever x is, so that the step
sqrt(12 q / d) |x| meets the paper's assumption on Q with exactly the q asked for.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom import wire
from fedcom.codecs import fused, integer_stream
from fedcom.codecs.base import Codec, Parts, q_or_bits
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout
from fedcom.wire import Field

_STEP = Field("step", 1, 32, floating=True)
_SAMPLE = 16384  # coordinates that decide the step for a rate
_LARGEST = 2**31 - 128  # the float32 just below 2^31


@dataclass(frozen=True)
class Dithered(Codec):
    """Subtractive dither and an entropy coder: a variance q to keep, or a rate of about so many bits.

    Neither given, q is 0.1. For a rate the step is searched on some coordinates with a dither of their own:
    the choice depends on x alone, and the result stays unbiased.
    """

    q: float | None = None
    bits: float | None = None

    name: ClassVar[str] = "dithered"
    id: ClassVar[int] = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        q_or_bits(self, self.q, self.bits, most=16, default=("q", 0.1))

    @classmethod
    def at(cls, bits: float) -> "Dithered | None":
        return cls(bits=bits) if 0.05 <= bits <= 16 else None

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def exact_size(self) -> bool:
        return False

    def variance(self, layout: Layout) -> float:
        return math.inf if self.q is None else self.q  # a rate is kept whatever q that takes

    def fields(self, layout: Layout) -> list[Field]:
        return [_STEP]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        return self.coded(x, self.step(x, layout, draw), draw)

    def step(self, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The step that has the variance of x, or its rate."""
        norm = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
        sigma: Tensor = norm / math.sqrt(layout.size)
        return sigma * (math.sqrt(12 * self.q) if self.q else self._searched(x, sigma, layout, draw))

    @staticmethod
    def coded(x: Tensor, step: Tensor, draw: Draw) -> Parts:
        """The parts of x at a given step."""
        step = step.to(torch.float32)
        return {"step": torch.where(step.isfinite(), step, torch.nan), "codes": _quantise(x, step, draw)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        codes = parts["codes"]
        if layout.dtype == torch.float32 and fused.ready(codes, draw):
            return fused.undithered(codes, parts["step"], draw)
        codes = codes.to(layout.dtype)
        return (codes - _dither(codes, draw)) * parts["step"].to(layout.dtype)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        return _STEP.pack(parts["step"]) + integer_stream.pack(parts["codes"])

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        if len(body) < _STEP.nbytes:
            raise WireError(f"a dithered message cannot have {len(body)} bytes")
        step = _STEP.unpack(body[: _STEP.nbytes])
        if (step < 0).any():
            raise WireError("a dithered message has a negative step")
        return {"step": step, "codes": integer_stream.unpack(body[_STEP.nbytes :], layout.size)}

    def itemise(self, parts: Parts, layout: Layout) -> dict[str, int]:
        messages = parts["step"].numel()
        codes = int(integer_stream.nbytes(parts["codes"]).sum())
        return {"header": messages * wire.HEADER, "step": messages * _STEP.nbytes, "codes": codes}

    def _searched(self, x: Tensor, sigma: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The step in units of sigma that gives the rate, by bisection on a sample of x."""
        n = min(layout.size, _SAMPLE)
        some = torch.arange(n, device=x.device) * layout.size // n
        sample, draw = x[..., some], draw.fold("search")
        overhead = 8 * (wire.HEADER + _STEP.nbytes + 6 + 2 * 8 + 8)
        rate = max((self.bits or 0.0) - overhead / layout.size, 0.01)
        fine, coarse = torch.full_like(sigma, 1e-5), torch.full_like(sigma, 1e3)
        for _ in range(24):
            middle = (fine * coarse).sqrt()
            codes = _quantise(sample, (sigma * middle).to(torch.float32), draw)
            above = integer_stream.bits(codes.reshape(-1, len(some))).reshape(sigma.shape) > rate
            fine, coarse = torch.where(above, middle, fine), torch.where(above, coarse, middle)
        return coarse


def _quantise(x: Tensor, step: Tensor, draw: Draw) -> Tensor:
    """round(x/step + u); a step of zero, of the zero vector, gives zeros."""
    safe = step.clamp(min=torch.finfo(torch.float32).tiny).to(x.dtype)
    if x.dtype == torch.float32 and fused.ready(x, draw):
        return fused.dithered(x, safe, _LARGEST, draw)
    codes = (x / safe + _dither(x, draw)).round_().nan_to_num_(0).clamp_(-_LARGEST, _LARGEST)
    return codes.to(torch.int32)


def _dither(like: Tensor, draw: Draw) -> Tensor:
    return draw.uniform(like.shape[-1], like.dtype) - 0.5
