"""Everything that can go wrong in a way a user can mend; each kind has its exit code."""

import difflib
from collections.abc import Iterable


class FedcomError(Exception):
    """Base of all errors whose message is written for the user."""

    exit_code = 1


class ConfigError(FedcomError):
    """A setting that is unknown, of the wrong type, out of range, or at odds with another."""

    exit_code = 2


class Diverged(FedcomError):
    """The model holds a value that is not finite."""

    exit_code = 3


class DataError(FedcomError):
    """A data file that is missing, truncated or not what its checksum says."""

    exit_code = 4


class WireError(FedcomError):
    """A message that does not decode; it costs its sender the round."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does."""
    return ConfigError(f"unknown {kind} {name!r}; {nearest(name, known)}")


def nearest(name: object, known: Iterable[str]) -> str:
    """A hint after a wrong name: the right one it resembles, or all there are."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
