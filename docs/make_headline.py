"""The README's figure: accuracy on MNIST by bytes up, and under it ours minus SCAFFOLD wherever both ran.

docs/make_results.py draws it from the table.csv of the frontier's studies; every number in it is computed.
"""

import csv
import json
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from fedcom.formats import MB, size
from fedcom.reports.figures import MARKS, blank
from fedcom.reports.looks import COLOURS, marker, readable
from fedcom.reproduce.drawing import save_png
from fedcom.reproduce.frontier import BASE, OURS, PAPER, POINTS
from fedcom.reproduce.panels import MOMENTUM, settings

PLAIN = OURS.removesuffix(MOMENTUM)
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}
HARDER = {  # the end of a panel's name, and its words on a wide and on a narrow screen
    "": ("2 classes per client", "2 classes"),
    "-1-class": ("1 class per client", "1 class"),
    "-half": ("half of the clients", "half take part"),
    "-sampled": ("10 % of the clients", "10 % take part"),
}
# The name of each mark, and where it stands on wide and narrow screens: points from the mark, and the side.
NAMES = {
    BASE: ("SCAFFOLD", (14, -19, "center"), (18, -18, "right")),
    f"{BASE}{MOMENTUM}": ("SCAFFOLD, momentum", (24, 15, "right"), (18, 12, "right")),
    "fedavg": ("FedAvg", (-12, -2, "right"), (9, -2, "left")),
    PAPER: ("FedCOMGATE,\n8 bits (the paper)", (0, -26, "center"), (14, -44, "right")),
    PLAIN: ("FedCOMGATE-exact, 0.03 bit", (10, -19, "left"), (6, -18, "left")),
    OURS: ("FedCOMGATE-exact,\n0.03 bit, momentum", (-88, 15, "left"), (-36, 13, "left")),
}
MINUS = "\u2212"
INKS = {  # paper, text, pale text, lines
    "light": ("#ffffff", "#1f2328", "#59636e", "#d1d9e0"),
    "dark": ("#0d1117", "#f0f6fc", "#a6b0bb", "#3d444d"),
}


class Point(NamedTuple):
    """A line of a study's table.csv: accuracy in %, its standard deviation over seeds, megabytes up."""

    accuracy: float
    spread: float
    up: float

    def above(self, other: "Point") -> bool:
        """Whether it is higher by more than either spread."""
        return self.accuracy - other.accuracy > max(self.spread, other.spread)


