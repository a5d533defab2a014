"""Build the task and the simulation that a config describes."""

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import mse_loss

from fedcom.config import Config, DataConfig, RunConfig, RunSettings
from fedcom.config.sections import TEXT
from fedcom.data import DATASETS, PARTITIONS, Dataset, load, read_tokens, split
from fedcom.data.dataset import Legend
from fedcom.data.own_files import read_own
from fedcom.data.synthetic import LAID_OUT, Synthetic
from fedcom.data.text import read_text
from fedcom.draws import Draw
from fedcom.engines.ranks.ranks import here
from fedcom.engines.remote.terms import Terms
from fedcom.engines.simulation import Simulation
from fedcom.errors import ConfigError, DataError
from fedcom.registry import short_name
from fedcom.rounds.cohort import sample_size
from fedcom.rounds.rules import Measure, relative_error
from fedcom.rounds.together import check
from fedcom.runs.files import CHARACTERS, LEGEND
from fedcom.tasks.adapters import Adapter, load_kept
from fedcom.tasks.generate import tokenizer_file
from fedcom.tasks.losses import Loss
from fedcom.tasks.models import OwnData
from fedcom.tasks.norms import Choice
from fedcom.tasks.objective import Objective
from fedcom.tasks.suitable import copied, initialised
from fedcom.tasks.survival import cox
from fedcom.tasks.task import Task


def prepare(
    config: Config, device: str = "auto", measure: Measure = relative_error
) -> tuple[Simulation, Config]:
    """A simulation ready to run, and the config with the defaults that depend on the data filled in.

    Args:
        device: "auto", "cpu" or "cuda".
        measure: how the error of a message is measured; see Simulation.
    """
    if config.data.clients is not None:  # wrong settings are refused before the data is read
        refuse(config, config.data.clients)
    task, config = build_task(config)
    if config.round != Terms():
        warnings.warn(
            "[round] changes nothing here: it is about real clients (fedcom flower), and these are simulated",
            stacklevel=2,
        )
    simulation = simulation_of(task, config, device, measure)
    watched = simulation.why_rates is not None and here().size == 1 and config.run.store != "disk"
    run = replace(config.run, on_divergence=config.run.on_divergence or ("backoff" if watched else "stop"))
    return simulation, replace(config, algorithm=simulation.algorithm, run=run)


def simulation_of(
    task: Task, config: RunSettings, device: str = "auto", measure: Measure = relative_error
) -> Simulation:
    """The simulation that a config describes, on a task already built; arguments as in `prepare`.

    On several ranks, rank 0 tells the others to prepare the same.
    """
    run, ranks = config.run, here()
    if ranks.size > 1 and config.task is not None:
        raise ConfigError(
            "on several ranks compare and sweep need a config; give Simulation its ranks instead"
        )
    simulation = Simulation(
        task,
        config.algorithm,
        config.links,
        rounds=run.rounds,
        participation=run.participation,
        seed=run.seed,
        eval_every=run.eval_every,
        device=device,
        chunk=run.chunk,
        microbatch=run.microbatch,
        engine=run.engine,
        tf32=run.tf32,
        storage=run.storage,
        network=config.network,
        metrics=config.metrics,
        stop=run.stop,
        patience=run.patience,
        best=run.best,
        measure=measure,
        ranks=ranks,
        transport=run.transport,
    )
    if ranks.size > 1 and ranks.rank == 0:
        settled = replace(config, algorithm=simulation.algorithm)
        ranks.tell({"do": "prepare", "config": settled.table(), "device": simulation.server.w.device.type})
    return simulation


def refuse(config: RunSettings, clients: int) -> None:
    """Raise ConfigError if the settings do not go together with this number of clients."""
    check(config.algorithm, config.links, clients, sample_size(config.run.participation, clients))


def build_task(config: Config) -> tuple[Task, Config]:
    """The task that a config describes, and the config with the defaults that depend on the data."""
    if _lazy(config):
        return _drawn_task(config)
    draw = Draw.seeded(config.run.seed)
    data = read_data(config)
    filled = _fill(config.data, data_name(config), data)
    parts = split(
        filled.partition or "iid",
        data.y,
        data.groups,
        filled.clients,
        draw.fold("partition"),
        classes_per_client=filled.classes_per_client,
        alpha=filled.alpha,
    )
    _warn_of_idle(replace(config, data=filled))
    task = Task.build(_objective(config, data), data, parts)
    _warn_of_characters(config, task)
    if filled.augment:
        task = task.augmented()
    if filled.validation is not None:
        task = task.held_out(filled.validation, draw.fold("validation"))
    return task, replace(config, data=replace(filled, clients=len(parts)))


