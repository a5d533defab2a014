"""TOML tables and `section.key=value` overrides to frozen dataclasses, and back."""

import copy
import json
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.codecs import CODECS, Codec
from fedcom.config.values import parse
from fedcom.engines.state.stores import Storage
from fedcom.errors import ConfigError, nearest, unknown
from fedcom.registry import Registry
from fedcom.rounds.rules import takes_no_codec
from fedcom.settings import convert
from fedcom.tasks.models import MODELS, Model
from fedcom.traffic.links import DownlinkMemory, Links, Memory, at_budget, budgets_from
from fedcom.traffic.network import Network, over_preset

Table = dict[str, Any]
T = TypeVar("T")
_OVERRIDE = re.compile(r"([\w-]+)\.([\w.-]+)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how it is dealt to clients; None: what suits the data set."""

    name: str | None = None
    root: str | None = None
    clients: int | None = None
    partition: str | None = None
    classes_per_client: int = 2
    alpha: float = 0.5
    beta: float = 0.5
    lazy: bool | None = None

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise ConfigError(f"clients must be 1 or more; got {self.clients}")


@dataclass(frozen=True)
class RunConfig:
    """How long and how carefully to run."""

    rounds: int = 100
    participation: float = 1.0
    seed: int = 0
    eval_every: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    target_accuracy: float = 0.9
    init: str | None = None
    chunk: int | None = None
    engine: Literal["auto", "eager", "graph", "compiled"] = "auto"
    tf32: bool = False
    store: Literal["auto", "memory", "disk"] = "auto"
    store_dtype: Literal["model", "bfloat16"] = "model"
    store_folder: str | None = None
    encode: bool = False

    @property
    def storage(self) -> Storage:
        """Where clients' state is to be kept."""
        return Storage(self.store, self.store_dtype, self.store_folder)

    def __post_init__(self) -> None:
        for key, least in {"rounds": 0, "eval_every": 1, "seed": 0, "chunk": 1}.items():
            value = getattr(self, key)
            if value is not None and value < least:
                raise ConfigError(f"{key} must be {least} or more; got {value}")
        if self.seed >= 2**62:
            raise ConfigError(f"seed must be below 2^62; got {self.seed}")
        if not 0 < self.target_accuracy <= 1:
            raise ConfigError(f"target_accuracy is a share, such as 0.9; got {self.target_accuracy}")


@dataclass(frozen=True)
class UplinkConfig:
    """What surrounds the uplink's codec, and what clients may send.

    Args:
        memory: what clients do with what their codec drops; None: the method's own way.
        clip: the largest norm of what a client sends; None: no limit.
        budgets: bits per coordinate of each client.
        bandwidths: of each client, to share out the codec's bits by.
    """

    memory: Memory | None = None
    clip: float | None = None
    budgets: tuple[float, ...] | None = None
    bandwidths: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.budgets is not None and self.bandwidths is not None:
            raise ConfigError("give budgets or bandwidths, not both")

    def bits(self, codec: Codec) -> tuple[float, ...] | None:
        """The bits of each client, each of them checked against the codec."""
        budgets = self.budgets if self.bandwidths is None else budgets_from(self.bandwidths, codec)
        for bits in set(budgets or ()):
            at_budget(codec, bits)
        return budgets


@dataclass(frozen=True)
class DownlinkConfig:
    """What a lossy downlink does with what it drops."""

    memory: DownlinkMemory = "error-feedback"


@dataclass(frozen=True)
class Config:
    """Everything a run needs to know."""

    data: DataConfig
    model: Model
    algorithm: Algorithm
    links: Links
    run: RunConfig
    network: Network | None = None

    @classmethod
    def of(cls, table: Table) -> "Config":
        """Check a table and make it a config."""
        table = renamed(table)
        check_sections(table)
        algorithm = _named("algorithm", ALGORITHMS, "fedcomgate", table)
        run = build(RunConfig, table.get("run", {}), "run")
        down = dict(table.get("downlink", {}))
        memory = build(DownlinkConfig, {k: down.pop(k) for k in ("memory",) if k in down}, "downlink").memory
        up = dict(table.get("uplink", {}))
        if algorithm.compresses is not None and "name" not in up and set(up) - {"memory"}:
            raise takes_no_codec(algorithm, f"got uplink settings {up}")
        around = build(UplinkConfig, {k: up.pop(k) for k in _keys(UplinkConfig) if k in up}, "uplink")
        uplink = _codec("uplink", up, {k: v for k, v in algorithm.uplink.items() if k != "memory"})
        links = Links(
            uplink=uplink,
            downlink=_codec("downlink", down, {"name": "identity"}),
            uplink_memory=around.memory or algorithm.uplink.get("memory", "none"),
            downlink_memory=memory,
            clip=around.clip,
            encode=run.encode,
            budgets=around.bits(uplink),
        )
        data = build(DataConfig, table.get("data", {}), "data")
        network = build(Network, over_preset(table["network"]), "network") if "network" in table else None
        return cls(data, _named("model", MODELS, "mlp", table), algorithm, links, run, network)

    def table(self) -> Table:
        """The config as plain data, every default spelled out."""
        links = self.links
        up = {"memory": links.uplink_memory, "clip": links.clip, "budgets": links.budgets}
        table: Table = {
            "data": asdict(self.data),
            "model": _plain(self.model, MODELS),
            "algorithm": _plain(self.algorithm, ALGORITHMS),
            "uplink": _plain(links.uplink, CODECS) | up,
            "downlink": _plain(links.downlink, CODECS) | {"memory": links.downlink_memory},
            "run": asdict(self.run),
            **({} if self.network is None else {"network": asdict(self.network)}),
        }
        return {name: {k: v for k, v in section.items() if v is not None} for name, section in table.items()}


_SECTIONS = ("data", "model", "algorithm", "uplink", "downlink", "run", "network", "methods")


def renamed(table: Table) -> Table:
    """A table with keys of former versions under their present names, each with a warning."""
    table = copy.deepcopy(table)
    methods = table.get("methods")
    places = [("algorithm", table.get("algorithm"), "uplink", table)]
    for label, own in methods.items() if isinstance(methods, dict) else ():
        places.append((f"methods.{label}", own, f"methods.{label}.uplink", own))
    for old, section, new, parent in places:
        if isinstance(section, dict) and "memory" in section:
            warnings.warn(f"{old}.memory is {new}.memory now; please write it so", stacklevel=2)
            value, uplink = section.pop("memory"), parent.setdefault("uplink", {})
            if isinstance(uplink, dict) and uplink.setdefault("memory", value) != value:
                raise ConfigError(f"{old}.memory and {new}.memory differ; keep {new}.memory alone")
    return table


def check_sections(table: Table) -> None:
    """Refuse a section that does not exist, or that is not one."""
    for section, values in table.items():
        if section not in _SECTIONS:
            raise unknown("section", section, _SECTIONS)
        if not isinstance(values, dict):
            raise ConfigError(f"{section} is a section; write {section}.key=value, not {section}={values}")


def read(path: str | Path | None, overrides: Sequence[str] = ()) -> Table:
    """The table of a TOML file with overrides laid over it."""
    table: Table = {}
    if path is not None:
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"no config file {path}; overrides are section.key=value") from None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
    for text in overrides:
        override(table, text)
    return renamed(table)


