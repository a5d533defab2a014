"""Comparisons and sweeps in Python, of a task or of a config."""

import itertools
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedcom.algorithms import Algorithm
from fedcom.config import RunConfig, Table, check_sections, read
from fedcom.config.methods import check_keys, keys_of
from fedcom.engines.arguments import Metrics, algorithm_of, links_of, metrics_of
from fedcom.errors import ConfigError, nearest
from fedcom.plain import keys
from fedcom.runs.given import Given
from fedcom.runs.prepare import refuse
from fedcom.settings import at_least
from fedcom.studies import compare as comparing
from fedcom.studies import sweep as sweeping
from fedcom.studies import sweep_report
from fedcom.studies.compare import Comparison
from fedcom.studies.sweep_report import Sweep
from fedcom.studies.trials import Trial, points
from fedcom.tasks.task import Task
from fedcom.traffic.links import Links
from fedcom.traffic.network import Network

Method = Algorithm | str | tuple[Any, Any]  # a method, its name, or either with its links or codec
Methods = Sequence[Method] | Mapping[str, Method]  # by label; a method that stands alone has its name
Tasks = Task | Callable[[int], Task]  # one task for all seeds, or a function that makes one for each


def compare(
    task: Tasks | str | Path | Table,
    methods: Methods | None = None,
    *,
    rounds: int | None = None,
    participation: float | None = None,
    eval_every: int | None = None,
    seed: int | None = None,
    seeds: int = 1,
    target: float | None = None,
    stop: str | None = None,
    patience: int | None = None,
    network: Network | str | None = None,
    metrics: Metrics | None = None,
    out: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Comparison:
    """Run several methods on one task, each with some seeds, as `fedcom compare` does.

    A folder that holds the same comparison is completed, not repeated. A run that diverges is marked, and
    the rest go on.

    Args:
        task: a task; a function of a seed that makes one, so that seeds differ in data and model too; or a
            config: its path or its table.
        methods: methods or their names; or a mapping from labels to them. A pair is a method and its links,
            codec or the codec's name. With a config: names, or labels under [methods]. None: the paper's
            five, and with a config the labels in it too.
        rounds: how many; None: 100, or as the config says. So too for what follows.
        participation: the share of clients sampled in each round; 1.
        eval_every: rounds between two evaluations; 1.
        seed: the first one; 0.
        seeds: how many per method.
        target: the test accuracy that rounds and bytes are counted to; 0.9.
        stop: ends a run early, as in "test_accuracy>=0.9"; see Simulation.
        patience: evaluations without a better model that end a run; see Simulation.
        network: link speeds or the name of a preset, for modelled time; with a task only.
        metrics: functions of outputs and targets, by name or with their own; with a task only.
        out: the folder for everything that is written; None: a temporary one, which goes
            when the comparison does.
        force: replace another comparison in the folder.
        device: "auto", "cpu", "cuda" or "cuda:1".
        quiet: show no progress.
    """
    asked = {
        "rounds": rounds,
        "participation": participation,
        "eval_every": eval_every,
        "seed": seed,
        "target_accuracy": target,
        "stop": stop,
        "patience": patience,
    }
    seeds = _how_many(seeds)
    with ExitStack() as scratch:
        place = _folder(out, scratch)
        if not isinstance(task, Task) and not callable(task):
            table = _table(task, asked, {"network": network, "metrics": metrics})
            names = comparing.labels(table) if methods is None else _names(methods)
            found = comparing.compare(
                table, names, place, seeds=seeds, force=force, device=device, quiet=quiet
            )
        else:
            chosen = _methods(comparing.METHODS if methods is None else methods)
            runs = _runs(task, chosen, asked, seeds, network, metrics)
            some = runs[0][1].task
            plan = {"runs": [[label, run.table()] for label, run in runs], "data": some.checksum}
            words = f"{some.name} · {some.clients} clients"
            found = comparing.play(runs, place, plan, words, force, device, quiet)
        if found.stopped is not None:
            raise found.stopped
        weakref.finalize(found, scratch.pop_all().close)
    return found


def sweep(
    task: Tasks | str | Path | Table,
    grid: Mapping[str, Any],
    methods: Methods = ("fedcomgate",),
    *,
    rounds: int | None = None,
    participation: float | None = None,
    eval_every: int | None = None,
    seed: int | None = None,
    seeds: int = 1,
    last: int = 1,
    network: Network | str | None = None,
    metrics: Metrics | None = None,
    out: str | Path | None = None,
    force: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Sweep:
    """Run methods at every point of a grid with every seed, as `fedcom sweep` does.

    A folder that holds part of the same sweep is completed, not repeated. On a GPU, runs that differ only in
    eta, gamma and seed are computed together.

    Args:
        task: as in `compare`.
        grid: lists of values: {"eta": [0.02, 0.05]} for hyper-parameters, {"uplink.bits": [1, 2]} or
            {"uplink": {"bits": [1, 2]}} for others. A method is not given keys that it does not have.
        methods: as in `compare`.
        last: how many of the last evaluations are averaged.
        out: the folder for what is written; None: nothing is kept.
    """
    asked = {"rounds": rounds, "participation": participation, "eval_every": eval_every, "seed": seed}
    tried, seeds = points(_nested(grid)), _how_many(seeds)
    with ExitStack() as scratch:
        place = _folder(out, scratch)
        if not isinstance(task, Task) and not callable(task):
            table = _table(task, asked, {"network": network, "metrics": metrics})
            records = sweeping.sweep(
                *(table, _nested(grid), _names(methods), place),
                seeds=seeds,
                last=last,
                force=force,
                device=device,
                quiet=quiet,
            )
        else:
            runs = _runs(task, _methods(methods), asked, seeds, network, metrics)
            trials = _trials(runs, tried)
            plan = {"trials": [[t.key, t.config.table()] for t in trials], "last": last}
            records = sweeping.play(trials, place, plan, last, force, device, quiet)
        table_of_points = sweep_report.summary(records)
        if out is not None:
            sweep_report.write(table_of_points, place)
    return Sweep(records, table_of_points)


def _folder(out: str | Path | None, scratch: ExitStack) -> Path:
    """The folder that is given, or a temporary one, which goes when `scratch` is closed."""
    return Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="fedcom-")) if out is None else out)


