"""The methods of a config: what a method's name, or a label under [methods], stands for."""

import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.algorithms.optimisers import Optimiser
from fedcom.config.config import DEFAULT, PLAIN_SECTIONS, Config, adapted
from fedcom.config.sections import RunConfig
from fedcom.config.tables import Table, check_sections, drop_void, override, read, typed
from fedcom.errors import ConfigError, nearest
from fedcom.plain import build, keys
from fedcom.traffic.links import DefaultUplink

_SHARED = ("data", "model", "run", "network")  # sections that all methods of a comparison have
MOST = 0.5  # the share of clients per round from which on momentum serves better than tracking


def alone(path: str | None, overrides: Sequence[str], trust: bool = True) -> Config:
    """The config of a single run: of the method or label that algorithm.name names.

    If the file has settings for it under [methods], they apply as in a comparison; overrides come last.
    Without a file and a name it is what was found to serve best; see `_at_its_best`.

    Args:
        path: of a config file; None: none.
        trust: whether a file outside the current folder may name code.
    """
    table, said = read(path, overrides, trust), typed(overrides)
    check_sections(table, ("methods",))
    methods = table.pop("methods", {})
    label = table.get("algorithm", {}).get("name", DEFAULT)
    if path is None and "name" not in table.get("algorithm", {}):
        table = _at_its_best(table)
    for other, own in methods.items():
        _check_section(other, own)
        if other in said.get("methods", {}) and other != label:
            raise ConfigError(
                f"methods.{other} is about {other}, and this runs {label}; write algorithm.KEY=... or "
                f"algorithm.name={other}"
            )
    if label not in methods:
        return Config.of(table)
    own = sections({**table, "methods": methods}, label)
    drop_void(own, said)
    for text in overrides:
        if not re.match(r"unset=|methods\.|algorithm\.name=", text):
            override(own, text)
    return Config.of(own)


def _at_its_best(table: Table) -> Table:
    """FedCOM at auto rates and with momentum, with the given settings; the default method if few take part.

    A config file, and whoever names a method, means that method as it was published
    (docs/decisions/defaults.md). Adapters have FedCOM with a plain server, and rates of their own.
    """
    if adapted(table):
        return {**table, "algorithm": {"name": "fedcom", **table.get("algorithm", {})}}
    if build(RunConfig, table.get("run", {}), "run").participation < MOST:
        return table
    option = {"option": "I"} if "downlink" in table else {}  # the mean goes down, which a codec can take
    algorithm = {"name": "fedcom", "eta": "auto", "gamma": "auto", **option, **table.get("algorithm", {})}
    server = table.get("server", {})
    if "server" not in algorithm and "name" not in server:
        server = {"name": "momentum", **server}
    return {**table, "algorithm": algorithm, "server": server}


def variant(table: Table, label: str) -> Config:
    """The config of one method of a comparison; see `sections`."""
    try:
        return Config.of(sections(table, label))
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None


def sections(table: Table, label: str) -> Table:
    """The settings of one method of a comparison.

    Keys of [algorithm] apply to every method that has them and does not fix them, [uplink] to every method
    that compresses by default, [downlink] to every method whose clients receive the mean, [server] and
    [local] to every method whose optimiser has their keys, [adapter] to all. They are overridden by
    [methods.LABEL], [methods.LABEL.uplink] and so on.

    Args:
        table: the settings of a config file, by section.
        label: the name of a method, or a label under [methods].
    """
    check_sections(table, ("methods", "grid"))
    method, own = _labelled(table, label)
    uplink = table.get("uplink", {}) if DefaultUplink.of(method).compresses else {}
    downlink = table.get("downlink", {}) if method.needs_mean else {}
    shared = {key: value for key, value in table.get("algorithm", {}).items() if key in keys_of(method)}
    drop_void({"algorithm": shared}, {"algorithm": own})
    adapted = "adapter" in own or "adapter" in table
    adapter = _laid(_named(own.pop("adapter", {})), table.get("adapter", {}))
    return {
        **{section: table[section] for section in _SHARED if section in table},
        **({"adapter": adapter} if adapted else {}),
        "uplink": _laid(own.pop("uplink", {}), uplink),
        "downlink": _laid(own.pop("downlink", {}), downlink),
        **{section: _steps(section, method, own, table) for section in PLAIN_SECTIONS},
        "algorithm": {**shared, **own},
    }


def _steps(section: str, method: type[Algorithm], own: Table, table: Table) -> Any:
    """The section [server] or [local] of a method: the shared one, as far as its optimiser has the keys.

    Args:
        own: the method's settings; what they say of the section is taken out, and counts more.
    """
    mine, shared = _named(own.pop(section, {})), table.get(section, {})
    kind = _optimiser(section, method, mine, table)
    if kind is not None and isinstance(shared, dict):
        every = PLAIN_SECTIONS[section].registry().values()
        others = set().union(*map(keys, every)) - {*keys(kind)}
        shared = {key: value for key, value in shared.items() if key not in others}
    return _laid(mine, shared)


