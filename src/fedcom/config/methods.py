"""The methods of a config: what a method's name, or a label under [methods], stands for."""

import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.config.config import PLAIN_SECTIONS, Config
from fedcom.config.sections import RunConfig
from fedcom.config.tables import Table, check_sections, drop_void, override, read
from fedcom.errors import ConfigError, nearest
from fedcom.traffic.links import DefaultUplink


def alone(path: str | None, overrides: Sequence[str], trust: bool = True) -> Config:
    """The config of a single run: of the method or label that algorithm.name names.

    If the file has settings for it under [methods], they apply as in a comparison; overrides come last.

    Args:
        path: of a config file; None: none.
        trust: whether a file outside the current folder may name code.
    """
    table, said = read(path, overrides, trust), read(None, overrides)
    check_sections(table, ("methods",))
    methods = table.pop("methods", {})
    label = table.get("algorithm", {}).get("name", "fedcomgate")
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
        if not re.match(r"methods\.|algorithm\.name=", text):
            override(own, text)
    return Config.of(own)


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
    [local] to all. They are overridden by [methods.LABEL], [methods.LABEL.uplink], [methods.LABEL.downlink],
    [methods.LABEL.server] and [methods.LABEL.local].

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
    return {
        **{section: table[section] for section in ("data", "model", "run", "network") if section in table},
        "uplink": _laid(own.pop("uplink", {}), uplink),
        "downlink": _laid(own.pop("downlink", {}), downlink),
        **{
            section: _laid(_named(own.pop(section, {})), table.get(section, {})) for section in PLAIN_SECTIONS
        },
        "algorithm": {**shared, **own},
    }


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
            place = own if section in ("uplink", "downlink", *PLAIN_SECTIONS) else found
            held = place.get(section, {})
            held = _named(held) if section in PLAIN_SECTIONS else held
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
    """The section of an optimiser that is given by its name alone."""
    return {"name": optimiser} if isinstance(optimiser, str) else optimiser


def _laid(own: Any, shared: Any) -> Any:
    """A section overridden by another; one that is no section is left, and Config will refuse it."""
    return {**shared, **own} if isinstance(own, dict) and isinstance(shared, dict) else own
