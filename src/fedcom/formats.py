"""Numbers as text for people to read."""

import math
from typing import TypeGuard

MB = 1e6
NOTHING = "—"


def is_number(value: float | None) -> TypeGuard[float]:
    """Whether a value is neither None nor infinite nor NaN."""
    return value is not None and math.isfinite(value)


def significant(value: float | None, digits: int) -> str:
    """A number with some significant digits, without an exponent if it is of readable size."""
    if not is_number(value):
        return NOTHING
    if 10**digits - 0.5 <= abs(value) < 1e7:  # whole numbers keep their last digits
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".") if value else "0"


def megabytes(nbytes: float | None) -> str:
    """A number of bytes in MB (10^6 bytes), without the unit."""
    return significant(None if nbytes is None else nbytes / MB, 3)


def duration(seconds: float | None) -> str:
    """A number of seconds as s, min or h, with the unit."""
    if not is_number(seconds):
        return NOTHING
    size, unit = next(
        ((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s")
    )
    return f"{significant(seconds / size, 2)} {unit}"


def percent(fraction: float | None, spread: float | None = None) -> str:
    """A fraction in percent, without the sign.

    Args:
        spread: a fraction too, written after ±; None: nothing.
    """
    if not is_number(fraction):
        return NOTHING
    return f"{100 * fraction:.2f}" + (f" ±{100 * spread:.2f}" if spread is not None else "")