def by_characters(config: Config) -> bool:
    """Whether a config's data is text that it does not say to cut by a tokenizer."""
    known = config.data.name in (TEXT, "shakespeare")
    return known and config.data.tokenizer is None and config.data.tokens is None


def _warn_of_characters(config: Config, task: Task) -> None:
    """Warn of text that is cut into characters for a pretrained model, which knows other tokens."""
    path = getattr(config.model, "path", None)
    file = tokenizer_file(path) if path and by_characters(config) and task.tokens is not None else None
    if file is not None:
        warnings.warn(
            f"the text is cut into characters, but model {config.model.name} was made for the tokens of "
            f"{file}; set data.tokenizer={file}",
            stacklevel=3,
        )


def _warn_of_idle(config: Config) -> None:
    """Warn of settings that change nothing, given the others.

    Data sets and partitions of the user's own are told the settings, and may use them.
    """
    data, links, run, name = config.data, config.links, config.run, data_name(config)
    own_split = PARTITIONS.is_own(data.partition)
    own_data = DATASETS.is_own(name) or data.file is not None or isinstance(config.model, OwnData)
    generated = data.name == "synthetic"
    files = DATASETS.is_own(name) and data.file is None and name not in ("digits", "synthetic")
    drawn = data.partition in ("dirichlet", "dirichlet-capped") or not own_split
    by_label = data.partition in ("classes", "labels")
    used = {
        "alpha": ("dirichlet and synthetic", drawn or generated or not own_data),
        "beta": ("synthetic", generated or not own_data),
        "classes_per_client": ("partitions classes and labels", by_label or not own_split),
        "root": ("data sets with files", files or not own_data),
        "normalise": ("data sets and files", not isinstance(config.model, OwnData)),
    }
    where = f"partition {data.partition} of {name}"
    idle = [
        f"data.{key}={getattr(data, key)} changes nothing: it is for {what}, and this is {where}"
        for key, (what, is_used) in used.items()
        if getattr(data, key) != getattr(DataConfig, key) and not is_used
    ]
    if links.uplink.lossless and links.uplink_memory == "error-feedback":
        idle.append(f"uplink.memory=error-feedback changes nothing: {links.uplink.name} drops nothing")
    if run.store == "memory" and run.store_folder is not None:
        idle.append("run.store_folder changes nothing: run.store=memory keeps clients' state in memory")
    for line in idle:
        warnings.warn(line, stacklevel=3)


def _drawn_task(config: Config) -> tuple[Task, Config]:
    """The task of clients whose samples are drawn only when needed."""
    c = config.data
    for key, does in (("validation", "holds out"), ("normalise", "scales")):
        if getattr(c, key) is not None:
            raise ConfigError(f"data.{key} {does} samples that are there; data.lazy draws them as needed")
    if c.pixels is not None or c.augment:
        raise ConfigError("data.pixels and data.augment are for images; leave them out with data.lazy")
    people = Synthetic(c.alpha, c.beta, config.run.seed).population(c.clients or 30)
    filled = replace(c, name=people.data.name, partition="natural", clients=len(people.sizes), lazy=True)
    return Task.drawn(_objective(config, people.data), people), replace(config, data=filled)


def _lazy(config: Config) -> bool:
    """Whether samples are drawn only when needed: if data.lazy says so, or if there are very many clients."""
    c = config.data
    can = c.name == "synthetic" and c.partition in (None, "natural")
    if c.lazy and not can:
        raise ConfigError(
            f"data.lazy draws the samples of data.name=synthetic with data.partition=natural; "
            f"got {data_name(config)!r} and {c.partition!r}"
        )
    return can and (c.lazy if c.lazy is not None else (c.clients or 0) > LAID_OUT)


def data_name(config: Config) -> str:
    """The name of a config's data set: data.name, else the model's own data, else digits."""
    own = config.model.name if isinstance(config.model, OwnData) else None
    given = config.data.file or config.data.name
    if own is not None and given not in (None, own):
        raise ConfigError(f"model {own} brings its own data; leave data.name out, got {given!r}")
    if config.data.name is not None:
        return config.data.name
    return own or (Path(config.data.file).stem if config.data.file else "digits")


def data_label(config: Config) -> str:
    """The data set's name in a form that can be part of a folder's name."""
    return short_name(data_name(config))


