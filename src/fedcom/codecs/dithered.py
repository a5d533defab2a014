"""A uniform quantiser with subtractive dither and an entropy coder (after Ziv, 1985): q is an argument.

Sender and receiver draw the same dither u, uniform in [-1/2, 1/2): the code is round(x/step + u) and the
receiver sees (code - u) step. The error is then uniform over a step whatever x is, so that the step
sqrt(12 q / d) |x| meets the paper's assumption on Q with exactly the q asked for.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedcom.codecs import wire
from fedcom.codecs.base import Parts, Sizes
from fedcom.codecs.coding import integer_stream
from fedcom.codecs.coding.entropy import STATES
from fedcom.codecs.entropy_coded import EntropyCoded
from fedcom.codecs.kernels import cpu
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

_STEP = Field("step", 1, 32, floating=True)
_BARE = wire.HEADER + _STEP.nbytes + 20 + STATES  # bytes of a message whose codes are next to nothing
_LEAST = 0.03  # bits a coordinate the codes need, at a step of some hundred deviations
_SAMPLE = 16384  # coordinates on which the search for a step begins
_PASSES = 12  # at most, over all coordinates, in which it ends
_FINEST, _COARSEST = 1e-5, 1e3  # steps, in deviations
_NEAR = 0.005  # of the rate, within which a step will do
_SLACK = 5.0  # what a message may exceed another of the same vector by, in bits over sqrt(d)
_LARGEST_CODE = 2**31 - 128  # the float32 just below 2^31


@dataclass(frozen=True)
class Dithered(EntropyCoded):
    """Subtractive dither and an entropy coder: a variance q to keep, or a rate of about so many bits.

    Neither given, q is 0.1. For a rate the step is searched on some coordinates with a dither of their own:
    the choice depends on x alone, and the result stays unbiased.
    """

    q: float | None = None
    bits: float | None = None

    name: ClassVar[str] = "dithered"
    id: ClassVar[int] = 7
    highest_rate: ClassVar[float] = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.take_q_or_bits(self.q, self.bits, default=("q", 0.1))

    def at(self, bits: float) -> Self | None:
        return replace(self, q=None, bits=bits) if self.has_rate(bits) else None

    def variance(self, layout: Layout) -> float:
        if self.q is not None:
            return self.q
        return 1 / (
            12 * _magnitude(0.95 * self.bits_left(layout)) ** 2
        )  # the search may end a little below the rate

    def bits_left(self, layout: Layout) -> float:
        """Bits a coordinate that are left to the codes, if those are enough."""
        if self.bits is None or self.bits >= least_bits(layout):
            return (self.bits or 0.0) - _besides(layout.size)
        raise ConfigError(
            f"dithered needs {least_bits(layout):g} bits for each of this model's {layout.size} coordinates, "
            f"{_BARE} bytes of header and table among them; got {self.bits:g}: raise bits or give q instead"
        )

    def fields(self, layout: Layout) -> list[Field]:
        return [_STEP]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        return self.compress_at(x, self.step(x, layout, draw), draw)

    def step(self, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The step that has the variance of x, or its rate."""
        norm = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
        sigma: Tensor = norm / math.sqrt(layout.size)
        return sigma * (math.sqrt(12 * self.q) if self.q else self._searched(x, sigma, layout, draw))

    @staticmethod
    def compress_at(x: Tensor, step: Tensor, draw: Draw) -> Parts:
        """The parts of x at a given step."""
        step = step.to(torch.float32)
        return {"step": torch.where(step.isfinite(), step, torch.nan), "codes": _codes(x, step, draw)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        codes = parts["codes"]
        if layout.dtype == torch.float32 and cpu.ready(codes, draw):
            return cpu.undithered(codes, parts["step"], draw)
        codes = codes.to(layout.dtype)
        return (codes - _dither(codes, draw)) * parts["step"].to(layout.dtype)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        return _STEP.pack(parts["step"]) + integer_stream.pack(parts["codes"])

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        if len(body) < _STEP.nbytes:
            raise WireError(f"a dithered message cannot have {len(body)} bytes")
        step = _STEP.unpack(body[: _STEP.nbytes])
        if float(step) < 0:
            raise WireError("a dithered message has a negative step")
        return {"step": step, "codes": integer_stream.unpack(body[_STEP.nbytes :], layout.size)}

    def itemise(self, parts: Parts, layout: Layout) -> Sizes:
        codes = integer_stream.nbytes(parts["codes"])
        return {"header": wire.HEADER, "step": _STEP.nbytes, "codes": codes}

    def _searched(self, x: Tensor, sigma: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The step in units of sigma that keeps to the rate: found on a sample of x, mended on all of it.

        A step that is too fine, and one that is not, close in on it; a row that is near stays as it is.
        """
        d, rate, draw = layout.size, self.bits_left(layout), draw.fold("search")
        some = torch.arange(min(d, _SAMPLE), device=x.device) * d // min(d, _SAMPLE)
        step = _bisected(x[..., some], sigma, rate, draw)
        fine, coarse = torch.zeros_like(step), torch.full_like(step, torch.inf)
        for i in range(_PASSES):
            codes = _codes(x, (sigma * step).to(torch.float32), draw)
            size = wire.HEADER + _STEP.nbytes + 4 + integer_stream.nbytes(codes).reshape(sigma.shape)
            excess = (8 * size + _SLACK * math.sqrt(d)) / d - (self.bits or 0.0)
            fine, coarse = torch.where(excess > 0, step, fine), torch.where(excess > 0, coarse, step)
            done = (excess <= 0) & ((excess > -_NEAR * rate) | (step <= _FINEST))
            if done.all():
                break
            # Most often a step twice as large saves a bit, or that share of less than a bit.
            guess = step * torch.exp2(1.5**i * (excess + _NEAR * rate / 2) / min(1.0, rate))
            inside = (fine < guess) & (guess < coarse)
            better = torch.where(inside, guess, (fine * coarse).sqrt()).clamp(_FINEST, _COARSEST)
            step = torch.where(done, step, better)
        return torch.where(coarse.isfinite(), coarse, step)


def least_bits(layout: Layout) -> float:
    """The smallest rate, in thousandths of a bit, at which a message's codes say anything."""
    return math.ceil(1000 * (_LEAST + _besides(layout.size))) / 1000


def _besides(d: int) -> float:
    """Bits a coordinate beside the codes: header, table, and what one dither may take more than another."""
    return (8 * _BARE + _SLACK * math.sqrt(d)) / d


def _magnitude(rate: float) -> float:
    """The least mean magnitude that codes of so many bits may have, a = |x|_1/(d step) <= 1/(step in sigma).

    Of all integers with E|k| = a, those with P(k) ~ t^|k| have the largest entropy, log2((1 + t)/(1 - t)) -
    a log2 t, where a = 2 t/(1 - t^2).
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        t = (low + high) / 2
        a = 2 * t / (1 - t * t)
        low, high = (t, high) if math.log2((1 + t) / (1 - t)) - a * math.log2(t) < rate else (low, t)
    return 2 * low / (1 - low * low)


def _bisected(x: Tensor, sigma: Tensor, rate: float, draw: Draw) -> Tensor:
    """The step in units of sigma at which the codes of each row have an entropy of so many bits."""
    fine, coarse = torch.full_like(sigma, _FINEST), torch.full_like(sigma, _COARSEST)
    for _ in range(16):
        middle = (fine * coarse).sqrt()
        codes = _codes(x, (sigma * middle).to(torch.float32), draw)
        above = integer_stream.entropy_rate(codes.reshape(-1, x.shape[-1])).reshape(sigma.shape) > rate
        fine, coarse = torch.where(above, middle, fine), torch.where(above, coarse, middle)
    return coarse


def _codes(x: Tensor, step: Tensor, draw: Draw) -> Tensor:
    """round(x/step + u); a step of zero, of the zero vector, gives zeros."""
    safe = step.clamp(min=torch.finfo(torch.float32).tiny).to(x.dtype)
    if x.dtype == torch.float32 and cpu.ready(x, draw):
        return cpu.dithered(x, safe, _LARGEST_CODE, draw)
    codes = (x / safe + _dither(x, draw)).round_().nan_to_num_(0).clamp_(-_LARGEST_CODE, _LARGEST_CODE)
    return codes.to(torch.int32)


def _dither(like: Tensor, draw: Draw) -> Tensor:
    return draw.uniform(like.shape[-1], like.dtype) - 0.5
