"""Which modules can be a model, and how one is made ready: copied, initialised and in the model's dtype."""

import copy
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fedcom.data.inputs import Inputs
from fedcom.errors import ConfigError, nearest
from fedcom.imports import in_brackets, place_in_own_code

M = TypeVar("M")


def copied(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a module with its floating-point tensors in a dtype; complex ones stay complex.

    Frozen parameters are not copied if they have that dtype. Frozen ones of 16 bits stay so if no trainable
    one has their dtype: then the module itself says how it computes with both.
    """
    trained = {p.dtype for p in module.parameters() if p.requires_grad}
    kept = {torch.float16, torch.bfloat16} - trained

    def cast(x: Tensor) -> Tensor:
        if x.is_complex():
            return x.to(dtype.to_complex())
        return x.to(dtype) if x.is_floating_point() and x.dtype not in kept else x

    twin: nn.Module = nn.Module._apply(sharing(module), cast)  # type: ignore[no-untyped-call]
    return twin


def sharing(module: nn.Module, freeze: bool = False) -> nn.Module:
    """A copy of a module with frozen parameters that lie in the same memory.

    What the module keeps of an earlier call is copied as values.

    Args:
        freeze: whether to freeze all of them in the copy.
    """
    kept: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), requires_grad=False)
        for p in module.parameters()
        if (freeze or not p.requires_grad) and not is_lazy(p)
    }
    with _Values():
        return copy.deepcopy(module, kept)


class _Values(TorchFunctionMode):
    """Inside it all tensors can be copied: computed ones as values, and those of lazy layers."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and is_lazy(args[0]):
            kind: Any = type(args[0])
            return kind(args[0].requires_grad, args[0].data.device, args[0].data.dtype)
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))


def leave_quick_path(part: nn.Module) -> None:
    """Let a transformer of torch's call its parts in evaluation too, where it has a quick path."""
    if isinstance(part, nn.TransformerEncoderLayer):
        part.activation_relu_or_gelu = 0
    if isinstance(part, nn.TransformerEncoder):
        part.use_nested_tensor = False


def initialised(module: M, x: Tensor, several: Inputs | None = None) -> M:
    """A module whose lazy layers have seen a sample, as a copy; any other module as it is.

    Args:
        x: samples, the first of which is shown to the module.
        several: how its inputs lie in x, if it takes several.
    """
    if not isinstance(module, nn.Module) or not _lazy(module):
        return module
    with _Values():
        module = copy.deepcopy(module)
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()  # BatchNorm takes no single sample in training
        with torch.no_grad():
            args, named = arguments(module, x[:1], next(module.parameters()).dtype, several)
            module(*args, **named)
        for part, mode in modes.items():
            part.training = mode
    except Exception as error:
        raise ConfigError(
            f"the module has lazy layers and cannot take one sample of shape {list(x.shape[1:])}: "
            f"{told(error)}; call it once on a sample yourself, or give its layers their sizes"
        ) from error
    return module


