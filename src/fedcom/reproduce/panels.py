"""The runs of a study: panels of one task, several methods and a grid of settings, at full or quick scale."""

import copy
import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, cast

from fedcom.algorithms import ALGORITHMS
from fedcom.config import Config, Table, override
from fedcom.studies.compare import METHODS
from fedcom.studies.trials import Trial, points, trials_of

# Upper limits in the quick form; a data set's name stands for its rounds.
QUICK = {"clients": 20, "authors": 100, "rounds": 30, "cifar-10": 10, "eval_every": 5}


MOMENTUM = ", momentum"  # the end of a label whose server has momentum
NAMES = {  # methods as their papers write them, one name for each in every figure and table
    **{name: ALGORITHMS[name].__name__ for name in ALGORITHMS},
    "local-sgd": "local SGD",
    "fedcomgate-exact": "FedCOMGATE-exact",
    "vrl-sgd": "VRL-SGD",
    "scaffold": "SCAFFOLD",
    "scaffold-m": "SCAFFOLD-M",
    "scallion": "SCALLION",
    "scafcom": "SCAFCOM",
    "diana": "DIANA",
    "vr-diana": "VR-DIANA",
    "fedprox": "FedProx",
}


@cache
def package_data(file: str) -> Table:
    """The content of a TOML file in this folder."""
    return tomllib.loads(files("fedcom.reproduce").joinpath(file).read_text(encoding="utf-8"))


def settings(label: str) -> Table:
    """The settings of a method from a label: the method and its codec up, then others after commas.

    "exact peaks 0.03, down rotated 0.35" is fedcomgate-exact with those codecs; ", local adamw" names the
    clients' optimiser, ", adapter ffa" the adapter, and anything else, such as ", momentum", the server's.
    """
    first, *others = label.split(", ")
    method, _, up = first.partition(" ")
    own: Table = {"name": "fedcomgate-exact" if method == "exact" else method}
    codecs = package_data("studies.toml")["codecs"]
    own |= {"uplink": codecs[up]} if up else {}
    for other in others:
        kind, _, name = other.partition(" ")
        if kind == "down":
            own |= {"downlink": codecs[name], "option": "I"}  # I: only the mean goes down
        elif kind == "adapter":
            own["adapter"] = {"name": name}
        elif kind == "local":
            outside = name == "adamw" and ALGORITHMS[own["name"]].tracks
            own["local"] = {"name": name, **({"correction": "outside"} if outside else {})}
        else:
            own["server"] = {"name": other}
    return own


def shown(label: str) -> str:
    """A label as people read it: "exact peaks 0.03, momentum" is FedCOMGATE-exact with that codec.

    What does not begin with a method stays as it is.
    """
    first, space, rest = label.partition(" ")
    comma = "," * first.endswith(",")
    method = {"exact": "fedcomgate-exact"}.get(first.removesuffix(","), first.removesuffix(","))
    rest = re.sub(r"\w[\w-]*(?='s\b)", lambda found: NAMES.get(found[0], found[0]), rest)
    return NAMES[method] + comma + space + rest if method in NAMES else label


@dataclass(frozen=True)
class Scale:
    """How large the runs are.

    Args:
        quick: small enough for a laptop, instead of as in the paper.
        seeds: how many seeds per run.
        overrides: texts such as "run.rounds=10", applied to every config.
        only: the panels and the points, by label, that are asked for; empty: all.
    """

    quick: bool = False
    seeds: int = 3
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @staticmethod
    def usual(quick: bool) -> int:
        """The number of seeds unless one asks for another."""
        return 1 if quick else 3

    def of(self, table: Table) -> Table:
        """The settings of a config, by section, changed to this scale."""
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
class StudyRun(Trial):
    """One run of a study. Its key changes with any of its settings, so no two runs share one.

    Args:
        panel: the name of the panel it belongs to.
    """

    config: Config
    panel: str = ""

    @property
    def key(self) -> str:
        return json.dumps([self.panel, self.method, self.point, self.seed, self.digest])

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "panel": self.panel, "config": self.digest}

    @property
    def title(self) -> str:
        point = " ".join(f"{key.rpartition('.')[2]} {value}" for key, value in self.point)
        return f"{self.panel} · {self.method} {point}".rstrip()


@dataclass(frozen=True)
class Panel:
    """One task of a study, and the methods that run on it.

    Args:
        table: the settings of a config file, by section.
        methods: names of methods, or labels under [methods].
        grid: settings to try in all combinations; see `points`.
        rates: files under experiments/rates with rates that were tuned on this very task, one per method or
            label; tuning writes the last of them.
        untuned: the methods and labels that no such file has, which run at other rates.
        tunes: the rates that tuning looks for, by label; None: eta and gamma of every label.
        seeds: at most so many.
        followers: the labels that run at the rates of another, and are not tuned themselves.
        near: what to tune, as factors of the rates to begin from, by key; None: eta and gamma.
        left_out: the methods and labels that were not asked for.
    """

    name: str
    table: Table
    methods: tuple[str, ...] = METHODS
    grid: Table = field(default_factory=dict)
    rates: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()
    tunes: Mapping[str, Sequence[str]] | None = None
    seeds: int | None = None
    followers: tuple[str, ...] = ()
    near: Table | None = None
    left_out: tuple[str, ...] = ()

    def part(self, labels: Collection[str]) -> "Panel":
        """The panel with some of its methods and labels alone."""
        kept, left = ([label for label in self.methods if (label in labels) == own] for own in (True, False))
        untuned = tuple(label for label in self.untuned if label in kept)
        return replace(self, methods=tuple(kept), untuned=untuned, left_out=tuple(left))

    def runs(self, seeds: int) -> list[StudyRun]:
        """Every run of the panel."""
        if not self.methods:
            return []
        tried = points(self.grid) if self.grid else [()]
        trials = trials_of(self.table, tried, self.methods, min(seeds, self.seeds or seeds))
        return [StudyRun(t.method, t.point, t.seed, cast(Config, t.config), self.name) for t in trials]

    @property
    def config(self) -> Config:
        """The settings of data, model and run, which its methods share."""
        return Config.of(
            {key: self.table[key] for key in ("data", "model", "adapter", "run") if key in self.table}
        )

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.config.data.name)
