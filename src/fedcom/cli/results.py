"""fedcom status, report, reproduce and evaluate: what runs have come to."""

import json
import shlex
import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcom.cli import crash, options, streams
from fedcom.cli.app import app
from fedcom.cli.options import AsJson, DeviceOption, Quiet, Trust
from fedcom.cli.shared import show, with_how_to_go_on
from fedcom.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from fedcom.config import Config


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

    Also shows their rounds, rounds per second and time left, the last loss and accuracy, and why they ended
    early. Sweeps and studies have one line each, with the number of trials that are done. For a job with real
    clients, also shows who was counted, who has been missing for long, who is left out, and why replies were
    refused.
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
    show(status.render(found))
    for one in found:
        for line in status.remarks(one):
            print(f"{one.folder}: {line}")


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders of runs or sweeps, or folders that contain some at any depth."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write.", show_default="report.html in DIR, or here if several"),
    ] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page to this machine, and update it while runs go on.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port for --live; 0 takes any free one.", show_default=str(options.PORT)),
    ] = None,
) -> None:
    """Write one HTML page about any runs and sweeps: curves, frontier, results, bytes, codecs, clients."""
    from fedcom.reports import page

    if live:
        if out is not None:
            raise ConfigError("--live serves the page and writes no file; leave --out out")
        page.serve(folders, options.PORT if port is None else port, lambda address: _serving(address, opened))
        return
    if port is not None:
        raise ConfigError("--port is about --live; add --live")
    out = page.write(folders, out, tell=streams.complain)
    print(f"report in {out}")
    if opened:
        _open_page(out.resolve().as_uri())


def _serving(address: str, opened: bool) -> None:
    print(f"report on {address}, renewed while runs go on; Ctrl-C ends it", flush=True)
    if opened:
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
        int | None,
        typer.Option(
            min=1,
            help="Seeds per run; of rates: on how many the best are confirmed.",
            show_default="3, flamby: 5; quick: 1",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default=options.REPRODUCED)
    ] = None,
    device: DeviceOption = "auto",
    only: Annotated[list[str] | None, typer.Option(metavar="LABEL", help=options.ONLY)] = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures and tables of the paper, and studies beyond it, with a verdict on each claim.

    Runs that an earlier call finished are not repeated. Panels and studies whose data is missing are named
    and left out.
    """
    from fedcom.reproduce import command

    if out is not None:
        crash.results_go_to(out)
    with with_how_to_go_on(shlex.join(["fedcom", *sys.argv[1:]])):
        command.run(what, small, seeds, out, device, quiet, only or ())


Saved = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder with config.toml and model.safetensors.")
]
Best = Annotated[
    bool, typer.Option("--best", help="Use the run's best model, best.safetensors, instead of its last.")
]


@app.command()
def generate(
    folder: Saved,
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens are added at most.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token; 1 draws by the model's own odds.")
    ] = 0.0,
    samples: Annotated[
        int, typer.Option(min=1, help="How many texts to write, each with its own draws.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    base: Annotated[bool, typer.Option("--base", help="Use the model from before the run.")] = False,
    best: Best = False,
    trust: Trust = False,
) -> None:
    """Continue a text with a run's language model."""
    from fedcom.data.text import LENGTH
    from fedcom.data.tokens import Tokens
    from fedcom.runs.prepare import build_task, by_characters, characters_in
    from fedcom.tasks.generate import generate as go_on
    from fedcom.tasks.models import MODELS

    config, module = _saved(folder, best, trust, base)
    by_letter, drawn = by_characters(config), base and config.model.needs_data
    known = characters_in(_model_in(folder, best)) if by_letter and not drawn else None
    of_model = Tokens(known) if known else None if by_letter else config.model.tokenizer()
    tokenizer = of_model or build_task(config)[0].tokens
    if tokenizer is None:
        raise ConfigError(f"model {config.model.name} has no tokenizer and no text to go on with")
    own = config.model.name not in MODELS  # it may know no more places than it was trained on
    context = (config.data.length or LENGTH) if own else None
    for number in range(samples):
        print(go_on(module, tokenizer, prompt, tokens, temperature, seed + number, context))


@app.command()
def export(
    folder: Saved,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    flat: Annotated[
        bool, typer.Option("--merged", help="Write the whole model, with the adapters added to its weights.")
    ] = False,
    best: Best = False,
    trust: Trust = False,
) -> None:
    """Write a run's adapters as files that peft reads, or the model with its adapters added in."""
    from fedcom.data.files import at_path
    from fedcom.tasks.export import save_merged, save_peft

    if flat and (out / "config.toml").is_file() and (out / "metrics.jsonl").is_file():
        raise ConfigError(f"{out} holds a run, whose model would be lost; choose another --out")
    config, module = _saved(folder, best, trust)
    base = str(getattr(config.model, "path", None) or "")
    if flat and base and out.resolve() == at_path(base).resolve():
        raise ConfigError(f"{out} holds the base of this run, which would be lost; choose another --out")
    print(f"written to {save_merged(module, out) if flat else save_peft(module, out, base)}")


def _saved(folder: Path, best: bool, trust: bool, base: bool = False) -> "tuple[Config, nn.Module]":
    """The config of a run's folder, and the module with its parameters; base: with those it began from."""
    from fedcom.config import Config, read
    from fedcom.runs.base import check_base
    from fedcom.runs.prepare import module_of
    from fedcom.tasks.frozen import checksums

    model = _model_in(folder, best)
    table = read(folder / "config.toml", [], trust)
    if not base:
        table.setdefault("run", {})["init"] = str(model)
    config = Config.of(table)
    module = module_of(config)
    check_base(folder, checksums(module))
    return config, module


def _model_in(folder: Path, best: bool) -> Path:
    """The file with the last or the best model of a run; raises ConfigError if the folder holds no run."""
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} holds no run: it has no config.toml")
    return folder / f"{'best' if best else 'model'}.safetensors"


@app.command()
def evaluate(
    folder: Saved,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="section.key=value",
            help="Overrides, to score it on another task; unset=section.key takes one of the run's back.",
        ),
    ] = None,
    best: Best = False,
    by_client: Annotated[
        bool, typer.Option("--by-client", help="Also print each client's scores on its own data.")
    ] = False,
    device: DeviceOption = "auto",
    trust: Trust = False,
) -> None:
    """Score a saved model on its own task, or on another task given by overrides; prints JSON."""
    from fedcom.config import Config, read
    from fedcom.runs.base import check_base
    from fedcom.runs.prepare import prepare
    from fedcom.tasks.scores import SCORES, WORST

    model = _model_in(folder, best)
    table = read(folder / "config.toml", settings or [], trust)
    table.setdefault("run", {})["init"] = str(model)
    simulation, config = prepare(Config.of(table), device)
    check_base(folder, simulation.task.objective.frozen)
    scores = simulation.row()
    data = config.data.name or config.data.file
    found = {"data": data, **{key: scores[key] for key in (*SCORES, WORST) if key in scores}}
    found |= {"clients": list(simulation.clients())} if by_client else {}
    print(json.dumps(found, indent=2))
