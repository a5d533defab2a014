"""Hyper-parameters are dataclass fields: their annotations say what is allowed, wherever they come from."""

import math
import types
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedcom.errors import ConfigError


def check(settings: Any) -> None:
    """Refuse a dataclass with a field that is not what its annotation says."""
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        convert(getattr(settings, field.name), hints[field.name], field.name)


def convert(value: Any, hint: Any, key: str) -> Any:
    """A value as its annotation wants it, or an error that says what that is."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        ok, converted = _try(value, option)
        if ok:
            return converted
    wanted = " or ".join(_describe(option) for option in options if option is not type(None))
    raise ConfigError(f"{key} must be {wanted}; got {value!r}")


def _try(value: Any, hint: Any) -> tuple[bool, Any]:
    if get_origin(hint) is Literal:
        return value in get_args(hint), value
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return all(_try(item, get_args(hint)[0])[0] for item in items), tuple(items)
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value), value
    if hint is int and isinstance(value, bool):
        return False, value
    return isinstance(value, hint), value


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "whole numbers, such as 200,200" if get_args(hint)[0] is int else "numbers, such as 0.5,1"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))
