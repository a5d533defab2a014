"""The command line: fedcom run, compare, sweep, status, report, reproduce and the rest."""

import json
import os
import re
import shlex
import sys
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from fedcom.cli import advice, crash, options, streams
from fedcom.cli.options import KEYS, AsJson, DeviceOption, DryRun, Force, Out, Quiet, Settings, Trust
from fedcom.errors import (
    ConfigError,
    FedcomError,
    OutOfMemory,
    RankLost,
    Stopped,
    StorageError,
    by_flags,
)
from fedcom.runs import logs, stops
from fedcom.runs.folder import given_or_fresh
from fedcom.version import VERSION

if TYPE_CHECKING:  # all that needs torch is imported by the commands: help and completion do not wait for it
    from rich.console import RenderableType

    from fedcom.config import Config
    from fedcom.registry import Broken, Entry, Registry

_FOLDER = "folder"  # the word for the next attempt that names the folder of results

F = TypeVar("F", bound=Callable[..., Any])


class _Command(TyperCommand):
    """A command that is carried out by rank 0 of a job; what was typed is understood before torch comes."""

    def invoke(self, ctx: Any) -> Any:
        from fedcom.engines.ranks.ranks import join

        ranks = join()
        if ranks.size > 1 and len({*ranks.agree(shlex.join(sys.argv[1:]))}) > 1 and ranks.rank == 0:
            streams.complain("ranks were started with different arguments; those of rank 0 count for all")
        return super().invoke(ctx) if ranks.rank == 0 else _follow()


class _App(typer.Typer):
    """A group of such commands."""

    def command(self, *args: Any, **settings: Any) -> Callable[[F], F]:
        return super().command(*args, cls=_Command, **settings)


app = _App(
    help="Communication-efficient federated learning: compare methods by rounds, bytes and accuracy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog=KEYS)
def run(
    settings: Settings = None,
    out: Out = None,
    force: Force = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the run in this folder; run.rounds may be raised."),
    ] = None,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    dry_run: DryRun = False,
    trust: Trust = False,
) -> None:
    """Run one method. Without arguments: FedCOMGATE on digits, two classes per client."""
    from fedcom.config.methods import alone
    from fedcom.runs.prepare import data_label
    from fedcom.runs.record import Start
    from fedcom.runs.run import execute

    start: Start = "over" if force else "new"
    if resume is not None:
        if out is not None or force:
            raise ConfigError("--resume DIR goes on in DIR; leave --out and --force out")
        settings, out, start = _resumed(resume, settings), resume, "resume"
    elif (earlier := _earlier(out)) is not None and (earlier / "config.toml").is_file():
        out, start = earlier, "resume"
    config = alone(*_path_and_overrides(settings), trust)
    if dry_run:
        _print_config(config, device)
        return
    with (
        _results_folder(out, f"{config.algorithm.name}-{data_label(config)}") as out,
        _with_how_to_go_on(f"fedcom run --resume {shlex.quote(str(out))}{_trust(config, out)}"),
    ):
        outcome = execute(config, out, start=start, device=device, quiet=quiet)
        print(f"results in {out}")
        if outcome.error is not None:
            raise outcome.error


def _earlier(out: Path | None) -> Path | None:
    """The folder of the same command before torchrun started it again; None if it did not."""
    from fedcom.engines.ranks.ranks import recall, restarted

    kept = recall(_FOLDER)
    found = out or (None if kept is None else Path(kept))
    return found if restarted() else None


@contextmanager
def _results_folder(out: Path | None, name: str) -> Iterator[Path]:
    """The folder that is given, that torchrun's first attempt made, or a fresh one."""
    from fedcom.engines.ranks.ranks import remember

    with given_or_fresh(out or _earlier(out), name) as folder:
        remember(_FOLDER, str(folder))
        crash.results_go_to(folder)
        yield folder


def _print_config(config: "Config", device: str, title: str = "") -> None:
    """Print a config as TOML, with every default filled in, after all that would be refused has been."""
    from fedcom.config import dumps
    from fedcom.runs.prepare import prepare

    resolved = prepare(config, device)[1]
    print(f"# {title}\n" * bool(title) + dumps(resolved.table()))


