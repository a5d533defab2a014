"""What a study is: a claim of the paper, the runs that test it, a figure of them and a verdict."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import fedcom
from fedcom import sweep
from fedcom.compare import METHODS
from fedcom.config import Config, Table, override, read
from fedcom.engines.local import Row
from fedcom.errors import ConfigError
from fedcom.reproduce.results import Results, Verdict

QUICK = {"clients": 20, "authors": 100, "rounds": 30, "cifar-10": 10, "eval_every": 5}
PLACES = (Path("experiments"), *(Path(fedcom.__file__).parents[up] / "experiments" for up in (0, 2)))


@dataclass(frozen=True)
class Scale:
    """How large the runs are: as in the paper, or so small that a laptop does them."""

    quick: bool = False
    seeds: int = 3
    overrides: tuple[str, ...] = ()  # section.key=value, laid over every config

    def of(self, table: Table) -> Table:
        """A config's table at this scale."""
        table = copy.deepcopy(table)
        if self.quick:
            data, run = table["data"], table["run"]
            authors = data.get("partition") == "natural"
            data["clients"] = min(data.get("clients", 10**9), QUICK["authors" if authors else "clients"])
            run["rounds"] = min(run["rounds"], QUICK.get(data["name"], QUICK["rounds"]))
            run["eval_every"] = max(1, min(QUICK["eval_every"], run["rounds"]))
        for text in self.overrides:
            override(table, text)
        return table


@dataclass(frozen=True)
class Run(sweep.Trial):
    """One run of a study; its key changes with any of its settings, so that none is mistaken for another."""

    panel: str = ""

    @property
    def key(self) -> str:
        return json.dumps([self.panel, self.method, self.point, self.seed, self.digest])

    @property
    def digest(self) -> str:
        """What its rows follow from: runs of several studies that are alike in it are one run."""
        return sha256(json.dumps(self.config.table(), default=str).encode()).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "panel": self.panel, "config": self.digest}

    @property
    def title(self) -> str:
        point = " ".join(f"{key.rpartition('.')[2]} {value}" for key, value in self.point)
        return f"{self.panel} · {self.method} {point}".rstrip()


@dataclass(frozen=True)
class Panel:
    """One task of a study, the methods that run on it and the settings they are tried at."""

    name: str
    table: Table
    methods: tuple[str, ...] = METHODS
    grid: Table = field(default_factory=dict)

    def runs(self, seeds: int) -> list[Run]:
        """Every run of the panel."""
        points = sweep.points(self.grid) if self.grid else [()]
        trials = sweep.trials_of(self.table, points, self.methods, seeds)
        return [Run(t.method, t.point, t.seed, t.config, self.name) for t in trials]

    @property
    def config(self) -> Config:
        """The settings its methods share."""
        return Config.of({key: self.table[key] for key in ("data", "model", "run") if key in self.table})


Measure = Callable[[Run, str, bool], tuple[str, list[Row]]]  # of a run, a device and whether to be quiet


@dataclass(frozen=True)
class Study:
    """A figure of the paper as one command.

    Args:
        claims: what the paper says, in our words.
        plan: the panels at a scale.
        draw: the results as images in a folder; their names.
        judge: the verdict on each claim.
        measure: how a run is measured where its rows are not those of a simulation; run alone.
    """

    name: str
    title: str
    claims: tuple[str, ...]
    plan: Callable[[Scale], list[Panel]]
    draw: Callable[[Results, Path], list[str]]
    judge: Callable[[Results], list[Verdict]]
    measure: Measure | None = None
    notes: str = ""


def experiment(name: str) -> Path:
    """A file of experiments/: in the present folder, or as it was installed."""
    for place in PLACES:
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"no file {name} under {' or '.join(map(str, PLACES))}")


def panel(
    file: str, scale: Scale, methods: Sequence[str] = METHODS, *, name: str | None = None,
    tuned: bool = True, over: Table | None = None,
) -> Panel:  # fmt: skip
    """The panel of a config under experiments/; tuned: each method at its own rates for this data set.

    over: sections laid over the file's.
    """
    table = read(experiment(file))
    for section, values in (over or {}).items():
        table[section] = {**table.get(section, {}), **values}
    grid = table.pop("grid", {})
    table = scale.of(table)
    if tuned:
        lay_rates(table, methods)
    return Panel(name or Path(file).stem, table, tuple(methods), grid)


def lay_rates(table: Table, methods: Sequence[str]) -> None:
    """Give each method the committed rates of its kind, but where the config has its own."""
    try:
        rates = read(experiment(f"rates/{table['data']['name']}.toml"))["methods"]
    except ConfigError:  # a data set that was never tuned for: the methods' own defaults stand
        return
    labels = table.setdefault("methods", {})
    for label in methods:
        own = labels.get(label, {})
        labels[label] = {**rates.get(own.get("name", label), {}), **own}
