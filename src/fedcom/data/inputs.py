"""Several inputs of a module in one table, a row per sample, so that all else sees one tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_EXACT = 1 << 24  # whole numbers up to here are exact in float32


@dataclass(frozen=True)
class Inputs:
    """How the inputs of a module lie in the rows of a table, one after the other.

    Args:
        names: of the module's arguments; None: they are given in order.
        shapes: of each input of one sample.
        whole: whether each is of whole numbers.
    """

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    whole: tuple[bool, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], names: Sequence[str] | None) -> "Inputs":
        """Those of some tensors, whose first axis is the samples."""
        shapes = tuple(tuple(x.shape[1:]) for x in tensors)
        return cls(
            None if names is None else tuple(names), shapes, tuple(not x.is_floating_point() for x in tensors)
        )

    def __str__(self) -> str:
        names = self.names or [f"input {i + 1}" for i in range(len(self.shapes))]
        return ", ".join(f"{name} {list(shape)}" for name, shape in zip(names, self.shapes, strict=True))

    def table(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tensors side by side; whole numbers beside others become floating-point numbers."""
        if all(self.whole):
            return torch.cat([x.flatten(1) for x in tensors], 1)
        wide = any(x.dtype == torch.float64 or _largest(x) > _EXACT for x in tensors)
        dtype = torch.float64 if wide else torch.float32
        return torch.cat([x.flatten(1).to(dtype) for x in tensors], 1)

    def apart(self, table: Tensor, keeps: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """What a module is called with: arguments by position, and by name.

        Args:
            table: some rows of it.
            keeps: whether whole numbers stay whole.
        """
        parts = torch.split(table, [torch.Size(shape).numel() for shape in self.shapes], dim=-1)
        shaped = [part.reshape(len(table), *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        given = [x.long() if keeps and whole else x for x, whole in zip(shaped, self.whole, strict=True)]
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


def _largest(x: Tensor) -> int:
    return 0 if x.is_floating_point() or not x.numel() else int(x.abs().max())
