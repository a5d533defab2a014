"""Write the HTML page of `fedcom report`, a single file that needs no others."""

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedcom.errors import ConfigError, flag
from fedcom.formats import counted
from fedcom.reports.page import codecs, points, sections
from fedcom.reports.page.collect import CollectedRuns, SavedRun, called, collect, named
from fedcom.reports.page.curves import curves
from fedcom.reports.page.markup import Html, join, script_safe, text
from fedcom.saving.whole import write_text
from fedcom.version import VERSION

MARK = '<meta name="generator" content="fedcom'  # by which a file is known to be a fedcom report
SCRIPTS = ("base.js", "chart.js", "zoom.js", "points.js", "clients.js", "sweeps.js", "tables.js", "live.js")
CLIENTS = 100  # how many clients of a partition are drawn; more would be too thin to see


def write(
    folders: Sequence[Path],
    out: Path | None = None,
    tell: Callable[[str], object] = lambda notice: None,
    also: CollectedRuns | None = None,
) -> Path:
    """Write the page of every run in or below some folders, and return its path.

    Args:
        also: runs and sweeps that are in no folder.
        out: the file to write; None for report.html in the folder, or in the current folder if there are
            several. An existing file is overwritten only if it is a fedcom report.
        tell: called with each notice of what is broken or missing in a run's folder.
    """
    out = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; {flag('out')} takes a file, such as {out / 'report.html'}")
    if out.exists() and MARK not in out.read_text(encoding="utf-8", errors="replace")[:1000]:
        raise ConfigError(f"{out} exists and is not a fedcom report; choose another {flag('out')}")
    found = collect(folders) if folders or also is None else CollectedRuns()
    if also is not None:
        found = CollectedRuns(named([*found.runs, *also.runs]), found.sweeps + also.sweeps, found.notices)
    for what, where in found.notices:
        tell(f"{where}: {what}")
    page = build(found)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}; choose another {flag('out')}") from None
    write_text(out, page)
    return out


def build(found: CollectedRuns, live: bool = False) -> str:
    """The HTML text of the page.

    Args:
        live: the page asks its server for a newer one every few seconds.
    """
    runs = found.runs
    data = {
        "curves": curves(runs),
        "frontier": points.frontier(runs),
        "costs": [{"key": key, "name": name, "title": title} for key, (name, title) in points.COSTS.items()],
        "aims": points.aims(runs),
        "rates": codecs.rates(runs),
        "sweeps": points.grids(found.sweeps),
        "partitions": _partitions(runs),
        "accuracies": points.accuracies(runs),
    }
    return Template(_file("page.html")).substitute(
        version=text(VERSION),
        connect="'self'" if live else "'none'",
        live="live" if live else "still",
        title=text(_title(found)),
        lead=text(_lead(found)),
        finding=text(sections.finding(found.runs)),
        going=sections.going(found.runs),
        css=_file("page.css"),
        js=join(map(_file, SCRIPTS)),
        data=script_safe(data),
        notices=sections.notices(found.notices),
        summary=sections.summary(runs),
        samples=sections.samples(runs),
        traffic=sections.traffic(runs),
        codecs=codecs.codec_table(runs),
        settings=sections.settings(runs),
        repeat=sections.repeat([run for run in runs if run.folder.is_dir()]),
    )


def _file(name: str) -> Html:
    return Html(files("fedcom.reports.page").joinpath(name).read_text(encoding="utf-8"))


def _title(found: CollectedRuns) -> str:
    if not found.runs:
        names = [sweep.folder.resolve().name for sweep in found.sweeps]
        return f"Sweep {', '.join(names)}" if names else "No runs yet"
    names = list(dict.fromkeys(_data(run.config.get("data", {})) for run in found.runs))
    labels = list(dict.fromkeys(run.label for run in found.runs))
    who = labels[0] if len(labels) == 1 else counted(len(labels), called(found.runs))
    return f"{who} on {', '.join(names[:3])}{' and others' * (len(names) > 3)}"


def _data(section: Mapping[str, Any]) -> str:
    """What a run's data is called: by the name of its file, if it is the user's own."""
    own = section.get("path") or section.get("tokens")
    return Path(str(own)).name if own else str(section.get("name", "unknown data"))


def _lead(found: CollectedRuns) -> str:
    """The number of runs and sweeps, and the settings of the task that all runs share, in one line."""
    numbers = ((found.runs, "run"), (found.sweeps, "sweep"))
    counts = [f"{len(some)} {name}{'s' * (len(some) > 1)}" for some, name in numbers if some]
    for section, key, form in (
        ("data", "clients", "{} clients"),
        ("data", "partition", "partition {}"),
        ("model", "name", "model {}"),
        ("run", "rounds", "{} rounds"),
    ):
        values = {str(run.config.get(section, {}).get(key)) for run in found.runs}
        counts += [form.format(*values)] if len(values) == 1 and values != {"None"} else []
    return " · ".join(counts)


def _partitions(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """Every different partition, once, named after the first run that has it."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        counts, shown = run.partition.get("label_counts"), run.partition.get("shown")
        entry = {
            "counts": counts and counts[:CLIENTS],
            "shown": shown and shown[:CLIENTS],
            "names": (names := run.partition.get("names")) and names[:CLIENTS],
            "clients": run.partition.get("clients"),
            "similarity": run.similarity or None,
        }
        name = f"{run.config.get('data', {}).get('name', run.label)}, seed {run.seed}"
        if counts or run.similarity:
            found.setdefault(repr(entry), {"name": name, **entry})
    return list(found.values())