def _resumed(folder: Path, settings: list[str] | None) -> list[str]:
    """The settings of the run in a folder, if no config is given, with the overrides that are."""
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} holds no run (no config.toml), so none can go on there")
    given = list(settings or [])
    return given if given and not _is_override(given[0]) else [str(folder / "config.toml"), *given]


def _trust(config: "Config", out: Path) -> str:
    """The flag that going on with a run takes if it uses code and its folder lies elsewhere."""
    from fedcom.config import code_named, outside

    return " --trust" if code_named(config.table()) and outside(out) else ""


@contextmanager
def _with_how_to_go_on(again: str) -> Iterator[None]:
    """Say how to go on with a command that was stopped, or that the machine could not carry on."""
    try:
        yield
    except Stopped as stopped:
        stopped.remedy = f"; go on with: {again}"
        raise
    except (StorageError, OutOfMemory, RankLost) as error:
        raise type(error)(f"{error}; then go on with: {again}") from error


def _again(out: Path) -> str:
    """The command as it was given, with its folder."""
    words = ["fedcom", *(word for word in sys.argv[1:] if word != "--force")]  # which would begin anew
    return shlex.join(words if "--out" in words else [*words, "--out", str(out)])


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
    from fedcom.config import Config
    from fedcom.reports import comparison
    from fedcom.runs.prepare import data_label
    from fedcom.studies.compare import compare, labels, variants

    table = _settings(settings, trust)
    names = labels(table) if methods is None else _names(methods)
    if dry_run:
        first = Config.of({"run": table.get("run", {})}).run.seed
        for label, config in variants(table, names, range(first, first + 1)):
            _print_config(config, device, f"{label}, {seeds} seed{'s' * (seeds > 1)}")
        return
    task = Config.of({key: table.get(key, {}) for key in ("data", "model")})
    force = force and _earlier(None) is None  # torchrun's next attempt goes on
    with _results_folder(out, f"compare-{data_label(task)}") as out, _with_how_to_go_on(_again(out)):
        found = compare(table, names, out, seeds=seeds, force=force, device=device, quiet=quiet)
        _print(comparison.render(found.table, found.target))
        print(f"table and figures in {out}")
        print(f"report in {out / 'report.html'}")
        if found.stopped is not None:
            raise found.stopped


@app.command("sweep", epilog=KEYS)
def sweep_command(
    settings: Settings = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas; may include labels from the config's methods section.")
    ] = "fedcomgate",
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
    from fedcom.config import Config
    from fedcom.reports import page
    from fedcom.runs.prepare import data_label
    from fedcom.studies import sweep, sweep_report

    table = _settings(settings, trust)
    grid, names = table.pop("grid", {}), _names(methods)
    if dry_run:
        trials = list(sweep.trials_of(table, sweep.points(grid), names, seeds))
        for trial in trials:
            print(f"# {trial.method}, {trial.words}, seed {trial.seed}")
        _print_config(trials[0].config, device, f"the first of {len(trials)} runs:")  # type: ignore[arg-type]
        return
    data = data_label(Config.of({"data": table.get("data", {})}))
    force = force and _earlier(None) is None
    with _results_folder(out, f"sweep-{data}") as out, _with_how_to_go_on(_again(out)):
        records = sweep.sweep(
            table, grid, names, out, seeds=seeds, last=last, force=force, device=device, quiet=quiet
        )
        found = sweep_report.summary(records)
        sweep_report.write(found, out)
        page.write([out], out / "report.html")
        _print(sweep_report.render(found))
        for warning in sweep_report.warnings_of(found):
            streams.complain(warning)
        print(f"table and figure in {out}")
        print(f"report in {out / 'report.html'}")


