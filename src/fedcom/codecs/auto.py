"""The best of several codecs for each message, at one rate or at one variance.

Each candidate is tried on the vector. At a rate the one with the least error is chosen, at a variance the one
with the fewest bytes. The trial has draws of its own: the choice does not depend on the draws with which the
chosen codec then makes the message, so the message stays unbiased.

At the lowest rates peaks is the only candidate, and messages are compact, without a tag for the choice.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fedcom.codecs import compact, peaks
from fedcom.codecs.base import Codec, Parts, Sizes, nested, parts_of
from fedcom.codecs.dithered import Dithered, least_bits
from fedcom.codecs.entropy_coded import LOWEST_RATE, EntropyCoded
from fedcom.codecs.lowrank import LowRank
from fedcom.codecs.peaks import Peaks
from fedcom.codecs.rotated import Rotated
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

_CHOICE = Field("choice", 1, 8)
_RANKS = (2, 4)  # of the low-rank candidates
_GAUSSIAN = 1000  # coordinates from which on rotated has the variance it promises
_TOLERANCE = 1.05  # by this factor the error of a trial may exceed a variance that is kept
_GAIN = 1.01  # by this factor a trial must be shorter than dithered's, for the message to be shorter too


@dataclass(frozen=True)
class Auto(EntropyCoded):
    """The best of dithered, rotated and lowrank for each message: nearest at a rate, shortest at a variance.

    Below 0.05 bits, and for a variance that needs fewer, it is peaks.

    Args:
        bits: the bits per coordinate; 1 if neither bits nor q is given.
        q: the variance |Q(x) - x|^2 / |x|^2, at most.
    """

    bits: float | None = None
    q: float | None = None

    name: ClassVar[str] = "auto"
    id: ClassVar[int] = 9
    dithers: ClassVar[bool] = True
    lowest_rate: ClassVar[float] = Peaks.lowest_rate
    highest_rate: ClassVar[float] = 8.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.take_q_or_bits(self.q, self.bits, default=("bits", 1.0))
        if self._only_peaks:
            object.__setattr__(self, "format", compact)
            object.__setattr__(self, "dithers", False)

    @property
    def _only_peaks(self) -> bool:
        return self.bits is not None and self.bits < LOWEST_RATE

    @property
    def exact_size(self) -> bool:
        return self._only_peaks

    def variance(self, layout: Layout) -> float:
        return self.q or min(codec.variance(layout) for codec in self.candidates(layout))

    def candidates(self, layout: Layout) -> list[Codec]:
        """The codecs that are tried: lowrank only if the model has matrices and the rate allows factors."""
        if self.bits is not None and self._only_peaks:
            return [Peaks(self.bits)]
        bits = None if self.bits is None else max(LOWEST_RATE, self.bits - 8 * _CHOICE.nbytes / layout.size)
        low_rank = [LowRank(rank, bits, self.q) for rank in _RANKS]
        matrices = [codec for codec in low_rank if codec.matrices(layout) and _affords(codec, layout)]
        if bits is None:
            return [Dithered(self.q), *_gaussian_at(self.q or 0.0, layout), *matrices]
        rotated: list[Codec] = [Rotated(bits)] if layout.size >= _GAUSSIAN else []
        dithered = Dithered(bits=bits)
        if not rotated:
            dithered.bits_left(layout)  # refuses a model that is too small for the rate
        return [*rotated, *([dithered] if bits >= least_bits(layout) else []), *matrices]

    def tables(self, layout: Layout) -> bytes:
        return b"".join(codec.tables(layout) for codec in self.candidates(layout))

    def fields(self, layout: Layout) -> list[Field]:
        return [] if self._only_peaks else [_CHOICE]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        codecs, score = self.candidates(layout), self._error if self.q is None else self._length
        if len(codecs) > 1:
            scores = [score(codec, x, layout, draw.fold("trial")) for codec in codecs]
            choice = torch.stack(scores, -1).nan_to_num(torch.inf).argmin(-1, keepdim=True)
        else:
            choice = torch.zeros((*x.shape[:-1], 1), dtype=torch.int64, device=x.device)
        parts: Parts = {"choice": choice}
        for i, codec in enumerate(codecs):
            rows = (choice == i).squeeze(-1)
            if _makes_all(choice):
                parts |= nested(i, codec.compress(x, layout, draw))
            elif rows.any():
                parts |= nested(i, codec.compress(x[rows], layout, draw[rows]))
        return parts

    def _error(self, codec: Codec, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The squared error of each row."""
        return (codec.quantise(x, layout, draw).double() - x).square().sum(-1)

    def _length(self, codec: Codec, x: Tensor, layout: Layout, draw: Draw) -> Tensor:
        """The bytes of each row, or infinity where the error exceeds q or is not finite.

        It may do so where rotations leave a row far from Gaussian. Dithered always keeps to q.
        """
        rows, keys = x.reshape(-1, layout.size), draw.key.expand(x.shape[:-1]).reshape(-1)
        parts = codec.compress(rows, layout, Draw(keys))
        lengths = torch.zeros(len(rows), dtype=torch.float64, device=x.device)
        if isinstance(codec, EntropyCoded):
            sizes = codec.itemise(parts, layout, exact=False)  # to choose by, estimates will do
        else:
            sizes = codec.itemise(parts, layout)
        for size in sizes.values():
            lengths = lengths + size
        if isinstance(codec, Dithered):
            return lengths.reshape(x.shape[:-1])
        error = (codec.expand(parts, layout, Draw(keys)).double() - rows).square().sum(-1)
        most = _TOLERANCE * self.variance(layout) * rows.double().square().sum(-1)
        return torch.where(error <= most, _GAIN * lengths, torch.inf).reshape(x.shape[:-1])

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        choice = parts["choice"].squeeze(-1)
        x = torch.empty((*choice.shape, layout.size), dtype=layout.dtype, device=choice.device)
        for i, codec in enumerate(self.candidates(layout)):
            rows = choice == i
            if _makes_all(parts["choice"]):
                heard = codec.expand(parts_of(i, parts), layout, draw)
                x = torch.where(rows.unsqueeze(-1), heard, x)
            elif rows.any():
                x[rows] = codec.expand(parts_of(i, parts), layout, draw[rows])
        return x

    def refuse_not_finite(self, parts: Parts, layout: Layout) -> None:
        codec, chosen = self._chosen(parts, layout)
        codec.refuse_not_finite(chosen, layout)

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        codec, chosen = self._chosen(parts, layout)
        return (b"" if self._only_peaks else _CHOICE.pack(parts["choice"])) + codec.pack(chosen, layout)

    def _chosen(self, parts: Parts, layout: Layout) -> tuple[Codec, Parts]:
        """The codec that was chosen for a single message, and its parts."""
        i = int(parts["choice"])
        return self.candidates(layout)[i], {name: part[0] for name, part in parts_of(i, parts).items()}

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        codecs = self.candidates(layout)
        if self._only_peaks:
            body = memoryview(b"\0" + body)
        if len(body) < 1 or body[0] >= len(codecs):
            raise WireError(f"an auto message names one of {len(codecs)} codecs; got {bytes(body[:1])!r}")
        chosen = {name: part.unsqueeze(0) for name, part in codecs[body[0]].unpack(body[1:], layout).items()}
        return nested(body[0], chosen) | {"choice": torch.tensor([body[0]], device="cpu")}

    def itemise(self, parts: Parts, layout: Layout, exact: bool = True) -> Sizes:
        choice = parts["choice"].squeeze(-1)
        items: Sizes = {"header": self.format.HEADER, **self.format.sizes(self.fields(layout))}
        for i, codec in enumerate(self.candidates(layout)):
            sizes = codec.itemise(chosen, layout) if (chosen := parts_of(i, parts)) else {}
            for part, size in sizes.items():
                if part != "header":
                    own = torch.zeros_like(choice)
                    if _makes_all(parts["choice"]):
                        own = torch.where(choice == i, size, own)
                    else:
                        own[choice == i] = size
                    name = f"{codec.name} {part}"  # which two low-rank candidates share
                    items[name] = items.get(name, 0) + own
        return items


