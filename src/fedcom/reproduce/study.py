"""What a study is: claims of the paper, the runs that test them, a figure and a verdict on each claim."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcom.config import Table, read
from fedcom.config.experiments import PLACES
from fedcom.engines.simulation import Row
from fedcom.errors import ConfigError
from fedcom.reproduce.panels import Panel, Scale, StudyRun
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.studies.compare import METHODS

# Methods that have no tuned rates of their own start from those of another.
LIKE = {
    "fedcomgate-exact": "fedcomgate",
    "scallion": "scaffold",
    "scafcom": "scaffold",
    "diana": "fedavg",
    "vr-diana": "fedavg",
}

# Measures a run on a device, with or without progress; returns its status and its rows.
MeasureRun = Callable[[StudyRun, str, bool], tuple[str, list[Row]]]


@dataclass(frozen=True)
class Study:
    """A figure of the paper as one command.

    Args:
        name: what `fedcom reproduce` calls it, and its folder.
        title: the heading of its page.
        claims: what the paper says, in our words.
        plan: returns the panels to run at a scale.
        draw: draws the results into a folder and returns the names of the images.
        judge: returns the verdict on each claim.
        measure: how each run is measured, if not by the rows of a simulation; then runs are not stacked.
        notes: a paragraph of the page on how it was measured.
        table: returns the lines of a panel's table for the page and table.csv; None for the usual table.
    """

    name: str
    title: str
    claims: tuple[str, ...]
    plan: Callable[[Scale], list[Panel]]
    draw: Callable[[StudyResults, Path], list[str]]
    judge: Callable[[StudyResults], list[Verdict]]
    measure: MeasureRun | None = None
    notes: str = ""
    table: Callable[[StudyResults, str], list[dict[str, Any]]] | None = None


def experiment_file(name: str) -> Path:
    """The path of a file in experiments/: of the current folder, or of the installed package."""
    for place in PLACES:
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"no file {name} under {' or '.join(map(str, PLACES))}")


def panel(
    file: str,
    scale: Scale,
    methods: Sequence[str] = METHODS,
    *,
    name: str | None = None,
    tuned: bool = True,
    rates: Sequence[str] = (),
    over: Table | None = None,
) -> Panel:
    """The panel that a config under experiments/ describes.

    Args:
        file: the path of the config under experiments/.
        methods: names of methods, or labels under [methods].
        name: of the panel; None for the file's.
        tuned: run each method at its rates from experiments/rates.
        rates: the files there with rates for this very task; see `Panel`.
        over: settings that override the file's, by section.
    """
    table = read(experiment_file(file))
    for section, values in (over or {}).items():
        table[section] = {**table.get(section, {}), **values}
    grid = table.pop("grid", {})
    table = scale.of(table)
    untuned = lay_rates(table, methods, rates) if tuned else ()
    return Panel(name or Path(file).stem, table, tuple(methods), grid, tuple(rates), untuned)


def lay_rates(table: Table, methods: Sequence[str], files: Sequence[str] = ()) -> tuple[str, ...]:
    """Add the rates of experiments/rates to each method in a config; rates that the config sets are kept.

    Args:
        methods: names of methods, or labels under [methods].
        files: the files with rates for this very task, by method or label; others get their method's rates.

    Returns:
        the methods and labels that no such file has; none if no files are given.
    """
    tuned = {label: rates for file in files for label, rates in rates_in(file).items()}
    labels = table.setdefault("methods", {})
    for label in methods:
        own = labels.get(label, {})
        rates = tuned.get(label) or method_rates(table["data"]["name"], own.get("name", label))
        labels[label] = {**rates, **own}
    return tuple(label for label in methods if files and label not in tuned)


def method_rates(data: str, method: str) -> dict[str, float]:
    """The tuned rates of a method on a data set, or of the method it is like; none if none were tuned."""
    known = rates_in(data)
    return known.get(method) or known.get(LIKE.get(method, ""), {})


def rates_in(file: str) -> dict[str, dict[str, float]]:
    """The rates by method or label in a file of experiments/rates; none if there is no such file."""
    try:
        found: dict[str, dict[str, float]] = read(experiment_file(f"rates/{file}.toml"))["methods"]
    except ConfigError:
        return {}
    return found
