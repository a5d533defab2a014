"""How a line looks: its method's colour, and dashes and a marker where colours alone could be mixed up."""

import itertools
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

# A method and its compressing twin have related colours: the lighter one sends whole vectors, the darker
# one compresses.
COLOURS = {
    "local-sgd": "#6f6f6f",
    "fedavg": "#d98c00",
    "fedavgm": "#b8cd3a",
    "fedadam": "#411e7e",
    "fedyogi": "#07b4c5",
    "fedadagrad": "#1bc729",
    "fednova": "#170702",
    "diloco": "#d908ab",
    "muloco": "#d95950",
    "sparseloco": "#d0083e",
    "fedexp": "#982aef",
    "fedcm": "#4c06c0",
    "feddyn": "#460234",
    "fedpaq": "#6e2500",
    "fedcom": "#b03a00",
    "qsparse": "#8a8a2b",
    "fedgate": "#2f97d8",
    "fedcomgate": "#0b4a9b",
    "fedcomgate-exact": "#0a0a5c",
    "vrl-sgd": "#7c6fe0",
    "scaffold": "#009e73",
    "scaffold-m": "#7bad5a",
    "scallion": "#3c7d1f",
    "scafcom": "#004d3a",
    "econtrol": "#9f569e",
    "diana": "#cc79a7",
    "vr-diana": "#8f2a6b",
}
SPARE = ("#332288", "#44aa99", "#aa4499", "#661100", "#6699cc", "#117733", "#b59a3c", "#000000", "#cc6677")
DASHES = ((), (7, 3), (2, 2.5), (9, 3, 2, 3))
MARKERS = ("circle", "square", "triangle", "diamond")
# A marker for each family of methods: averages have circles, what follows here another.
FAMILIES = {
    "diamond": ("fedgate", "fedcomgate", "fedcomgate-exact", "vrl-sgd"),
    "square": ("scaffold", "scaffold-m", "scallion", "scafcom"),
    "triangle": ("diana", "vr-diana", "econtrol", "qsparse", "feddyn"),
}
# Methods that compress are dashed and SCAFFOLD is dotted: their lines often lie on those of their twins.
DASHED = {
    **dict.fromkeys(("fedpaq", "fedcom", "fedcomgate", "scallion", "qsparse", "vr-diana"), DASHES[1]),
    "fedcomgate-exact": DASHES[3],
    "scaffold": DASHES[2],
}
STYLES = tuple((DASHES[(i + j) % 4], MARKERS[i]) for j in range(4) for i in range(4))
SHADES = (0.0, 0.5, -0.45, 0.28, -0.22, 0.62)  # towards white, or towards black if negative
APART = 14.0  # colours nearer than this in CIELAB count as alike
PAPERS = {"#ffffff": 0.0, "#14171b": 4.0}  # of the light and the dark page: the contrast of lines to it
_EYES = {  # linear RGB as it is seen: by most, and without red, green or blue cones (Machado et al., 2009)
    "all cones": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "no blue": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


class Look(NamedTuple):
    """How one line is drawn.

    Args:
        dash: lengths of dashes and gaps; empty for a line that is whole.
        marker: one of MARKERS.
    """

    colour: str
    dash: tuple[float, ...]
    marker: str


def palette(methods: Iterable[str]) -> dict[str, str]:
    """The colour of each label: fixed for known methods, else chosen by the label's checksum."""
    known = {method: COLOURS.get(method.lower(), "") for method in methods}
    free = list(SPARE)
    for method in sorted(method for method, colour in known.items() if not colour):
        free = free or list(SPARE)
        known[method] = free.pop(zlib.crc32(method.encode()) % len(free))
    return known


def line_style(method: str) -> dict[str, Any]:
    """How matplotlib draws a method's line: its dashes, above whole lines; nothing for other labels."""
    dash = own_looks()[method].dash if method in COLOURS else ()
    return {"linestyle": (0, tuple(length / 2 for length in dash)), "zorder": 2.2} if dash else {}


def marker(method: str) -> str:
    """The marker of a method's family; a circle for what is no method."""
    return next((kind for kind, own in FAMILIES.items() if method in own), "circle")


@cache
def own_looks() -> dict[str, Look]:
    """The look of each known method, the same in every picture."""
    return _told_apart({method: _wanted(colour, method) for method, colour in COLOURS.items()}, {})


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """The look of each label: no two are alike, on a light or a dark page, to any of four kinds of eyes.

    A label that is the name of a known method has that method's own look. Other labels of a method have
    shades of its colour.

    Args:
        methods: the method of each label.
    """
    known = {label: look for label, look in own_looks().items() if methods.get(label) == label}
    colours = palette(methods.values())
    turns = {method: itertools.count(method in methods) for method in methods.values()}
    others = {}
    for label, method in methods.items():
        turn = 0 if label == method else next(turns[method])  # a label that is the name itself has the colour
        if label not in known:
            others[label] = _wanted(shade(colours[method], SHADES[turn % len(SHADES)]), method)
    found = _told_apart(others, known)
    return {label: found[label] for label in methods}


def _wanted(colour: str, method: str) -> Look:
    return Look(colour, DASHED.get(method, ()), marker(method))


def _told_apart(wanted: Mapping[str, Look], found: Mapping[str, Look]) -> dict[str, Look]:
    """Looks as they are wanted beside those found already; where alike, with others' dashes."""
    found = dict(found)
    for label, (colour, dash, kind) in wanted.items():
        alike = [look[1:] for look in found.values() if distance(colour, look.colour) < APART]
        dashes, first = [dash for dash, _ in alike], (dash, kind)
        cost = {s: (alike.count(s), s[1] != kind, s != first, dashes.count(s[0])) for s in (first, *STYLES)}
        style = min(cost, key=lambda s: cost[s])
        found[label] = Look(colour, *style)
    return found


def shade(colour: str, share: float) -> str:
    """A colour mixed with white, or with black if the share is negative, yet readable on white."""
    end = np.full(3, 255.0 if share > 0 else 0.0)
    mixed = _mixed(colour, end, abs(share))
    return readable(mixed, "#ffffff", 2.4) if share else mixed


def readable(colour: str, paper: str, least: float) -> str:
    """A colour moved away from the paper's until its contrast is at least this; as the page's script does."""
    end = np.full(3, 0.0 if _luminance(paper) > 0.5 else 255.0)
    share = 0.0
    while share < 1 and contrast(_mixed(colour, end, share), paper) < least:
        share += 0.04
    return _mixed(colour, end, min(share, 1.0))


@cache
def distance(one: str, other: str) -> float:
    """How far two colours are apart on the page on which they are nearest; see `apart`."""
    return min(apart(readable(one, *page), readable(other, *page)) for page in PAPERS.items())


def apart(one: str, other: str) -> float:
    """How far two colours are apart in CIELAB: the least over all kinds of eyes."""
    return min(float(np.linalg.norm(_lab(one, eye) - _lab(other, eye))) for eye in _EYES)


def _lab(colour: str, eye: str) -> np.ndarray:
    xyz = _XYZ @ np.clip(_EYES[eye] @ _linear(colour), 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)


def _hex(rgb: np.ndarray) -> str:
    return "#" + "".join(f"{round(float(value)):02x}" for value in rgb)


def _mixed(colour: str, end: np.ndarray, share: float) -> str:
    return _hex(_rgb(colour) + share * (end - _rgb(colour)))


def _linear(colour: str) -> np.ndarray:
    s = _rgb(colour) / 255
    return np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)


def _luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour))


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' luminances, from 1 to 21; text needs 4.5."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)
