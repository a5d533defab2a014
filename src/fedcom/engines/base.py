"""What an engine is: it plays the rounds of one run, or of several runs of equal shapes in step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedcom.engines.state.stores import Storage
from fedcom.rounds.state import RunState
from fedcom.vectors import Vectors


@dataclass(frozen=True)
class Options:
    """How an engine is to compute; none of it changes what is computed beyond rounding.

    Args:
        chunk: clients computed at once; None: as many as fit in memory and suit the processor.
        rounds: how many there will be, so that room is sought only for clients who can take part.
        storage: where clients' state is kept.
        tf32: matrix products on a GPU at ten bits of precision.
    """

    chunk: int | None = None
    rounds: int | None = None
    storage: Storage = field(default_factory=Storage)
    tf32: bool = False


class Gauge(NamedTuple):
    """What can be read off a run after a round."""

    q: float  # measured in the last round
    alpha: float  # the damping of the last round
    sound: int  # rounds that left a finite model
    time: dict[str, float]  # modelled seconds, where there is a network


class Engine(Protocol):
    """All that `fedcom run`, compare, sweep and reproduce need of an engine."""

    runs: Sequence[RunState]

    @property
    def round(self) -> int:
        """How many rounds are done."""

    @property
    def chunk(self) -> int:
        """How many clients are computed at once."""

    def step(self) -> None:
        """One round of every run."""

    def gauge(self, run: int) -> Gauge:
        """The figures of one run; waits for the device."""

    def sound(self, run: int) -> int:
        """How many rounds of one run left a finite model; waits for the device."""

    def look(self, run: int, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients of a run, stacked."""
