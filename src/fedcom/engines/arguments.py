"""What users may give a run: names, classes and lists for short, made into what the engines need."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.codecs import Codec, codec_of
from fedcom.engines.ranks.ranks import job
from fedcom.engines.results import Row
from fedcom.errors import ConfigError
from fedcom.tasks.scores import SCORES, WORST, Metric
from fedcom.traffic.links import Links

Callback = Callable[[Row], object]
Callbacks = Callback | Sequence[Callback]
Metrics = Mapping[str, Metric] | Sequence[Metric] | Metric
ROW_KEYS = (  # what rows may hold besides the user's metrics
    *("round", *SCORES),
    *("uplink_bytes", "downlink_bytes", "uplink_bytes_total", "downlink_bytes_total"),
    *("q", "damping", "seconds", "modelled_seconds"),
)


def algorithm_of(given: object) -> Algorithm:
    """The method that a name, a class or an instance stands for."""
    made = ALGORITHMS[given] if isinstance(given, str) else given
    made = made() if isinstance(made, type) and issubclass(made, Algorithm) else made
    if not isinstance(made, Algorithm):
        raise ConfigError(
            f"algorithm must be a method, as in fedcom.FedCOMGATE(eta=0.05), or its name; got {given!r}"
        )
    return made


def links_of(given: object, algorithm: Algorithm) -> Links:
    """The links that a codec, its class or its name stands for; None: those the algorithm has by default."""
    made = Links.of(algorithm) if given is None else codec_of(given)
    made = Links(made) if isinstance(made, Codec) else made
    if not isinstance(made, Links):
        raise ConfigError(
            f"links must be fedcom.Links, as in fedcom.Links(fedcom.Int(bits=4)), or a codec or its name; "
            f"got {given!r}"
        )
    return made


def metrics_of(given: Metrics | None) -> dict[str, Metric]:
    """The metrics by name; functions that are given without one have their own."""
    found = dict(given) if isinstance(given, Mapping) else _by_own_names(given)
    for name, function in found.items():
        if not callable(function):
            raise ConfigError(f"metric {name!r} must be a function of outputs and targets; got {function!r}")
        if name in (*ROW_KEYS, WORST):
            raise ConfigError(f"rows have a {name!r} already; give your metric another name")
    return found


def _by_own_names(given: Sequence[Metric] | Metric | None) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    given = [given] if callable(given) else given or ()
    if not isinstance(given, Sequence):
        raise ConfigError(f"metrics must be functions by name, or a list of functions; got {given!r}")
    for function in given:
        name = getattr(function, "__name__", type(function).__name__)
        if name in found:
            raise ConfigError(f"two metrics are called {name}; give a mapping from names to functions")
        found[name] = function
    return found


def callbacks_of(given: Callbacks) -> list[Callback]:
    """The callbacks as a list, also if there is only one; refuses what cannot be called."""
    if not callable(given) and not isinstance(given, Sequence):
        raise ConfigError(f"callbacks must be functions of a row, or one; got {given!r}")
    found = [given] if callable(given) else list(given)
    for callback in found:
        if not callable(callback):
            raise ConfigError(f"a callback must be a function of a row; got {callback!r}")
    return found


def pick_device(name: str) -> torch.device:
    """The device of a name; auto: the GPU if there is one; on several ranks, a rank's own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", str(name))
    if match is None:
        raise ConfigError(f"device must be auto, cpu, cuda or one GPU, such as cuda:1; got {name!r}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if match[0] != "cpu" and int(match[1] or 0) >= gpus:
        seen = f"only cuda:0 to cuda:{gpus - 1}" if gpus > 1 else "only cuda:0" if gpus else "no GPU"
        raise ConfigError(
            f"device={name}, but torch sees {seen}; use device=cpu or auto, or one that it sees"
        )
    if match[0] == "cuda" and job().size > 1:
        torch.cuda.set_device(job().own_gpu())
        return job().own_gpu()
    if match[1]:
        torch.cuda.set_device(int(match[1]))  # graphs and kernels are recorded on the current device
    return torch.device(match[0])
