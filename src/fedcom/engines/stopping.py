"""When a run ends before its last round, and which of its models is the best."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcom.engines.arguments import Callback
from fedcom.engines.results import Row
from fedcom.errors import ConfigError, nearest
from fedcom.formats import is_number
from fedcom.saving.series import write_tensors
from fedcom.saving.whole import disk_errors

_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=)\s*(\S+)\s*")
_USUAL = ("test_accuracy", "test_loss", "train_loss")  # the first that a task has tells its best model
_FALLING = (  # in names of what is to be small
    *("loss", "mse", "mae", "error", "perplexity", "bits", "spread", "bytes", "seconds"),
)
_COSTS = (  # figures whose bound limits a run, and says nothing of how good a model is
    *("round", "seconds", "modelled_seconds", "q", "damping"),
    *("uplink_bytes", "downlink_bytes", "uplink_bytes_total", "downlink_bytes_total"),
)
FILE = "best.safetensors"  # the best model, beside the checkpoint that it belongs to


class Condition(NamedTuple):
    """A bound that a figure of the rows is to reach, such as test_accuracy>=0.9."""

    figure: str
    at_least: bool
    bound: float

    @classmethod
    def of(cls, text: str) -> "Condition":
        """The condition that a text states."""
        found = _CONDITION.fullmatch(text)
        try:
            bound = float(found[3])  # type: ignore[index]
            if not math.isfinite(bound):
                raise ValueError
            return cls(found[1], found[2] == ">=", bound)  # type: ignore[index]
        except (TypeError, ValueError):
            raise ConfigError(
                f"stop is a figure of the rows and a bound, as in test_accuracy>=0.9 or train_loss<=0.1; "
                f"got {text!r}"
            ) from None

    def met(self, value: float) -> bool:
        """Whether a value reaches the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


class Best(NamedTuple):
    """The best model of a run so far.

    Args:
        round: after which it stood; -1: no row has told yet.
        figure: what tells which model is the best.
        value: of the figure.
        w: its parameters as one vector, the base behind them if that changes; None if they are not known.
        since: how many evaluations have come after it.
        last: the round of the last evaluation.
    """

    round: int = -1
    figure: str = ""
    value: float | None = None
    w: Tensor | None = None
    since: int = 0
    last: int = -1


@dataclass(frozen=True)
class Stopping:
    """The rules by which a run ends early.

    Args:
        stop: see Condition; None: no bound.
        patience: evaluations without a better one that end the run; None: any number.
        best: the figure that tells which model is the best; None: that of `stop`, unless it is a cost such as
            seconds, else the first that rows have of test_accuracy, test_loss and train_loss. It is better
            the larger it is; the smaller, if `stop` gives it an upper bound, or if its name holds loss, mse,
            mae, error, perplexity, bits, spread, bytes or seconds.
    """

    stop: str | None = None
    patience: int | None = None
    best: str | None = None

    def __post_init__(self) -> None:
        if self.stop is not None:
            Condition.of(self.stop)
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience must be 1 evaluation or more; got {self.patience}")

    @property
    def condition(self) -> Condition | None:
        """The bound that ends the run."""
        return None if self.stop is None else Condition.of(self.stop)

    def check(self, figures: Sequence[str]) -> None:
        """Raise ConfigError unless rows may hold the figures that are named."""
        for key, name in (("stop", self.condition and self.condition.figure), ("best", self.best)):
            if name is not None and name not in figures:
                raise ConfigError(f"{key} names {name!r}, which rows do not hold; {nearest(name, figures)}")

    def see(self, row: Row, best: Best, w: Tensor) -> tuple[Best, str | None]:
        """The best model after a row, and why the run ends with it; None: it goes on.

        A row of the round that was seen last changes nothing.
        """
        figure = self._figure(row)
        best = best if best.figure == figure else Best(figure=figure)
        value = row.get(figure)
        if row["round"] != best.last:
            if is_number(value) and self._better(figure, value, best.value):
                best = Best(row["round"], figure, value, w.detach().clone(), 0, row["round"])
            else:
                best = best._replace(since=best.since + 1, last=row["round"])
        return best, self._why(row, best)

    def _why(self, row: Row, best: Best) -> str | None:
        condition = self.condition
        if condition is not None and is_number(found := row.get(condition.figure)) and condition.met(found):
            return f"{condition.figure} is {found:.6g} after round {row['round']} (stop={self.stop})"
        if self.patience is not None and best.value is not None and best.since >= self.patience:
            last = f"not better than the {best.value:.6g} after round {best.round}"
            return f"{best.figure} was {last} in {best.since} evaluations (patience={self.patience})"
        return None

    def _figure(self, row: Row) -> str:
        """The figure that tells the best model; refuses figures that this task does not have."""
        condition = self.condition
        named = [name for name in (self.best, condition and condition.figure) if name is not None]
        usual = [name for name in _USUAL if row.get(name) is not None]
        if row["round"] == 0 and (self.patience or named):
            for name in named or usual or _USUAL[-1:]:
                if row.get(name) is None:
                    have = [key for key, value in row.items() if is_number(value) and key != "round"]
                    raise ConfigError(f"rows of this task have no {name}; they have {', '.join(have)}")
        telling = [name for name in named if name == self.best or name not in _COSTS]
        return [*telling, *usual, _USUAL[-1]][0]

    def _better(self, figure: str, value: float, before: float | None) -> bool:
        condition = self.condition
        if condition is not None and condition.figure == figure:
            falling = not condition.at_least
        else:
            falling = any(word in figure for word in _FALLING)
        return before is None or (value < before if falling else value > before)


def write_best(folder: Path, best: Best) -> dict[str, Any] | None:
    """Write the best model beside a checkpoint; what the checkpoint's facts say of it."""
    if best.last < 0:
        return None
    if best.w is not None and _round_of(folder) != best.round:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / FILE, {"w": best.w.cpu()}, {"round": str(best.round)})
    return {key: value for key, value in best._asdict().items() if key != "w"}


def read_best(folder: Path, facts: Mapping[str, Any] | None, like: Tensor) -> Best:
    """The best model that belongs to a checkpoint, by its facts.

    The file may be of a later round, if the process was killed before the next checkpoint was whole. The run
    then plays that round again, and finds its best model there again.

    Args:
        like: a model, whose device and dtype it shall have.
    """
    if facts is None:
        return Best()
    if _round_of(folder) != facts["round"]:
        return Best(**facts)
    from safetensors.torch import load_file

    return Best(**facts, w=load_file(folder / FILE)["w"].to(like))


def _round_of(folder: Path) -> int | None:
    """The round of the best model in a folder; None if there is none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / FILE, "pt") as file:
            return int(file.metadata()["round"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def asks_to_stop(callbacks: Sequence[Callback], row: Row) -> bool:
    """Whether one of the callbacks returns True, also numpy's or torch's; each has a row of its own."""
    answers = [callback({**row}) for callback in callbacks]
    return any(
        bool(answer)
        for answer in answers
        if isinstance(answer, bool | np.bool_)
        or (isinstance(answer, Tensor) and answer.dtype == torch.bool and answer.numel() == 1)
    )
