"""What codecs have in common that give a scale to each tensor, or one to the whole vector."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedcom.codecs.base import Codec
from fedcom.codecs.wire import Field
from fedcom.vectors import Layout


class InBlocks(Codec):
    """A codec with the setting `scale`: what shares one, each tensor or the whole vector."""

    scale: str

    def blocks(self, layout: Layout) -> Layout:
        """The pieces of the vector that share a scale; tensors without numbers have none."""
        if self.scale != "tensor":
            return Layout.vector(layout.size, layout.dtype)
        if 0 not in layout.sizes:
            return layout
        kept = [(name, s) for name, s in zip(layout.names, layout.shapes, strict=True) if 0 not in s]
        return Layout(tuple(name for name, _ in kept), tuple(s for _, s in kept), layout.dtype)

    def scales(self, name: str, layout: Layout) -> Field:
        """The field of the scales."""
        return Field(name, len(self.blocks(layout).sizes), 32, floating=True)

    def scaled(
        self, codes: Tensor, scales: Tensor, layout: Layout, multiple: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The vector in which each coordinate is a whole multiple of its block's scale.

        Args:
            scales: one per block.
            multiple: returns what each code of a block stands for.
        """
        blocks, x = self.blocks(layout), torch.empty_like(codes, dtype=layout.dtype)
        for i, (block, out) in enumerate(zip(blocks.split(codes), blocks.split(x), strict=True)):
            torch.mul(multiple(block), scales[..., i : i + 1], out=out)
        return x
