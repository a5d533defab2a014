"""What `fedcom compare` does: run several methods on one task, then write a table, figures and a page."""

import json
import re
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.algorithms import ALGORITHMS, Algorithm
from fedcom.config import Config, DataConfig, Table, check_sections, drop_void, override, read, renamed
from fedcom.engines.ranks.ranks import job
from fedcom.engines.results import frame
from fedcom.engines.simulation import pick_device
from fedcom.errors import ConfigError, Stopped, flag, nearest
from fedcom.formats import counted
from fedcom.registry import short_name
from fedcom.reports import comparison, page
from fedcom.reports.comparison import compare_table, markdown, write_csv
from fedcom.reports.figures import VIEWS, figures
from fedcom.runs.curve import Curve
from fedcom.runs.folder import LOCK, claim, clear
from fedcom.runs.given import Given
from fedcom.runs.prepare import build_task, refuse
from fedcom.runs.record import CHECKPOINTS, read_json, read_rows
from fedcom.runs.record import FILES as RUN_FILES
from fedcom.runs.run import execute
from fedcom.runs.spread import Unit, spread, worth_spreading
from fedcom.saving.whole import write_json, write_text

if TYPE_CHECKING:
    from pandas import DataFrame

METHODS = ("fedavg", "fedpaq", "scaffold", "fedgate", "fedcomgate")  # the paper's five
RUN_DUTY = "run"  # see `run_unit`
PLAN = "compare.json"  # says what the folder's comparison is of
FILES = ("table.json", "table.csv", "table.md", "report.html", *(f"{view}.png" for view in VIEWS))


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Args:
        table: one entry per method; see `compare_table`.
        target: the accuracy that bytes and rounds "to target" are measured to.
        stopped: the signal that stopped it before all runs were done, if one did.
        curves: the rows of every run.
        folder: where all is written: one folder per run, the table and the figures.
    """

    table: list[dict[str, Any]] = field(repr=False)
    target: float
    stopped: Stopped | None
    curves: list[Curve] = field(repr=False)
    folder: Path

    def frame(self) -> "DataFrame":
        """The table as a pandas frame, indexed by method; needs `pip install 'fedcom[pandas]'`."""
        return frame(self.table).set_index("method")

    def __repr__(self) -> str:
        methods = ", ".join(entry["method"] for entry in self.table)
        return f"Comparison({methods}; {counted(len(self.curves), 'run')} in {self.folder})"

    def __str__(self) -> str:
        """The table, as text."""
        return comparison.markdown(self.table, self.target)

    def _repr_html_(self) -> str:
        """The table as it is printed, for notebooks."""
        return comparison.html(self.table, self.target)

    def rows(self) -> "DataFrame":
        """Every row of every run as one pandas frame, with its method and seed."""
        return frame({"method": c.method, "seed": c.seed, **row} for c in self.curves for row in c.rows)


def labels(table: Table) -> list[str]:
    """The default methods: the paper's five, then the labels under [methods] in the config."""
    return list(dict.fromkeys([*METHODS, *table.get("methods", {})]))