def _table(config: str | Path | Table, asked: Mapping[str, Any], idle: Mapping[str, Any]) -> Table:
    """The table of a config with some settings under [run] replaced; refuse what only a task takes."""
    for name, value in idle.items():
        if value is not None:
            raise ConfigError(
                f"{name} can be given with a task only; with a config, set it there if that is possible"
            )
    table = dict(config) if isinstance(config, Mapping) else read(config)
    check_sections(table, ("methods",))
    given = {key: value for key, value in asked.items() if value is not None}
    return {**table, "run": {**table.get("run", {}), **given}}


def _names(methods: Methods) -> list[str]:
    """The methods of a config, by name."""
    names = list(_listed(methods))
    if isinstance(methods, Mapping) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "with a config, methods are names or labels under [methods]; give objects with a Task instead"
        )
    return [str(name) for name in names]


def _listed(methods: Any) -> Methods:
    """The methods as they are given; a single one as a list."""
    alone = isinstance(methods, str | Algorithm | type)
    return [methods] if alone else methods


def _how_many(seeds: Any) -> int:
    """The number of seeds; a list of them is refused with what to write."""
    if isinstance(seeds, Sequence) and not isinstance(seeds, str) and seeds:
        raise ConfigError(
            f"seeds is how many there are, from seed on; got {seeds!r}; write seed={seeds[0]}, "
            f"seeds={len(seeds)}"
        )
    return at_least("seeds", seeds, 1)


