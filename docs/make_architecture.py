"""Draw docs/figures/architecture.svg: the rooms of fedcom and what each imports, read from the code.

A room is a folder or a module directly under src/fedcom. It stands one floor above the highest room that it
imports; arrows go down, and one that others already imply is left out. Modules that are rooms of their own
are the ground, which every room may use.
"""

import ast
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "fedcom"
PICTURE = Path(__file__).parent / "figures" / "architecture.svg"
ENTRANCES = ("__init__", "__main__")

WIDTH, MARGIN, GAP, DROP = 920, 28, 20, 30  # pixels; DROP is the height of an arrow
PADDING, LINE, LETTER = 14, 17, 6.7  # of a box's text: around it, a line's height, a letter's mean width
WIDE, COLUMN = 600, 110  # boxes wider than that have their purpose beside the name, so far to the right
LANE = 18  # between arrows that pass by several floors
GROUND_COLUMNS = 3

Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Room:
    """A folder or a module of the package."""

    name: str
    purpose: str
    folders: tuple[str, ...]
    is_folder: bool


@dataclass(frozen=True)
class Box:
    """A room's place in the picture."""

    room: Room
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The horizontal middle."""
        return self.x + self.width / 2


def rooms(src: Path = SRC) -> list[Room]:
    """Every room of the package, by name."""
    folders = [_room(path / "__init__.py", path) for path in src.iterdir() if (path / "__init__.py").exists()]
    modules = [_room(path, None) for path in src.glob("*.py") if path.stem not in ENTRANCES]
    return sorted([*folders, *modules], key=lambda room: room.name)


def _room(module: Path, folder: Path | None) -> Room:
    """The room whose docstring is in a module."""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    purpose = text.split("\n")[0].replace("`", "")
    if folder is None:
        return Room(module.stem, purpose, (), False)
    below = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    return Room(folder.name, purpose, tuple(below), True)


def imports(src: Path = SRC) -> dict[str, set[str]]:
    """The rooms that each room imports something from."""
    names = {room.name for room in rooms(src)}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in src.rglob("*.py"):
        own = path.relative_to(src).with_suffix("").parts[0]
        if own in graph:
            graph[own] |= (_imported(path) & names) - {own}
    return graph


def _imported(path: Path) -> set[str]:
    """What a module names directly after `fedcom.` in its imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("fedcom.")}


def reached(graph: Graph, name: str) -> set[str]:
    """Everything below a room, however far."""
    return set().union(*({below} | reached(graph, below) for below in graph[name]))


def without_implied(graph: Graph) -> dict[str, set[str]]:
    """The graph without arrows that a longer way makes plain."""
    return {
        name: {to for to in below if not any(to in reached(graph, other) for other in below - {to})}
        for name, below in graph.items()
    }


def floors(graph: Graph) -> list[list[str]]:
    """The rooms from the top floor to the lowest; on a floor each is near those that need it."""
    height: dict[str, int] = {}
    for name in sorted(graph, key=lambda name: len(reached(graph, name))):
        height[name] = max((height[below] + 1 for below in graph[name]), default=0)
    found: list[list[str]] = []
    for floor in range(max(height.values()), -1, -1):
        here = sorted(name for name in graph if height[name] == floor)
        found.append(sorted(here, key=lambda name: _place_above(name, graph, found)))
    return found


def _place_above(name: str, graph: Graph, above: Sequence[Sequence[str]]) -> float:
    """The mean place, from 0 at the left to 1, of the rooms above that import one."""
    places = [
        (i + 0.5) / len(floor) for floor in above for i, other in enumerate(floor) if name in graph[other]
    ]
    return sum(places) / len(places) if places else 0.5


def lay(row: Sequence[Room], y: float, columns: int | None = None, inset: float = 0) -> list[Box]:
    """Boxes of one width and height beside one another."""
    left, columns = MARGIN + inset, columns or len(row)
    width = (WIDTH - 2 * left - GAP * (columns - 1)) / columns
    lines = max(len(_lines(room, width)) for room in row) + (width <= WIDE)
    height = 2 * PADDING + LINE * lines + 4 * (width <= WIDE)
    return [Box(room, left + i * (width + GAP), y, width, height) for i, room in enumerate(row)]


def _lines(room: Room, width: float) -> list[str]:
    """The purpose in lines that fit the box, and the folders' names beside them if it is wide."""
    inside = 6.5 * len(_inside(room)) + COLUMN if width > WIDE else 0
    return textwrap.wrap(room.purpose, int((width - 2 * PADDING - inside) / LETTER))


def _inside(room: Room) -> str:
    return "  ".join(f"{name}/" for name in room.folders)


def draw(found: Sequence[Room], graph: Graph) -> str:
    """The picture as SVG."""
    by_name = {room.name: room for room in found}
    folders = {room.name for room in found if room.is_folder}
    tower = without_implied({name: graph[name] & folders for name in folders})
    stories = floors(tower)
    parts: list[str] = []
    boxes: dict[str, Box] = {}
    y = float(MARGIN)
    for number, names in enumerate(stories):
        row = lay([by_name[name] for name in names], y)
        boxes |= {box.room.name: box for box in row}
        parts += [_box(box, f"floor{number}") for box in row]
        y += row[0].height + DROP
    ground, bottom = _ground([room for room in found if not room.is_folder], y)
    down = [(boxes[name], boxes[to]) for name in boxes for to in sorted(tower[name])]
    near = [pair for pair in down if pair[1].y - pair[0].y - pair[0].height <= DROP]
    far = [pair for pair in down if pair not in near]
    parts += [_arrow(*pair) for pair in near]
    parts += [_bypass(*pair, WIDTH - MARGIN + LANE * (i + 1)) for i, pair in enumerate(far)]
    parts += [_fall(box, y) for name, box in boxes.items() if not tower[name]]
    return _page([*parts, *ground], WIDTH + LANE * len(far), bottom + MARGIN, len(stories))


