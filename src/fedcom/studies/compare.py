"""Several methods on one task, some seeds each: one table, a few figures and a page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.config import Config, DataConfig, Table, check_sections, renamed
from fedcom.errors import ConfigError, nearest
from fedcom.registry import short_name
from fedcom.reports import page
from fedcom.reports.comparison import compare_table, markdown, write_csv
from fedcom.reports.figures import VIEWS, figures
from fedcom.runs.curve import Curve
from fedcom.runs.folder import clear, write_json
from fedcom.runs.prepare import build_task, refuse
from fedcom.runs.run import execute

METHODS = ("fedavg", "fedpaq", "scaffold", "fedgate", "fedcomgate")  # the paper's five
FILES = ("table.json", "table.csv", "table.md", "report.html", *(f"{view}.png" for view in VIEWS))


@dataclass(frozen=True)
class Comparison:
    """The table, one entry a method, the accuracy it measures bytes to, and whether it was cut short."""

    table: list[dict[str, Any]]
    target: float
    interrupted: bool


def labels(table: Table) -> list[str]:
    """What is compared unless told: the paper's five, and what else the config has settings for."""
    return list(dict.fromkeys([*METHODS, *table.get("methods", {})]))


def compare(
    table: Table,
    methods: Sequence[str],
    out: Path,
    *,
    seeds: int = 1,
    device: str = "auto",
    quiet: bool = False,
) -> Comparison:
    """Run every method with every seed into its own folder; a diverged one is marked, the rest go on."""
    first = Config.of({"run": table.get("run", {})}).run
    configs = variants(table, methods, range(first.seed, first.seed + seeds))
    data, curves = _resolve(configs), []
    folders = [out / label / f"seed-{config.run.seed}" for label, config in configs]
    try:
        for folder, (label, config) in zip(folders, configs, strict=True):
            title = label if seeds == 1 else f"{label} seed {config.run.seed}"
            outcome = execute(config, folder, device=device, quiet=quiet, label=title)
            curves.append(replace(outcome.curve, method=label))
            if isinstance(outcome.error, KeyboardInterrupt):
                raise outcome.error
    except KeyboardInterrupt:
        if not curves:
            raise
    deal = {
        "classes": f"{data.classes_per_client} classes a client",
        "dirichlet": f"dirichlet {data.alpha:g}",
    }
    split = deal.get(data.partition or "", data.partition)
    subtitle = f"{data.name} · {data.clients} clients · {split} · {seeds} seed{'s' * (seeds > 1)}"
    rows = _write(curves, first.target_accuracy, out, subtitle)
    page.write(folders[: len(curves)], out / "report.html")
    cut = len(curves) < len(configs) or curves[-1].status == "interrupted"
    return Comparison(rows, first.target_accuracy, cut)


def variants(table: Table, methods: Sequence[str], seeds: range) -> list[tuple[str, Config]]:
    """The config of every run."""
    table = renamed(table)
    check_sections(table)
    _check_labels(table, methods, seeds)
    used = {key for label in methods for key in _keys(_method(table, label))} | {"name"}
    for key in table.get("algorithm", {}):
        if key not in used:
            raise ConfigError(f"none of the methods has a key {key!r} in algorithm; {nearest(key, used)}")
    return [
        (label, variant({**table, "run": {**table.get("run", {}), "seed": seed}}, label))
        for label in methods
        for seed in seeds
    ]


def variant(table: Table, label: str) -> Config:
    """The config of one method of a comparison.

    Keys of [algorithm] reach every method that leaves them open, [uplink] every method that compresses by
    default, [downlink] every method that hears the mean; [methods.LABEL], [methods.LABEL.uplink] and
    [methods.LABEL.downlink] come last.
    """
    table = renamed(table)
    method, own = _method(table, label), dict(table.get("methods", {}).get(label, {}))
    uplink = table.get("uplink", {}) if method.uplink["name"] != "identity" else {}
    downlink = table.get("downlink", {}) if method.feedback else {}
    shared = {key: value for key, value in table.get("algorithm", {}).items() if key in _keys(method)}
    sections: Table = {
        **{section: table[section] for section in ("data", "model", "run", "network") if section in table},
        "uplink": _laid(own.pop("uplink", {}), uplink),
        "downlink": _laid(own.pop("downlink", {}), downlink),
        "algorithm": {**shared, **own, "name": _name(table, label)},
    }
    try:
        return Config.of(sections)
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None


def _laid(own: Any, shared: Table) -> Any:
    """A method's own section over the shared one; Config refuses what is no section."""
    return {**shared, **own} if isinstance(own, dict) else own


def _resolve(configs: Sequence[tuple[str, Config]]) -> DataConfig:
    """The data of all runs with its gaps filled; what would be refused later is refused now."""
    task, config = build_task(configs[0][1])
    for _, other in configs:
        refuse(other, task.clients)
    return config.data


def _write(curves: Sequence[Curve], target: float, out: Path, subtitle: str) -> list[dict[str, Any]]:
    """Tabulate and draw, in place of what a former comparison left."""
    rows = compare_table(curves, target)
    clear(out, FILES)
    write_json(out / "table.json", rows)
    write_csv(rows, out / "table.csv")
    (out / "table.md").write_text(markdown(rows, target), encoding="utf-8")
    figures(curves, out, subtitle)
    return rows


def _check_labels(table: Table, methods: Sequence[str], seeds: range) -> None:
    if not methods or not seeds:
        raise ConfigError("a comparison needs a method and a seed at least")
    for label in methods:
        _check_folder(label)
        if methods.count(label) > 1:
            raise ConfigError(
                f"{label} is among the methods twice; give one a label, as in methods.mine.name={label}"
            )
    for label, own in table.get("methods", {}).items():
        if not isinstance(own, dict):
            raise ConfigError(f"methods.{label} is a section; write methods.{label}.key=value")
        _method(table, label)


def _check_folder(label: str) -> None:
    """Refuse a label that cannot name the folder of its runs."""
    if re.search(r"[:/\\]", label) or label in (".", ".."):
        mine = short_name(label).rpartition(".")[2].lower() or "mine"
        raise ConfigError(
            f"{label!r} cannot name a folder; give the method a label, as in methods.{mine}.name={label} "
            f"and --methods {mine}"
        )


def _method(table: Table, label: str) -> type[Algorithm]:
    """The method behind a label."""
    return ALGORITHMS.find(_name(table, label), "method")


def _name(table: Table, label: str) -> Any:
    """The name of the method behind a label: `name` under [methods.LABEL], or the label itself."""
    return table.get("methods", {}).get(label, {}).get("name", label)


def method_keys(table: Table, label: str) -> set[str]:
    """The hyper-parameters the method behind a label leaves open."""
    return _keys(_method(table, label))


def _keys(method: type[Algorithm]) -> set[str]:
    return {f.name for f in fields(method)} - set(method.fixed)
