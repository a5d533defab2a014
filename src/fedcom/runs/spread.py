"""Runs shared out among ranks: each rank takes whole runs, one after the other, until none is left."""

from collections.abc import Callable, Mapping
from typing import Any

from fedcom.engines.ranks.ranks import apart, claim, here

Unit = Mapping[str, Any]  # one or more runs as plain data: all that a rank must know to play them
Duty = Callable[[Unit], None]  # plays a unit, and leaves what it found in a folder that all ranks see


def worth_spreading(runs: int) -> bool:
    """Whether each rank is to take whole runs: if there are as many as ranks. Else all play each run."""
    return 1 < here().size <= runs


def spread(name: str, duty: Duty, units: Mapping[str, Unit]) -> None:
    """Let all ranks do a duty for some units, and wait until all are done.

    Args:
        name: of the duty, by which the other ranks know it.
        units: by names of their own.
    """
    here().tell({"do": "share", "duty": name, "units": dict(units)})
    share(duty, units)


def share(duty: Duty, units: Mapping[str, Unit]) -> None:
    """Do a duty for those units that no other rank has begun."""
    with apart():
        for name, unit in units.items():
            if claim(name):
                duty(unit)