def _ground(modules: Sequence[Room], top: float) -> tuple[list[str], float]:
    """The modules of the ground floor in one frame, and where it ends."""
    parts, y = [], top + 34
    for start in range(0, len(modules), GROUND_COLUMNS):
        row = lay(modules[start : start + GROUND_COLUMNS], y, GROUND_COLUMNS, inset=16)
        parts += [_box(box, "module") for box in row]
        y += row[0].height + 12
    bottom = y + 4
    frame = _rect("ground", MARGIN, top, WIDTH - 2 * MARGIN, bottom - top)
    title = _text(MARGIN + 16, top + 22, "small", "the ground: single modules, which every room may use")
    return [frame, title, *parts], bottom


def _box(box: Box, style: str) -> str:
    """A room: its name, the folders in it, and what it is for."""
    wide = box.width > WIDE
    x, y = box.x + PADDING, box.y + PADDING + 13
    left, top = (x + COLUMN, y) if wide else (x, y + LINE + 4)
    right = box.x + box.width - PADDING
    return "\n".join(
        [
            _rect(f"room {style}", box.x, box.y, box.width, box.height),
            _text(x, y, "name", box.room.name),
            *([_text(right, y, "small end", _inside(box.room))] if box.room.folders else []),
            *(
                _text(left, top + LINE * i, "purpose", line)
                for i, line in enumerate(_lines(box.room, box.width))
            ),
        ]
    )


def _arrow(above: Box, below: Box) -> str:
    """From a room to one on the next floor that it imports: straight down where one is over the other."""
    start, end = _within(below.middle, above), _within(_within(below.middle, above), below)
    half = (above.y + above.height + below.y) / 2
    way = f"C{_n(start)} {_n(half)} {_n(end)} {_n(half)} {_n(end)} {_n(below.y - 3)}"
    return _path(f"M{_n(start)} {_n(above.y + above.height)} {way}")


def _within(x: float, box: Box) -> float:
    """The place nearest to x along a box's edge, its corners aside."""
    return min(max(x, box.x + 30), box.x + box.width - 30)


def _bypass(above: Box, below: Box, lane: float) -> str:
    """From a room to one further down, beside the floors between."""
    side, start, turn = above.x + above.width, above.y + above.height / 2, below.y - DROP / 2
    return _path(f"M{_n(side)} {_n(start)} H{_n(lane)} V{_n(turn)} H{_n(below.middle)} V{_n(below.y - 3)}")


def _fall(box: Box, ground: float) -> str:
    """From a room of the lowest floor to the ground."""
    return _path(f"M{_n(box.middle)} {_n(box.y + box.height)} V{_n(ground - 3)}")


def _path(way: str) -> str:
    return f'<path class="arrow" d="{way}" marker-end="url(#head)"/>'


def _rect(style: str, x: float, y: float, width: float, height: float) -> str:
    size = f'width="{_n(width)}" height="{_n(height)}"'
    return f'<rect class="{style}" x="{_n(x)}" y="{_n(y)}" {size} rx="10"/>'


def _text(x: float, y: float, style: str, text: str) -> str:
    return f'<text class="{style}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _n(number: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")


def _page(parts: Sequence[str], width: float, height: float, stories: int) -> str:
    """The whole file: colours for light and dark, then what is drawn."""
    size = f'viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" height="{_n(height)}"'
    light = "\n".join(_shade(i, stories, "96%", "78%") for i in range(stories))
    dark = "\n".join(_shade(i, stories, "18%", "36%") for i in range(stories))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>The rooms of fedcom, and what each imports</title>",
            f"<style>{STYLE}{light}\n@media (prefers-color-scheme: dark) {{{DARK}{dark}\n}}\n</style>",
            HEAD,
            f'<rect class="paper" width="{_n(width)}" height="{_n(height)}" rx="14"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _shade(floor: int, stories: int, fill: str, stroke: str) -> str:
    """The colours of a floor, from violet at the top to green at the bottom."""
    hue = round(265 - 115 * floor / max(1, stories - 1))
    return f".floor{floor} {{ fill: hsl({hue} 40% {fill}); stroke: hsl({hue} 40% {stroke}); }}"


STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
.name { font-size: 15px; font-weight: 650; }
.purpose { font-size: 12.5px; fill: #445160; }
.small { font-size: 12px; fill: #6b7785; }
.end { text-anchor: end; }
.paper { fill: #ffffff; }
.room { stroke-width: 1.2; }
.module { fill: #ffffff; stroke: #c9d1d9; }
.ground { fill: #f4f6f8; stroke: #c9d1d9; stroke-dasharray: 5 4; }
.arrow { fill: none; stroke: #7b8794; stroke-width: 1.5; }
#head path { fill: #7b8794; }
"""
DARK = """
text { fill: #e6edf3; }
.purpose { fill: #b3bdc8; }
.small { fill: #8b97a5; }
.paper { fill: #10151b; }
.module { fill: #1a2129; stroke: #3a4450; }
.ground { fill: #141a21; stroke: #3a4450; }
.arrow { stroke: #8b97a5; }
#head path { fill: #8b97a5; }
"""
HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 L10 5 L0 10 z"/></marker></defs>'
)

if __name__ == "__main__":
    PICTURE.write_text(draw(rooms(), imports()), encoding="utf-8")
