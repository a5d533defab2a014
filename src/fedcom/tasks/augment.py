"""Images that are changed at random each time a client uses them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.draws import Draw
from fedcom.errors import ConfigError


@dataclass(frozen=True)
class Augment:
    """Shift each image by up to so many pixels both ways, its edges mirrored, and flip it or not.

    Args:
        shift: the most pixels.
        flip: whether half of the images are flipped left to right.
    """

    shift: int = 4
    flip: bool = True

    def check(self, x: Tensor) -> None:
        """Refuse samples that are no images, or too small."""
        if x.dim() != 4 or min(x.shape[2:]) <= self.shift:
            raise ConfigError(
                f"only images larger than {self.shift} pixels both ways can be shifted by as many; one "
                f"sample has shape {list(x.shape[1:])}"
            )

    def draw(self, draw: Draw, samples: int) -> Tensor:
        """One whole number per image that says how it is changed; an axis of samples after the keys'."""
        return draw.integers((2 if self.flip else 1) * (2 * self.shift + 1) ** 2, samples)

    def __call__(self, x: Tensor, change: Tensor) -> Tensor:
        """The images of some clients, changed.

        Args:
            x: [clients, samples, channels, height, width].
            change: of each image, as `draw` gives it.
        """
        (height, width), ways = x.shape[3:], 2 * self.shift + 1
        rows = _mirrored(change % ways - self.shift, height)
        columns = _mirrored(change // ways % ways - self.shift, width)
        flipped = (change >= ways * ways).unsqueeze(-1)
        columns = torch.where(flipped, columns.flip(-1), columns)
        place = ((width * rows).unsqueeze(-1) + columns.unsqueeze(-2)).flatten(-2)
        place = place.unsqueeze(-2).expand(-1, -1, x.shape[2], -1)
        return x.flatten(3).gather(-1, place).reshape(x.shape)


def _mirrored(start: Tensor, length: int) -> Tensor:
    """The positions start, start + 1, ... of as many pixels as there are, mirrored at both edges."""
    position = (start.unsqueeze(-1) + torch.arange(length, device=start.device)).abs()
    return length - 1 - (length - 1 - position).abs()


DEFAULT = Augment()
