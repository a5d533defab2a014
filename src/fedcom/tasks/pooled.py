"""Gradients of small convolutional networks of stacked clients as matrix products, for a GPU.

Where 2x2 max-pooling follows a convolution, the four places that a window pools lie in one patch, which is a
pixel larger each way than a filter. So a table of these patches, times the filters at their four places in a
patch, gives all that windows pool. The table is a third of the one that a convolution needs by itself, and
products are larger. cuDNN would compute one client after the other. What is done beside the products has
kernels of its own (kernels/windows.py), and torch's functions where there is no Triton.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import fold, pad

from fedcom.tasks.dense import Dense
from fedcom.tasks.kernels import windows
from fedcom.vectors import Layout

_PLAIN = torch.contiguous_format
_SUMMED = 1024  # products that are summed one after the other where a GPU could sum parts of them at once


class Convolution(NamedTuple):
    """A convolution, ReLU and 2x2 max-pooling."""

    outputs: int
    inputs: int
    size: int  # of its filters, which are square
    padding: int
    bias: bool

    @classmethod
    def of(cls, conv: nn.Module, relu: nn.Module, pool: nn.Module) -> "Convolution | None":
        """Three modules as one of these; None if they are of other kinds."""
        if (type(conv), type(relu), type(pool)) != (nn.Conv2d, nn.ReLU, nn.MaxPool2d):
            return None
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(pool, nn.MaxPool2d)
        plain = (conv.stride, conv.dilation, conv.groups, conv.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
        square = (
            len({*conv.kernel_size}) == 1 and not isinstance(conv.padding, str) and len({*conv.padding}) == 1
        )
        halves = pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and not pool.ceil_mode
        if not (plain and square and halves and pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))):
            return None
        sizes = conv.out_channels, conv.in_channels, conv.kernel_size[0], int(conv.padding[0])
        return cls(*sizes, conv.bias is not None)

    @property
    def patch(self) -> int:
        """How many pixels wide and high the patch of a window is."""
        return self.size + 1

    def grid(self, x: Tensor) -> windows.Windows:
        """Where the patches of windows lie in images x."""
        return windows.Windows(self.inputs, x.shape[4], x.shape[5], self.padding, self.patch)

    def table(self, x: Tensor) -> Tensor:
        """The patches of all windows [clients, parts, inputs * patch^2, samples * windows].

        Args:
            x: images [clients, some, samples, inputs, height, width]; `some` may be divided into parts.
        """
        (clients, some, samples), own = x.shape[:3], self.grid(x)
        most = max(1, some * samples * own.down * own.across // _SUMMED)
        parts = max(n for n in range(1, most + 1) if some % n == 0)
        if windows.ready(x):
            return windows.table(own, x, clients * parts).reshape(
                clients, parts, self.inputs * self.patch**2, -1
            )
        x = pad(x, (self.padding,) * 4) if self.padding else x
        x = x.unfold(4, self.patch, 2).unfold(
            5, self.patch, 2
        )  # then height and width of windows, of patches
        x = x.reshape(clients, parts, some // parts, *x.shape[2:]).permute(0, 1, 4, 7, 8, 2, 3, 5, 6)
        return x.reshape(clients, parts, self.inputs * self.patch**2, -1)

    def filters(self, weight: Tensor, parts: int) -> Tensor:
        """The filters at their four places in a patch [clients * parts, 4 * outputs, inputs * patch^2].

        Args:
            weight: [clients, numbers].
            parts: how often those of each client are repeated.
        """
        found = weight.new_zeros(len(weight), parts, 4 * self.outputs * self.inputs * self.patch**2)
        weight = weight.view(-1, self.outputs, self.inputs, self.size, self.size)
        self.places(found).copy_(weight[:, None, None, None])
        return found.reshape(len(weight) * parts, 4 * self.outputs, -1)

    def places(self, filters: Tensor) -> Tensor:
        """The view of what `filters` returns that the weights lie in, four times.

        That is [clients, parts, 2, 2, outputs, inputs, size, size]: the axes of length 2 are the window's,
        and a step along them also moves a pixel in the patch.

        Args:
            filters: [clients, parts, numbers], contiguous.
        """
        clients, parts, numbers = filters.shape
        k, n = self.size, self.patch
        right = self.outputs * self.inputs * n**2
        inner = (2 * right + n, right + 1, self.inputs * n**2, n**2, n, 1)
        shape = (clients, parts, 2, 2, self.outputs, self.inputs, k, k)
        return filters.as_strided(shape, (parts * numbers, numbers, *inner))


class Seen(NamedTuple):
    """What the way forward leaves for the way back."""

    table: Tensor  # see Convolution.table
    filters: Tensor  # see Convolution.filters
    largest: Tensor  # which of its four places each window has [clients, parts, outputs, samples * windows]
    values: Tensor  # of windows after ReLU [clients, parts, outputs, samples, height, width]
    grid: windows.Windows  # where the windows lie in the images before
    shape: torch.Size  # of those


@dataclass(frozen=True)
class Pooled:
    """Convolutions, each with ReLU and 2x2 max-pooling, then linear layers, under the cross-entropy.

    Args:
        layout: of the parameters, in the order of the layers.
        rest: the linear layers.
    """

    layout: Layout
    convolutions: tuple[Convolution, ...]
    rest: Dense

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> "Pooled | None":
        """A module as such a network; None if it is of another kind."""
        if type(module) is not nn.Sequential or any(not p.requires_grad for p in module.parameters()):
            return None
        if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
            return None
        parts, found = list(module), list[Convolution]()
        while len(parts) > 3 and (convolution := Convolution.of(parts[0], parts[1], parts[2])) is not None:
            found.append(convolution)
            parts = parts[3:]
        first = sum(1 + convolution.bias for convolution in found)
        others = replace(layout, names=layout.names[first:], shapes=layout.shapes[first:])
        rest = Dense.of(nn.Sequential(*parts), others)
        flat = type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1)
        return cls(layout, tuple(found), rest) if found and flat and rest is not None else None

    def gradients(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The gradients of clients' weighted losses; `Objective.gradients` explains the parameters."""
        tensors, seen = list(self.layout.split(w)), list[Seen]()
        images = x.unsqueeze(2)  # [clients, samples, 1, channels, height, width]
        for convolution in self.convolutions:
            matrix = tensors.pop(0)
            bias = tensors.pop(0) if convolution.bias else None
            images, before = _forward(convolution, images, matrix, bias)
            seen.append(before)
        features = images.flatten(1, 2).flatten(2)
        own, gradient = slice(-self.rest.layout.size, None), torch.empty_like(w, memory_format=_PLAIN)
        factors = self.rest.factors(w[:, own], features, y, weight)
        self.rest.write(gradient[:, own], factors)
        g = torch.bmm(factors[0][1], self.rest.layers(w[:, own])[0][0]).reshape(images.shape)
        places = list(self.layout.split(gradient)[: len(self.layout.shapes) - len(self.rest.layout.shapes)])
        for convolution, before in zip(reversed(self.convolutions), reversed(seen), strict=True):
            bias = places.pop() if convolution.bias else None
            sums, errors = _errors(g, before)
            _write(convolution, before, sums, errors, places.pop(), bias)
            if before is not seen[0]:
                g = _by_images(before, errors).reshape(before.shape)
        return gradient


