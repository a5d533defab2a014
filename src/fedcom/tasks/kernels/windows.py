"""What convolutions with 2x2 max-pooling do beside their matrix products, on a GPU: each one launch.

torch has them too (tasks/pooled.py), in several passes over memory each, which take longer than the products.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None
_BLOCK = 512  # columns of a program


class Windows(NamedTuple):
    """Where the patches of windows lie in images."""

    channels: int
    height: int
    width: int
    padding: int  # zeros around an image
    patch: int  # how many pixels wide and high a patch is

    @property
    def down(self) -> int:
        """How many windows lie one above the other."""
        return (self.height + 2 * self.padding - self.patch) // 2 + 1

    @property
    def across(self) -> int:
        """How many windows lie side by side."""
        return (self.width + 2 * self.padding - self.patch) // 2 + 1

    def known(self) -> dict[str, int]:
        """What kernels are compiled for."""
        names = ("CHANNELS", "HEIGHT", "WIDTH", "PADDING", "PATCH", "DOWN", "ACROSS")
        return dict(zip(names, (*self, self.down, self.across), strict=True))


def ready(x: Tensor) -> bool:
    """Whether the kernels can be used."""
    return _HAS_TRITON and x.is_cuda


def table(windows: Windows, images: Tensor, batches: int) -> Tensor:
    """The patches of all windows [batches, channels * patch^2, windows].

    Args:
        images: [..., channels, height, width], so many that they can be divided into batches.
    """
    rows = windows.channels * windows.patch**2
    count = images.numel() // batches // (windows.channels * windows.height * windows.width)
    count *= windows.down * windows.across
    out = images.new_empty(batches, rows, count)
    grid = (batches * rows, -(-count // _BLOCK))
    _run("table", grid, images.contiguous(), out, count, **windows.known(), BLOCK=_BLOCK)
    return out


def pool(products: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The values of windows after ReLU, and which of its four places each has.

    Both are [clients, parts, outputs, windows].

    Args:
        products: [clients, parts, 4, outputs, windows], contiguous.
        bias: [clients, outputs].
    """
    clients, parts, _, outputs, count = products.shape
    values = products.new_empty(clients, parts, outputs, count)
    largest = torch.empty_like(values, dtype=torch.int8)
    grid = (clients * parts * outputs, -(-count // _BLOCK))
    given = products if bias is None else bias
    _run(
        "pool",
        grid,
        *(products, given, values, largest, count, parts, given.stride(0)),
        OUTPUTS=outputs,
        BIAS=bias is not None,
        BLOCK=_BLOCK,
    )
    return values, largest


def errors(g: Tensor, values: Tensor, largest: Tensor, windows: int) -> tuple[Tensor, Tensor]:
    """The gradients by the products [batches, 4 * outputs, windows], and by the biases of each part.

    Args:
        g: by the images of a layer [clients, parts, samples, outputs, height, width].
        values: of all windows, as `pool` gives them, and so is `largest`.
        windows: of one image.
    """
    clients, parts, outputs, count = largest.shape
    out, sums = (
        values.new_empty(clients * parts, 4 * outputs, count),
        values.new_empty(clients, parts, outputs),
    )
    grid = (clients * parts * outputs,)
    known = {"OUTPUTS": outputs, "WINDOWS": windows, "BLOCKS": -(-count // _BLOCK), "BLOCK": _BLOCK}
    _run("errors", grid, g.contiguous(), values, largest, out, sums, count, **known)
    return out, sums


def fold(windows: Windows, patches: Tensor) -> Tensor:
    """Images [all, channels, height, width] whose pixels are the sums of what patches have there.

    Args:
        patches: [batches, channels * patch^2, windows of some images], contiguous.
    """
    batches, _, count = patches.shape
    images, pixels = count // (windows.down * windows.across), windows.height * windows.width
    out = patches.new_empty(batches * images, windows.channels, windows.height, windows.width)
    grid = (batches * windows.channels, -(-images * pixels // _BLOCK))
    _run("fold", grid, patches, out, count, **windows.known(), BLOCK=_BLOCK)
    return out


def _run(kernel: str, grid: tuple[int, ...], *given: Any, **known: int) -> None:
    from fedcom.tasks.kernels import triton_windows

    getattr(triton_windows, kernel)[grid](*given, **known)