@app.command("status")
def status_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR...", help="Folders that contain runs at any depth.", show_default="runs/"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how runs stand: running, done, diverged, interrupted, failed, or dead if their process is gone.

    Also their rounds, rounds per second and time left, the last loss and accuracy, and why they ended early.
    Sweeps and studies have one line each, with the number of trials that are done. Of a job with real
    clients: who was counted, who has been missing for long, who is left out, and why replies were refused.
    """
    from fedcom.runs import status

    default = Path("runs")
    places = folders or [default] * default.is_dir()
    found = status.statuses(places)
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    if not found:
        print(f"no runs in {', '.join(map(str, folders or [default]))}")
        return
    _print(status.render(found))
    for one in found:
        for line in status.remarks(one):
            print(f"{one.folder}: {line}")


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of runs or sweeps, or that contain some at any depth."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write.", show_default="report.html in DIR, or here if several"),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page to this machine, and renew it while runs go on.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="For --live; 0 for any that is free.", show_default=str(options.PORT))
    ] = None,
) -> None:
    """Write one HTML page about any runs and sweeps: curves, frontier, results, bytes, codecs, clients."""
    from fedcom.reports import page

    if live:
        if out is not None:
            raise ConfigError("--live serves the page and writes no file; leave --out out")
        page.serve(folders, options.PORT if port is None else port, lambda address: _serving(address, show))
        return
    if port is not None:
        raise ConfigError("--port is about --live; add --live")
    out = page.write(folders, out, tell=streams.complain)
    print(f"report in {out}")
    if show:
        _open_page(out.resolve().as_uri())


def _serving(address: str, show: bool) -> None:
    print(f"report on {address}, renewed while runs go on; Ctrl-C ends it", flush=True)
    if show:
        _open_page(address)


def _open_page(address: str) -> None:
    if not webbrowser.open(address):
        streams.complain(f"no browser found here; open {address} by hand")


@app.command("reproduce")
def reproduce_command(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="STUDY | section.key=value", help=options.STUDIES, autocompletion=options.studies
        ),
    ],
    small: Annotated[bool, typer.Option("--quick", help=options.QUICK)] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds per run.", show_default="3; quick: 1")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default=options.REPRODUCED)
    ] = None,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
) -> None:
    """Reproduce figures of the paper on real data: a figure, its points and a verdict on each claim.

    Runs that an earlier call finished are not repeated. Panels and studies whose data is missing are named
    and left out.
    """
    from fedcom.reproduce import command

    if out is not None:
        crash.results_go_to(out)
    with _with_how_to_go_on(shlex.join(["fedcom", *sys.argv[1:]])):
        command.run(what, small, seeds, out, device, quiet)


@app.command()
def evaluate(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder with config.toml and model.safetensors.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="section.key=value", help="Overrides, to score it on another task."),
    ] = None,
    device: DeviceOption = "auto",
    trust: Trust = False,
) -> None:
    """Score a saved model on its own task, or on another task given by overrides; prints JSON."""
    from fedcom.config import Config, read
    from fedcom.runs.prepare import prepare

    table = read(folder / "config.toml", settings or [], trust)
    table.setdefault("run", {})["init"] = str(folder / "model.safetensors")
    simulation, config = prepare(Config.of(table), device)
    scores = simulation.row()
    keys = ("train_loss", "test_loss", "test_accuracy", "worst_client_accuracy", "test_r2", "test_rmse")
    print(
        json.dumps(
            {"data": config.data.name, **{key: scores[key] for key in keys if key in scores}}, indent=2
        )
    )


@app.command("codecs")
def codecs_command(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure bits, error, bias and speed of every codec.")
    ] = False,
    vector: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Measure on your own vector, .npy or .safetensors; repeatable."),
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option(help="Rates to measure, in bits per coordinate.", show_default=options.RATES),
    ] = None,
    dim: Annotated[int, typer.Option(min=1, help="Size of the made-up vectors.")] = options.DIM,
    repeat: Annotated[
        int | None, typer.Option(min=2, help="Messages per measurement.", show_default=options.REPEAT)
    ] = None,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """List the codecs and what they promise, or measure them: the codec report card and its figure."""
    from fedcom.studies import card_vectors, codec_card

    if not measure:
        _list_codecs(dim, as_json, {"vector": vector, "bits": bits, "repeat": repeat, "out": out})
        return
    asked = codec_card.rates(codec_card.RATES if bits is None else bits)
    with given_or_fresh(out, "codecs") as out:
        crash.results_go_to(out)
        vectors = card_vectors.vectors(dim, vector or [])
        found = codec_card.report_card(
            vectors, asked, repeat or codec_card.REPEAT, out, force=force, quiet=quiet
        )
        if as_json:
            print(json.dumps(found.table(), indent=2))
        else:
            _print(*codec_card.render(found))
        print(f"card and figure in {out}", file=sys.stderr if as_json else sys.stdout)
        if found.stopped is not None:
            raise found.stopped


def _list_codecs(dim: int, as_json: bool, idle: Mapping[str, Any]) -> None:
    """Print the list of codecs; refuse the options in `idle`, which need --measure."""
    for name, value in idle.items():
        if value:
            raise ConfigError(f"--{name} is about measuring; add --measure")
    from fedcom.studies import codec_card

    entries = codec_card.listing(dim)
    if as_json:
        print(json.dumps(entries, indent=2))
    else:
        _print(codec_card.render_listing(entries))


flower_app = _App(help="Runs on real machines, carried by Flower.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")


@flower_app.command("new")
def flower_new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is empty or does not exist.")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients there will be.")] = 4,
) -> None:
    """Write a Flower app, ready for `flwr run`: in simulation and on real machines."""
    from fedcom.deployment.flower.new import new

    for path in new(folder, clients):
        print(path)
    print(f"model and data: task.py; method and codecs: fedcom.toml; start it: cd {folder} && flwr run .")


@flower_app.command("forget")
def flower_forget(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="The node's folder of state; else FEDCOM_STATE or ~/.fedcom/state."
        ),
    ] = None,
    days: Annotated[
        float, typer.Option(min=0, help="Jobs in which no call was answered for so long.")
    ] = 30.0,
    job: Annotated[list[str] | None, typer.Option(help="Only this job; may be given again.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; else only list what would be deleted.")] = False,
) -> None:
    """Delete what old jobs left on a client's disk.

    A client whose state is deleted before its job is over has lost it; all clients of that job start anew.
    """
    from fedcom.engines.remote.stored import delete, stored, usual_folder
    from fedcom.formats import size

    folder = folder or usual_folder()
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name the node's folder of state")
    found = stored(folder)
    if missing := set(job or ()) - {one.job for one in found}:
        raise ConfigError(f"{folder} has no state of job {', '.join(sorted(missing))}")
    for one in found:
        old = one.job in job if job else one.days >= days
        outcome = "stays" if not old else "would be deleted" if not yes else "deleted"
        if old and yes and not delete(one):
            outcome = "stays: it is in use"
        clients = ", ".join(map(str, one.clients))
        print(f"{one.job}  client {clients}  {size(one.nbytes)}  used {one.days:.1f} days ago  {outcome}")
    if not found:
        print(f"{folder} has no state of any job")
    elif not yes:
        print("nothing was deleted; --yes deletes")


@app.command("list")
def list_command(
    what: Annotated[
        str,
        typer.Argument(
            help=", ".join(options.LISTS),
            callback=options.known_list,
            autocompletion=lambda: list(options.LISTS),
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see its keys and their defaults.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the choices, one per line, and where each comes from: fedcom, a package, or by hand.

    With a name, what can be set for it: fedcom list algorithms fedavg
    """
    from rich.table import Table
    from rich.text import Text

    from fedcom.cli import described
    from fedcom.registry import Broken, describe

    registry = _registry(what)
    if name is not None:
        facts = described.facts(registry, name)
        print(json.dumps(facts, indent=2)) if as_json else _print(described.render(facts))
        return
    entries = registry.entries()
    if as_json:
        print(json.dumps(_facts(entries), indent=2))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for entry in entries:
        line = Text(entry.reason, "red") if isinstance(entry, Broken) else Text(describe(entry.thing))
        table.add_row(Text(entry.name, "bold"), line, Text(entry.source))
    _print(table)


