"""Settings are fields of dataclasses; their annotations say what is allowed, in Python and in configs."""

import sys
import types
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedcom.errors import ConfigError


def check(settings: Any) -> None:
    """Convert every field of a new dataclass to the type of its annotation, or raise a ConfigError."""
    try:
        hints = get_type_hints(type(settings))
    except NameError as error:
        raise ConfigError(f"an annotation of {type(settings).__name__} cannot be read: {error}") from error
    for field in fields(settings):
        value = getattr(settings, field.name)
        converted = convert(value, hints[field.name], field.name)
        if converted is not value:
            object.__setattr__(settings, field.name, converted)


def convert(value: Any, hint: Any, key: str) -> Any:
    """A value converted to the type of its annotation, or a ConfigError.

    A single number may stand for a tuple of one, a list for a tuple, 1e2 for the whole number 100, and
    numbers of numpy or torch for Python's own.

    Args:
        hint: the annotation.
        key: the name of the setting, for errors.
    """
    options, value = _options(hint), _own(value)
    for option in options:
        if _fits(value, option):
            return tuple(value) if isinstance(value, list) else value
    for option in options:
        near = _near(value, option)
        if _fits(near, option):
            return near
    raise _refusal(value, hint, key)


def at_least(name: str, value: Any, least: int) -> int:
    """A whole number that must not be below another one, or a ConfigError."""
    number: int = convert(value, int, name)
    if number < least:
        raise ConfigError(f"{name} must be {least} or more; got {number}")
    return number


def _own(value: Any) -> Any:
    """A number or array of numpy or torch as Python's own; anything else as it is."""
    if isinstance(value, list | tuple):
        return type(value)(map(_own, value)) if type(value) in (list, tuple) else value  # no named tuple
    numbers = hasattr(value, "dtype") and hasattr(value, "tolist")
    return value.tolist() if numbers else value


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type, without conversion."""
    if hint is Any or hint is object:
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple) and all(
            _fits(item, of) for item, of in zip(value, _items(hint, len(value)), strict=True)
        )
    if isinstance(value, bool) and isinstance(hint, type):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max  # refuses inf and nan
    kind = get_origin(hint) or hint  # of Callable[[int], int] and the like: Callable
    if kind is list:  # a tuple once it is converted
        return isinstance(value, list | tuple)
    return isinstance(value, kind) if isinstance(kind, type) else True


def _items(hint: Any, count: int) -> tuple[Any, ...]:
    """The types of so many items of a tuple."""
    own = get_args(hint)
    return own if len(own) == count and ... not in own else own[:1] * count


def _near(value: Any, hint: Any) -> Any:
    """A value converted to a type if that is harmless: 5 to (5,), 100.0 to 100; else the value itself.

    A class with a function `of_plain` makes itself from names and tables; its `choices` are in words.
    """
    if get_origin(hint) is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_near(item, of) for item, of in zip(items, _items(hint, len(items)), strict=True))
    if hasattr(hint, "of_plain"):
        return hint.of_plain(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _refusal(value: Any, hint: Any, key: str) -> ConfigError:
    """The error for a value that has none of the allowed types."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    remedy = f"; write {key}='\"{value}\"' for that text" if str in _options(hint) and number else ""
    return ConfigError(f"{key} must be {allowed(hint)}; got {value!r}{remedy}")


def allowed(hint: Any) -> str:
    """What an annotation allows, in words."""
    return " or ".join(_describe(option) for option in _options(hint) if option is not type(None))


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        words = {int: "whole numbers, such as 200,200", str: "names with commas between"}
        return words.get(get_args(hint)[0], "numbers, such as 0.5,1")
    if hasattr(hint, "of_plain"):
        return str(hint.choices())
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(hint) or (
        f"a {hint.__name__}" if isinstance(hint, type) else str(hint)
    )
