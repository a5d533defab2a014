"""Figures of the tables: fitted exponents beside the stated ones, and the rounds that they are fitted to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from fedcom.reports.comparison import grouped
from fedcom.reports.figures import FAINT, INK, MARKS, PALE, blank, frame
from fedcom.reports.looks import marker, palette
from fedcom.reproduce.drawing import save_png
from fedcom.reproduce.panels import shown
from fedcom.reproduce.tables.checks import Check
from fedcom.reproduce.tables.measured import MeasuredRounds, abscissa, drawn_at, holds, stated


def slopes(number: int, checks: Sequence[Check], found: MeasuredRounds, path: Path) -> None:
    """Draw the fitted exponent of every bound of one table beside the stated one."""
    good = sum(holds(found, check) for check in checks)
    sheet = blank(9.5, 1.55 + 0.3 * len(checks))
    title = f"Table {number}: {good} of {len(checks)} bounds grow no faster than stated"
    note = (
        "rounds grow with the bound to this power · bars: 95% intervals · thick line: stated · "
        "hollow: not so, or never reached"
    )
    tall = sheet.get_figheight()
    axes = frame(sheet, "", "")
    sheet.text(0.015, 1 - 0.36 / tall, title, size=13, weight="bold", color=INK)
    sheet.text(0.015, 1 - 0.62 / tall, note, size=9.5, color=PALE)
    axes.set_position((0.47, 0.5 / tall, 0.5, 1 - 1.35 / tall))
    for i, check in enumerate(checks):
        hue, line = palette([check.base.method.split()[0]]).popitem()[1], found.fit(check)
        goal = stated(check)
        axes.plot([goal, goal], [i - 0.4, i + 0.4], color=INK, linewidth=4, solid_capstyle="butt", zorder=1.9)
        if line is None:
            axes.text(goal + 0.05, i, "never reached", color=PALE, size=9, va="center")
            continue
        shape, face = MARKS[marker(check.base.method.split()[0])], hue if holds(found, check) else "white"
        style: dict[str, Any] = {
            "fmt": shape,
            "color": hue,
            "markerfacecolor": face,
            "markersize": 6,
            "capsize": 2,
        }
        axes.errorbar(line.slope, i, xerr=min(line.error, 1.5), **style)
    axes.set_yticks(range(len(checks)), _row_names(checks), size=9, color=INK)
    axes.set(ylim=(len(checks) - 0.4, -0.6), xlabel="fitted exponent")
    axes.xaxis.label.set_color(INK)
    axes.grid(visible=False, axis="y")
    save_png(sheet, path)


def _row_name(check: Check) -> str:
    """What a bound is of: method, problem, factor, and the bound itself."""
    words = f"{shown(check.base.method)} · {check.base.column} · {_SHORT[check.factor]}"
    return f"{words} in {check.bound}"


def _row_names(checks: Sequence[Check]) -> list[str]:
    """What each bound is of; where two would be called alike, with the problem too."""
    names = [_row_name(check) for check in checks]
    problems = [f" ({check.base.objective})" for check in checks]
    return [name + problem * (names.count(name) > 1) for name, problem in zip(names, problems, strict=True)]


_SHORT = {"q": "q", "m": "m", "kappa": "κ", "epsilon": "1/ε", "n": "n"}


def figure(title: str, checks: Sequence[Check], found: MeasuredRounds, path: Path) -> None:
    """Draw the rounds behind one table: one chart per problem and factor."""
    from matplotlib.lines import Line2D

    charts = grouped(checks, lambda check: (check.base.objective, check.factor))
    columns, hues = 4, palette(dict.fromkeys(check.base.method for check in checks))
    rows = -(-len(charts) // columns)
    sheet = blank(3.1 * columns, 2.75 * rows + 0.9, layout="constrained")
    axes = sheet.subplots(rows, columns, squeeze=False).flatten()
    for place, own in zip(axes, charts.values(), strict=False):
        _chart(place, own, found, hues)
    for place in axes[len(charts) :]:
        place.set_visible(False)
    handles = [
        Line2D([], [], color=hue, label=shown(name), **_pen(i, name))
        for i, (name, hue) in enumerate(hues.items())
    ]
    handles += [
        Line2D([], [], color=PALE, linestyle="--", linewidth=1, label="growth the paper states"),
        Line2D([], [], color=PALE, marker="x", linestyle="", label="never reached"),
    ]
    sheet.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    good = sum(holds(found, check) for check in checks)
    title = f"{title}: {good} of {len(checks)} bounds grow no faster than stated"
    sheet.suptitle(title, color=INK, fontsize=13, weight="bold", x=0.01, ha="left")
    save_png(sheet, path)


def _pen(index: int, method: str) -> dict[str, Any]:
    """The marker and the width of a method's line: later ones are narrower, so that none hides another."""
    return {
        "linewidth": (7.0, 3.0, 1.5, 0.8)[index % 4],
        "marker": MARKS[marker(method.split()[0])],
        "markersize": 8 - 1.5 * (index % 4),
        "alpha": 0.45 if index % 4 == 0 else 1,
    }


_WORDS = {"q": "1 + q", "m": "clients m", "kappa": "condition number κ", "epsilon": "1/ε", "n": "samples n"}


def _chart(axes: Any, checks: Sequence[Check], found: MeasuredRounds, hues: Mapping[str, str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    base, factor = checks[0].base, checks[0].factor
    for check in checks:
        hue = hues[check.base.method]
        x = [drawn_at(factor, value) for value in check.values]
        y = found.rounds(check)
        known = [(a, b) for a, b in zip(x, y, strict=True) if b]
        pen = _pen(list(hues).index(check.base.method), check.base.method)
        axes.plot([a for a, _ in known], [b for _, b in known], color=hue, **{**pen, "linestyle": "none"})
        line = found.fit(check)
        if line is not None:
            spans, (x0, y0) = abscissa(check), line.origin
            beyond = [(v - x0, b - y0) for v, b in zip(spans, y, strict=True) if b and v > x0 and b > y0]
            scale = geometric_mean([b / v ** stated(check) for v, b in beyond])
            as_stated = replace(line, slope=stated(check), factor=scale)
            there = [(a, v) for a, v, b in zip(x, spans, y, strict=True) if b]
            fitted = {**pen, "marker": ""}
            axes.plot([a for a, _ in there], [line.at(v) for _, v in there], color=hue, **fitted)
            axes.plot(x, [as_stated.at(v) for v in spans], "--", color=hue, linewidth=0.9)
        missed = [a for a, b in zip(x, y, strict=True) if not b]
        axes.plot(missed, [0.96] * len(missed), "x", color=hue, transform=axes.get_xaxis_transform())
    axes.set(xscale="log", yscale="log", xlabel=_WORDS[factor])
    tried = sorted({drawn_at(factor, value) for check in checks for value in check.values})
    axes.set_xticks(
        _apart(tried),
        [f"{value:.2g}" if value < 10 else f"{value:.0f}" for value in _apart(tried)],
        fontsize=8,
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    axes.set_ylabel("rounds", color=INK)
    axes.set_title(f"{base.column} ({base.objective})", fontsize=10, color=INK)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.spines[:].set_visible(False)


def _apart(values: Sequence[float]) -> list[float]:
    """Those of some rising values that are far enough from the one before to have a tick of their own."""
    kept = list(values[:1])
    for value in values[1:]:
        if math.log(value / kept[-1]) > 0.09 * math.log(values[-1] / values[0]):
            kept.append(value)
    return kept