def compare(
    table: Table,
    methods: Sequence[str],
    out: Path,
    *,
    seeds: int = 1,
    force: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Comparison:
    """Run every method with every seed, each in its own folder; a run that diverges does not stop the rest.

    A folder that holds the same comparison is completed: runs that are done are not repeated, and one that
    was stopped goes on where it was.

    Args:
        table: the settings of a config file, by section.
        methods: names of methods, or labels under [methods].
        out: the folder of the comparison.
        seeds: how many seeds per method, from run.seed on.
        force: replace another comparison in the folder.
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
    """
    first = Config.of({"run": table.get("run", {})}).run
    configs = variants(table, methods, range(first.seed, first.seed + seeds))
    data = _resolve(configs)
    deal = {
        "classes": f"{data.classes_per_client} classes per client",
        "dirichlet": f"dirichlet {data.alpha:g}",
    }
    split = deal.get(data.partition or "", data.partition)
    plan = {"config": table, "methods": list(methods), "seeds": seeds}
    return play(configs, out, plan, f"{data.name} · {data.clients} clients · {split}", force, device, quiet)


def play(
    configs: Sequence[tuple[str, Config | Given]],
    out: Path,
    plan: Table,
    task: str,
    force: bool,
    device: str,
    quiet: bool,
) -> Comparison:
    """Run every config that is not done yet; write the table, the figures and the page.

    Args:
        configs: of every run, with its label.
        plan: what the comparison is of, as plain data; a folder that holds another one is refused.
        task: in words, for the figures.
    """
    seeds = len({config.run.seed for _, config in configs})
    target = configs[0][1].run.target_accuracy
    with claim(out, used=True):
        _take_over(out, plan, force)
        curves, stopped = _run_all(configs, out, seeds, device, quiet)
        rows = _write(curves, target, out, f"{task} · {seeds} seed{'s' * (seeds > 1)}")
        page.write(
            [_folder(out, label, config) for label, config in configs[: len(curves)]], out / "report.html"
        )
    return Comparison(rows, target, stopped, curves, out)


def _run_all(
    configs: Sequence[tuple[str, Config | Given]], out: Path, seeds: int, device: str, quiet: bool
) -> tuple[list[Curve], Stopped | None]:
    """The curves of all runs, or of those that were begun before a signal stopped them."""
    curves: list[Curve] = []
    played = _shared_out(configs, out, device, quiet)
    try:
        for label, config in configs:
            title = label if seeds == 1 else f"{label} seed {config.run.seed}"
            folder = _folder(out, label, config)
            if folder in played:
                curves.append(Curve(label, config.run.seed, read_rows(folder), _status(folder)))
                continue
            outcome = execute(config, folder, start="resume", device=device, quiet=quiet, label=title)
            curves.append(replace(outcome.curve, method=label))
            if isinstance(outcome.error, Stopped):
                raise outcome.error
    except Stopped as stopped:
        if not curves:
            raise
        return curves, stopped
    return curves, None


def _shared_out(
    configs: Sequence[tuple[str, Config | Given]], out: Path, device: str, quiet: bool
) -> Collection[Path]:
    """On several ranks and if there are enough runs, let each rank play whole ones; returns their folders."""
    runs = {_folder(out, label, c): (label, c) for label, c in configs if isinstance(c, Config)}
    pending = [folder for folder in runs if _status(folder) != "done"]
    if not worth_spreading(len(pending)):
        return ()
    units = {
        str(folder): {
            "config": runs[folder][1].table(),
            "folder": str(folder.absolute()),
            "label": f"{runs[folder][0]} seed {runs[folder][1].run.seed}",
            "device": pick_device(device).type,
            "quiet": quiet,
        }
        for folder in pending
    }
    spread(RUN_DUTY, run_unit, units)
    return pending


def _status(folder: Path) -> str:
    """How the run in a folder ended; empty if there is none."""
    return str(read_json(folder / "summary.json").get("status", ""))


def run_unit(unit: Unit) -> None:
    """Play one run on this rank, into its folder."""
    outcome = execute(
        Config.of(unit["config"]),
        Path(unit["folder"]),
        start="resume",
        device=unit["device"],
        quiet=unit["quiet"] or job().rank > 0,
        label=unit["label"],
    )
    if isinstance(outcome.error, Stopped):
        raise outcome.error


def _folder(out: Path, label: str, config: Config | Given) -> Path:
    return out / label / f"seed-{config.run.seed}"


def _take_over(out: Path, plan: Table, force: bool) -> None:
    """Make a folder ready for a comparison; one that holds the same comparison is left as it is.

    Another comparison is deleted if forced, with its runs; other files are kept.
    """
    text = json.dumps(plan, indent=2, default=str) + "\n"
    if (out / PLAN).is_file() and (out / PLAN).read_text() == text and not force:
        return
    if any(path.name != LOCK for path in out.iterdir()):
        if not force:
            raise ConfigError(
                f"{out} is not empty and does not hold this comparison; choose another {flag('out')}, or "
                f"{flag('force', 'force=True')} to overwrite what is there"
            )
        clear(out, (PLAN, *FILES))
        for run in {path.parent for path in out.glob("*/seed-*/config.toml")}:
            with claim(run, used=True):  # which removes it, unless it holds other files
                clear(run, (*RUN_FILES, CHECKPOINTS))
            with suppress(OSError):
                run.parent.rmdir()
    write_text(out / PLAN, text)


def variants(table: Table, methods: Sequence[str], seeds: range) -> list[tuple[str, Config]]:
    """The label and the config of every run; raises ConfigError if any of them is wrong.

    Args:
        table: the settings of a config file, by section.
    """
    table = renamed(table)
    check_sections(table, ("methods",))
    _check_labels(table, methods, seeds)
    check_shared(table, methods)
    return [
        (label, variant({**table, "run": {**table.get("run", {}), "seed": seed}}, label))
        for label in methods
        for seed in seeds
    ]


def check_shared(table: Table, methods: Sequence[str]) -> None:
    """Refuse shared hyper-parameters that none of the methods has; warn of links that none of them uses."""
    known = {key for label in methods for key in _keys(_method(table, label))} | {"name"}
    for key in table.get("algorithm", {}):
        if key not in known:
            raise ConfigError(f"none of the methods has a key {key!r} in algorithm; {nearest(key, known)}")
    kinds = [_method(table, label) for label in methods]
    used = {
        "uplink": any(_compresses(method) for method in kinds),
        "downlink": any(method.needs_mean for method in kinds),
    }
    for section, anyone in used.items():
        if table.get(section) and not anyone:
            given = ", ".join(f"{section}.{key}={value}" for key, value in table[section].items())
            warnings.warn(
                f"{given} is not used: none of {', '.join(methods)} compresses its {section} by default; "
                f"write methods.{methods[0]}.{section}.KEY=... to set it for one of them",
                stacklevel=2,
            )


def alone(path: str | None, overrides: Sequence[str], trust: bool = True) -> Config:
    """The config of a single run: of the method or label that algorithm.name names.

    If the file has settings for it under [methods], they apply as in a comparison; overrides come last.

    Args:
        path: of a config file; None: none.
        trust: whether a file outside the current folder may name code.
    """
    table, said = read(path, overrides, trust), read(None, overrides)
    check_sections(table, ("methods",))
    methods = table.pop("methods", {})
    label = table.get("algorithm", {}).get("name", "fedcomgate")
    for other, own in methods.items():
        _check_section(other, own)
        if other in said.get("methods", {}) and other != label:
            raise ConfigError(
                f"methods.{other} is about {other}, and this runs {label}; write algorithm.KEY=... or "
                f"algorithm.name={other}"
            )
    if label not in methods:
        return Config.of(table)
    own = sections({**table, "methods": methods}, label)
    drop_void(own, said)
    for text in overrides:
        if not re.match(r"methods\.|algorithm\.name=", text):
            override(own, text)
    return Config.of(own)


def variant(table: Table, label: str) -> Config:
    """The config of one method of a comparison; see `sections`."""
    try:
        return Config.of(sections(table, label))
    except ConfigError as error:
        raise ConfigError(f"{label}: {error}") from None


def sections(table: Table, label: str) -> Table:
    """The settings of one method of a comparison.

    Keys of [algorithm] apply to every method that has them and does not fix them, [uplink] to every method
    that compresses by default, [downlink] to every method whose clients receive the mean. They are
    overridden by [methods.LABEL], [methods.LABEL.uplink] and [methods.LABEL.downlink].

    Args:
        table: the settings of a config file, by section.
        label: the name of a method, or a label under [methods].
    """
    table = renamed(table)
    check_sections(table, ("methods", "grid"))
    method, own = _method(table, label), dict(table.get("methods", {}).get(label, {}))
    uplink = table.get("uplink", {}) if _compresses(method) else {}
    downlink = table.get("downlink", {}) if method.needs_mean else {}
    shared = {key: value for key, value in table.get("algorithm", {}).items() if key in _keys(method)}
    drop_void({"algorithm": shared}, {"algorithm": own})
    return {
        **{section: table[section] for section in ("data", "model", "run", "network") if section in table},
        "uplink": _laid(own.pop("uplink", {}), uplink),
        "downlink": _laid(own.pop("downlink", {}), downlink),
        "algorithm": {**shared, **own, "name": _name(table, label)},
    }


def _compresses(method: type[Algorithm]) -> bool:
    """Whether a method compresses what clients send unless told otherwise."""
    return bool(method.uplink["name"] != "identity")


def _laid(own: Any, shared: Table) -> Any:
    """The shared section overridden by the method's own; Config will refuse an `own` that is no section."""
    return {**shared, **own} if isinstance(own, dict) else own


def _resolve(configs: Sequence[tuple[str, Config]]) -> DataConfig:
    """The data settings with all defaults; raises now every error that a later run would raise."""
    task, config = build_task(configs[0][1])
    for _, other in configs:
        refuse(other, task.clients)
    return config.data


def _write(curves: Sequence[Curve], target: float, out: Path, subtitle: str) -> list[dict[str, Any]]:
    """Write the table and the figures, after deleting those of an earlier comparison."""
    rows = compare_table(curves, target)
    clear(out, FILES)
    write_json(out / "table.json", rows)
    write_csv(rows, out / "table.csv")
    write_text(out / "table.md", markdown(rows, target))
    figures(curves, out, subtitle)
    return rows


def _check_labels(table: Table, methods: Sequence[str], seeds: range) -> None:
    if not methods or not seeds:
        raise ConfigError("a comparison needs at least one method and one seed")
    check_once(methods)
    for label in methods:
        check_folder(label)
    for label, own in table.get("methods", {}).items():
        _check_section(label, own)
        _method(table, label)


def check_once(methods: Sequence[str]) -> None:
    """Refuse a method that is named twice."""
    for label in methods:
        if methods.count(label) > 1:
            raise ConfigError(
                f"{label} is among the methods twice; give one a label, as in methods.mine.name={label}"
            )


def _check_section(label: str, own: object) -> None:
    if not isinstance(own, dict):
        raise ConfigError(f"methods.{label} is a section; write methods.{label}.key=value")


def check_folder(label: str) -> None:
    """Raise ConfigError for a label that cannot be the name of a folder."""
    if re.search(r"[:/\\\x00]", label) or label.startswith(".") or label in ("", *FILES, PLAN):
        mine = re.sub(r"\W", "", short_name(label).rpartition(".")[2].lower()) or "mine"
        one = flag(f"methods {mine}", f"methods=['{mine}']")
        raise ConfigError(
            f"{label!r} cannot name a folder; give the method another label, as in "
            f"methods.{mine}.name={label} and {one}"
        )


def _method(table: Table, label: str) -> type[Algorithm]:
    """The algorithm's class that a label stands for."""
    return ALGORITHMS.find(_name(table, label), "method")


def _name(table: Table, label: str) -> Any:
    """The method's name that a label stands for: `name` under [methods.LABEL], or the label itself."""
    return table.get("methods", {}).get(label, {}).get("name", label)


def method_keys(table: Table, label: str) -> set[str]:
    """The hyper-parameters that can be set for the method that a label stands for."""
    return _keys(_method(table, label))


def _keys(method: type[Algorithm]) -> set[str]:
    return {f.name for f in fields(method)} - set(method.fixed)
