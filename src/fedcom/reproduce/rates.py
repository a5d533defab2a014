"""Tune eta and gamma, of each method on each data set and of each point of a study; see experiments/rates."""

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.config import Table, dumps, read
from fedcom.config.methods import method_keys
from fedcom.config.tables import toml_key
from fedcom.errors import ConfigError, unknown
from fedcom.formats import counted
from fedcom.reproduce.panels import Panel, Scale
from fedcom.reproduce.study import method_rates, panel, rates_in
from fedcom.studies import sweep, sweep_report
from fedcom.studies.tune import LAST, SERVER_RATES, SHARE, RunTrials, around, held_out, tune_one
from fedcom.tasks.task import Task

SEED = 100  # the first seed of tuning; results are reported on other seeds
TUNED = ("fedavg", "fedpaq", "fedgate", "fedcomgate")
# Methods that get the rates of another, as they are the same here: FedCOM is FedPAQ, and SCAFFOLD at full
# participation is FedGATE.
SAME = {"fedcom": "fedpaq", "scaffold": "fedgate"}
_SMALL = {"eta": [0.01, 0.02, 0.05, 0.1, 0.2], "gamma": [1.0, 2.0, 4.0, 8.0]}
GRIDS = {
    "mnist": _SMALL,
    "fashion-mnist": _SMALL,
    "cifar-10": {"eta": [0.02, 0.05, 0.1, 0.2], "gamma": [1.0, 2.0, 4.0]},
}
# The grid around a method's rates on which its codecs are tuned: factors of eta and gamma.
NEAR = {"eta": (0.5, 1.0, 2.0), "gamma": (0.5, 1.0, 2.0)}
DEFAULTS = {"eta": 0.1, "gamma": 1.0}  # unless the config shares rates among its methods
# Where the search begins if an optimiser decides more than the method does.
WITH_MOMENTUM = {"eta": 0.1, "gamma": 8.0}
LOCAL_ETA = {"momentum": 0.02, "adamw": 0.001}
SEEDS = 5  # on which a best point is confirmed
CONFIRMED = 3  # the same for the points of a study
HEAD = "Rates on {0}, two classes per client; `fedcom reproduce rates {0}` writes this file."
PANEL_HEAD = (
    "Rates of the points of {0}, by label; eta and gamma of [tuning] are factors of the methods' rates."
)


def tune(
    data: str, scale: Scale, out: Path, device: str = "auto", quiet: bool = False, seeds: int | None = None
) -> Path:
    """Sweep every method over a grid, which is widened if the best point is at its edge; return the file.

    Args:
        data: the name of the data set, one of GRIDS.
        out: the folder; files go into its subfolder of the data set's name.
        seeds: on which a best point is confirmed; None: 5. It is dropped if it diverges on any.
    """
    seeds = seeds or SEEDS
    if data not in GRIDS:
        raise unknown("data set to tune for", data, GRIDS)
    table = held_out({**panel(f"{data}.toml", scale, TUNED, tuned=False).table, "methods": {}}, SEED)
    run = _runner(out / data, device, quiet)
    grid, size = GRIDS[data], math.prod(map(len, GRIDS[data].values()))
    best = {method: tune_one(table, method, grid, seeds, run, size / SHARE) for method in TUNED}
    entries = [entry for found in best.values() for entry in found.pop("table")]
    for method, twin in SAME.items():
        best |= (
            {method: {**best[twin], "note": f"{twin}'s: here they are one method"}} if twin in best else {}
        )
    sweep_report.write(entries, out / data)
    path = out / data / f"{data}.toml"
    path.write_text(text(HEAD.format(data), facts(data, GRIDS[data], seeds), best), encoding="utf-8")
    return path


