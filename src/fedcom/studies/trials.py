"""What a study tries: methods at the points of a grid, each with some seeds."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedcom.config import RunSettings, Table
from fedcom.config.methods import (
    check_keys,
    check_once,
    check_shared,
    method_keys,
    run_of,
    variant,
    with_point,
)
from fedcom.config.values import parse
from fedcom.errors import ConfigError, flag, unknown
from fedcom.runs.given import Given

_SECTIONS = (
    "algorithm",
    "server",
    "local",
    "uplink",
    "downlink",
    "data",
    "model",
    "adapter",
    "run",
    "network",
)
_STACKED = {  # settings that may differ in one stack
    "algorithm": ("eta", "gamma", "eta_schedule", "gamma_schedule"),
    "server": ("momentum", "rate", "beta1", "beta2", "tau"),
    "run": ("seed",),
}
DEALT = (
    "partition",
    "classes_per_client",
    "alpha",
)  # how data is dealt; may differ too if clients are counted
T = TypeVar("T", bound="Trial")


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a method at one point of the grid, with one seed.

    Args:
        method: the name of a method, or a label under [methods].
        point: pairs of a key of the grid and its value, such as ("eta", 0.05).
        config: the settings of this run.
    """

    method: str
    point: tuple[tuple[str, Any], ...]
    seed: int
    config: RunSettings

    def __post_init__(self) -> None:
        for key in ("stop", "patience"):
            if getattr(self.config.run, key) is not None:
                raise ConfigError(
                    f"trials are compared after the same rounds, and run.{key} would end some of them "
                    "earlier; leave it out here"
                )

    @property
    def key(self) -> str:
        """The text that identifies this trial in results.jsonl."""
        return json.dumps([self.method, self.point, self.seed])

    @property
    def digest(self) -> str:
        """A hash of all its settings; trials with the same hash have the same rows."""
        return hashlib.sha256(json.dumps(self.config.table(), default=str).encode()).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        """The part of its record that says which trial it is."""
        return {"key": self.key, "method": self.method, "point": dict(self.point), "seed": self.seed}

    @property
    def words(self) -> str:
        """Its point of the grid, in words."""
        return ", ".join(f"{key} {value}" for key, value in self.point) or "no point"

    @property
    def title(self) -> str:
        """Its name in the progress display."""
        return self.method

    @property
    def shape(self) -> str:
        """All settings that runs of one stack must share, as text."""
        table, local = self.config.table(), self.config.algorithm.local.shared
        table.pop("local", None)
        for section, keys in _STACKED.items():
            table[section] = {k: v for k, v in table.get(section, {}).items() if k not in keys}
        table["data"] = undealt(table.get("data", {}))
        own = self.method if isinstance(self.config, Given) else ""  # two classes may have one name there
        return json.dumps([own, table, repr(local)], default=str)


def undealt(data: Table) -> Table:
    """The settings of [data] without those that say how it is dealt to a number of clients."""
    return {k: v for k, v in data.items() if k not in DEALT} if data.get("clients") else data


def stacks(trials: Iterable[T]) -> list[list[T]]:
    """The trials grouped by shape; each group can be computed as one stack."""
    groups: dict[str, list[T]] = {}
    for trial in trials:
        groups.setdefault(trial.shape, []).append(trial)
    return list(groups.values())


def points(grid: Table) -> list[tuple[tuple[str, Any], ...]]:
    """Every combination of a grid's values, each as pairs of key and value.

    Args:
        grid: values or lists of values: {"eta": [0.1, 0.2], "uplink": {"bits": [2, 4]}}. A key without a
            section is a hyper-parameter of the algorithm.
    """
    values = lists(grid)
    if not values:
        raise ConfigError("a sweep needs a grid, as in grid.eta=0.02,0.05,0.1 or grid.uplink.bits=1,2")
    return [tuple(zip(values, some, strict=True)) for some in itertools.product(*values.values())]


def lists(grid: Table) -> dict[str, list[Any]]:
    """The values of each key of a grid; see `points`."""
    flat: Table = {}
    for name, values in grid.items():
        if not isinstance(values, dict):
            flat[name] = values
        elif name not in _SECTIONS:
            raise unknown("section of the grid", name, _SECTIONS)
        else:
            section = "" if name == "algorithm" else f"{name}."
            flat |= {f"{section}{key}": inner for key, inner in values.items()}
            if not section and (twice := grid.keys() & values.keys()):
                raise ConfigError(f"grid.{min(twice)} and grid.algorithm.{min(twice)} are the same; give one")
    if "run.seed" in flat:
        raise ConfigError(f"seeds are no part of a grid; give run.seed, the first one, and {flag('seeds')}")
    found = {key: _values(own) for key, own in flat.items()}
    for key, own in found.items():
        if any(own.count(value) > 1 for value in own):
            raise ConfigError(f"grid.{key} has a value twice: {own}; leave one out")
    return found


def _values(own: Any) -> list[Any]:
    """A grid's values of one key; words may be among them, as in auto,0.1 or int,rotated."""
    if isinstance(own, str) and "," in own:
        words = re.split(r",(?![^()]*\))", own)  # not within the brackets of a schedule
        return [parse(word.strip()) for word in words if word.strip()]
    return list(own) if isinstance(own, list | tuple) else [own]


def trials_of(
    table: Table, tried: Sequence[tuple[tuple[str, Any], ...]], methods: Sequence[str], seeds: int
) -> Iterator[Trial]:
    """Every method at every point with every seed; keys that a method does not have are dropped for it.

    Args:
        table: the settings of a config file, by section.
        tried: the points of a grid; see `points`.
        methods: names of methods, or labels under [methods].
        seeds: how many seeds per point, from run.seed on.
    """
    first = run_of(table).seed
    check_once(methods)
    known = {method: method_keys(table, method) for method in methods}
    check_shared(table, methods)
    every = set().union(*known.values())
    check_keys((key for key, _ in tried[0] if "." not in key), every, "to sweep")
    for method in methods:
        own = {tuple((k, v) for k, v in point if "." in k or k in known[method]): None for point in tried}
        for point, seed in itertools.product(own, range(first, first + seeds)):
            yield Trial(
                method,
                point,
                seed,
                variant(
                    with_point({**table, "run": {**table.get("run", {}), "seed": seed}}, method, point),
                    method,
                ),
            )
