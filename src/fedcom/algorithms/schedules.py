"""How eta and gamma change from round to round: factors by which a method's own rates are multiplied.

A method names a schedule by a text: `cosine`, `cosine(end=0.1)`, `warmup(rounds=10, then=cosine)`. Rounds are
counted from 0, out of the number that the run is given. A run that goes on with more rounds follows the
schedule of the larger number from there on; those it has played are not played again.
"""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from fedcom import settings
from fedcom.errors import ConfigError
from fedcom.plain import build
from fedcom.registry import Registry, derived_from

_TEXT = re.compile(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


@dataclass(frozen=True)
class Schedule:
    """The factor of a rate, by round; its settings are the fields of the dataclass.

    Attributes:
        name: what a config calls it.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        settings.check(self)

    def factor(self, r: int, rounds: int) -> float:
        """What the rate of round r is multiplied by; above 0.

        Args:
            rounds: how many there are; r is always below it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no factor")


@dataclass(frozen=True)
class Constant(Schedule):
    """1 in every round."""

    name: ClassVar[str] = "constant"

    def factor(self, r: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Decay(Schedule):
    """rate^r, as algorithm.decay has it.

    Args:
        rate: by which the factor is multiplied after every round.
    """

    rate: float = 0.99

    name: ClassVar[str] = "decay"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("rate", self.rate, 0 < self.rate <= 1, "in (0, 1]")

    def factor(self, r: int, rounds: int) -> float:
        return float(self.rate**r)


@dataclass(frozen=True)
class Cosine(Schedule):
    """From 1 along half a cosine towards `end`, which it would reach after the last round.

    Args:
        end: the factor that it ends at.
    """

    end: float = 0.0

    name: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("end", self.end, 0 <= self.end <= 1, "in [0, 1]")

    def factor(self, r: int, rounds: int) -> float:
        wave = self.end + (1 - self.end) * (1 + math.cos(math.pi * r / rounds)) / 2
        return float(f"{wave:.12g}")  # the last bits of cos differ between machines


@dataclass(frozen=True)
class Warmup(Schedule):
    """1/n, 2/n, ... up to 1 in the first n rounds; then constant, or a cosine over the other rounds.

    Args:
        rounds: n.
        then: what follows.
        end: the factor that the cosine ends at.
    """

    rounds: int = 10
    then: Literal["constant", "cosine"] = "constant"
    end: float = 0.0

    name: ClassVar[str] = "warmup"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("rounds", self.rounds, self.rounds >= 1, "1 or more")
        Cosine(self.end)

    def factor(self, r: int, rounds: int) -> float:
        if r < self.rounds:
            return (r + 1) / self.rounds
        then = Constant() if self.then == "constant" else Cosine(self.end)
        return then.factor(r - self.rounds, rounds - self.rounds)


@dataclass(frozen=True)
class Step(Schedule):
    """Multiplied by a number after every so many rounds.

    Args:
        every: how many rounds.
        by: the number.
    """

    every: int = 30
    by: float = 0.1

    name: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("every", self.every, self.every >= 1, "1 or more")
        _check("by", self.by, self.by > 0, "above 0")

    def factor(self, r: int, rounds: int) -> float:
        return float(self.by ** (r // self.every))


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule",
    "fedcom.schedules",
    {kind.name: kind for kind in (Constant, Decay, Cosine, Warmup, Step)},
    derived_from(Schedule),
)


@lru_cache(maxsize=256)
def schedule_of(text: str) -> Schedule:
    """The schedule that a text names, such as step(every=20, by=0.5); values are numbers or words."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ConfigError(f"a schedule is a name, as in cosine or step(every=20, by=0.5); got {text!r}")
    table = {}
    for item in filter(str.strip, (found[2] or "").split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ConfigError(f"schedule {text!r}: write its settings as key=value; got {item.strip()!r}")
        if key in table:
            raise ConfigError(f"schedule {text!r} gives {key} twice")
        table[key] = _value(value)
    return build(SCHEDULES.find(found[1]), table, f"schedule {found[1]}")


def factor(text: str, r: int, rounds: int) -> float:
    """The factor of round r by the schedule that a text names; after the last round it stays."""
    found = schedule_of(text).factor(min(r, max(rounds, 1) - 1), max(rounds, 1))
    if not (isinstance(found, int | float) and 0 < found < math.inf):
        raise ConfigError(
            f"schedule {text} must give numbers above 0; got {found!r} in round {r} of {rounds}"
        )
    return float(found)


def _value(text: str) -> int | float | str:
    """A number, or the text without its quotes."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"")


def _check(key: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{key} must be {rule}; got {value}")
