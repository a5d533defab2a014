"""Gradients of fully connected networks, written out as matrix products instead of left to autograd."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedcom.vectors import Layout


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
        parts = [
            part
            for part in module
            if type(part) is not nn.Flatten or (part.start_dim, part.end_dim) != (1, -1)
        ]
        kinds = [type(part) for part in parts]
        if kinds != [nn.Linear, *[nn.ReLU, nn.Linear] * (len(kinds) // 2)]:
            return None
        if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
            return None
        return cls(layout, tuple(part.bias is not None for part in parts[::2]))

    def gradients(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The gradients of clients' weighted losses; `Objective.gradients` explains the parameters."""
        layers, inputs = self._layers(w), [x.flatten(2)]
        for matrix, bias in layers:
            outputs = _affine(inputs[-1], matrix, bias)
            inputs.append(outputs.relu())
        hot = torch.arange(outputs.shape[-1], device=y.device) == y.unsqueeze(-1)
        error = (outputs.softmax(-1) - hot.to(w.dtype)) * weight.unsqueeze(-1)
        # A compiler joins the pieces itself; otherwise each is written straight into the gradient.
        gradient = None if torch.compiler.is_compiling() else w.new_empty(w.shape)
        places: Sequence[tuple[Tensor | None, Tensor | None]] = [(None, None)] * len(layers)
        places = places if gradient is None else self._layers(gradient)
        pieces: list[Tensor] = []
        for i, (matrix, bias) in reversed(list(enumerate(layers))):
            if bias is not None:
                pieces.append(torch.sum(error, -2, out=places[i][1]))
            pieces.append(torch.bmm(error.mT, inputs[i], out=places[i][0]).flatten(1))
            if i:
                error = torch.bmm(error, matrix) * (inputs[i] > 0)
        return torch.cat(pieces[::-1], -1) if gradient is None else gradient

    def _layers(self, w: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """The matrices and biases of each layer, stacked: one per client."""
        parts = iter(zip(self.layout.split(w), self.layout.shapes, strict=True))
        layers: list[tuple[Tensor, Tensor | None]] = []
        for has_bias in self.biases:
            matrix, shape = next(parts)
            layers.append((matrix.reshape(len(w), *shape), next(parts)[0] if has_bias else None))
        return layers


def _affine(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    product = torch.bmm(x, matrix.mT)
    return product if bias is None else product + bias.unsqueeze(1)
