"""A model's trainable parameters as flat pieces of bounded size, wherever they lie."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedcom.errors import ConfigError
from fedcom.vectors import Layout

MOST = 1 << 22  # numbers of a piece: codecs need some times its memory while they work on it

Named = tuple[str, Tensor]


class Range(NamedTuple):
    """Some consecutive numbers of one parameter."""

    name: str
    values: Tensor  # all numbers of the parameter, as a flat view of it
    start: int
    stop: int
    shape: tuple[int, ...]  # of the parameter, if this is all of it

    @property
    def own(self) -> Tensor:
        """The numbers themselves, as a view."""
        return self.values[self.start : self.stop]


class Piece:
    """Ranges that are sent in one message, in order, and their layout."""

    def __init__(self, ranges: Sequence[Range], dtype: torch.dtype) -> None:
        self.ranges = ranges
        self.layout = Layout(tuple(r.name for r in ranges), tuple(r.shape for r in ranges), dtype)

    def read(self) -> Tensor:
        """A copy of the numbers, as one vector."""
        return torch.cat([r.own.to(self.layout.dtype) for r in self.ranges])

    def write(self, x: Tensor) -> None:
        """Write a vector over the numbers."""
        for r, part in zip(self.ranges, self.layout.split(x), strict=True):
            r.own.copy_(part)


def trainable(model: nn.Module | Iterable[Tensor] | Iterable[Named]) -> list[Named]:
    """The trainable parameters of a module, or of a list of them with or without names; tied ones once."""
    if isinstance(model, nn.Module):
        named: list[Named] = list(model.named_parameters())
    else:
        given = list(model)
        named = [x if isinstance(x, tuple) else (str(i), x) for i, x in enumerate(given)]
    found = list({id(p): (name, p) for name, p in named if p.requires_grad}.values())
    if not found:
        raise ConfigError("the model has no trainable parameter (requires_grad)")
    for name, p in found:
        if not p.is_floating_point():
            raise ConfigError(f"parameter {name!r} holds {p.dtype}; outer steps are of real numbers")
    return found


def is_sharded(parameters: Iterable[Named]) -> bool:
    """Whether a process holds only its shards of the parameters, as under FSDP."""
    return any(hasattr(p, "to_local") for _, p in parameters)


def divided(parameters: Sequence[Named], count: int) -> list[list[Piece]]:
    """The parameters in some fragments of about equal size, in order, each in pieces.

    What is kept and sent is float32, or float64 if a parameter is.
    """
    if not 1 <= count <= len(parameters):
        raise ConfigError(f"fragments must be from 1 to {len(parameters)}, the parameters; got {count}")
    flat = [(name, _flat(p), tuple(_local(p).shape)) for name, p in parameters]
    total = sum(values.numel() for _, values, _ in flat)
    dtype = torch.float64 if any(v.dtype == torch.float64 for _, v, _ in flat) else torch.float32
    parts: list[list[Range]] = [[] for _ in range(count)]
    before = 0
    for i, (name, values, shape) in enumerate(flat):
        # Where the middle of the parameter lies, but so that every fragment gets one.
        by_size = (2 * before + values.numel()) * count // (2 * max(1, total))
        filled = sum(bool(part) for part in parts)
        part = min(max(by_size, filled - 1), filled, count - 1)
        part = max(part, count - (len(flat) - i), 0)
        parts[part].append(Range(name, values, 0, values.numel(), shape))
        before += values.numel()
    return [[Piece(ranges, dtype) for ranges in _in_pieces(part)] for part in parts]


def _in_pieces(ranges: Iterable[Range]) -> Iterable[list[Range]]:
    """The ranges in groups on one device and of at most MOST numbers; long ones are cut."""
    group, room = list[Range](), MOST
    for r in ranges:
        start = r.start
        while start < r.stop or r.start == r.stop == start:
            if group and (room == 0 or group[-1].values.device != r.values.device):
                yield group
                group, room = [], MOST
            stop = min(r.stop, start + room)
            whole = (start, stop) == (r.start, r.stop)
            group.append(Range(r.name, r.values, start, stop, r.shape if whole else (stop - start,)))
            room -= stop - start
            if (start := stop) == r.stop:
                break
    if group:
        yield group


def _local(p: Tensor) -> Tensor:
    """A parameter, or this process's shard of it."""
    return p.to_local() if hasattr(p, "to_local") else p


def _flat(p: Tensor) -> Tensor:
    """All numbers of a parameter as a flat view, in the order in which they lie in memory."""
    x = _local(p).detach()
    if x.numel() == 0:
        return x.reshape(-1)
    strides = x.stride()
    x = x.permute(sorted(range(x.dim()), key=lambda axis: -strides[axis]))
    try:
        return x.view(-1)
    except RuntimeError:
        raise ConfigError("a parameter is a view with gaps of another tensor; make it contiguous") from None