def _registry(what: str) -> "Registry[Any]":
    from fedcom.algorithms import ALGORITHMS
    from fedcom.codecs import CODECS
    from fedcom.data import DATASETS, PARTITIONS
    from fedcom.tasks.models import MODELS

    found: dict[str, Registry[Any]] = {r.title: r for r in (ALGORITHMS, CODECS, DATASETS, MODELS, PARTITIONS)}
    return found[what]


def _facts(entries: "Sequence[Entry[Any] | Broken]") -> dict[str, dict[str, str]]:
    """The choices by name, for JSON; a broken one that shares its name with another has its source added."""
    from fedcom.registry import Broken, describe

    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        key = f"{entry.name} ({entry.source})" if entry.name in found else entry.name
        found[key] = {"description": "", "source": entry.source}
        if isinstance(entry, Broken):
            found[key]["error"] = entry.reason
        else:
            found[key]["description"] = describe(entry.thing)
    return found


def _print(*what: "RenderableType") -> None:
    """Print tables on standard output; 160 characters wide if it is not a terminal, so that they fit."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(*what)


def _names(methods: str) -> list[str]:
    return [name.strip() for name in methods.split(",") if name.strip()]


def _version(show: bool) -> None:
    if show:
        print(f"fedcom {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _settings(arguments: list[str] | None, trust: bool) -> dict[str, Any]:
    """The settings of an optional config file, the first argument, with the overrides after it applied."""
    from fedcom.config import read

    return read(*_path_and_overrides(arguments), trust)


def _path_and_overrides(arguments: list[str] | None) -> tuple[str | None, list[str]]:
    arguments = list(arguments or [])
    path = arguments.pop(0) if arguments and not _is_override(arguments[0]) else None
    return path, arguments


def _is_override(argument: str) -> bool:
    return re.match(r"[\w-]+(\.[\w-]+)*=", argument) is not None


advice.register(app, _settings, lambda what: _print(what))


def main() -> None:
    """The entry point: an error the user can fix is printed as one line; any other also writes a file."""
    streams.open_all()
    warnings.showwarning = lambda message, *_: streams.complain(message)
    with by_flags(), streams.watched() as output:
        try:
            with stops.listening():
                _run_app(output)
        finally:
            if ranks := sys.modules.get("fedcom.engines.ranks.ranks"):
                ranks.leave()
            streams.end()


def _follow() -> None:
    """Play this rank's part; what ends it is told by rank 0."""
    from fedcom.engines.ranks.ranks import here
    from fedcom.runs.follow import follow
    from fedcom.studies import compare, sweep

    duties = {sweep.TRIAL_DUTY: sweep.run_unit, compare.RUN_DUTY: compare.run_unit}
    stops.leave_to_others()
    try:
        follow(here(), duties)
    except Stopped as stopped:  # while it played runs by itself
        os._exit(stopped.exit_code)
    except Exception as error:
        os._exit(_told_code(error))


def _run_app(output: streams.Watched) -> None:
    """Run the command; typer handles usage errors, Ctrl-C and its own exit codes."""
    try:
        try:
            logs.set_up()
            app(prog_name="fedcom")
        except SystemExit as ended:
            if not ended.code:
                output.flush()  # else nobody would hear that it could not be written
            raise
    except Stopped as stopped:
        if not output.gone:
            streams.complain(f"stopped by {stops.name(stopped.signal)}{stopped.remedy}")
        if not stopped.between_rounds:  # threads may still be busy with the round: do not wait for them
            streams.end()
            os._exit(stopped.exit_code)
        sys.exit(stopped.exit_code)
    except Exception as error:
        sys.exit(_told_code(error))


def _told_code(error: Exception) -> int:
    """Say what an error is in one line; returns the exit code. With FEDCOM_DEBUG a bug is raised instead."""
    if isinstance(error, FedcomError):
        streams.complain(error)
        return error.exit_code
    from fedcom.runs.record import out_of_memory

    if short := out_of_memory(error):
        streams.complain(short)
        return short.exit_code
    if os.environ.get("FEDCOM_DEBUG", "0") not in ("", "0"):
        raise error
    line, code = crash.report(error)
    streams.complain(line)
    return code