def dumps(table: Table) -> str:
    """A table of sections as TOML."""
    lines = []
    for section, values in table.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def build(
    cls: type[T], table: Mapping[str, Any], section: str, family: Mapping[str, type[T]] | None = None
) -> T:
    """A dataclass from a table, every key and type checked; family: what else the table could have named."""
    hints = get_type_hints(cls)
    for key in table:
        if key not in _keys(cls):
            raise _no_key(key, section, cls, family or {})
    values = {key: convert(value, hints[key], f"{section}.{key}") for key, value in table.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{section}: {error}") from None


def pick(registry: Registry[type[T]], table: Mapping[str, Any], section: str) -> T:
    """The registered class a table names, built from the rest of the table."""
    rest = dict(table)
    return build(registry.find(rest.pop("name", None)), rest, section, registry)


def _keys(cls: type) -> list[str]:
    return [f.name for f in fields(cls)]


def _no_key(key: str, section: str, cls: type, family: Mapping[str, type]) -> ConfigError:
    """The error for a key that others of the family have, or that resembles one of the class's own."""
    owner, named = (f"{section} {getattr(cls, 'name', '')}", ["name"]) if family else (section, [])
    others = [name for name, other in family.items() if key in _keys(other)]
    hint = f"it is a key of {', '.join(others)}" if others else nearest(key, [*_keys(cls), *named])
    return ConfigError(f"{owner} has no key {key!r}; {hint}")


def _named(section: str, registry: Registry[type[T]], default: str, table: Table) -> T:
    return pick(registry, {"name": default, **table.get(section, {})}, section)


def _codec(section: str, table: Table, default: Mapping[str, Any]) -> Codec:
    """A codec; parameters alone refine the default one."""
    if "name" not in table or table["name"] == default["name"]:
        table = {**default, **table}
    return pick(CODECS, table, section)


def _plain(thing: Any, registry: Registry[Any]) -> Table:
    """A registered dataclass as a table with its name first."""
    return {"name": registry.name_of(type(thing)), **asdict(thing)}


def override(table: Table, text: str) -> None:
    """Lay one section.key=value over a table."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not an override; write section.key=value, as in algorithm.eta=0.05")
    section, dotted, value = match.groups()
    *path, key = dotted.split(".")
    place = table
    for name in (section, *path):
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{text!r} sets a key of {name}, but {name} is {place!r}, not a section")
    place[key] = parse(value)


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)  # TOML knows no surrogate pairs
    return repr(value)
