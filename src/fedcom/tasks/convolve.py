"""Convolutions as matrix products, which a compiler can fuse; and how much convolutions give.

cuDNN is slow here: every client of a stack has its own filters, and it computes one client after the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.modules.conv import _ConvNd

from fedcom.tasks.suitable import sharing


class Unfolded(nn.Conv2d):
    """A convolution as one matrix product of its filters with a table of all patches of all images."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        top, left = cast(tuple[int, int], self.padding)
        (down, right), (far_y, far_x) = self.stride, self.dilation
        x = pad(input, (left, left, top, top))
        rows, columns = weight.shape[2:]
        height = (x.shape[2] - far_y * (rows - 1) - 1) // down + 1
        width = (x.shape[3] - far_x * (columns - 1) - 1) // right + 1
        x = x.transpose(0, 1)  # channels first, so that the table is written once, as the product reads it
        patches = [
            x[:, :, i : i + down * (height - 1) + 1 : down, j : j + right * (width - 1) + 1 : right]
            for i in range(0, far_y * rows, far_y)
            for j in range(0, far_x * columns, far_x)
        ]
        table = torch.stack(patches, 1).flatten(0, 1).flatten(1)
        y = weight.flatten(1) @ table
        y = y if bias is None else y + bias.unsqueeze(1)
        return y.reshape(len(weight), len(input), height, width).transpose(0, 1)


def unfolded(module: nn.Module) -> nn.Module:
    """A copy of the module with its plain convolutions as matrix products; itself if it has none."""
    if not any(map(_convertible, module.modules())):
        return module
    twin = sharing(module)
    for part in filter(_convertible, twin.modules()):
        part.__class__ = Unfolded
    return twin


@contextmanager
def counting(module: nn.Module) -> Iterator[list[int]]:
    """How many numbers each convolution gives, in the order of the calls made meanwhile."""
    found = list[int]()

    def count(part: nn.Module, given: Any, output: Tensor) -> None:
        found.append(output.numel())

    hooks = [part.register_forward_hook(count) for part in module.modules() if isinstance(part, _ConvNd)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _convertible(part: nn.Module) -> bool:
    """Whether a layer is a convolution without groups and padded, if at all, by zeros."""
    plain = type(part) is nn.Conv2d and part.groups == 1 and part.padding_mode == "zeros"
    return plain and not isinstance(part.padding, str)
