"""The best of several codecs for each message, at one rate.

Each candidate is tried on the vector with draws of its own, and the one with the least error sends it with
the message's draws. The choice depends on the vector and on draws the message does not use, so an unbiased
code stays unbiased; choosing by the message's own rounding would not.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedcom import wire
from fedcom.codecs.base import Codec, Parts, Sizes, within
from fedcom.codecs.dithered import Dithered
from fedcom.codecs.lowrank import LowRank
from fedcom.codecs.rotated import Rotated
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from fedcom.wire import Field

_CHOICE = Field("choice", 1, 8)


@dataclass(frozen=True)
class Auto(Codec):
    """Dithered, rotated or low-rank, whichever is nearest to this vector at `bits` a coordinate."""

    bits: float = 1.0

    name: ClassVar[str] = "auto"
    id: ClassVar[int] = 9
    exact_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        within("bits", self.bits, 0.05, 8)

    @classmethod
    def at(cls, bits: float) -> "Auto | None":
        return cls(bits) if 0.05 <= bits <= 8 else None

    @property
    def unbiased(self) -> bool:
        return True

    def variance(self, layout: Layout) -> float:
        return min(codec.variance(layout) for codec in self.candidates(layout))

    def candidates(self, layout: Layout) -> list[Codec]:
        """What is tried: low-rank ones where the model has matrices and the rate allows their factors."""
        codecs: list[Codec] = [Rotated(self.bits), Dithered(bits=self.bits)]
        for rank in (2, 4):
            codec = LowRank(rank, self.bits)
            try:
                codec.residual(layout)
            except ConfigError:
                continue
            codecs += [codec] if codec.matrices(layout) else []
        return codecs

    def fields(self, layout: Layout) -> list[Field]:
        return [_CHOICE]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        codecs, trial = self.candidates(layout), draw.fold("trial")
        errors = [(c.quantise(x, layout, trial).double() - x).square().sum(-1) for c in codecs]
        choice = torch.stack(errors, -1).nan_to_num(torch.inf).argmin(-1, keepdim=True)
        parts: Parts = {"choice": choice}
        for i, codec in enumerate(codecs):
            rows = (choice == i).squeeze(-1)
            if rows.any():
                chosen = codec.compress(x[rows], layout, Draw(draw.key[rows]))
                parts |= {f"{i} {name}": part for name, part in chosen.items()}
        return parts

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        choice = parts["choice"].squeeze(-1)
        x = torch.empty((*choice.shape, layout.size), dtype=layout.dtype, device=choice.device)
        for i, codec in enumerate(self.candidates(layout)):
            rows = choice == i
            if rows.any():
                x[rows] = codec.expand(_of(parts, i), layout, Draw(draw.key[rows]))
        return x

    def pack(self, parts: Parts, layout: Layout) -> bytes:
        i = int(parts["choice"])
        chosen = {name: part[0] for name, part in _of(parts, i).items()}
        return _CHOICE.pack(parts["choice"]) + self.candidates(layout)[i].pack(chosen, layout)

    def unpack(self, body: memoryview, layout: Layout) -> Parts:
        codecs = self.candidates(layout)
        if len(body) < 1 or body[0] >= len(codecs):
            raise WireError(f"an auto message names one of {len(codecs)} codecs; got {bytes(body[:1])!r}")
        chosen = codecs[body[0]].unpack(body[1:], layout)
        named = {f"{body[0]} {name}": part.unsqueeze(0) for name, part in chosen.items()}
        return named | {"choice": torch.tensor([body[0]])}

    def itemise(self, parts: Parts, layout: Layout) -> Sizes:
        choice = parts["choice"].squeeze(-1)
        items: Sizes = {"header": wire.HEADER, "choice": _CHOICE.nbytes}
        for i, codec in enumerate(self.candidates(layout)):
            if _of(parts, i):
                for part, size in codec.itemise(_of(parts, i), layout).items():
                    each = torch.zeros_like(choice)
                    each[choice == i] = size
                    items |= {f"{codec.name} {part}": each} if part != "header" else {}
        return items


def _of(parts: Parts, i: int) -> Parts:
    """The parts of one candidate."""
    return {name.removeprefix(f"{i} "): part for name, part in parts.items() if name.startswith(f"{i} ")}
