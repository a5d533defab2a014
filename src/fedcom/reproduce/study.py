"""What a study is: a claim of the paper, the runs that test it, a figure of them and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcom.config import Table, read
from fedcom.engines.simulation import Row
from fedcom.errors import ConfigError
from fedcom.reproduce.panels import Panel, Scale, StudyRun
from fedcom.reproduce.results import Results, Verdict
from fedcom.studies.compare import METHODS

PLACES = (Path("experiments"), *(Path(__file__).parents[up] / "experiments" for up in (1, 3)))

Measure = Callable[[StudyRun, str, bool], tuple[str, list[Row]]]  # of a run, a device and whether to be quiet


@dataclass(frozen=True)
class Study:
    """A figure of the paper as one command.

    Args:
        claims: what the paper says, in our words.
        plan: the panels at a scale.
        draw: the results as images in a folder; their names.
        judge: the verdict on each claim.
        measure: how a run is measured where its rows are not those of a simulation; run alone.
    """

    name: str
    title: str
    claims: tuple[str, ...]
    plan: Callable[[Scale], list[Panel]]
    draw: Callable[[Results, Path], list[str]]
    judge: Callable[[Results], list[Verdict]]
    measure: Measure | None = None
    notes: str = ""


def experiment(name: str) -> Path:
    """A file of experiments/: in the present folder, or as it was installed."""
    for place in PLACES:
        if (place / name).is_file():
            return place / name
    raise ConfigError(f"no file {name} under {' or '.join(map(str, PLACES))}")


def panel(
    file: str, scale: Scale, methods: Sequence[str] = METHODS, *, name: str | None = None,
    tuned: bool = True, over: Table | None = None,
) -> Panel:  # fmt: skip
    """The panel of a config under experiments/; tuned: each method at its own rates for this data set.

    over: sections laid over the file's.
    """
    table = read(experiment(file))
    for section, values in (over or {}).items():
        table[section] = {**table.get(section, {}), **values}
    grid = table.pop("grid", {})
    table = scale.of(table)
    if tuned:
        lay_rates(table, methods)
    return Panel(name or Path(file).stem, table, tuple(methods), grid)


def lay_rates(table: Table, methods: Sequence[str]) -> None:
    """Give each method the committed rates of its kind, but where the config has its own."""
    try:
        rates = read(experiment(f"rates/{table['data']['name']}.toml"))["methods"]
    except ConfigError:  # a data set that was never tuned for: the methods' own defaults stand
        return
    labels = table.setdefault("methods", {})
    for label in methods:
        own = labels.get(label, {})
        labels[label] = {**rates.get(own.get("name", label), {}), **own}
