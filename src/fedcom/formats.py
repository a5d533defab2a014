"""Numbers, and text of strangers, as text for people to read."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TypeGuard

MB = 1e6
NOTHING = "—"


def printable(text: object, most: int = 300) -> str:
    """A stranger's text for a log: one line, without control characters, and not too long."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text)[: most + 1])
    return shown if len(shown) <= most else shown[:most] + "…"


def is_number(value: float | str | None) -> TypeGuard[float]:
    """Whether a value is neither None nor text nor infinite nor NaN."""
    return value is not None and not isinstance(value, str) and math.isfinite(value)


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


def size(nbytes: float | None) -> str:
    """A number of bytes with the unit that suits it: 12 B, 3.45 kB, 6.78 MB."""
    if not is_number(nbytes):
        return NOTHING
    name, scale = unit(nbytes)
    return f"{significant(nbytes / scale, 3) if scale > 1 else f'{nbytes:.0f}'} {name}"


def unit(nbytes: float) -> tuple[str, float]:
    """The unit that suits a number of bytes, and how many bytes it is."""
    units = (("GB", 1e9), ("MB", MB), ("kB", 1e3))
    return next(((name, scale) for name, scale in units if nbytes >= 0.9995 * scale), ("B", 1.0))


def duration(seconds: float | None) -> str:
    """A number of seconds as s, min or h, with the unit."""
    if not is_number(seconds):
        return NOTHING
    size, unit = next(
        ((size, unit) for size, unit in ((3600, "h"), (60, "min")) if seconds >= size), (1, "s")
    )
    return f"{significant(seconds / size, 2)} {unit}"


def clock(seconds: float) -> str:
    """A number of seconds as m:ss or h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def percent(fraction: float | None, spread: float | None = None) -> str:
    """A fraction in percent, without the sign.

    Args:
        spread: a fraction too, written after ±; None: nothing.
    """
    if not is_number(fraction):
        return NOTHING
    return f"{100 * fraction:.2f}" + (f" ±{100 * spread:.2f}" if spread is not None else "")


def html_table(rows: Iterable[Sequence[object]], headings: Sequence[str] = (), title: str = "") -> str:
    """A small HTML table for notebooks; every cell is escaped."""
    lines = [f"<strong>{escape(title)}</strong>"] if title else []
    lines.append("<table>")
    if headings:
        lines.append(f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in headings)}</tr>")
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td>{escape(_cell(cell))}</td>' for cell in row)}</tr>")
    return "\n".join([*lines, "</table>"])


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    return significant(value, 4) if isinstance(value, float) else str(value)


def counted(count: int, word: str) -> str:
    """A number and its word, in the plural unless there is one: "1 run", "2 runs"."""
    return f"{count} {word}{'s' * (count != 1)}"


def described(thing: Any) -> str:
    """A tensor by dtype and shape, anything else by its type."""
    if hasattr(thing, "dtype") and hasattr(thing, "shape"):
        return f"{str(thing.dtype).removeprefix('torch.')} {list(thing.shape)}"
    return "None" if thing is None else f"a {type(thing).__name__}"
