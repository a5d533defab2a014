"""A model's trainable parameters as flat pieces of bounded size, wherever they lie."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedcom.errors import ConfigError
from fedcom.vectors import Layout

MOST = 1 << 22  # numbers of a piece: codecs need some times its memory while they work on it

Named = tuple[str, Tensor]
Model = nn.Module | Iterable[Tensor] | Iterable[Named]


class Range(NamedTuple):
    """Some consecutive numbers of one parameter."""

    name: str
    parameter: Tensor
    start: int
    stop: int
    shape: tuple[int, ...]  # of the parameter, if this is all of it

    @property
    def own(self) -> Tensor:
        """The numbers themselves, as a view of the memory that the parameter has now."""
        return _flat(self.name, self.parameter)[self.start : self.stop]


class Piece:
    """Ranges that are sent in one message, in order, and their layout."""

    def __init__(self, ranges: Sequence[Range], dtype: torch.dtype) -> None:
        self.ranges, self.device = ranges, _local(ranges[0].parameter).device
        self.layout = Layout(tuple(r.name for r in ranges), tuple(r.shape for r in ranges), dtype)

    @property
    def coarse(self) -> bool:
        """Whether parameters are of a dtype that cannot hold all that is written over them."""
        return any(r.parameter.dtype != self.layout.dtype for r in self.ranges)

    def read(self) -> Tensor:
        """A copy of the numbers, as one vector."""
        return torch.cat([r.own.to(self.device, self.layout.dtype) for r in self.ranges])

    def write(self, x: Tensor) -> None:
        """Write a vector over the numbers."""
        for r, part in zip(self.ranges, self.layout.split(x), strict=True):
            r.own.copy_(part)


def named(model: Model) -> list[Named]:
    """The parameters of a module, or of a list of them, with names; tied ones once."""
    if isinstance(model, nn.Module):
        if any(_is(module, "FullyShardedDataParallel") for module in model.modules()):
            raise ConfigError("shards of FullyShardedDataParallel have no names; use fully_shard instead")
        return list(model.named_parameters())
    found = [x if isinstance(x, tuple) else (str(i), x) for i, x in enumerate(model)]
    if not all(isinstance(p, Tensor) for _, p in found):
        raise ConfigError("model must be a module or its parameters, with or without names")
    return list({id(p): (name, p) for name, p in found}.values())


def trainable(model: Model) -> list[Named]:
    """The trainable parameters of a module, or of a list of them with or without names; tied ones once."""
    found = [(name, p) for name, p in named(model) if p.requires_grad]
    if not found:
        raise ConfigError("the model has no trainable parameter (requires_grad)")
    for name, p in found:
        if not p.is_floating_point():
            raise ConfigError(f"parameter {name!r} holds {p.dtype}; outer steps are of real numbers")
        if p.is_meta or is_lazy(p):
            raise ConfigError(f"parameter {name!r} has no values yet; give it some first")
    return found


def let_go(model: Model) -> None:
    """Let modules under FSDP hold their shards alone: what they have gathered would not see new values."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if _is(module, "FSDPModule"):
            cast(Any, module).reshard()


def _is(module: nn.Module, name: str) -> bool:
    """Whether a module is of a class of this name, which it takes a second to import."""
    return any(kind.__name__ == name for kind in type(module).__mro__)


def is_sharded(parameters: Iterable[Named]) -> bool:
    """Whether a process holds only its shards of the parameters, as under FSDP."""
    return any(hasattr(p, "to_local") for _, p in parameters)


def divided(parameters: Sequence[Named], count: int) -> list[list[Piece]]:
    """The parameters in some fragments of about equal size, in order, each in pieces.

    What is kept and sent is float32, or float64 if a parameter is.
    """
    if not 1 <= count <= len(parameters):
        raise ConfigError(f"fragments must be from 1 to {len(parameters)}, the parameters; got {count}")
    sizes = [_flat(name, p).numel() for name, p in parameters]
    total = sum(sizes)
    dtype = torch.float64 if any(p.dtype == torch.float64 for _, p in parameters) else torch.float32
    parts: list[list[Range]] = [[] for _ in range(count)]
    before = 0
    for i, ((name, p), size) in enumerate(zip(parameters, sizes, strict=True)):
        # Where the middle of the parameter lies, but so that every fragment gets one.
        by_size = (2 * before + size) * count // (2 * max(1, total))
        filled = sum(bool(part) for part in parts)
        part = min(max(by_size, filled - 1), filled, count - 1)
        part = max(part, count - (len(sizes) - i), 0)
        parts[part].append(Range(name, p, 0, size, tuple(_local(p).shape)))
        before += size
    return [[Piece(ranges, dtype) for ranges in _in_pieces(part)] for part in parts]


def _in_pieces(ranges: Iterable[Range]) -> Iterable[list[Range]]:
    """The ranges in groups on one device and of about MOST numbers; long ones are cut, empty ones go."""
    for _, here in groupby((r for r in ranges if r.start < r.stop), key=lambda r: r.parameter.device):
        some = list(here)
        left = sum(r.stop - r.start for r in some)
        group, room = list[Range](), _room(left)
        for r in some:
            start = r.start
            while start < r.stop:
                if room == 0:
                    yield group
                    group, room = [], _room(left)
                stop = min(r.stop, start + room)
                whole = (start, stop) == (r.start, r.stop)
                group.append(r._replace(start=start, stop=stop, shape=r.shape if whole else (stop - start,)))
                room, left = room - (stop - start), left - (stop - start)
                start = stop
        yield group


def _room(left: int) -> int:
    """The numbers of the next piece: all that are left if hardly more than MOST, as few would be heard badly.

    Codecs at low rates need some thousand numbers; a few are always heard as zeros.
    """
    return left if left < MOST + MOST // 1024 else MOST


def _local(p: Tensor) -> Tensor:
    """A parameter, or this process's shard of it."""
    return p.to_local() if hasattr(p, "to_local") else p


def form(p: Tensor) -> tuple[object, ...]:
    """What must stay the same of a parameter: its dtype, and which numbers its flat view has where."""
    x = _local(p)
    return p.dtype, tuple(x.shape), [axis for axis in _order(x) if x.shape[axis] > 1]


def _order(x: Tensor) -> list[int]:
    """The axes in the order in which they lie in memory."""
    strides = x.stride()
    return sorted(range(x.dim()), key=lambda axis: -strides[axis])


def _flat(name: str, p: Tensor) -> Tensor:
    """All numbers of a parameter as a flat view, in the order in which they lie in memory."""
    x = _local(p).detach()
    if x.numel() == 0:
        return x.reshape(-1)
    x = x.permute(_order(x))
    try:
        return x.view(-1)
    except RuntimeError:
        raise ConfigError(
            f"parameter {name!r} is a view with gaps of another tensor; make it contiguous"
        ) from None
