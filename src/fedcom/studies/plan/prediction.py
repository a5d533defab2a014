"""What a plan is asked for, and what it says of each candidate."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedcom.codecs import Codec
from fedcom.errors import ConfigError, flag
from fedcom.formats import is_number

Cost = Literal["bytes", "uplink", "seconds"]


@dataclass(frozen=True)
class Goal:
    """What is asked for: an accuracy or a loss to reach, or a budget to make the most of.

    Args:
        accuracy: from 0 to 1.
        loss: of training.
        bytes: per client, up and down together.
        seconds: of modelled time.
    """

    accuracy: float | None = None
    loss: float | None = None
    bytes: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {key: value for key, value in asdict(self).items() if value is not None}
        if len(given) != 1:
            raise ConfigError(
                f"a plan needs one goal: {flag('accuracy')}, {flag('loss')}, {flag('megabytes', 'bytes')} or "
                f"{flag('seconds')}; got {', '.join(given) or 'none'}"
            )
        ((key, value),) = given.items()
        if value <= 0 or (key == "accuracy" and value >= 1):
            raise ConfigError(f"{key} must be above 0{' and below 1' * (key == 'accuracy')}; got {value}")

    @property
    def reaches(self) -> bool:
        """Whether it is something to reach, instead of a budget."""
        return self.accuracy is not None or self.loss is not None

    def by_loss(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is told by its training loss: that is asked for, or there is no accuracy."""
        return self.loss is not None or row.get("test_accuracy") is None

    def error(self, row: Mapping[str, Any]) -> float | None:
        """What is to fall: one minus the accuracy, or the loss."""
        value = row.get("train_loss") if self.by_loss(row) else 1 - row["test_accuracy"]
        return value if is_number(value) else None

    @property
    def wanted(self) -> float:
        """The error to reach."""
        return 1 - self.accuracy if self.accuracy is not None else float(self.loss or 0.0)

    def rank(self, candidate: "Prediction", by: Cost) -> tuple[float, float]:
        """What candidates are sorted by: what it costs to reach a goal, or how far a budget gets."""
        error = math.inf if candidate.error is None else candidate.error
        return (candidate.cost(by), error) if self.reaches else (error, candidate.cost(by))


@dataclass(frozen=True)
class Prediction:
    """What a candidate is predicted to need.

    Args:
        label: of the candidate.
        rounds: to the goal; None: it is not reached. The interval is `low` to `high`.
        error: predicted at those rounds: one minus the accuracy, or the loss.
        up: bytes per client that go up; `down`: that go down.
        seconds: of modelled time; None without a network.
        how: where the prediction comes from, in words.
        by_loss: whether the error is a loss.
    """

    label: str
    method: str
    codec: str
    tau: int = 0
    eta: float | None = None
    gamma: float | None = None
    rounds: int | None = None
    low: int | None = None
    high: int | None = None
    error: float | None = None
    up: float | None = None
    down: float | None = None
    seconds: float | None = None
    how: str = ""
    by_loss: bool = False

    def cost(self, by: Cost) -> float:
        """What it costs; infinite if the goal is not reached."""
        if self.rounds is None or self.up is None or self.down is None:
            return math.inf
        if by == "seconds":
            return math.inf if self.seconds is None else self.seconds
        return self.up if by == "uplink" else self.up + self.down


def codec_words(codec: Codec) -> str:
    """A codec's name, and its rate if it has one."""
    own = asdict(codec)
    rate = own.get("bits", own.get("ratio"))
    return codec.name if rate is None else f"{codec.name} {rate:g}"
