"""What can be set for one method, codec or model: its keys, their types, defaults and meaning."""

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from fedcom.algorithms.optimisers import Optimiser
from fedcom.plain import plain
from fedcom.registry import Registry, describe
from fedcom.settings import allowed

if TYPE_CHECKING:
    from rich.console import RenderableType


def facts(registry: Registry[Any], name: str) -> dict[str, Any]:
    """The description, source and keys of an entry of a registry, as plain data."""
    thing = registry.find(name)
    found: dict[str, Any] = {"name": name, "description": describe(thing), "source": registry.where(name)}
    if not isinstance(thing, type) or not is_dataclass(thing):
        return found
    hints, meant = get_type_hints(thing), _meanings(thing)
    fixed = getattr(thing, "fixed", {})
    keys = {}
    for field in fields(thing):
        default = None if field.default is MISSING else field.default
        if isinstance(default, Optimiser):
            default = plain(default, default.registry())
        key: dict[str, Any] = {"values": allowed(hints[field.name]), "default": default}
        if field.name in fixed:
            key = {"values": "fixed", "default": fixed[field.name]}
        keys[field.name] = {**key, "what": meant.get(field.name, "")}
    uplink = {"uplink": dict(thing.uplink)} if hasattr(thing, "uplink") else {}
    return {**found, "keys": keys, **uplink}


def render(found: dict[str, Any]) -> "RenderableType":
    """The facts of `facts` for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines: list[Any] = [Text(f"{found['name']}: {found['description']} ({found['source']})")]
    if "uplink" in found:
        settings = ", ".join(f"{key} {value}" for key, value in found["uplink"].items())
        lines.append(Text(f"default uplink: {settings}"))
    if found.get("keys"):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("key", "values", "default", "what"):
            table.add_column(heading, no_wrap=heading in ("key", "default"), overflow="fold")
        for name, key in found["keys"].items():
            default = "" if key["default"] is None else _written(key["default"])
            table.add_row(*map(Text, (name, key["values"], default, key["what"].rstrip("."))))
        lines += [Text(""), table]
    return Group(*lines)


def _written(value: Any) -> str:
    """A value as it is written after the = of an override."""
    value = value["name"] if isinstance(value, dict) else value
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _meanings(thing: type) -> dict[str, str]:
    """What the docstrings of a class and of those it derives from say of each argument."""
    found: dict[str, str] = {}
    for cls in reversed(thing.__mro__):
        text = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        section = re.search(r"^Args:\n((?: {4}.*\n?|\n)*)", text, re.MULTILINE)
        arguments = section[1] if section else ""
        for name, words in re.findall(r"^ {4}(\w+): (.+\n?(?: {8}.+\n?)*)", arguments, re.MULTILINE):
            found[name] = " ".join(words.split())
    return found
