"""2x2 max-pooling on a CPU in one compiled pass: torch's takes longer than the convolution before it."""

from typing import Any, cast

import torch
from numpy import int64 as I
from torch import Tensor, nn
from torch._C import _functorch

from fedcom.codecs.kernels.arrays import Floats, Ints
from fedcom.codecs.kernels.jit import COMPILED, jit

_HALVES = ([2, 2], [2, 2], [0, 0], [1, 1], False)  # kernel, stride, padding, dilation, whether to round up


class Halved(nn.MaxPool2d):
    """torch's layer, with the same bits; whatever the loop cannot take is left to torch."""

    def forward(self, input: Tensor) -> Tensor:
        if not _serves(input):
            return cast(Tensor, super().forward(input))
        return cast(Tensor, _Largest.apply(input))  # type: ignore[no-untyped-call]


def halved(module: nn.Module) -> nn.Module:
    """The module itself, whose plain layers of this kind are computed here from now on."""
    for part in module.modules():
        if COMPILED and type(part) is nn.MaxPool2d and _halves(part):
            part.__class__ = Halved
    return module


def _halves(pool: nn.MaxPool2d) -> bool:
    """Whether windows of 2x2 pixels lie side by side."""
    square = all(each in (2, (2, 2)) for each in (pool.kernel_size, pool.stride))
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))
    return square and plain and not pool.ceil_mode and not pool.return_indices


def _serves(x: Tensor) -> bool:
    usual = x.device.type == "cpu" and x.dtype == torch.float32 and x.dim() == 4 and x.numel() > 0
    if not usual or torch.compiler.is_compiling() or _functorch.is_functorch_wrapped_tensor(x):
        return False
    return x.is_contiguous() and min(x.shape[2:]) > 1


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        images = x.detach().flatten(0, 1)
        values = x.new_empty(len(images), x.shape[2] // 2, x.shape[3] // 2)
        places = torch.empty_like(values, dtype=torch.int64)
        _halve(images.numpy(), values.numpy(), places.numpy())
        shape = (*x.shape[:2], *values.shape[1:])
        ctx.save_for_backward(x, places.view(shape))
        return values.view(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, places = ctx.saved_tensors
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return cast(Tensor, back(gradients[0], x, *_HALVES, places))


@jit
def _halve(images: Floats, values: Floats, places: Ints) -> None:
    """The largest of each window, the first of equal ones, and where it is in its image."""
    width = images.shape[2]
    for image in range(values.shape[0]):
        for i in range(values.shape[1]):
            for j in range(values.shape[2]):
                a, b = images[image, 2 * i, 2 * j], images[image, 2 * i, 2 * j + 1]
                c, d = images[image, 2 * i + 1, 2 * j], images[image, 2 * i + 1, 2 * j + 1]
                right, below = b > a or b != b, d > c or d != d  # NaN is the largest
                upper, lower = b if right else a, d if below else c
                down = lower > upper or lower != lower
                values[image, i, j] = lower if down else upper
                places[image, i, j] = 2 * i * width + 2 * j + (width + I(below) if down else I(right))