def read_data(config: Config) -> Dataset:
    """The data set that a config describes; characters, columns and labels are in the order of run.init."""
    init = config.run.init
    known = None if init is None else characters_in(Path(init))
    legend = None if init is None else _legend(_told(Path(init), LEGEND))
    c, name, draw = config.data, data_name(config), Draw.seeded(config.run.seed)
    if isinstance(config.model, OwnData):
        data = config.model.data(c.clients or 20, draw.fold("data"))
    elif c.tokens is not None:
        data = read_tokens(c.tokens, c.length)
        if c.name not in (None, TEXT, data.name):
            raise ConfigError(f"{c.tokens} was cut from {data.name}, not from {c.name}; leave data.name out")
    elif c.path is not None and c.name == TEXT:
        data = read_text(c.path, c.text_column, c.client_column, c.test, c.length, c.tokenizer, known)
    elif c.path is not None:
        columns, survival = (c.label_column, c.client_column), (c.time_column, c.event_column)
        data = read_own(c.path, *columns, c.test, draw.fold("test"), *survival, c.normalise, legend)
    else:
        seed, by = config.run.seed, c.normalise
        data = load(
            name,
            c.root,
            clients=c.clients,
            alpha=c.alpha,
            beta=c.beta,
            seed=seed,
            normalise=by,
            length=c.length,
            tokenizer=c.tokenizer,
        )
    data = data if known is None else data.in_characters(known)
    return data if c.pixels is None else data.in_unit_range()


def characters_in(path: Path) -> str | None:
    """The vocabulary of the model in a file, if its tokens are characters; None: it does not say."""
    told = _told(path, CHARACTERS)
    return told if isinstance(told, str) else None


def _told(path: Path, key: str) -> Any:
    """What the file of a model says beside its tensors; None: it does not say."""
    from safetensors import SafetensorError, safe_open

    with suppress(OSError, SafetensorError, ValueError), safe_open(path, "pt") as file:
        return json.loads((file.metadata() or {}).get(key, "null"))
    return None


def _legend(told: Any) -> Legend | None:
    """The legend that `_told` found."""
    lists = isinstance(told, list) and len(told) == len(Legend._fields) and all(map(_is_texts, told))
    return Legend(*map(tuple, told)) if lists else None


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(text, str) for text in found)


def _fill(data: DataConfig, name: str, found: Dataset) -> DataConfig:
    """Fill in the partition (natural if the data has authors, else classes) and the number of clients."""
    dealt = "classes" if found.classes else "iid"
    partition = data.partition or (dealt if found.groups is None else "natural")
    clients = data.clients
    if clients is None and partition != "natural":
        clients = 20 if name == "digits" or data.file else 100
    return replace(data, name=data.name if data.file else name, partition=partition, clients=clients)


def _objective(config: Config, data: Dataset) -> Objective:
    """The model that a config names and its loss, for some data."""

    def make() -> torch.nn.Module:
        outputs = data.classes or (1 if data.survival else data.y[:1].numel())
        module = initialised(config.model.module(tuple(data.x.shape[1:]), outputs), data.x)
        adapter = config.model.adapter
        return adapter.on(module, config.run.seed) if isinstance(adapter, Adapter) else module

    usual = None if data.classes else cox if data.survival else mse_loss
    return objective_of(config.run, make, config.model.loss() or usual, config.model.norms())


def module_of(config: Config) -> torch.nn.Module:
    """The module that a config describes, with its adapters and the parameters of run.init."""
    if config.model.needs_data:
        return build_task(config)[0].objective.module
    nothing = torch.zeros(0, 1)
    return _objective(config, Dataset("nothing", nothing, nothing, nothing, nothing, classes=1)).module


def objective_of(
    run: RunConfig, make: Callable[[], torch.nn.Module], loss: Loss | None, batch_norm: Choice | None = None
) -> Objective:
    """A model and its loss; parameters are drawn from run.seed or read from run.init.

    Args:
        make: makes the model.
        loss: None: cross-entropy.
        batch_norm: see `Objective`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        module = make()
    dtype: torch.dtype = getattr(torch, run.dtype)
    if run.init is None:
        return Objective(module, loss, dtype, run.seed, batch_norm).in_parts(run.microbatch)
    module = copied(module, dtype)
    _load(module, Path(run.init))
    return Objective(module, loss, dtype, batch_norm=batch_norm).in_parts(run.microbatch)


def _load(module: torch.nn.Module, path: Path) -> None:
    """Load a safetensors file into a module; the names and shapes in the file must match."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise DataError(f"no model file {path}; `fedcom run` leaves one as model.safetensors")
    try:
        load_kept(module, load_file(path))
    except Exception as error:
        raise DataError(f"{path} does not hold this model: {' '.join(str(error).split())}") from None
