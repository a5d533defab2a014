"""Settings as plain tables: read from TOML, changed by `section.key=value`, checked and written back."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcom.config.experiments import config_path
from fedcom.config.trust import refuse_code
from fedcom.config.values import parse
from fedcom.errors import ConfigError, unknown

Table = dict[str, Any]
_OVERRIDE = re.compile(r"([\w-]+)\.([\w.-]+)=(.*)", re.DOTALL)
_UNSET = "unset="  # before the keys that a config file is to be read without
_SECTIONS = (
    "data",
    "model",
    "adapter",
    "algorithm",
    "server",
    "local",
    "uplink",
    "downlink",
    "run",
    "round",
    "network",
)
_PARTS = ("server", "local", "uplink", "downlink")  # whose keys are those of what they name
_INSTEAD = {"epochs": "tau", "tau": "epochs"}  # of an algorithm's keys, the one that each makes void


def read(path: str | Path | None, overrides: Sequence[str] = (), trust: bool = True) -> Table:
    """The table of a TOML file with overrides laid over it.

    unset=section.key among the overrides takes a key, and unset=section a section, out of the file first.
    An override of epochs drops tau, and vice versa; one that names another codec or optimiser drops all that
    the file says of the former one.

    Args:
        trust: whether a file outside the current folder may name code; see `refuse_code`.
    """
    table: Table = {}
    file = None if path is None else config_path(path)
    if file is not None:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
    for key in _unset(overrides):
        _take_out(table, key, path)
    said = typed(overrides)
    _drop_replaced(table, said)
    _lay(table, overrides)
    drop_void(table, said)
    for section, values in table.items():
        _refuse_no_section(section, values)
    if file is not None and not trust:
        refuse_code(file, table, said)
    return table


def typed(overrides: Sequence[str]) -> Table:
    """The table of overrides alone."""
    said: Table = {}
    _lay(said, overrides)
    return said


def _lay(table: Table, overrides: Sequence[str]) -> None:
    for text in overrides:
        if not text.startswith(_UNSET):
            override(table, text)


def _unset(overrides: Sequence[str]) -> list[str]:
    """The keys and sections that overrides say to read a config file without."""
    found = [text.removeprefix(_UNSET).split(",") for text in overrides if text.startswith(_UNSET)]
    return [key.strip() for keys in found for key in keys]


def _take_out(table: Table, dotted: str, path: str | Path | None) -> None:
    """Take a section, or a key of one, out of the table of a file; raises ConfigError if it is not there."""
    *sections, key = dotted.split(".")
    place: Any = table
    for name in sections:
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict) or key not in place:
        if not dotted:
            raise ConfigError(
                f"{_UNSET} names what to read a config file without, as in unset=data.path,adapter"
            )
        lacks = "there is no config file" if path is None else f"{path} has no {dotted}"
        raise ConfigError(
            f"{_UNSET}{dotted} takes {dotted} out of the config file, but {lacks}; leave it out"
        )
    del place[key]


def _drop_replaced(table: Table, newer: Table) -> None:
    for section in _PARTS:
        old, new = table.get(section), newer.get(section)
        named = [part["name"] for part in (old, new) if isinstance(part, dict) and "name" in part]
        if len(named) == 2 and named[0] != named[1]:
            del table[section]


def drop_void(table: Table, newer: Table) -> None:
    """Drop tau from [algorithm] if newer settings have epochs instead, and the other way round."""
    own, shared = newer.get("algorithm"), table.get("algorithm")
    for key, other in _INSTEAD.items():
        if isinstance(own, dict) and isinstance(shared, dict) and key in own and other not in own:
            shared.pop(other, None)


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


def check_sections(table: Table, also: Sequence[str] = ()) -> None:
    """Refuse a section that does not exist, or that is not one.

    Args:
        also: sections that are allowed here beyond those of a run.
    """
    if "recorded" in table:
        raise ConfigError(
            "this run was recorded in Python: its config holds neither its data nor its model; go on with "
            'fedcom.record(simulation, folder, start="resume")'
        )
    for section, values in table.items():
        if section == "grid" and "grid" not in also:
            raise ConfigError("[grid] is what `fedcom sweep` tries; use sweep, or a config without it")
        if section not in (*_SECTIONS, *also):
            raise unknown("section", section, (*_SECTIONS, *also))
        _refuse_no_section(section, values)


def _refuse_no_section(name: str, values: Any) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{name} is a section; write {name}.key=value, not {name}={values}")


def dumps(table: Table) -> str:
    """A table of sections as TOML."""
    lines = []
    for section, values in table.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def toml_key(label: str) -> str:
    """A label as a key of TOML, in quotes if it has to be."""
    return label if re.fullmatch(r"[\w-]+", label, re.ASCII) else json.dumps(label, ensure_ascii=False)


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)  # TOML knows no surrogate pairs
    return repr(value)
