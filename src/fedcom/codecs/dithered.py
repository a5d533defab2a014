"""A uniform quantiser with subtractive dither and an entropy coder (after Ziv, 1985); q can be chosen.

Sender and receiver draw the same dither u, uniform in [-1/2, 1/2). The code is round(x/step + u), and the
receiver sees (code - u) step. Whatever x is, the error is then uniform over one step. So a step of
sqrt(12 q / d) |x| meets the paper's assumption on Q with exactly the q asked for.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs import wire
from fedcom.codecs.base import Parts, Sizes, together
from fedcom.codecs.coding import integer_stream
from fedcom.codecs.coding.entropy import STATES
from fedcom.codecs.entropy_coded import EntropyCoded
from fedcom.codecs.kernels import cpu, gpu
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.vectors import Layout

_STEP = Field("step", 1, 32, floating=True)
_BARE = wire.HEADER + _STEP.nbytes + 20 + STATES  # the bytes of a message beside its codes
_LEAST = 0.03  # bits per coordinate that the codes need; their step is then some hundred deviations
_SAMPLE = 16384  # how many coordinates the search for a step begins on
_PASSES = 12  # at most so many passes over all coordinates end the search
_FINEST, _COARSEST = 1e-5, 1e3  # the range of the search, in standard deviations
_NEAR = 0.005  # the search ends this near to the rate, relative to it
_SLACK = 5.0  # in bits over sqrt(d): how much longer another dither may make the message of a vector
_LARGEST_CODE = 2**31 - 128  # the largest float32 below 2^31


@dataclass(frozen=True)
class Dithered(EntropyCoded):
    """Rounded after a shared random shift, then entropy-coded: at exactly a variance q, or at a rate.

    For a rate the step is searched with a dither that the message does not use. So the step does not depend
    on the message's dither, and the result stays unbiased.

    Args:
        q: the variance |Q(x) - x|^2 / |x|^2; 0.1 if neither q nor bits is given.
        bits: the most bits per coordinate, header included.
    """

    q: float | None = None
    bits: float | None = None

    name: ClassVar[str] = "dithered"
    id: ClassVar[int] = 7
    dithers: ClassVar[bool] = True
    highest_rate: ClassVar[float] = 16.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.take_q_or_bits(self.q, self.bits, default=("q", 0.1))

    def variance(self, layout: Layout) -> float:
        if self.q is not None:
            return self.q
        bits = 0.95 * self.bits_left(layout)  # the search may end a little below the rate
        return 1 / (12 * _least_magnitude(bits) ** 2)

    def bits_left(self, layout: Layout) -> float:
        """The bits per coordinate that are left for the codes; refuses a rate at which those are too few."""
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
        """The step at which each message of x has the variance, or the rate, that was asked for.

        NaN if x is not finite, or its norm more than about half of the largest number.
        """
        norm = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
        sigma: Tensor = norm / math.sqrt(layout.size)
        step = sigma * (math.sqrt(12 * self.q) if self.q else self._searched(x, sigma, layout, draw))
        return together(step, (2 * (norm + step)).to(x.dtype))

    @staticmethod
    def compress_at(x: Tensor, step: Tensor, draw: Draw) -> Parts:
        """The parts of x at a given step, one per message."""
        step = together(step.to(torch.float32))
        return {"step": step, "codes": _codes(x, step, draw)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        codes = parts["codes"]
        if layout.dtype == torch.float32 and draw.strata is None and cpu.ready(codes, draw):
            return cpu.undithered(codes, parts["step"], draw)
        codes = codes.to(layout.dtype)
        return (codes - _dither(codes, draw)) * parts["step"].to(layout.dtype)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        return _STEP.pack(parts["step"]) + integer_stream.pack(parts["codes"])

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        step, stream = self.first_number(_STEP, body)
        return {"step": step, "codes": integer_stream.unpack(stream, layout.size)}

    def itemise(self, parts: Parts, layout: Layout, exact: bool = True) -> Sizes:
        codes = integer_stream.nbytes(parts["codes"], exact)
        return {"header": wire.HEADER, "step": _STEP.nbytes, "codes": codes}

    def _searched(self, x: Tensor, sigma: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The step, in units of sigma, at which messages keep to the rate.

        The search begins on a sample of the coordinates and ends on all of them.

        Args:
            sigma: the standard deviation of each vector, as a column.
        """
        d, rate, draw = layout.size, self.bits_left(layout), Draw(draw.key).fold("search")
        some = torch.arange(min(d, _SAMPLE), device=x.device) * d // min(d, _SAMPLE)
        step = _bisected(x[..., some], sigma, rate, draw)
        # The coarsest step known to be too fine, and the finest known to be coarse enough.
        fine, coarse = torch.zeros_like(step), torch.full_like(step, torch.inf)
        for i in range(_PASSES):
            counted = integer_stream.counted_bytes(*_tally(x, (sigma * step).to(torch.float32), draw))
            size = wire.HEADER + _STEP.nbytes + 4 + counted.reshape(sigma.shape)
            excess = (8 * size.to(torch.float32) + _SLACK * math.sqrt(d)) / d - (self.bits or 0.0)
            fine, coarse = torch.where(excess > 0, step, fine), torch.where(excess > 0, coarse, step)
            done = (excess <= 0) & ((excess > -_NEAR * rate) | (step <= _FINEST))
            if not x.is_cuda and done.all():  # on a GPU a wait takes longer, and none can be recorded
                break
            # A step twice as large saves about one bit per coordinate; below one bit, that share of the rate.
            guess = step * torch.exp2(1.5**i * (excess + _NEAR * rate / 2) / min(1.0, rate))
            inside = (fine < guess) & (guess < coarse)
            better = torch.where(inside, guess, (fine * coarse).sqrt()).clamp(_FINEST, _COARSEST)
            step = torch.where(done, step, better)
        return torch.where(coarse.isfinite(), coarse, step)


