"""BatchNorm whose statistics are coordinates of the model, so that they travel, or stay, as parameters do."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fedcom.errors import ConfigError

Choice = Literal["frozen", "averaged", "own"]
UNIT = 1e-3  # of a statistic in the flat vector, whose norm it must not dominate
STATISTICS = ("running_mean", "running_var")
_OTHERS = "choose batch_norm: frozen, averaged or own; or use torch.nn.GroupNorm(groups, {}) instead"


class Norm(_BatchNorm):
    """BatchNorm with its running statistics, in `UNIT`s, as parameters.

    In training it normalises by the statistics of those samples of a batch that count, and leaves in `gaps`
    the losses whose gradients are how far the running statistics move towards them in a step.

    Attributes:
        counts: 1 for each sample of the batch that counts, else 0; None: all count.
        last: of the call before in the same step, the statistics then and those of its batch; None: there is
            none. A layer that is called several times moves them each time.
    """

    counts: Tensor | None
    gaps: list[Tensor]
    last: list[tuple[Tensor, Tensor]] | None

    def forward(self, input: Tensor) -> Tensor:
        """Normalise a batch."""
        mean, var = cast(Tensor, self.running_mean), cast(Tensor, self.running_var)
        if not self.training:
            least = (var / UNIT).clamp(min=0)  # a codec may leave a small one below zero
            return F.batch_norm(input, mean / UNIT, least, self.weight, self.bias, False, 0.0, self.eps)
        axes, shape = [0, *range(2, input.dim())], (1, -1, *[1] * (input.dim() - 2))
        share, n = self._shares(input)
        centre = (input * share).sum(axes)
        centred = input - centre.reshape(shape)
        spread = (centred.square() * share).sum(axes)
        unbiased = spread * (n / (n - 1).clamp(min=1))
        batch = UNIT * centre.detach(), UNIT * unbiased.detach()
        here = [self._moved(*pair) for pair in zip((mean, var), self.last or (None, None), strict=True)]
        for now, found in zip(here, batch, strict=True):
            self.gaps.append((now - found).square().sum() * (cast(float, self.momentum) / 2))
        self.last = [(now.detach(), found) for now, found in zip(here, batch, strict=True)]
        y = centred * (spread + self.eps).rsqrt().reshape(shape)
        y = y if self.weight is None else y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)

    def _moved(self, running: Tensor, last: tuple[Tensor, Tensor] | None) -> Tensor:
        """A statistic as the call before leaves it, with the gradient of itself."""
        if last is None:
            return running
        moved = torch.lerp(*last, cast(float, self.momentum))
        return running + (moved - running).detach()

    def _shares(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The share of each number in the means of its channel, and how many numbers those are of."""
        counts = x.new_ones(len(x)) if self.counts is None else self.counts
        if len(x) % len(counts):
            raise ConfigError(
                f"BatchNorm is given {len(x)} rows for {len(counts)} samples; the samples must come first, "
                "each with as many rows"
            )
        counts = counts.repeat_interleave(len(x) // len(counts)) if len(x) != len(counts) else counts
        n = counts.sum() * (x[0, 0].numel() if x.dim() > 2 else 1)
        return (counts / n).reshape(-1, *[1] * (x.dim() - 1)), n


def check_norms(module: nn.Module, choice: Choice | None) -> None:
    """Refuse layers that keep or need the statistics of batches, unless their fate is chosen."""
    if choice not in (None, "frozen", "averaged", "own"):
        raise ConfigError(f"batch_norm must be frozen, averaged or own; got {choice!r}")
    for name, part in module.named_modules():
        if not isinstance(part, _NormBase) or isinstance(part, Norm):
            continue
        where, features = f"{type(part).__name__} at {name or 'the top'!r}", part.num_features
        if isinstance(part, _BatchNorm) and part.running_mean is None:
            raise ConfigError(
                f"{where} mixes the samples of a batch and keeps no statistics, so a model's outputs would "
                "depend on which samples come together; give it track_running_stats=True, or use "
                f"torch.nn.GroupNorm(groups, {features}) instead"
            )
        if not part.training or part.running_mean is None or choice == "frozen":
            continue
        if choice is None:
            raise ConfigError(f"{where} keeps batch statistics; {_OTHERS.format(features)}")
        if not _convertible(part):
            raise ConfigError(
                f"{where} keeps statistics in a way of its own; choose batch_norm: frozen, call its eval() "
                f"first, or use torch.nn.GroupNorm(groups, {features}) instead"
            )
        if part.momentum is None:
            raise ConfigError(
                f"{where} has momentum=None, a mean over all batches so far, which clients do not share; "
                "give it a momentum, such as 0.1"
            )


def _convertible(part: nn.Module) -> bool:
    """Whether a layer normalises as torch's BatchNorm does."""
    usual = type(part).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    return isinstance(part, _BatchNorm) and usual


def converted(module: nn.Module, choice: Choice | None) -> nn.Module:
    """A copy of a module whose layers in training keep or train their statistics as chosen.

    The module itself if there is none.
    """
    if choice is None or not any(map(_in_training, module.modules())):
        return module
    twin = copy.deepcopy(module)
    for part in filter(_in_training, twin.modules()):
        if choice == "frozen":
            part.eval()
            continue
        part.__class__ = Norm
        part.counts, part.gaps, part.last = None, [], None  # type: ignore[assignment]
        for name in STATISTICS:
            found = part._buffers.pop(name)
            assert found is not None
            part.register_parameter(name, nn.Parameter(UNIT * found))
    return twin


def _in_training(part: nn.Module) -> bool:
    return isinstance(part, _NormBase) and part.training and part.running_mean is not None


def norms(module: nn.Module) -> dict[str, Norm]:
    """The layers of a converted module whose statistics are parameters, by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Norm)}


@contextmanager
def counting(module: nn.Module, weight: Tensor) -> Iterator[list[Tensor]]:
    """Let samples of weight 0 not count in a call; fills the list with the losses of the statistics."""
    found: list[Tensor] = []
    layers = [part for part in module.modules() if isinstance(part, Norm)]
    for layer in layers:
        layer.counts, layer.gaps, layer.last = (weight > 0).to(weight.dtype), found, None
    try:
        yield found
    finally:
        for layer in layers:
            layer.counts, layer.gaps, layer.last = None, [], None


def write(module: nn.Module, tensors: dict[str, Tensor], statistics: Any) -> None:
    """Write named parameters, and statistics out of their unit, into a module as its user made it.

    Args:
        statistics: the names of those that are such.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    with torch.no_grad():
        for name, x in tensors.items():
            if name in statistics:
                buffers[name].copy_((x / UNIT).clamp(min=0) if name.endswith("running_var") else x / UNIT)
            else:
                parameters[name].copy_(x)
