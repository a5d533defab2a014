"""Settings are fields of dataclasses; their annotations say what is allowed, in Python and in configs."""

import sys
import types
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedcom.errors import ConfigError


def check(settings: Any) -> None:
    """Raise a ConfigError if a field of a dataclass is not what its annotation says."""
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        value, options = getattr(settings, field.name), _options(hints[field.name])
        if not any(_fits(value, option) for option in options):
            raise _refusal(value, options, field.name)


def convert(value: Any, hint: Any, key: str) -> Any:
    """A value from a config, converted to the type of its annotation, or a ConfigError.

    A single number may stand for a tuple of one, a list for a tuple, and 1e2 for the whole number 100.

    Args:
        hint: the annotation.
        key: of the config, for errors.
    """
    options = _options(hint)
    for option in options:
        if _fits(value, option):
            return tuple(value) if isinstance(value, list) else value
    for option in options:
        near = _near(value, option)
        if _fits(near, option):
            return near
    raise _refusal(value, options, key)


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type, without conversion."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # refuses inf and nan
    return isinstance(value, hint)


def _near(value: Any, hint: Any) -> Any:
    """A value converted to a type if that is harmless: 5 to (5,), 100.0 to 100; else the value itself."""
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_near(item, get_args(hint)[0]) for item in items)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _refusal(value: Any, options: tuple[Any, ...], key: str) -> ConfigError:
    """The error for a value that has none of the allowed types."""
    wanted = " or ".join(_describe(option) for option in options if option is not type(None))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    remedy = f"; write {key}='\"{value}\"' for that text" if str in options and number else ""
    return ConfigError(f"{key} must be {wanted}; got {value!r}{remedy}")


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "whole numbers, such as 200,200" if get_args(hint)[0] is int else "numbers, such as 0.5,1"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))
