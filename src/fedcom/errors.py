"""The errors that a user can mend, each with its exit code."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_flags = False  # whether the reader of a message typed a command, and is to be told of its flags


class FedcomError(Exception):
    """Base of all errors whose message is written for the user."""

    exit_code = 1


class ConfigError(FedcomError):
    """A setting that is unknown, of the wrong type, out of range, or in conflict with another."""

    exit_code = 2


class Diverged(FedcomError):
    """The model has a value that is not finite."""

    exit_code = 3


class DataError(FedcomError):
    """Data that cannot be used: a file that is missing or damaged, or arrays that do not fit."""

    exit_code = 4


class StorageError(FedcomError):
    """A disk that is full or cannot be written to, or a file on it that is damaged."""

    exit_code = 5


class OutOfMemory(FedcomError):
    """What was asked for does not fit into the memory of the machine or of its GPU."""

    exit_code = 6


class RankLost(FedcomError):
    """Another process of the run has ended or does not answer."""

    exit_code = 7


class TooFewReplies(FedcomError):
    """Round after round, too few clients replied in time."""


class Stopped(BaseException):
    """A signal asked the process to stop. Not an Exception, as it is nobody's to handle but the command's.

    Args:
        signal: its number.
        between_rounds: whether it was raised where a run can be saved.
    """

    def __init__(self, signal: int, between_rounds: bool = False) -> None:
        self.signal, self.between_rounds, self.exit_code = signal, between_rounds, 128 + signal
        self.remedy = ""  # how to go on
        super().__init__(signal)


class WireError(FedcomError):
    """A message that cannot be decoded."""


class NotFinite(WireError):
    """A message that holds a number that is infinite or not a number."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name, which suggests the most similar known one.

    Args:
        kind: what the name is of, such as "codec".
        known: all names of that kind.
    """
    return ConfigError(f"unknown {kind} {name!r}; {nearest(name, known)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint for a wrong name: the known name most similar to it, or all known names."""
    names = {other.lower(): other for other in sorted(known)}
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return f"did you mean {names[near[0]]!r}?" if near else f"known: {', '.join(names.values())}"


@contextmanager
def by_flags() -> Iterator[None]:
    """Within this block, messages name arguments as the command line has them: --out, not out."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def flag(name: str, in_python: str | None = None) -> str:
    """What a message calls an argument: --name for those who typed a command, else what Python calls it.

    Args:
        in_python: None: its name.
    """
    return f"--{name}" if _flags else in_python or name
