"""fedcom codecs and list, what there is to choose from; and fedcom cut, text as tokens."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcom.cli import crash, options
from fedcom.cli.app import app
from fedcom.cli.options import AsJson, Force, Out, Quiet, Settings, Trust
from fedcom.cli.shared import settings_of, show
from fedcom.errors import ConfigError
from fedcom.runs.folder import given_or_fresh

if TYPE_CHECKING:  # all that needs torch is imported by the commands: help and completion do not wait for it
    from fedcom.registry import Broken, Entry, Registry


@app.command("codecs")
def codecs_command(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure bits, error, bias and speed of every codec.")
    ] = False,
    vector: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Measure on your own vector, .npy or .safetensors; may be repeated."
        ),
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
            show(*codec_card.render(found))
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
        show(codec_card.render_listing(entries))


@app.command("list")
def list_command(
    what: Annotated[
        str | None,
        typer.Argument(
            help=", ".join(options.LISTS),
            callback=options.known_list,
            autocompletion=lambda: list(options.LISTS),
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="One of them, to see its keys and their defaults.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the choices, one per line, and where each comes from: fedcom, a package, or by hand.

    Alone, the kinds of choices. With a name, what can be set for it: fedcom list algorithms fedavg
    """
    if what is None:
        print(json.dumps(list(options.LISTS)) if as_json else "\n".join(options.LISTS))
        return
    from rich.table import Table
    from rich.text import Text

    from fedcom.cli import described
    from fedcom.registry import Broken, describe

    registry = _registry(what)
    if name is not None:
        facts = described.facts(registry, name)
        print(json.dumps(facts, indent=2)) if as_json else show(described.render(facts))
        return
    entries = registry.entries()
    if as_json:
        print(json.dumps(_facts(entries), indent=2))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for entry in entries:
        line = Text(entry.reason, "red") if isinstance(entry, Broken) else Text(describe(entry.thing))
        table.add_row(Text(entry.name, "bold"), line, Text(entry.source))
    show(table)


def _registry(what: str) -> "Registry[Any]":
    from fedcom.algorithms import ALGORITHMS
    from fedcom.algorithms.local_optimisers import LOCAL_OPTIMISERS
    from fedcom.algorithms.optimisers import OPTIMISERS
    from fedcom.algorithms.schedules import SCHEDULES
    from fedcom.codecs import CODECS
    from fedcom.data import DATASETS, PARTITIONS
    from fedcom.tasks.models import MODELS

    steps: tuple[Registry[Any], ...] = (ALGORITHMS, OPTIMISERS, LOCAL_OPTIMISERS, SCHEDULES)
    every: tuple[Registry[Any], ...] = (*steps, CODECS, DATASETS, MODELS, PARTITIONS)
    return {registry.title: registry for registry in every}[what]


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


@app.command()
def cut(
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="The file to write, .npz.")] = Path("tokens.npz"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
    trust: Trust = False,
) -> None:
    """Cut clients' text into tokens once, into one file that data.tokens reads.

    A machine that reads this file needs neither the text nor a tokenizer. The settings are those of section
    data, such as data.name=shakespeare data.tokenizer=tokenizer.json.
    """
    from fedcom.config import Config
    from fedcom.data import save_tokens
    from fedcom.runs.prepare import read_data

    if out.exists() and not force:
        raise ConfigError(f"{out} is there already; choose another --out, or --force to overwrite it")
    data = read_data(Config.of({"data": settings_of(settings, trust).get("data", {})}))
    save_tokens(data, out)
    train, test = (int((y >= 0).sum()) for y in (data.y, data.test_y))
    assert data.groups is not None
    clients = int(data.groups.max()) + 1
    print(f"{train:,} tokens of {clients} clients to train on and {test:,} to test on, in {out}")
