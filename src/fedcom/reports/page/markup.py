"""Build HTML. All text is escaped here, so that a label may contain anything."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from fedcom.reports.looks import Look


class Html(str):
    """Text that is already HTML and is not escaped again."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as escaped HTML."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """An HTML element; attributes such as `class_` and `aria_label` become class and aria-label."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{''.join(map(text, content))}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Parts joined by line breaks."""
    return Html("\n".join(map(text, parts)))


MANY = 12  # columns; words of tables with more may be broken on paper
STARS = {  # before the best of a column, of several seeds and of one
    "seeds": Html('<abbr class="best" title="best of its column">★</abbr>'),
    "one seed": Html(
        '<abbr class="best" title="best of its column, by one seed each: may be chance">☆</abbr>'
    ),
}


class Cell(NamedTuple):
    """A table's cell with the value by which its column is sorted.

    Args:
        best: a key of STARS if it is the best of its column.
    """

    content: object
    value: float | None
    best: str = ""


def table(caption: str, headings: Sequence[object], rows: Iterable[Sequence[object]], names: int = 1) -> Html:
    """A table that scrolls within the page, and whose columns the script can sort.

    Args:
        rows: of texts, or of cells with a value.
        names: how many of the first columns are text; the others are numbers.
    """
    head = tag(
        "tr", *(tag("th", heading, scope="col", **_kind(i, names)) for i, heading in enumerate(headings))
    )
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(_cell(c, _kind(i + 1, names)) for i, c in enumerate(row[1:])),
        )
        for row in rows
    )
    many = {"class_": "many"} if len(headings) > MANY else {}
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), **many)
    return tag("div", whole, class_="scroll", role="region", tabindex=0, aria_label=caption)


def _cell(content: object, kind: dict[str, str]) -> Html:
    if not isinstance(content, Cell):
        return tag("td", content, **kind)
    value = {} if content.value is None else {"data_v": repr(content.value)}
    best = STARS.get(content.best, "")
    return tag("td", best, content.content, **value, **kind)


def _kind(column: int, names: int) -> dict[str, str]:
    return {} if column < names else {"class_": "number"}


def swatch(look: Look) -> Html:
    """A method's line and marker, small."""
    return tag(
        "i",
        class_="swatch",
        data_c=look.colour,
        data_d=json.dumps(look.dash),
        data_m=look.marker,
        style=f"--c:{look.colour}",
        aria_hidden="true",
    )


def script_safe(data: Any) -> Html:
    """JSON for use within <script>; no text in it can end the script."""
    plain = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Html(plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