def _methods(methods: Methods) -> dict[str, tuple[Algorithm, Links]]:
    """Each method and its links by label."""
    methods = _listed(methods)
    pairs = methods.items() if isinstance(methods, Mapping) else [(None, one) for one in methods]
    found: dict[str, tuple[Algorithm, Links]] = {}
    for label, one in pairs:
        made, links = one if isinstance(one, tuple) else (one, None)
        algorithm = algorithm_of(made)
        name = algorithm.name if label is None else str(label)
        if name in found:
            raise ConfigError(f"{name} is among the methods twice; give a mapping from labels to methods")
        comparing.check_folder(name)
        found[name] = algorithm, links_of(links, algorithm)
    if not found:
        raise ConfigError("name at least one method, as in ['fedavg', 'fedcomgate']")
    return found


def _runs(
    task: Tasks,
    methods: Mapping[str, tuple[Algorithm, Links]],
    asked: Mapping[str, Any],
    seeds: int,
    network: Network | str | None,
    metrics: Metrics | None,
) -> list[tuple[str, Given]]:
    """Every method with every seed, all of them checked."""
    made = (lambda seed: task) if isinstance(task, Task) else cache(task)
    run = RunConfig(**{key: value for key, value in asked.items() if value is not None})
    network = Network.preset(network) if isinstance(network, str) else network
    own = metrics_of(metrics)
    runs = [
        (label, Given(made, algorithm, links, replace(run, seed=seed), network, own))
        for label, (algorithm, links) in methods.items()
        for seed in range(run.seed, run.seed + seeds)
    ]
    for label, one in runs:
        if not isinstance(one.task, Task):
            raise ConfigError(f"the function must make a fedcom.Task; it made {type(one.task).__name__}")
        try:
            refuse(one, one.task.clients)
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from None
    return runs


def _nested(grid: Mapping[str, Any]) -> Table:
    """A grid with sections, also where its keys are written with dots; arrays become lists."""
    if not isinstance(grid, Mapping):
        raise ConfigError(f"a grid is lists of values by key, as in {{'eta': [0.1, 0.2]}}; got {grid!r}")
    nested: Table = {}
    for key, values in grid.items():
        section, _, name = key.rpartition(".")
        values = values.tolist() if hasattr(values, "tolist") else values
        (nested.setdefault(section, {}) if section else nested)[name] = values
    return nested


def _trials(runs: Sequence[tuple[str, Given]], tried: Sequence[tuple[tuple[str, Any], ...]]) -> list[Trial]:
    """Every run at every point of the grid that differs for it."""
    known = {label: keys_of(run.algorithm) for label, run in runs}
    every = set().union(*known.values())
    check_keys((key for key, _ in tried[0] if "." not in key), every, "to sweep")
    trials = []
    for (label, run), point in itertools.product(runs, tried):
        own = tuple((key, value) for key, value in point if "." in key or key in known[label])
        trials.append(Trial(label, own, run.run.seed, _at(label, run, own)))
    return list({trial.key: trial for trial in trials}.values())


def _at(label: str, run: Given, point: Sequence[tuple[str, Any]]) -> Given:
    """A run with the values of a point put in."""
    links = run.links
    parts: dict[str, Any] = {"algorithm": run.algorithm, "run": run.run}
    parts |= {"uplink": links.uplink, "downlink": links.downlink}
    for name, value in point:
        section, _, key = name.rpartition(".")
        section = section or "algorithm"
        if section not in parts:
            raise ConfigError(
                f"a grid on a task is of hyper-parameters, uplink, downlink and run; got {name!r}"
            )
        known = keys(type(parts[section]))
        if key not in known:
            raise ConfigError(f"{label} has no {name!r}; {nearest(key, known)}")
        parts[section] = replace(parts[section], **{key: value})
    links = replace(links, uplink=parts["uplink"], downlink=parts["downlink"])
    return replace(run, algorithm=parts["algorithm"], links=links, run=parts["run"])
