"""Several inputs of a module in one table, a row per sample, so that all else sees one tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Kind = Literal["floating", "whole", "true or false"]
_EXACT = 1 << 24  # whole numbers up to here are exact in float32


@dataclass(frozen=True)
class Inputs:
    """How the inputs of a module lie in the rows of a table, one after the other.

    Args:
        names: of the module's arguments; None: they are given in order.
        shapes: of each input of one sample.
        kinds: of each.
    """

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], names: Sequence[str] | None, truths: Sequence[bool]) -> "Inputs":
        """Those of some tensors, whose first axis is the samples.

        Args:
            truths: whether each was of True and False before it became a tensor of numbers.
        """
        shapes = tuple(tuple(x.shape[1:]) for x in tensors)
        kinds = tuple(_kind(x, truth) for x, truth in zip(tensors, truths, strict=True))
        return cls(None if names is None else tuple(names), shapes, kinds)

    def __str__(self) -> str:
        names = self.names or [f"input {i + 1}" for i in range(len(self.shapes))]
        parts = zip(names, self.shapes, self.kinds, strict=True)
        return ", ".join(
            f"{name} {list(shape)}" + f" {kind}" * (kind != "floating") for name, shape, kind in parts
        )

    def table(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensors side by side; whole numbers beside others become floating-point numbers."""
        rows = [x.unsqueeze(-1).flatten(1) for x in tensors]
        if "floating" not in self.kinds:
            return torch.cat(rows, 1)
        wide = any(x.dtype == torch.float64 or _largest(x) > _EXACT for x in tensors)
        dtype = torch.float64 if wide else torch.float32
        return torch.cat([x.to(dtype) for x in rows], 1)

    def apart(self, table: Tensor, keeps: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """What a module is called with: arguments by position, and by name.

        Args:
            table: some rows of it.
            keeps: whether whole numbers stay whole; True and False always stay so.
        """
        parts = torch.split(table, [torch.Size(shape).numel() for shape in self.shapes], dim=-1)
        shaped = [part.reshape(len(table), *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        given = [_as(kind, x, keeps) for kind, x in zip(self.kinds, shaped, strict=True)]
        return ((), dict(zip(self.names, given, strict=True))) if self.names else (tuple(given), {})


def arrays(x: Any, samples: int) -> tuple[list[Any], list[str] | None] | None:
    """The arrays that x is several of, and their names if it is a mapping; None if x is one array.

    Args:
        samples: how many each must have, for a tuple or list to be one of arrays.
    """
    if isinstance(x, Mapping):
        return list(x.values()), [str(name) for name in x]
    if not isinstance(x, tuple | list) or len(x) < 2 or len(x) == samples:
        return None
    several = all(hasattr(part, "shape") and len(part.shape) and len(part) == samples for part in x)
    return (list(x), None) if several else None


def is_truths(x: Any) -> bool:
    """Whether an array, or what makes one, is of True and False."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return str(dtype).removeprefix("torch.") in ("bool", "boolean")  # torch's, numpy's or pandas'


def _kind(x: Tensor, truth: bool) -> Kind:
    return "true or false" if truth else "floating" if x.is_floating_point() else "whole"


def _as(kind: Kind, x: Tensor, keeps: bool) -> Tensor:
    if kind == "true or false":  # attention adds a mask of numbers, and cuts by one of True and False
        return x.bool()
    return x.long() if keeps and kind == "whole" else x


def _largest(x: Tensor) -> int:
    return 0 if x.is_floating_point() or not x.numel() else int(x.abs().max())