def _forward(convolution: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Seen]:
    """The images after a layer [clients, parts, samples, outputs, height, width], and what it leaves.

    Args:
        x: the images before, [clients, some, samples, inputs, height, width].
    """
    table = convolution.table(x)
    clients, parts, _, n = table.shape
    filters = convolution.filters(weight, parts)
    products = torch.bmm(filters, table.flatten(0, 1)).reshape(clients, parts, 4, convolution.outputs, n)
    if windows.ready(products):
        values, largest = windows.pool(products, bias)
    else:
        values, largest = products.max(2)  # the first of equal ones, as in torch's pooling
        values = (values if bias is None else values.add_(bias.reshape(clients, 1, -1, 1))).relu_()
    grid = convolution.grid(x)
    values = values.reshape(clients, parts, convolution.outputs, -1, grid.down, grid.across)
    return values.transpose(2, 3), Seen(table, filters, largest, values, grid, x.shape)


def _errors(g: Tensor, before: Seen) -> tuple[Tensor, Tensor]:
    """The gradients by the biases of each part, and by the products at the four places of windows.

    Args:
        g: the gradient by the images after a layer.
    """
    largest, values = before.largest, before.values
    if windows.ready(g):
        errors, sums = windows.errors(g, values, largest, before.grid.down * before.grid.across)
        return sums, errors
    through = torch.empty_like(values)  # in the order of `values`, which g is not in
    torch.ops.aten.threshold_backward(g.transpose(2, 3), values, 0, grad_input=through)
    g, four = through.reshape(largest.shape), torch.arange(4, device=g.device).reshape(4, 1, 1)
    return g.sum(3), ((largest.unsqueeze(2) == four) * g.unsqueeze(2)).flatten(2, 3).flatten(0, 1)


def _write(
    convolution: Convolution,
    before: Seen,
    sums: Tensor,
    errors: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> None:
    """Write the gradients by the weights and bias of a layer into their places; see `_errors`."""
    table = before.table
    products = torch.bmm(errors, table.flatten(0, 1).mT).reshape(*table.shape[:2], -1)
    shaped = weight.view(-1, convolution.outputs, convolution.inputs, convolution.size, convolution.size)
    torch.sum(convolution.places(products), (1, 2, 3), out=shaped)
    if bias is not None:
        torch.sum(sums, 1, out=bias)


def _by_images(before: Seen, errors: Tensor) -> Tensor:
    """The gradient by the images before a layer [all, inputs, height, width]."""
    patched, grid = torch.bmm(before.filters.mT, errors), before.grid
    if windows.ready(patched):
        return windows.fold(grid, patched)
    patched = patched.reshape(*patched.shape[:2], -1, grid.down * grid.across).transpose(1, 2).flatten(0, 1)
    # Windows may leave the last row and column of pixels out, and there the gradient is zero.
    edge, height, width = grid.padding, grid.height, grid.width
    folded = fold(patched, (height + 2 * edge, width + 2 * edge), grid.patch, stride=2)
    return folded[:, :, edge : edge + height, edge : edge + width]
