"""What a study is: claims of the paper, the runs that test them, a figure and a verdict on each claim."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcom.algorithms import ALGORITHMS
from fedcom.config import Table, read
from fedcom.config.experiments import PLACES
from fedcom.data.files import at_hand
from fedcom.engines.results import Row
from fedcom.errors import ConfigError, unknown
from fedcom.reproduce.drawing import Chart, draw_charts
from fedcom.reproduce.panels import Panel, Scale, StudyRun, package_data, settings
from fedcom.reproduce.results import StudyResults, Verdict
from fedcom.studies.compare import METHODS

# Methods that have no tuned rates of their own start from those of another.
LIKE = {
    "fedcomgate-exact": "fedcomgate",
    "scaffold-m": "scaffold",
    "scallion": "scaffold",
    "scafcom": "scaffold",
    "diana": "fedavg",
    "econtrol": "fedavg",
    "vr-diana": "fedavg",
}

# Measures a run on a device, with or without progress; returns its status and its rows.
MeasureRun = Callable[[StudyRun, str, bool], tuple[str, list[Row]]]


@dataclass(frozen=True)
class Study:
    """A figure or table as one command.

    Args:
        name: what `fedcom reproduce` calls it, and its folder.
        title: the heading of its page.
        claims: what the paper says, in our words; of a study beyond the paper, what it is about.
        plan: returns the panels to run at a scale.
        tuned: returns the panels to tune; None: those of plan.
        judge_panel: returns the verdicts on what is claimed of a panel; their settings may be left empty.
        charts: returns the charts of a panel.
        measure: how each run is measured, if not by the rows of a simulation; then runs are not stacked.
        notes: a paragraph of the page on how it was measured.
        table: returns the lines of a panel's table for the page and table.csv; None for the usual table.
        seeds: how many per run in the full form, unless one asks for another number.
        in_part: whether some of its points can be drawn and judged without the others.
        beyond: whether it is not in the paper.
    """

    name: str
    title: str
    claims: tuple[str, ...]
    plan: Callable[[Scale], list[Panel]]
    judge_panel: Callable[[StudyResults, Panel], Iterable[Verdict]]
    charts: Callable[[StudyResults, Panel], Sequence[Chart]] = lambda results, panel: ()
    measure: MeasureRun | None = None
    notes: str = ""
    table: Callable[[StudyResults, str], list[dict[str, Any]]] | None = None
    seeds: int = Scale.usual(quick=False)
    in_part: bool = False
    beyond: bool = False
    tuned: Callable[[Scale], list[Panel]] | None = None

    @classmethod
    def told(cls, name: str, *, words: str | None = None, fill: Table | None = None, **own: Any) -> "Study":
        """The study whose words and, if no `plan` is given, panels are in studies.toml.

        Args:
            words: its section there; None for its name.
            fill: what stands for {key} in the words.
            own: the other fields.
        """
        section = package_data("studies.toml")[words or name]
        title, notes = (section.get(key, "").format(**fill or {}) for key in ("title", "notes"))

        def plan(scale: Scale) -> list[Panel]:
            return [panel(scale=scale, **entry) for entry in section["panels"]]

        beyond = "about" in section
        claims = tuple(section["about" if beyond else "claims"])
        return cls(name, title, claims, **{"plan": plan, "notes": notes, "beyond": beyond, **own})

    def panels(self, scale: Scale, tuning: bool = False) -> list[Panel]:
        """The panels to run or to tune at a scale, with the points that are asked for alone."""
        panels, only = ((tuning and self.tuned) or self.plan)(scale), {*scale.only}
        names, labels = [p.name for p in panels], dict.fromkeys(m for p in panels for m in p.methods)
        for name in scale.only:
            if name not in (*names, *labels):
                raise unknown(f"panel or point of {self.name}", name, (*names, *labels))
        panels = [p for p in panels if p.name in only or not only & {*names}]
        parts = [p.part(only & {*labels} or p.methods) for p in panels]
        return [p for p in parts if p.methods]

    def draw(self, results: StudyResults, out: Path) -> list[str]:
        """Draw the results into a folder; return the names of the images."""
        charts = [chart for p in results.panels for chart in self.charts(results, p)]
        return [draw_charts(charts, out / f"{self.name}.png")] if charts else []

    def judge(self, results: StudyResults) -> list[Verdict]:
        """The verdict on each claim."""
        return [
            replace(verdict, setting=verdict.setting or results.setting(p.name))
            for p in results.panels
            for verdict in self.judge_panel(results, p)
        ]


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
    tunes: Mapping[str, Sequence[str]] | None = None,
    seeds: int | None = None,
    over: Table | None = None,
    quick: Table | None = None,
    near: Table | None = None,
) -> Panel:
    """The panel that a config under experiments/ describes.

    Args:
        file: the path of the config under experiments/; {authors} in it stands for a data set by author.
        methods: names of methods, labels under [methods], or labels as `panels.settings` reads them.
        name: of the panel; None for the file's.
        tuned: run each method at its rates from experiments/rates.
        rates: the files there with rates for this very task; see `Panel`.
        tunes: what tuning looks for; see `Panel`.
        seeds: at most so many.
        over: settings that override the file's, by section.
        quick: settings that override those in the quick form.
        near: see `Panel`.
    """
    table = read(experiment_file(file.format(authors=authors()) if "{" in file else file))
    known = {*ALGORITHMS, *table.get("methods", {}), *(over or {}).get("methods", {})}
    labelled = {label: settings(label) for label in methods if label not in known}
    for changes in ({"methods": labelled}, over, quick if scale.quick else None):
        for section, values in (changes or {}).items():
            table[section] = {**table.get(section, {}), **values}
    grid = table.pop("grid", {})
    table = scale.of(table)
    followers = tuple(label for label, own in table.get("methods", {}).items() if "rates_of" in own)
    untuned = lay_rates(table, methods, rates) if tuned else ()
    given = name or Path(file).stem, table, tuple(methods), grid, tuple(rates), untuned
    return Panel(*given, tunes, seeds, followers, near)


def authors() -> str:
    """The data set by author: FEMNIST, the paper's, if its files are there; else MNIST by its 539 writers."""
    return "femnist" if at_hand("femnist") else "mnist-by-writer"


def lay_rates(table: Table, methods: Sequence[str], files: Sequence[str] = ()) -> tuple[str, ...]:
    """Add the rates of experiments/rates to each method in a config; rates that the config sets are kept.

    A label with `rates_of` gets the rates of that method, which comes before it.

    Args:
        methods: names of methods, or labels under [methods].
        files: the files with rates for this very task, by method or label; others get their method's rates.

    Returns:
        the methods and labels that no such file has; none if no files are given.
    """
    tuned = {label: rates for file in files for label, rates in rates_in(file).items()}
    labels = table.setdefault("methods", {})
    whose = {label: labels.get(label, {}).get("rates_of", label) for label in methods}
    for label in methods:
        own = labels.get(label, {})
        if own.pop("rates_of", None):
            like = labels[whose[label]]
            whole = {**like, "rate": like.get("server", {}).get("rate")}
            rates = {key: whole[key] for key in ("eta", "gamma", "rate") if whole.get(key) is not None}
        else:
            rates = dict(tuned.get(label) or method_rates(table["data"]["name"], own.get("name", label)))
        if "rate" in rates:  # of an adaptive server
            own = {**own, "server": {**own["server"], "rate": rates.pop("rate")}}
        labels[label] = {**rates, **own}
    return tuple(label for label in methods if files and whose[label] not in tuned)


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
