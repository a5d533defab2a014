"""What is typed after the = of an override, as a value: a number, true or false, a list, or text."""

import re
import tomllib
from datetime import date, time
from typing import Any

# Digits with a sign, a point and an exponent; Python's own int and float say whether they make a number.
# Zeros in front do not: 007 may be the name of a folder.
_NUMBER = re.compile(r"[+-]?(?!0[\d_])[\d_.]+(e[+-]?[\d_]+)?", re.IGNORECASE | re.ASCII)


def parse(text: str) -> Any:
    """A value, or a list of several with commas between; what is neither is text."""
    for read in (_value, _values):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _value(text: str) -> Any:
    """One value as TOML writes it; numbers also as people write them: .5, 5., +3, 1_000."""
    if _NUMBER.fullmatch(text):
        return _number(text)
    (value,) = tomllib.loads(f"value = {text}").values()
    if any(isinstance(item, date | time) for item in (value if isinstance(value, list) else [value])):
        raise ValueError(f"{text} is a date: no setting is one, but a folder may be called so")
    return value


def _number(text: str) -> int | float:
    return float(text) if re.search("[.eE]", text) else int(text)


def _values(text: str) -> list[Any]:
    """Values with commas between, in brackets or not."""
    if not text.strip():
        raise ValueError("nothing between the commas")
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return list(_value(f"[{text}]"))  # TOML knows of commas within quotes
    except ValueError:
        return [_value(item.strip()) for item in inner.removesuffix(",").split(",")]
