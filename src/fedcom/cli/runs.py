"""fedcom run, compare and sweep."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcom.cli import options, shared, streams
from fedcom.cli.app import app
from fedcom.cli.options import KEYS, DeviceOption, DryRun, Force, Methods, Out, Quiet, Settings, Trust
from fedcom.errors import ConfigError

if TYPE_CHECKING:  # all that needs torch is imported by the commands: help and completion do not wait for it
    from fedcom.config import Config


@app.command(epilog=KEYS)
def run(
    settings: Settings = None,
    out: Out = None,
    force: Force = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Continue the run in this folder; run.rounds may be raised."),
    ] = None,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    dry_run: DryRun = False,
    trust: Trust = False,
) -> None:
    """Run one method. Without arguments: FedCOM with momentum on digits, two classes per client.

    This default did best in our measurements: momentum at the server, and rates that are set from the data.
    If fewer than half of the clients take part in a round, it is FedCOMGATE instead. If you name a method
    (algorithm.name) or give a config file, the method runs as it was published. fedcom run paper is
    FedCOMGATE as published, with any overrides.
    """
    from fedcom.config.methods import alone
    from fedcom.runs.prepare import data_label
    from fedcom.runs.record import Start
    from fedcom.runs.run import execute

    start: Start = "over" if force else "new"
    if resume is not None:
        if out is not None or force:
            raise ConfigError("--resume DIR goes on in DIR; leave --out and --force out")
        settings, out, start = _resumed(resume, settings), resume, "resume"
    elif (begun := shared.earlier(out)) is not None and (begun / "config.toml").is_file():
        out, start = begun, "resume"
    config = alone(*shared.path_and_overrides(settings), trust)
    if dry_run:
        _print_config(config, device)
        return

    def again(folder: Path) -> str:
        return f"fedcom run --resume {shlex.quote(str(folder))}{_trust(config, folder)}"

    with shared.results_folder(out, f"{config.algorithm.name}-{data_label(config)}", again) as out:
        outcome = execute(config, out, start=start, device=device, quiet=quiet)
        if outcome.ended is not None:
            print(f"ended early: {outcome.ended}")
        print(f"results in {out}")
        shared.suggest(f"fedcom report {shlex.quote(str(out))}")
        if outcome.error is not None:
            raise outcome.error


def _print_config(config: "Config", device: str, title: str = "") -> None:
    """Print a config as TOML, with every default filled in, after all that would be refused has been."""
    from fedcom.config import dumps
    from fedcom.runs.prepare import prepare

    resolved = prepare(config, device)[1]
    print(f"# {title}\n" * bool(title) + dumps(resolved.table()))


def _resumed(folder: Path, settings: list[str] | None) -> list[str]:
    """The settings of the run in a folder, if no config is given, with the overrides that are."""
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} holds no run to resume: it has no config.toml")
    given = list(settings or [])
    return given if given and not shared.is_override(given[0]) else [str(folder / "config.toml"), *given]


def _trust(config: "Config", out: Path) -> str:
    """The flag that going on with a run takes if it uses code and its folder lies elsewhere."""
    from fedcom.config import code_named, outside

    return " --trust" if code_named(config.table()) and outside(out) else ""


@app.command("compare", epilog=KEYS)
def compare_command(
    settings: Settings = None,
    methods: Annotated[
        str | None, typer.Option(help="Separated by commas.", show_default=options.METHODS)
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method, from run.seed on.")] = 1,
    out: Out = None,
    force: Force = False,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    dry_run: DryRun = False,
    trust: Trust = False,
) -> None:
    """Run several methods on one task: one table, figures of loss and accuracy, and an HTML report.

    Settings of one method: methods.fedavg.eta=0.1, methods.fedpaq.uplink.bits=4.

    To compare one method twice, give it a second label: methods.mine.name=fedpaq adds the label mine.
    """
    from fedcom.config.methods import run_of
    from fedcom.reports import comparison
    from fedcom.studies.compare import compare, labels, variants

    table = shared.settings_of(settings, trust)
    names = labels(table) if methods is None else shared.methods_in(methods, table)
    if dry_run:
        first = run_of(table).seed
        for label, config in variants(table, names, range(first, first + 1)):
            _print_config(config, device, f"{label}, {seeds} seed{'s' * (seeds > 1)}")
        return
    force = force and shared.earlier(None) is None  # torchrun's next attempt goes on
    with shared.results_folder(out, f"compare-{shared.data_in(table)}") as out:
        found = compare(table, names, out, seeds=seeds, force=force, device=device, quiet=quiet)
        shared.show(comparison.render(found.table, found.target))
        print(f"table and figures in {out}")
        print(f"report in {out / 'report.html'}")
        if found.stopped is not None:
            raise found.stopped


@app.command("sweep", epilog=KEYS)
def sweep_command(
    settings: Settings = None,
    methods: Methods = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per point, from run.seed on.")] = 1,
    last: Annotated[int, typer.Option(min=1, help="How many of the last evaluations to average.")] = 1,
    out: Out = None,
    force: Force = False,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    dry_run: DryRun = False,
    trust: Trust = False,
) -> None:
    """Run every point of a grid with every seed; report the best point of each method.

    The grid: grid.eta=0.02,0.05,0.1 grid.gamma=1,2,4 for hyper-parameters, grid.uplink.bits=1,2 for others.

    On a GPU, runs that differ only in eta, gamma and seed are computed together. After an interruption, the
    same command continues where it stopped.
    """
    from fedcom.reports import page
    from fedcom.studies import sweep, sweep_report
    from fedcom.studies.trials import points, trials_of

    table = shared.settings_of(settings, trust)
    grid, names = table.pop("grid", {}), shared.methods_in(methods, table)
    if dry_run:
        trials = list(trials_of(table, points(grid), names, seeds))
        for trial in trials:
            print(f"# {trial.method}, {trial.words}, seed {trial.seed}")
        _print_config(trials[0].config, device, f"the first of {len(trials)} runs:")  # type: ignore[arg-type]
        return
    force = force and shared.earlier(None) is None
    with shared.results_folder(out, f"sweep-{shared.data_in(table)}") as out:
        records = sweep.sweep(
            table, grid, names, out, seeds=seeds, last=last, force=force, device=device, quiet=quiet
        )
        found = sweep_report.summary(records)
        sweep_report.write(found, out)
        page.write([out], out / "report.html")
        shared.show(sweep_report.render(found))
        for warning in sweep_report.warnings_of(found):
            streams.complain(warning)
        print(f"table and figure in {out}")
        print(f"report in {out / 'report.html'}")
