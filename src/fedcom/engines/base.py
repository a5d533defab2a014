"""What an engine is: it plays the rounds of one run, or of several runs of equal shapes in step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from fedcom.engines.ranks.ranks import ALONE, Parcel, Ranks
from fedcom.engines.state.stores import Storage
from fedcom.rounds.state import RunState
from fedcom.saving.series import Facts, Saved, Series
from fedcom.tasks.task import Scored
from fedcom.vectors import Vectors

Exchange = Literal["chain", "bytes", "reduce"]


@dataclass(frozen=True)
class Options:
    """How an engine is to compute; results differ by rounding at most.

    Args:
        chunk: clients computed at once; None: as many as fit in memory and suit the processor.
        rounds: how many there will be, which bounds how many clients take part and need room for their state.
        storage: where clients' state is kept.
        tf32: matrix products on a GPU at ten bits of precision.
        ranks: the processes that play the rounds together.
        transport: what travels between them; "chain": sums, from rank to rank; "bytes": every message, as it
            is encoded; "reduce": sums, in an order that torch.distributed chooses.
    """

    chunk: int | None = None
    rounds: int | None = None
    storage: Storage = field(default_factory=Storage)
    tf32: bool = False
    ranks: Ranks = ALONE
    transport: Exchange = "chain"


class Gauge(NamedTuple):
    """Figures of a run after a round."""

    q: float  # measured in the last round
    alpha: float  # the damping of the last round
    finite_rounds: int  # how many rounds left a finite model
    time: dict[str, float]  # modelled seconds; empty without a network
    counts: Mapping[str, int] = MappingProxyType({})  # of real clients: how many were counted and refused


class Engine(Protocol):
    """What `fedcom run`, compare, sweep and reproduce need of an engine; `run` is an index into `runs`."""

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

    def finite_rounds(self, run: int) -> int:
        """How many rounds of one run left a finite model; waits for the device."""

    def peek(self, run: int, clients: Tensor) -> tuple[Any, Vectors]:
        """The state and memory of some clients of a run, stacked."""

    def save(self, series: Series, facts: Facts) -> None:
        """Begin a checkpoint of all runs, between rounds, with some facts of the caller's."""

    def restore(self, saved: Saved) -> None:
        """Go on from a checkpoint of the same runs, before the first round."""

    def scored(self) -> Scored | None:
        """The scores of the training samples, if ranks share that work; None: score them here."""

    def obey(self, told: Parcel) -> None:
        """On a rank other than 0: do what rank 0 says."""


class InOneProcess:
    """The methods of an `Engine` that are about other ranks, for one that has none."""

    def scored(self) -> Scored | None:
        """None: there is nobody to share the work with."""
        return None

    def obey(self, told: Parcel) -> None:
        """Nobody tells it anything."""
        raise NotImplementedError
