"""Frozen dataclasses from plain tables, every key and type checked, and back."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar, get_type_hints

from fedcom.errors import ConfigError, nearest
from fedcom.registry import Registry
from fedcom.settings import convert

T = TypeVar("T")


def build(
    cls: type[T], table: Mapping[str, Any], section: str, family: Mapping[str, type[T]] | None = None
) -> T:
    """A dataclass from a table, every key and type checked; family: what else the table could have named."""
    hints = get_type_hints(cls)
    for key in table:
        if key not in keys(cls):
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


def plain(thing: Any, registry: Registry[Any]) -> dict[str, Any]:
    """A registered dataclass as a table with its name first."""
    parts: dict[str, Any] = {f.name: getattr(thing, f.name) for f in fields(thing)}
    named = {
        key: {"name": part.name, **asdict(part)}
        for key, part in parts.items()
        if hasattr(part, "__dataclass_fields__")
    }
    return {"name": registry.name_of(type(thing)), **asdict(thing), **named}


def keys(cls: type) -> list[str]:
    """The keys a dataclass takes."""
    return [f.name for f in fields(cls)]


def _no_key(key: str, section: str, cls: type, family: Mapping[str, type]) -> ConfigError:
    """The error for a key that others of the family have, or that resembles one of the class's own."""
    owner, named = (f"{section} {getattr(cls, 'name', '')}", ["name"]) if family else (section, [])
    others = [name for name, other in family.items() if key in keys(other)]
    hint = f"it is a key of {', '.join(others)}" if others else nearest(key, [*keys(cls), *named])
    return ConfigError(f"{owner} has no key {key!r}; {hint}")
