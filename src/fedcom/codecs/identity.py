"""No compression: the vector as it is, in the dtype of the run."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedcom.codecs.base import Codec, Parts
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.vectors import Layout


@dataclass(frozen=True)
class Identity(Codec):
    """Every coordinate as a float of the run's dtype."""

    name: ClassVar[str] = "identity"
    id: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True
    lossless: ClassVar[bool] = True

    def variance(self, layout: Layout) -> float:
        return 0.0

    def fields(self, layout: Layout) -> list[Field]:
        return [Field("values", layout.size, 8 * layout.itemsize, floating=True)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        return {"values": x}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        return parts["values"]
