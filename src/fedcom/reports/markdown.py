"""Tables in Markdown."""

import re
from collections.abc import Iterable, Sequence

_RULES = {"l": ":--", "r": "--:"}


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table, without a line break at its end; a | in a cell is escaped.

    Args:
        align: one letter per column, l for left and r for right.
    """
    lines = [_escaped(headings), [_RULES[letter] for letter in align], *map(_escaped, rows)]
    if len({len(line) for line in lines}) > 1:
        raise ValueError(f"{len(headings)} headings and {len(align)} alignments for rows of another length")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cells: Sequence[str]) -> list[str]:
    return [re.sub(r"(\\*)\|", r"\1\1\\|", cell) for cell in cells]