def points_in(results: Path) -> dict[str, dict[str, Point]]:
    """The points of the frontier's studies that did not diverge, by panel and label."""
    found: dict[str, dict[str, Point]] = {}
    for data in POINTS:
        with (results / f"frontier-{data}" / "table.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                if line["spread"]:
                    numbers = [float(line[key]) for key in ("accuracy", "spread", "up_MB")]
                    found.setdefault(line["panel"], {})[line["point"]] = Point(*numbers)
    return found


def draw(results: Path, out: Path) -> None:
    """Write headline-light.png and headline-dark.png, and the same two for narrow screens."""
    found = points_in(results)
    setting = json.loads((results / "frontier-mnist" / "verdicts.json").read_text(encoding="utf-8"))[0][
        "setting"
    ]
    for name in INKS:
        for narrow in (False, True):
            figure = Headline(found, setting, name, narrow).figure
            save_png(figure, out / f"headline{'-narrow' * narrow}-{name}.png")


class Headline:
    """The figure in one of its forms.

    Args:
        found: as `points_in` returns them.
        setting: of the upper panel, in words.
        paper: a key of INKS.
        narrow: for a screen 390 pixels wide, instead of 830.
    """

    def __init__(self, found: dict[str, dict[str, Point]], setting: str, paper: str, narrow: bool) -> None:
        self.found, self.narrow = found, narrow
        self.paper, self.ink, self.pale, self.line = INKS[paper]
        self.figure = blank(*((5.0, 7.4) if narrow else (10.0, 5.9)), dpi=160, facecolor=self.paper)
        self.size = 10.6 if narrow else 12
        self.top, self.foot = (0.9, 0.36) if narrow else (0.91, 0.375)
        left = 0.085 if narrow else 0.05
        self.axes = self._blank((left, self.foot, 0.985 - left, self.top - self.foot))
        data, _, rest = setting.partition(", ")
        words = f"Test accuracy in % on {DATA.get(data, data)}, {rest}; bars, band: standard deviation"
        self._say(
            self.figure, "\n".join(wrap(words, 62 if narrow else 120)), 0.012, 0.985, self.pale, va="top"
        )
        self._points(found["mnist"])
        self._strip()

    def _blank(self, place: tuple[float, float, float, float]) -> Any:
        axes = self.figure.add_axes(place, facecolor="none")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelcolor=self.ink, labelsize=self.size)
        return axes

    def _say(self, where: Any, words: str, x: float, y: float, colour: str = "", **style: Any) -> Any:
        own = {"size": self.size, "color": colour or self.ink, "parse_math": False, **style}
        return where.text(x, y, words, **own)

    def _colour(self, label: str) -> str:
        """A method's colour, in which text can be read."""
        return readable(COLOURS[settings(label)["name"]], self.paper, 4.5 if self.paper == "#ffffff" else 7)

    def _points(self, points: dict[str, Point]) -> None:
        """The upper panel: marks, names, the line of SCAFFOLD, the arrow and the bracket."""
        axes, base, ours = self.axes, points[BASE], points[OURS]
        up = {label: point for label, point in points.items() if ", down " not in label}  # else twice
        top = max(p.accuracy + p.spread for p in up.values())
        low = min(up[label].accuracy - up[label].spread for label in NAMES)
        axes.set(xscale="log", ylim=(low - 0.1, top + (0.55 if self.narrow else 0.05)))
        axes.set_xlim(min(p.up for p in up.values()) / 2.2, base.up * (3.5 if self.narrow else 2.2))
        axes.grid(color=self.line, linewidth=0.8, axis="y")
        axes.set_axisbelow(True)
        ticks = [x for x in (0.1, 1, 10, 100) if axes.get_xlim()[0] < x < axes.get_xlim()[1]]
        axes.set_xticks(ticks, ["100 kB" if x < 1 else f"{x} MB" for x in ticks])
        axes.minorticks_off()
        axes.set_yticks([y / 2 for y in range(int(2 * low) + 1, int(2 * top) + 1)])
        axes.set_xlabel("uploaded per client over the whole training", color=self.pale, size=self.size)
        axes.axhspan(
            base.accuracy - base.spread,
            base.accuracy + base.spread,
            color=self._colour(BASE),
            alpha=0.2,
            lw=0,
        )
        axes.axhline(base.accuracy, color=self._colour(BASE), linewidth=1.5)
        for label, point in up.items():
            self._mark(label, point)
        if ours.accuracy >= base.accuracy - max(ours.spread, base.spread):
            self._arrow(base, ours)
        if ours.above(base):
            self._bracket(base, ours)

    def _mark(self, label: str, point: Point) -> None:
        """A mark with its spread and its name, if NAMES has one; one below the range is told at its edge."""
        known, axes = label in NAMES, self.axes
        colour, low = (self._colour(label) if known else self.line), axes.get_ylim()[0]
        if point.accuracy < low:
            axes.plot(
                point.up, 0.03, "v", color=self.pale, markersize=6, transform=axes.get_xaxis_transform()
            )
            style = {"transform": axes.get_xaxis_transform(), "va": "center"}
            self._say(axes, f"{point.accuracy:.1f}", 1.15 * point.up, 0.035, self.pale, **style)
            return
        shape = MARKS[marker(settings(label)["name"])]
        marks = {"markersize": 10 if known else 5, "elinewidth": 1.6, "zorder": 4 if known else 2}
        hollow = {"markerfacecolor": self.paper, "markeredgewidth": 2} if label == PLAIN else {}
        bar = point.spread if known else None
        axes.errorbar(point.up, point.accuracy, bar, fmt=shape, color=colour, **marks, **hollow)
        if known:
            words, *places = NAMES[label]
            dx, dy, side = places[self.narrow]
            style = {"size": self.size, "color": colour, "ha": side, "va": "bottom" if dy > 0 else "center"}
            style |= {
                "weight": "bold" if label in (OURS, PLAIN) else "normal",
                "linespacing": 1.05,
                "zorder": 6,
            }
            place = (point.up, point.accuracy)
            text = axes.annotate(
                words, place, (dx, dy), textcoords="offset points", parse_math=False, **style
            )
            self._halo(text)

    def _halo(self, text: Any) -> None:
        from matplotlib.patheffects import withStroke

        text.set_path_effects([withStroke(linewidth=4, foreground=self.paper)])

    def _arrow(self, base: Point, ours: Point) -> None:
        """From SCAFFOLD's bytes to ours, with how many times fewer they are."""
        style = {"arrowstyle": "-|>,head_length=0.7,head_width=0.35", "shrinkA": 12, "shrinkB": 12}
        style |= {"color": self.ink, "linewidth": 2.2}
        self.axes.annotate("", (ours.up, ours.accuracy), (base.up, base.accuracy), arrowprops=style, zorder=5)
        words = f"{base.up / ours.up:,.0f} times fewer bytes up"
        sent = f"{size(base.up * MB)} → {size(ours.up * MB)} per client"
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "center",
            "color": self.ink,
            "zorder": 6,
        }
        if self.narrow:  # above all marks
            where = {"xy": (0.5, 0.95), "xycoords": "axes fraction"}
        else:
            where = {"xy": (1.25 * (ours.up * base.up) ** 0.5, (ours.accuracy + base.accuracy) / 2)}
        for line, dy, points, weight in (
            (words, 25, 18 if self.narrow else 25, "bold"),
            (sent, 8, self.size + 1, "normal"),
        ):
            text = self.axes.annotate(
                line, xytext=(0, dy - 18 * self.narrow), size=points, weight=weight, **where, **place
            )
            self._halo(text)

    def _bracket(self, base: Point, ours: Point) -> None:
        """How many points ours is above SCAFFOLD."""
        x = ours.up / (1.5 if self.narrow else 1.25)
        edge = x / 0.93
        self.axes.plot(
            [edge, x, x, edge],
            [base.accuracy] * 2 + [ours.accuracy] * 2,
            color=self.ink,
            linewidth=1.6,
            zorder=5,
        )
        words = (
            f"+{ours.accuracy - base.accuracy:.1f}\npoints"
            if self.narrow
            else f"+{ours.accuracy - base.accuracy:.1f} points"
        )
        style = {"ha": "right", "va": "center", "weight": "bold", "zorder": 6, "linespacing": 1.0}
        self._halo(self._say(self.axes, words, x * 0.93, (ours.accuracy + base.accuracy) / 2, **style))

    def _strip(self) -> None:
        """The rows below: ours minus SCAFFOLD in each panel, and minus SCAFFOLD with momentum."""
        left, right = (0.26, 0.99) if self.narrow else (0.19, 0.985)
        head, foot = (self.foot - 0.17, 0.02) if self.narrow else (self.foot - 0.2, 0.025)
        momentum = f"{BASE}{MOMENTUM}"
        heads = "FedCOMGATE-exact 0.03 bit, momentum,", "in points above  ◆ SCAFFOLD", "◇ SCAFFOLD, momentum"
        ours = self._colour(OURS)
        texts = (
            [f"{heads[0]} {heads[1]}  {heads[2]}"]
            if not self.narrow
            else [heads[0], f"{heads[1]}  {heads[2]}"]
        )
        for i, words in enumerate(texts):
            self._say(
                self.figure,
                words,
                0.012,
                head + (0.045 if self.narrow else 0.055) + 0.026 * (len(texts) - 1 - i),
                va="bottom",
            )
        width = (right - left) / len(DATA)
        gaps = {
            (panel, other): (own[OURS], own[other])
            for panel, own in self.found.items()
            for other in (BASE, momentum)
            if OURS in own and other in own
        }
        found = [a.accuracy - b.accuracy for a, b in gaps.values()]
        for i, (data, name) in enumerate(DATA.items()):
            axes = self._blank((left + i * width, foot, (0.61 if self.narrow else 0.62) * width, head - foot))
            axes.set(
                xlim=(min(found) - 0.3, max(found) + 0.3),
                ylim=(len(HARDER) - 0.5, -0.5),
                xticks=[],
                yticks=[],
            )
            axes.axvline(0, color=self.pale, linewidth=1.2)
            axes.set_title(name, size=self.size, color=self.ink, pad=3)
            for row, end in enumerate(HARDER):
                if i == 0:
                    words = HARDER[end][self.narrow]
                    self._say(
                        self.figure,
                        words,
                        0.012,
                        foot + (head - foot) * (1 - (row + 0.5) / len(HARDER)),
                        va="center",
                    )
                if (data + end, BASE) in gaps:
                    self._row(axes, row, gaps[data + end, BASE], gaps[data + end, momentum], ours)
                else:
                    self._say(axes, "not run", 0.15, row, self.pale, va="center")

    def _row(
        self, axes: Any, row: int, pair: tuple[Point, Point], second: tuple[Point, Point], colour: str
    ) -> None:
        """One row; the number of a gap that is not larger than both spreads is pale."""
        gap, other = (a.accuracy - b.accuracy for a, b in (pair, second))
        axes.plot([0, other], [row, row], color=self.line, linewidth=2, zorder=1)
        axes.plot([0, gap], [row, row], color=colour, linewidth=4, zorder=2, solid_capstyle="butt")
        axes.plot(other, row, "D", markerfacecolor=self.paper, color=colour, markersize=5.5, zorder=3)
        axes.plot(gap, row, "D", color=colour, markersize=6.5, zorder=4)
        for i, (value, (a, b)) in enumerate(((gap, pair), (other, second))[: 1 if self.narrow else 2]):
            told = colour if a.above(b) or b.above(a) else self.pale
            words = f"{value:+.1f}".replace("-", MINUS)
            style = {"transform": axes.get_yaxis_transform(), "va": "center", "clip_on": False}
            self._say(axes, words, 1.03 + 0.29 * i, row, told, **style)
