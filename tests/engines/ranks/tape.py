"""Recording on a CPU what a GPU would record as a graph: the operations, and the very tensors they used."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedcom.engines.local.graph import CannotRecord
from fedcom.engines.ranks.graph import RankedGraphEngine

Result = TypeVar("Result")


class Tape(TorchDispatchMode):
    """Takes down every operation; as on a GPU, nothing is changed by recording, and no number is read."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, list[Any]]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise CannotRecord("a number was read")
        kwargs = kwargs or {}
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = kwargs[argument.name] if argument.name in kwargs else args[i]
                self.before.append((written, written.clone()))
        result = func(*args, **kwargs)
        self.done.append((func, args, kwargs, tree_leaves(result)))
        return result

    def undo(self) -> None:
        """Put back what was written over."""
        for x, old in reversed(self.before):
            x.copy_(old)

    def replay(self) -> None:
        """Do every operation again on the same tensors."""
        for func, args, kwargs, old in self.done:
            for x, new in zip(old, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(x, Tensor) and x.data_ptr() != new.data_ptr():
                    x.copy_(new)


class TapedEngine(RankedGraphEngine):
    """The engine that replays rounds, on a CPU."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.writes_in_place = self.sums_first = True

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        with Tape() as tape:
            result = function()
        tape.undo()
        return result, tape.replay
