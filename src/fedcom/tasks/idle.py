"""Layers with an adapter that a module does not call, so that the adapter changes nothing."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedcom.errors import ConfigError
from fedcom.tasks.adapters import Adapted, adapted_layers

_SHOWN = 4  # layers that a message names
_REMEDY = "call it in forward, or leave it out: name the layers that are to be adapted"


@contextmanager
def watched(module: nn.Module) -> Iterator[dict[str, Adapted]]:
    """The layers of a module whose adapters take no part in the calls made meanwhile, by name."""
    layers = dict(adapted_layers(module))
    idle = dict(layers)

    def noting(name: str, low_rank: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def noted(x: Tensor) -> Tensor:
            idle.pop(name, None)
            return low_rank(x)

        return noted

    for name, layer in layers.items():
        vars(layer)["low_rank"] = noting(name, layer.low_rank)
    try:
        yield idle
    finally:
        for layer in layers.values():
            del vars(layer)["low_rank"]


def check_idle(module: nn.Module, idle: Mapping[str, Adapted], call: Callable[[], Tensor]) -> None:
    """Refuse layers whose weight a module reads without calling them; warn of others that it does not call.

    Args:
        idle: the layers that it does not call.
        call: calls the module.
    """
    if not idle:
        return
    called = [name for name, _ in adapted_layers(module) if name not in idle]
    others = f", as in layers={_listed(called)}" if called else ""
    if passed := _read(idle, call):
        first = passed[0]
        raise ConfigError(
            f"the module reads the weight of {_words(passed)} and does not call the layer, as "
            f"F.linear(x, self.{first}.weight) does, so an adapter there changes nothing; {_REMEDY}{others}"
        )
    warnings.warn(
        f"the module does not call {_words(list(idle))} for the first sample; unless it does for others, an "
        f"adapter there changes nothing, and its bytes are sent all the same; {_REMEDY}{others}",
        stacklevel=6,
    )


def _read(layers: Mapping[str, Adapted], call: Callable[[], Tensor]) -> list[str]:
    """The names of those layers on whose weights depends what a call returns.

    Each has a weight of its own meanwhile, since others may share it.
    """
    before = {name: layer.weight for name, layer in layers.items()}
    own = {name: nn.Parameter(weight.detach()) for name, weight in before.items()}
    try:
        _set_weights(layers, own)
        with torch.enable_grad():
            outputs = call()
        if not outputs.requires_grad:
            return []
        found = torch.autograd.grad(outputs, [*own.values()], torch.ones_like(outputs), allow_unused=True)
    finally:
        _set_weights(layers, before)
    return [name for name, gradient in zip(own, found, strict=True) if gradient is not None]


def _set_weights(layers: Mapping[str, Adapted], weights: Mapping[str, Any]) -> None:
    for name, layer in layers.items():
        layer.weight = weights[name]


def _words(names: list[str]) -> str:
    """Some layers by name, for errors."""
    kind = "layer" if len(names) == 1 else f"{len(names)} layers,"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"{kind} {', '.join(map(repr, names[:_SHOWN]))}{more}"


def _listed(names: list[str]) -> str:
    """Some layers as a setting."""
    return f"{','.join(names[:_SHOWN])}{',...' if len(names) > _SHOWN else ''}"