def tune_panel(
    panel: Panel, out: Path, device: str = "auto", quiet: bool = False, seeds: int | None = None
) -> Path:
    """Tune every label of a panel that has no rates yet, around its method's; return the file of rates.

    The file is written anew after each label; what it says of labels that are not asked for is kept.
    ConfigError at the end if a label could not be tuned.

    Args:
        panel: one with `rates`, of which the last names the file.
        out: the folder; files go into its subfolder of that name.
        seeds: on which a best point is confirmed; None: 3, or one if the panel says what to tune (`near`).
    """
    *others, name = panel.rates
    data, run, best = str(panel.config.data.name), _runner(out / name, device, quiet), dict[str, Any]()
    path = out / name / f"{name}.toml"
    best |= _told(path, panel.left_out)
    known, failed = {label for file in others for label in rates_in(file)}, list[str]()
    near, usual = (NEAR, CONFIRMED) if panel.near is None else (panel.near, 1)
    seeds = seeds or usual
    tunes = dict.fromkeys(panel.methods, tuple(near)) if panel.tunes is None else panel.tunes
    for label in (
        label for label in panel.methods if label in tunes and label not in {*known, *panel.followers}
    ):
        given, keys = panel.table["methods"][label], method_keys(panel.table, label)
        method = given.get("name", label)
        own = {key: values for key, values in near.items() if key in keys and key in tunes[label]}
        shared = {key: rate for key, rate in panel.table.get("algorithm", {}).items() if key in DEFAULTS}
        start = {**DEFAULTS, **_own_rates(method), **shared, **method_rates(data, method)}
        near_shared = panel.near is not None and own.keys() <= shared.keys()
        grid = around(shared, own) if near_shared else _first_grid(given, start, own)
        try:
            best[label] = tune_one(held_out(panel.table, SEED), label, grid, seeds, run)
        except ConfigError as error:
            print(f"fedcom: {panel.name}: {error}", file=sys.stderr)
            failed.append(label)
            continue
        score = "perplexity" if "perplexity" in best[label] else "accuracy"
        head, tuning = PANEL_HEAD.format(name), facts(data, near, seeds, score)
        path.write_text(text(head, tuning, best), encoding="utf-8")
    if failed:
        raise ConfigError(f"{name} has no rates of {', '.join(failed)}; the messages above say why")
    return path


def _told(path: Path, labels: Collection[str]) -> dict[str, Any]:
    """What a file of rates says of some labels, as `tune_one` told it."""
    if not path.is_file():
        return {}
    table = read(path)
    own = {label: rates for label, rates in table["methods"].items() if label in labels}
    return {
        label: {"server.rate" if key == "rate" else key: value for key, value in rates.items()}
        | table["found"][label]
        for label, rates in own.items()
    }


def _own_rates(method: str) -> dict[str, float]:
    """The rates that a method has by itself, if they are not those of all methods."""
    own = {key: getattr(ALGORITHMS[method], key) for key in DEFAULTS}
    return {key: rate for key, rate in own.items() if rate != getattr(Algorithm, key)}


def _first_grid(given: Table, rates: Mapping[str, float], factors: Mapping[str, Sequence[float]]) -> Table:
    """The rates to try first: around those of the method, or around what its optimisers need.

    Args:
        given: the settings of a label.
        rates: of its method by itself.
        factors: around them, by key.
    """
    local, server = (given.get(section, {}).get("name") for section in ("local", "server"))
    start = dict(WITH_MOMENTUM if server == "momentum" else rates)
    start |= {"eta": LOCAL_ETA[local]} if local else {}
    if server in (None, "momentum"):
        return around(start, factors)
    return {**around(start, {"eta": factors["eta"]}), "server.rate": list(SERVER_RATES)}


def _runner(folder: Path, device: str, quiet: bool) -> RunTrials:
    """A function that runs what a folder's results.jsonl does not have yet, and returns all records."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = dict[str, Task]()
    return lambda trials: sweep.run_missing(trials, folder / "results.jsonl", LAST, device, quiet, tasks)


def facts(data: str, grid: Mapping[str, Sequence[float]], seeds: int, score: str = "accuracy") -> Table:
    """How rates were tuned, for their file."""
    by = f"{score} on held-out samples, the mean of the last {LAST} evaluations; the best on "
    by += counted(seeds, "seed")
    return {"data": data, "seed": SEED, "chosen_by": by, **{key: list(own) for key, own in grid.items()}}


def text(head: str, tuning: Table, best: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a file of rates: the grid and the rule, then the rates of each method.

    Args:
        head: the first line.
        tuning: see `facts`.
        best: for each method or label eta, gamma if it has one, the accuracy, the edges and a note.
    """
    sections: Table = {"tuning": tuning}
    for method, found in best.items():
        name = toml_key(method)
        score = {key: found.get(key) for key in ("accuracy", "perplexity")}
        how = {**score, "edges": list(found["edges"]), "note": found["note"]}
        rates = {
            key.removeprefix("server."): found[key] for key in ("eta", "gamma", "server.rate") if key in found
        }
        sections[f"methods.{name}"] = {key: float(rate) for key, rate in rates.items()}
        sections[f"found.{name}"] = {key: value for key, value in how.items() if value is not None}
    return f"# {head}\n{dumps(sections)}"