def least_bits(layout: Layout) -> float:
    """The lowest rate for a model, a multiple of 0.001 bits per coordinate."""
    return math.ceil(1000 * (_LEAST + _besides(layout.size))) / 1000


def _besides(d: int) -> float:
    """The bits per coordinate beside the codes: header, table, and what another dither may add."""
    return (8 * _BARE + _SLACK * math.sqrt(d)) / d


def _least_magnitude(rate: float) -> float:
    """The least mean magnitude of codes with an entropy of `rate` bits.

    With sigma the standard deviation of x, codes have the mean magnitude a = |x|_1/(d step) <= sigma/step,
    so this bounds the step from above. Of all integers with E|k| = a, those with P(k) ~ t^|k| have the
    largest entropy, log2((1 + t)/(1 - t)) - a log2 t, where a = 2 t/(1 - t^2).
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        t = (low + high) / 2
        a = 2 * t / (1 - t * t)
        low, high = (t, high) if math.log2((1 + t) / (1 - t)) - a * math.log2(t) < rate else (low, t)
    return 2 * low / (1 - low * low)


def _bisected(x: Tensor, sigma: Tensor, rate: float, draw: Draw) -> Tensor:
    """The step, in units of sigma, at which the codes of each row have an entropy of `rate` bits."""
    fine, coarse = torch.full_like(sigma, _FINEST), torch.full_like(sigma, _COARSEST)
    for _ in range(16):
        middle = (fine * coarse).sqrt()
        counted = integer_stream.entropy_rate(*_tally(x, (sigma * middle).to(torch.float32), draw))
        above = counted.reshape(sigma.shape) > rate
        fine, coarse = torch.where(above, middle, fine), torch.where(above, coarse, middle)
    return coarse


def _tally(x: Tensor, step: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """How often each symbol occurs in the codes of each row, and how many raw bits these have."""
    if gpu.ready(x, draw):
        safe = step.clamp(min=torch.finfo(torch.float32).tiny)
        return gpu.tally(x, safe, _LARGEST_CODE, integer_stream.MOST, draw)
    return integer_stream.tally(_codes(x, step, draw).reshape(-1, x.shape[-1]))


def _codes(x: Tensor, step: Tensor, draw: Draw) -> Tensor:
    """round(x/step + u); the zero vector has a step of zero, and codes of zero."""
    safe = step.clamp(min=torch.finfo(torch.float32).tiny).to(x.dtype)
    if x.dtype == torch.float32 and draw.strata is None and cpu.ready(x, draw):
        return cpu.dithered(x, safe, _LARGEST_CODE, draw)
    codes = (x / safe + _dither(x, draw)).round_().nan_to_num_(0).clamp_(-_LARGEST_CODE, _LARGEST_CODE)
    return codes.to(torch.int32)


def _dither(like: Tensor, draw: Draw) -> Tensor:
    """u, uniform in [-1/2, 1/2), for each coordinate of a vector."""
    return draw.dither(like.shape[-1], like.dtype) - 0.5
