"""What `fedcom compare` does: run several methods on one task, then write a table, figures and a page."""

import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcom.config import Config, DataConfig, RunSettings, Table, check_sections
from fedcom.config.methods import check_once, check_shared, method_keys, run_of, variant
from fedcom.engines.arguments import pick_device
from fedcom.engines.ranks.ranks import job
from fedcom.engines.results import frame
from fedcom.errors import ConfigError, Stopped, flag
from fedcom.formats import counted
from fedcom.registry import short_name
from fedcom.reports import comparison, page
from fedcom.reports.comparison import compare_table, markdown, write_csv
from fedcom.reports.figures import VIEWS, figures
from fedcom.runs.curve import Curve
from fedcom.runs.files import BASE, CHECKPOINTS, SAMPLES, read_rows, status_of
from fedcom.runs.files import FILES as RUN_FILES
from fedcom.runs.folder import LOCK, claim, clear
from fedcom.runs.prepare import build_task, refuse
from fedcom.runs.run import execute
from fedcom.runs.spread import WorkItem, spread, worth_spreading
from fedcom.saving.whole import write_json, write_text

if TYPE_CHECKING:
    from pandas import DataFrame

METHODS = ("fedavg", "fedpaq", "scaffold", "fedgate", "fedcomgate")  # the paper's five
RUN_DUTY = "run"  # see `play_item`
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
    first = run_of(table).seed
    configs = variants(table, methods, range(first, first + seeds))
    data = _resolve(configs)
    deal = {
        "classes": f"{data.classes_per_client} classes per client",
        "labels": f"{data.classes_per_client} labels per client",
        "dirichlet": f"dirichlet {data.alpha:g}",
    }
    split = deal.get(data.partition or "", data.partition)
    plan = {"config": table, "methods": list(methods), "seeds": seeds}
    return play(configs, out, plan, f"{data.name} · {data.clients} clients · {split}", force, device, quiet)


def play(
    configs: Sequence[tuple[str, RunSettings]],
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
    configs: Sequence[tuple[str, RunSettings]], out: Path, seeds: int, device: str, quiet: bool
) -> tuple[list[Curve], Stopped | None]:
    """The curves of all runs, or of those that were begun before a signal stopped them."""
    curves: list[Curve] = []
    played = _shared_out(configs, out, device, quiet)
    try:
        for label, config in configs:
            title = label if seeds == 1 else f"{label} seed {config.run.seed}"
            folder = _folder(out, label, config)
            if folder in played:
                curves.append(Curve(label, config.run.seed, read_rows(folder), status_of(folder)))
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
    configs: Sequence[tuple[str, RunSettings]], out: Path, device: str, quiet: bool
) -> Collection[Path]:
    """On several ranks and if there are enough runs, let each rank play whole ones; returns their folders."""
    runs = {_folder(out, label, c): (label, c) for label, c in configs if c.task is None}
    pending = [folder for folder in runs if status_of(folder) != "done"]
    if not worth_spreading(len(pending)):
        return ()
    items = {
        str(folder): {
            "config": runs[folder][1].table(),
            "folder": str(folder.absolute()),
            "label": f"{runs[folder][0]} seed {runs[folder][1].run.seed}",
            "device": pick_device(device).type,
            "quiet": quiet,
        }
        for folder in pending
    }
    spread(RUN_DUTY, play_item, items)
    return pending


def play_item(item: WorkItem) -> None:
    """Play one run on this rank, into its folder."""
    outcome = execute(
        Config.of(item["config"]),
        Path(item["folder"]),
        start="resume",
        device=item["device"],
        quiet=item["quiet"] or job().rank > 0,
        label=item["label"],
    )
    if isinstance(outcome.error, Stopped):
        raise outcome.error


def _folder(out: Path, label: str, config: RunSettings) -> Path:
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
                clear(run, (*RUN_FILES, BASE, SAMPLES, CHECKPOINTS))
            with suppress(OSError):
                run.parent.rmdir()
    write_text(out / PLAN, text)


def variants(table: Table, methods: Sequence[str], seeds: range) -> list[tuple[str, Config]]:
    """The label and the config of every run; raises ConfigError if any of them is wrong.

    Args:
        table: the settings of a config file, by section.
    """
    check_sections(table, ("methods",))
    if not methods or not seeds:
        raise ConfigError("a comparison needs at least one method and one seed")
    check_once(methods)
    for label in methods:
        check_folder(label)
    for label in table.get("methods", {}):
        method_keys(table, label)  # also of labels that are not compared
    check_shared(table, methods)
    return [
        (label, variant({**table, "run": {**table.get("run", {}), "seed": seed}}, label))
        for label in methods
        for seed in seeds
    ]


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


def check_folder(label: str) -> None:
    """Raise ConfigError for a label that cannot be the name of a folder."""
    if re.search(r"[:/\\\x00]", label) or label.startswith(".") or label in ("", *FILES, PLAN):
        mine = re.sub(r"\W", "", short_name(label).rpartition(".")[2].lower()) or "mine"
        one = flag(f"methods {mine}", f"methods=['{mine}']")
        raise ConfigError(
            f"{label!r} cannot name a folder; give the method another label, as in "
            f"methods.{mine}.name={label} and {one}"
        )
