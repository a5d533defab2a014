"""The command line: fedcom run, compare, evaluate, list."""

import json
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import fedcom
from fedcom.algorithms import ALGORITHMS
from fedcom.codecs import CODECS
from fedcom.compare import METHODS, compare
from fedcom.config import Config, read
from fedcom.data import DATASETS, PARTITIONS
from fedcom.errors import FedcomError, unknown
from fedcom.models import MODELS
from fedcom.prepare import prepare
from fedcom.report import render
from fedcom.run import claim, execute, fresh_folder

app = typer.Typer(
    help="Communication-efficient federated learning: compare methods by rounds, bytes and accuracy.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.toml] [section.key=value]...",
        help="A config file, then overrides such as data.name=mnist algorithm.eta=0.05 uplink.bits=4.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the results.", show_default="a fresh one under runs/")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a run in that folder.")]
Where = Annotated[Device, typer.Option(help="Where to compute; auto takes the GPU where there is one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


@app.command()
def run(
    settings: Settings = None, out: Out = None, force: Force = False, device: Where = Device.auto,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run one method; with no argument FedCOMGATE on digits, two classes a client.

    Sections: data (name, root, clients, partition, classes_per_client, alpha, beta), model (name, hidden),
    algorithm (name, eta, gamma, tau, ...), uplink and downlink (name and the codec's parameters), run
    (rounds, participation, seed, eval_every, dtype, target_accuracy, init). `fedcom list` names the choices.
    """
    config = Config.of(_settings(settings))
    out = out or fresh_folder(f"{config.algorithm.name}-{config.data.name or 'digits'}")
    claim(out, force)
    outcome = execute(config, out, device=device.value, quiet=quiet)
    if not quiet:
        print(f"results in {out}")
    if outcome.error is not None:
        raise outcome.error


@app.command("compare")
def compare_command(
    settings: Settings = None,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds a method, from run.seed on.")] = 1,
    out: Out = None, force: Force = False, device: Where = Device.auto, quiet: Quiet = False,
) -> None:  # fmt: skip
    """Run several methods on one task: one table, and figures of loss and accuracy against rounds and bytes.

    The config may hold settings of one method: [methods.fedavg] eta = 0.1, [methods.fedavg.uplink] ...; a
    label that is no method's name needs `name`, so that one method can appear twice.
    """
    table = _settings(settings)
    labels = [label.strip() for label in methods.split(",") if label.strip()]
    name = table.get("data", {}).get("name", "digits")
    out = out or fresh_folder(f"compare-{name}")
    claim(out, force)
    rows = compare(table, labels, out, seeds=seeds, device=device.value, quiet=quiet)
    target = Config.of({"run": table.get("run", {})}).run.target_accuracy
    Console(width=None if sys.stdout.isatty() else 160).print(render(rows, target))
    print(f"table and figures in {out}")


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder with config.toml and a model.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[section.key=value]...", help="Another task.")
    ] = None,
    device: Where = Device.auto,
) -> None:
    """Score a saved model on its own task, or on another one given by overrides; prints JSON."""
    table = read(folder / "config.toml", settings or [])
    table.setdefault("run", {})["init"] = str(folder / "model.safetensors")
    simulation, config = prepare(Config.of(table), device.value)
    scores = simulation.row()
    keys = ("train_loss", "test_accuracy", "worst_client_accuracy")
    print(json.dumps({"data": config.data.name, **{key: scores[key] for key in keys}}, indent=2))


_LISTS: dict[str, Mapping[str, Any]] = {
    "algorithms": ALGORITHMS,
    "codecs": CODECS,
    "datasets": DATASETS,
    "models": MODELS,
    "partitions": PARTITIONS,
}


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(help=", ".join(_LISTS))],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Name the choices, one line each."""
    if what not in _LISTS:
        raise unknown("list", what, _LISTS)
    lines = {name: (thing.__doc__ or "").strip().splitlines()[0] for name, thing in _LISTS[what].items()}
    if as_json:
        print(json.dumps(lines, indent=2))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, line in lines.items():
        table.add_row(f"[bold]{name}[/bold]", line)
    Console().print(table)


def _version(show: bool) -> None:
    if show:
        print(f"fedcom {fedcom.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _settings(arguments: list[str] | None) -> dict[str, Any]:
    """The table of an optional config file, first, and overrides after it."""
    arguments = list(arguments or [])
    path = arguments.pop(0) if arguments and not re.match(r"[\w-]+(\.[\w-]+)*=", arguments[0]) else None
    return read(path, arguments)


def main() -> None:
    """The entry point: errors a user can mend are one line and an exit code."""
    try:
        app(standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except FedcomError as error:
        print(f"fedcom: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
