"""Runs shared out among ranks: each rank takes whole runs, one after the other, until none is left."""

from collections.abc import Callable, Mapping
from typing import Any

from fedcom.engines.ranks.ranks import apart, claim, here

WorkItem = Mapping[str, Any]  # one or more runs as plain data: all that a rank must know to play them
Duty = Callable[[WorkItem], None]  # plays an item, and leaves what it found in a folder that all ranks see


def worth_spreading(runs: int) -> bool:
    """Whether each rank is to take whole runs: if there are as many as ranks. Else all play each run."""
    return 1 < here().size <= runs


def spread(name: str, duty: Duty, items: Mapping[str, WorkItem]) -> None:
    """Let all ranks do a duty for some items, and wait until all are done.

    Args:
        name: of the duty, by which the other ranks know it.
        items: each by a name of its own.
    """
    here().tell({"do": "share", "duty": name, "items": dict(items)})
    share(duty, items)


def share(duty: Duty, items: Mapping[str, WorkItem]) -> None:
    """Do a duty for each item that no other rank has begun."""
    with apart():
        for name, item in items.items():
            if claim(name):
                duty(item)
