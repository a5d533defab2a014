"""Numbers as a person reads them."""

import math
from typing import TypeGuard

MB = 1e6
NOTHING = "—"


def is_number(value: float | None) -> TypeGuard[float]:
    """Neither missing, nor infinite, nor not a number."""
    return value is not None and math.isfinite(value)


def significant(value: float | None, digits: int) -> str:
    """A number with so many significant digits, without an exponent where that would hinder reading."""
    if not is_number(value):
        return NOTHING
    if 10**digits - 0.5 <= abs(value) < 1e7:  # whole numbers keep their last digits
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".") if value else "0"


def megabytes(nbytes: float | None) -> str:
    """Bytes as a number of MB (10^6 bytes)."""
    return significant(None if nbytes is None else nbytes / MB, 3)


def duration(seconds: float | None) -> str:
    """Seconds as s, min or h."""
    if not is_number(seconds):
        return NOTHING
    size, unit = next(
        ((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s")
    )
    return f"{significant(seconds / size, 2)} {unit}"


def percent(fraction: float | None, spread: float | None = None) -> str:
    """A fraction in percent, without the sign, and its spread."""
    if not is_number(fraction):
        return NOTHING
    return f"{100 * fraction:.2f}" + (f" ±{100 * spread:.2f}" if spread is not None else "")