def inputs(module: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Samples in a dtype; whole numbers stay whole if the module has an embedding."""
    return x if embeds(module) and not x.is_floating_point() else x.to(dtype)


def embeds(module: nn.Module) -> bool:
    """Whether a module looks whole numbers up in a table."""
    return any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in module.modules())


def arguments(
    module: nn.Module, x: Tensor, dtype: torch.dtype, several: Inputs | None
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """What a module is called with for some samples: arguments by position, and by name.

    Args:
        several: how its inputs lie in x, if it takes several.
    """
    x = inputs(module, x, dtype).clone()  # a module may write into it
    return ((x,), {}) if several is None else several.apart(x, embeds(module))


def check_kind(module: Any) -> None:
    """Refuse what is no module, and modules that others wrap or compile."""
    if isinstance(module, nn.Module):
        for name, part in module.named_modules():
            _check_wrapped(name, part)
        return
    if isinstance(module, Tensor | np.ndarray):
        raise ConfigError(
            "the first argument is an array, and must be the module; the order is module, x, y, as in "
            "Task.from_arrays(torch.nn.Linear(4, 3), x, y)"
        )
    name = getattr(module, "__name__", type(module).__name__)
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise ConfigError(f"module is the class {name}; give an instance, as {name}(...) makes one")
    remedy = "give what it returns" if callable(module) else "give one"
    raise ConfigError(f"module must be a torch.nn.Module; got {type(module).__name__}; {remedy}")


def _check_wrapped(name: str, part: nn.Module) -> None:
    """Refuse modules in a form that cannot be called with other parameters side by side."""
    where = f" at {name!r}" if name else ""
    if isinstance(part, torch.jit.ScriptModule):
        raise ConfigError(f"the module is one of torch.jit{where}; give the one that it was made from")
    if not name and isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ConfigError(f"the module is a {type(part).__name__}; give its .module")
    if type(part).__name__ == "OptimizedModule" and "_orig_mod" in part._modules:
        raise ConfigError(f"the module is one of torch.compile{where}; give its ._orig_mod")


def check_module(module: Any) -> None:
    """Refuse what is no module, and modules that have nothing to train."""
    check_kind(module)
    if _lazy(module):
        raise ConfigError("the module has lazy layers; call it once on a sample, as in module(x[:1])")
    if not any(p.requires_grad and p.numel() for p in module.parameters()):
        raise ConfigError("the module has no trainable parameter (requires_grad)")
    for name, p in module.named_parameters():
        if p.requires_grad and p.is_complex():
            raise ConfigError(
                f"parameter {name!r} is complex, and models are real vectors; keep its real and imaginary "
                "parts, as torch.view_as_real gives them, and join them by torch.view_as_complex in forward"
            )
        if p.requires_grad and _hooked(p):
            raise ConfigError(
                f"parameter {name!r} has a hook on its gradient, which is not called here; {_HOOK}; "
                "if it masks the gradient, use w * mask + (w * (1 - mask)).detach() in forward"
            )
    for name, part in module.named_modules():
        if _hooked(part):
            where = f"its part {name!r}" if name else "the module"
            raise ConfigError(f"{where} has a backward hook, which is not called here; {_HOOK}")
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            _check_embedding(name, part)


def _hooked(part: nn.Module | nn.Parameter) -> bool:
    """Whether something wants to be called with gradients of a module or parameter."""
    more = part._backward_pre_hooks if isinstance(part, nn.Module) else part._post_accumulate_grad_hooks
    return bool(part._backward_hooks or more)


def _check_embedding(name: str, table: nn.Embedding | nn.EmbeddingBag) -> None:
    """Refuse tables that change themselves when they are read, or whose gradients are sparse or scaled."""
    kind = f"{type(table).__name__} {name!r}"
    if table.max_norm is not None:
        raise ConfigError(
            f"{kind} has max_norm={table.max_norm:g}, which changes its weight whenever it is read; leave "
            "max_norm out, or divide by the norm in forward"
        )
    if table.sparse and table.weight.requires_grad:
        raise ConfigError(f"{kind} has sparse=True, and gradients are whole vectors here; leave sparse out")
    if table.scale_grad_by_freq and table.weight.requires_grad:
        raise ConfigError(
            f"{kind} has scale_grad_by_freq=True, which divides by counts in a minibatch, and here samples "
            "may be computed in parts or filled up; leave scale_grad_by_freq out"
        )


def dtype_of(given: Any) -> torch.dtype:
    """The floating-point dtype that a torch or numpy dtype, or a name, stands for."""
    name = given if isinstance(given, str) else getattr(given, "__name__", None) or str(given)
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConfigError(
            f"dtype must be of floating-point numbers; got {given!r}; {nearest(name, ('float32', 'float64'))}"
        )
    return found


def told(error: Exception) -> str:
    """An error in one line, with the place in the user's own code."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200] + in_brackets(place_in_own_code(error))


def _lazy(module: nn.Module) -> bool:
    return any(is_lazy(x) for x in (*module.parameters(), *module.buffers()))


_HOOK = (
    "take it off; if it only looks, as those of wandb.watch do (wandb.unwatch takes them off), look at "
    "simulation.module() between the rows of simulation.rows()"
)
_VALUES = (
    "reads the value of a tensor, as `if x.sum() > 0`, .item(), .numpy() do; use torch.where(condition, a, b)"
)
_SDPA = (
    "reads the value of a tensor, as models of transformers do to see whether a mask masks anything; "
    "make the model with attn_implementation='eager'"
)
_IN_PLACE = "writes into a tensor, as `x += y` and `x[0] = y` do; write x = x + y, or use torch.where"
SIDE_BY_SIDE = "clients are computed side by side (torch.vmap), and the module or its loss"
_MEMORY = "leave that out, and lower run.chunk or run.microbatch if memory is short"
_VMAP = {  # how torch's own messages begin or what only they say, and what is meant
    r"vmap: .*data-dependent control flow": _VALUES,
    r"vmap: .*calling \.item\(\)": _VALUES,
    r"Cannot access data pointer of Tensor": _VALUES,
    r"vmap: .*\(self, \*extra_args\) is not possible": _IN_PLACE,
    r"output with shape \[.*\] doesn't match the broadcast shape \[": _IN_PLACE,
    r"vmap: (called random operation|.*rrelu_with_noise)": "draws random numbers, so no run could be "
    "repeated; leave them out, or use torch's dropout, whose masks are drawn from the run's seed",
    r"vmap: .*dynamic shape": "makes tensors whose shape depends on values, as nonzero and x[mask] do; use "
    "torch.where",
    r"torch\.func\..* saved tensor hooks": f"saves memory by torch.utils.checkpoint; {_MEMORY}",
    r"In order to use an autograd\.Function with functorch .*setup_context": "calls an autograd.Function "
    "without setup_context: give it that and generate_vmap_rule = True; or, if it is "
    f"torch.utils.checkpoint, {_MEMORY}",
}
_OTHER_VMAP = r"vmap: |Batching rule not implemented for |NYI: .* inside (of )?vmap"


def translated(error: RuntimeError) -> ConfigError | None:
    """An error of torch's vmap in terms of the user's module; None if it is another error."""
    text = str(error)
    if type(error) is not RuntimeError:
        return None
    what = next((words for said, words in _VMAP.items() if re.match(said, text, re.DOTALL)), None)
    if what is None and not re.match(_OTHER_VMAP, text):
        return None
    frames = traceback.walk_tb(error.__traceback__)
    called = {frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames}
    if what == _VALUES and "transformers" in called:
        what = _SDPA
    return ConfigError(f"{SIDE_BY_SIDE} {what or f'fails there: {told(error)}'}")
