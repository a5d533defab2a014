"""A model as one flat vector: the last axis is d, and leading axes, if any, are clients."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

Vectors = dict[str, Tensor]  # by name
_CACHED = 1 << 18  # numbers: one MiB in float32


@dataclass(frozen=True)
class Layout:
    """Where each tensor of the model lies in the flat vector, one after the other.

    Args:
        names: of the tensors, in order.
        shapes: of the tensors, in order.
        dtype: of the vector.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype = torch.float32) -> "Layout":
        """The layout of a module's trainable parameters."""
        trainable = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in trainable), tuple(s for _, s in trainable), dtype)

    @classmethod
    def vector(cls, size: int, dtype: torch.dtype = torch.float32) -> "Layout":
        """The layout of a vector that is not a model, such as a single number that is sent."""
        return cls(("",), ((size,),), dtype)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of coordinates of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """d, the number of coordinates of the vector."""
        return sum(self.sizes)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one coordinate."""
        return self.dtype.itemsize

    @cached_property
    def fingerprint(self) -> int:
        """A 32-bit checksum of the layout, for message headers."""
        return zlib.crc32(repr((self.names, self.shapes, str(self.dtype))).encode())

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Views of the tensors inside x, each flattened into the last axis."""
        return torch.split(x, self.sizes, dim=-1)

    def tensors(self, w: Tensor) -> Vectors:
        """The named tensors of one flat vector, in their own shapes."""
        parts = zip(self.names, self.split(w), self.shapes, strict=True)
        return {name: part.reshape(shape) for name, part, shape in parts}


def flatten(module: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
    """A module's trainable parameters as one flat vector (a copy)."""
    parts = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    return torch.cat(parts).to(dtype)


def load(module: nn.Module, w: Tensor) -> None:
    """Write a flat vector back into a module's trainable parameters."""
    tensors = Layout.of(module, w.dtype).tensors(w)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in tensors:
                parameter.copy_(tensors[name])


def descend(w: Tensor, eta: float | Tensor, g: Tensor, out: Tensor | None = None) -> Tensor:
    """w - eta g in one operation; written to `out`, if given."""
    if isinstance(eta, Tensor):  # in w's dtype: on a GPU a cast for every coordinate takes half as long again
        return torch.addcmul(w, eta.to(w.dtype), g, value=-1, out=out)
    return torch.sub(w, g, alpha=eta, out=out)


def share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors lie in the same block of memory, as a tensor and its views do."""
    return x.numel() > 0 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def overwrite(old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    """Copy new tensors over old ones; a new one may be a view of any old one."""
    pairs = [(x, y) for x, y in zip(old, new, strict=True) if not _same_place(x, y)]
    safe = [y.clone() if any(share_memory(x, y) for x in old) else y for _, y in pairs]
    for (x, _), y in zip(pairs, safe, strict=True):
        x.copy_(y)


def _same_place(x: Tensor, y: Tensor) -> bool:
    return (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride())


def apart(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors, those copied that lie in the memory of one before them."""
    return [x.clone() if any(share_memory(x, y) for y in tensors[:i]) else x for i, x in enumerate(tensors)]


def handfuls(rows: int, size: int) -> list[slice]:
    """Some rows at a time, as many of this size as fit in a core's cache; at least one."""
    step = max(1, _CACHED // size)
    return [slice(first, min(first + step, rows)) for first in range(0, rows, step)]


class Piece(NamedTuple):
    """A part of stacked vectors: some coordinates of some rows."""

    rows: slice
    place: slice  # of the coordinates
    values: Tensor