def _makes_all(choice: Tensor) -> bool:
    """Whether to compress every row by every candidate: on a GPU, as to see the choice would be to wait."""
    return choice.is_cuda and choice.dim() == 2


def _affords(codec: LowRank, layout: Layout) -> bool:
    """Whether the rate leaves enough bits beside the factors."""
    try:
        codec.residual(layout)
    except ConfigError:
        return False
    return True


@lru_cache(maxsize=64)
def _gaussian_at(q: float, layout: Layout) -> list[Codec]:
    """Rotated at the lowest rate that promises q, a multiple of 0.001 bits; empty if there is none.

    Where q needs less than rotated's lowest rate it is peaks, at a multiple of 0.00001 bits.
    """
    if layout.size < _GAUSSIAN:
        return []
    if q > Rotated(LOWEST_RATE).variance(layout):
        return _cheapest(Peaks, q, layout, range(round(1e5 * peaks.least_bits(layout)), 5001), 1e5)
    return _cheapest(Rotated, q, layout, range(50, 8001), 1e3)


def _cheapest(
    kind: type[Peaks] | type[Rotated], q: float, layout: Layout, rates: range, unit: float
) -> list[Codec]:
    """The codec at the lowest of some rates, in parts of a bit, that promises q; empty if none does."""
    found = bisect_left(rates, -q, key=lambda rate: -kind(rate / unit).variance(layout))
    return [kind(rates[found] / unit)] if found < len(rates) else []
