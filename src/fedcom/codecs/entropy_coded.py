"""What the codecs with an entropy coder have in common: sizes that depend on the vector, and a rate."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from fedcom.codecs.base import Codec, Parts, Sizes, check_range
from fedcom.codecs.coding.entropy import countable
from fedcom.codecs.wire import Field
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

LOWEST_RATE = 0.05  # bits per coordinate, the least that an entropy coder can be set to


@dataclass(frozen=True)
class EntropyCoded(Codec):
    """An unbiased codec whose messages are about as long as the entropy of what they hold.

    On a CPU sizes are those of the real messages. A GPU cannot code symbols one after the other; there sizes
    are estimated from how often each symbol occurs, as well as `exact_size` says.

    Attributes:
        highest_rate: the most bits per coordinate the codec can be set to.
    """

    unbiased: ClassVar[bool] = True
    lowest_rate: ClassVar[float] = LOWEST_RATE
    highest_rate: ClassVar[float]

    @property
    def exact_size(self) -> bool:
        return False

    def transmit(self, x: Tensor, layout: Layout, draw: Draw) -> tuple[Tensor, Sizes]:
        parts = self._parts(x, layout, draw)
        return self._heard(parts, x, layout, draw), self.itemise(parts, layout)

    def counts_exactly(self, x: Tensor) -> bool:
        return self.exact_size or countable(x)

    def itemise(self, parts: Parts, layout: Layout, exact: bool = True) -> Sizes:
        """The bytes of each message by part; about so many, and sooner known, unless they must be exact."""
        return super().itemise(parts, layout)

    def at(self, bits: float) -> Self | None:
        changes: dict[str, Any] = {"bits": bits} | ({"q": None} if hasattr(self, "q") else {})
        return replace(self, **changes) if self.has_rate(bits) else None

    def has_rate(self, bits: float) -> bool:
        """Whether the codec can be set to so many bits per coordinate."""
        return self.lowest_rate <= bits <= self.highest_rate

    def check_rate(self, bits: float) -> None:
        """Refuse a number of bits per coordinate that is outside the codec's range."""
        check_range("bits", bits, self.lowest_rate, self.highest_rate)

    def first_number(self, field: Field, body: memoryview) -> tuple[Tensor, memoryview]:
        """The number with which a message begins, 0 or more, and what follows it."""
        if len(body) < field.nbytes:
            raise WireError(f"a {self.name} message cannot have {len(body)} bytes")
        number = field.unpack(body[: field.nbytes])
        if float(number) < 0:
            raise WireError(f"a {self.name} message has a negative {field.name}")
        return number, body[field.nbytes :]

    def take_q_or_bits(self, q: float | None, bits: float | None, default: tuple[str, float]) -> None:
        """Check the variance q or the rate in bits that a codec was given, or set its default.

        Args:
            default: the field to set, q or bits, and its value, for a codec that was given neither.
        """
        if q is not None and bits is not None:
            raise ConfigError(f"{self.name} takes q or bits, not both; got q={q}, bits={bits}")
        if q is not None:
            check_range("q", q, 1e-12, 1e6)
        elif bits is not None:
            self.check_rate(bits)
        else:
            object.__setattr__(self, *default)
