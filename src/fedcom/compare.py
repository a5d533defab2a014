"""Several methods on one task, some seeds each: one table and a few figures."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.config import Config, Table
from fedcom.errors import ConfigError, unknown
from fedcom.report import Curve, compare_table, figures, markdown, write_csv
from fedcom.run import execute, write_json

METHODS = ("fedavg", "fedpaq", "scaffold", "fedgate", "fedcomgate")  # the paper's five


def compare(
    table: Table,
    methods: Sequence[str],
    out: Path,
    *,
    seeds: int = 1,
    device: str = "auto",
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Run every method with every seed into its own folder; a diverged one is marked, the rest go on."""
    first = Config.of({"run": table.get("run", {})}).run.seed
    configs = variants(table, methods, range(first, first + seeds))
    curves: list[Curve] = []
    for label, config in configs:
        folder = out / label / f"seed-{config.run.seed}"
        title = label if seeds == 1 else f"{label} seed {config.run.seed}"
        outcome = execute(config, folder, device=device, quiet=quiet, label=title)
        if isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error
        curves.append(Curve(label, config.run.seed, outcome.curve.rows, outcome.curve.status))
    target = configs[0][1].run.target_accuracy
    rows = compare_table(curves, target)
    write_json(out / "table.json", rows)
    write_csv(rows, out / "table.csv")
    (out / "table.md").write_text(markdown(rows, target))
    figures(curves, out)
    return rows


def variants(table: Table, methods: Sequence[str], seeds: range) -> list[tuple[str, Config]]:
    """The config of every run, all checked before the first one starts."""
    if not methods or seeds.stop <= seeds.start:
        raise ConfigError("a comparison needs a method and a seed at least")
    for label in table.get("methods", {}):
        if label not in methods:
            raise unknown("method in [methods], not among --methods:", label, methods)
    used = {key for label in methods for key in _keys(_method(table, label))} | {"name"}
    for key in table.get("algorithm", {}):
        if key not in used:
            raise unknown("key in algorithm, which none of the methods has:", key, used)
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
    method, own = _method(table, label), dict(table.get("methods", {}).get(label, {}))
    uplink = table.get("uplink", {}) if method.uplink["name"] != "identity" else {}
    downlink = table.get("downlink", {}) if method.feedback else {}
    shared = {key: value for key, value in table.get("algorithm", {}).items() if key in _keys(method)}
    return Config.of({
        **{section: table[section] for section in ("data", "model", "run") if section in table},
        "uplink": {**uplink, **own.pop("uplink", {})},
        "downlink": {**downlink, **own.pop("downlink", {})},
        "algorithm": {**shared, **own, "name": method.name},
    })  # fmt: skip


def _method(table: Table, label: str) -> type[Algorithm]:
    """The method behind a label: its `name` under [methods.LABEL], or the label itself."""
    name = table.get("methods", {}).get(label, {}).get("name", label)
    if name not in ALGORITHMS:
        raise unknown("method", name, ALGORITHMS)
    return ALGORITHMS[name]


def _keys(method: type[Algorithm]) -> set[str]:
    return {f.name for f in fields(method)} - set(method.fixed)