def _optimiser(section: str, method: type[Algorithm], mine: Any, table: Table) -> type[Optimiser] | None:
    """The optimiser of the server or the clients of a method of a comparison; None if its name is wrong."""
    sections = (mine, table.get(section), _named(table.get("algorithm", {}).get(section)))
    names = (one["name"] for one in sections if isinstance(one, dict) and "name" in one)
    name = next(names, None)
    if name is None:
        return type(getattr(method, section))
    try:
        found: type[Optimiser] = PLAIN_SECTIONS[section].registry().find(name)
    except ConfigError:
        return None
    return found


def with_point(table: Table, label: str, point: Iterable[tuple[str, Any]]) -> Table:
    """The settings with the values of a point put in; hyper-parameters and codecs go to one method alone.

    Args:
        label: the name of that method, or its label under [methods].
        point: pairs of a key and its value, such as ("eta", 0.1), ("uplink.bits", 2) or ("data.clients", 9).
    """
    found, own = dict(table), dict(table.get("methods", {}).get(label, {}))
    for name, value in point:
        section, _, key = name.rpartition(".")
        if section in ("", "algorithm"):
            own[key] = value
        else:
            place = own if section in ("uplink", "downlink", "adapter", *PLAIN_SECTIONS) else found
            held = place.get(section, {})
            held = _named(held) if section in ("adapter", *PLAIN_SECTIONS) else held
            place[section] = _laid({key: value}, held)
    return {**found, "methods": {**table.get("methods", {}), label: own}}


def method_keys(table: Table, label: str) -> set[str]:
    """The hyper-parameters that can be set for the method that a label stands for."""
    return keys_of(_labelled(table, label)[0])


def keys_of(method: Algorithm | type[Algorithm]) -> set[str]:
    """The hyper-parameters of a method that can be set."""
    return {f.name for f in fields(method)} - set(method.fixed)


def run_of(table: Table) -> RunConfig:
    """The settings of a table under [run]."""
    return Config.of({"run": table.get("run", {})}).run


def check_shared(table: Table, methods: Sequence[str]) -> None:
    """Refuse shared hyper-parameters that none of the methods has; warn of links that none of them uses."""
    kinds = [_labelled(table, label)[0] for label in methods]
    check_keys(table.get("algorithm", {}), {"name"}.union(*map(keys_of, kinds)), "in algorithm")
    _refuse_idle_steps(table, kinds, methods)
    used = {
        "uplink": any(DefaultUplink.of(method).compresses for method in kinds),
        "downlink": any(method.needs_mean for method in kinds),
    }
    for section, anyone in used.items():
        if table.get(section) and not anyone:
            given = ", ".join(f"{section}.{key}={value}" for key, value in table[section].items())
            warnings.warn(
                f"{given} is not used: none of {', '.join(methods)} compresses its {section} by default; "
                f"write methods.{methods[0]}.{section}.KEY=... to set it for one of them",
                stacklevel=2,
            )


def _refuse_idle_steps(table: Table, kinds: Sequence[type[Algorithm]], methods: Sequence[str]) -> None:
    """Refuse a shared key of [server] or [local] that the optimiser of none of the methods has."""
    for section, plain in PLAIN_SECTIONS.items():
        own = [_named(table.get("methods", {}).get(label, {}).get(section, {})) for label in methods]
        found = [_optimiser(section, kind, mine, table) for kind, mine in zip(kinds, own, strict=True)]
        known = set().union(*(keys(one) for one in found if one is not None))
        idle = {key: value for key, value in table.get(section, {}).items() if key not in {"name", *known}}
        if idle and found[0] is not None:
            build(found[0], idle, section, plain.registry())  # says what it has, and which have the key


def check_keys(keys: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuse a hyper-parameter that none of some methods has.

    Args:
        known: the keys that the methods have.
        where: where the keys stand or what they are for, to end a sentence: "to sweep".
    """
    for key in keys:
        if key not in known:
            raise ConfigError(f"none of the methods has a key {key!r} {where}; {nearest(key, known)}")


def check_once(methods: Sequence[str]) -> None:
    """Refuse a method that is named twice."""
    for label in methods:
        if methods.count(label) > 1:
            raise ConfigError(
                f"{label} is among the methods twice; give one a label, as in methods.mine.name={label}"
            )


def _labelled(table: Table, label: str) -> tuple[type[Algorithm], Table]:
    """The method that a label stands for, and its own settings, its name among them."""
    own = table.get("methods", {}).get(label, {})
    _check_section(label, own)
    own = {"name": label, **own}
    return ALGORITHMS.find(own["name"], "method"), own


def _check_section(label: str, own: object) -> None:
    if not isinstance(own, dict):
        raise ConfigError(f"methods.{label} is a section; write methods.{label}.key=value")


def _named(optimiser: Any) -> Any:
    """The section of an optimiser or an adapter that is given by its name alone."""
    return {"name": optimiser} if isinstance(optimiser, str) else optimiser


def _laid(own: Any, shared: Any) -> Any:
    """A section overridden by another; one that is no section is left, and Config will refuse it."""
    return {**shared, **own} if isinstance(own, dict) and isinstance(shared, dict) else own
