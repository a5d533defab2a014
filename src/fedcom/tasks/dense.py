"""Gradients of fully connected networks, written out as matrix products instead of left to autograd."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile

import torch
from torch import Tensor, nn

from fedcom.vectors import Layout, Piece, handfuls


@dataclass(frozen=True)
class Dense:
    """Linear layers with ReLU between them, under the cross-entropy.

    Args:
        layout: of the parameters, in the order of the layers.
        biases: whether each layer has a bias.
    """

    layout: Layout
    biases: tuple[bool, ...]

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> "Dense | None":
        """A module as such a network; None if it is of another kind."""
        if type(module) is not nn.Sequential or any(not p.requires_grad for p in module.parameters()):
            return None
        parts = list(dropwhile(_flattens, module))
        kinds = [type(part) for part in parts]
        if kinds != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(kinds) // 2)]:
            return None
        if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
            return None
        biases = tuple(part.bias is not None for part in parts[::2])
        shared = len(layout.names) != len(biases) + sum(biases)  # parameters that several layers have
        return None if shared else cls(layout, biases)

    @property
    def classes(self) -> int:
        """How many outputs the last layer has."""
        return self.layout.shapes[-1][0]

    def gradients(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The gradients of clients' weighted losses; `Objective.gradients` explains the parameters."""
        factors = self.factors(w, x, y, weight)
        if not torch.compiler.is_compiling():
            gradient = w.new_empty(w.shape)
            self.write(gradient, factors)
            return gradient
        pieces: list[Tensor] = []  # which a compiler joins itself
        for (inputs, errors), has_bias in zip(factors, self.biases, strict=True):
            pieces += [torch.bmm(errors.mT, inputs).flatten(1), *([errors.sum(-2)] if has_bias else [])]
        return torch.cat(pieces, -1)

    def write(self, gradient: Tensor, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Write the gradients whose factors `factors` gives into their place."""
        for (matrix, bias), (inputs, errors) in zip(self.layers(gradient), factors, strict=True):
            torch.bmm(errors.mT, inputs, out=matrix)
            if bias is not None:
                torch.sum(errors, -2, out=bias)

    def pieces(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Iterator[Piece]:
        """The same gradients in pieces that fit in a processor's cache, the next one in the same memory.

        They do not depend on what is written to w meanwhile.
        """
        parts = iter(zip(self.layout.shapes, self.layout.sizes, strict=True))
        start = 0
        for has_bias, (inputs, errors) in zip(self.biases, self.factors(w, x, y, weight), strict=True):
            shape, size = next(parts)
            some, place = handfuls(len(w), size), slice(start, start + size)
            room = w.new_empty(some[0].stop, *shape)
            for rows in some:
                product = torch.bmm(errors[rows].mT, inputs[rows], out=room[: rows.stop - rows.start])
                yield Piece(rows, place, product.flatten(1))
            start += size
            if has_bias:
                _, size = next(parts)
                yield Piece(slice(None), slice(start, start + size), errors.sum(-2))
                start += size

    def factors(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The inputs and the errors of each layer; the gradient of its matrix is their product."""
        layers, inputs = self.layers(w), [x.flatten(2)]
        for i, (matrix, bias) in enumerate(layers):
            outputs = torch.bmm(inputs[-1], matrix.mT)
            outputs = outputs if bias is None else outputs + bias.unsqueeze(1)
            inputs += [outputs.relu()] if i + 1 < len(layers) else []
        hot = torch.arange(outputs.shape[-1], device=y.device) == y.unsqueeze(-1)
        errors = [torch.add(outputs.softmax(-1), hot, alpha=-1) * weight.unsqueeze(-1)]
        for i in range(len(layers) - 1, 0, -1):
            through = torch.bmm(errors[-1], layers[i][0])
            errors.append(torch.ops.aten.threshold_backward(through, inputs[i], 0))
        return list(zip(inputs, reversed(errors), strict=True))

    def layers(self, w: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """The matrices and biases of each layer, stacked: one per client."""
        parts = iter(zip(self.layout.split(w), self.layout.shapes, strict=True))
        layers: list[tuple[Tensor, Tensor | None]] = []
        for has_bias in self.biases:
            matrix, shape = next(parts)
            layers.append((matrix.reshape(len(w), *shape), next(parts)[0] if has_bias else None))
        return layers


def _flattens(part: nn.Module) -> bool:
    """Whether a layer makes each sample one row, as `factors` does."""
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1)
