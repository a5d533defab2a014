"""fedcom probe, tune and plan: what to run, before it is run."""

import json
import shlex
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedcom.cli import options
from fedcom.cli.app import app
from fedcom.cli.options import KEYS, AsJson, DeviceOption, Force, Methods, Out, Quiet, Settings, Trust
from fedcom.cli.shared import (
    data_in,
    earlier,
    methods_in,
    path_and_overrides,
    results_folder,
    settings_of,
    show,
)
from fedcom.errors import ConfigError
from fedcom.formats import significant
from fedcom.runs.folder import given_or_fresh

if TYPE_CHECKING:  # all that needs torch is imported by the commands: help and completion do not wait for it
    from fedcom.config import Config, Table


class By(StrEnum):
    """What a plan keeps small."""

    bytes = "bytes"
    uplink = "uplink"
    seconds = "seconds"


@app.command("probe", epilog=KEYS)
def probe_command(
    settings: Settings = None,
    clients: Annotated[
        int, typer.Option(min=1, help="The largest number of clients to look at.")
    ] = options.CLIENTS,
    samples: Annotated[
        int,
        typer.Option(min=1, help="The largest number of samples per client for Hessians, drawn at random."),
    ] = options.SAMPLES,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Estimate a task's constants at its first model: sharpness, noise, dissimilarity, the codec's q.

    Also says what they mean for eta, gamma, tau and the codec. To look at a trained model, set
    run.init=DIR/model.safetensors.
    """
    from rich.table import Table as Grid

    from fedcom.config.methods import alone

    answer = probed(alone(*path_and_overrides(settings), trust), device, clients, samples, quiet)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    grid = Grid(box=None, pad_edge=False)
    for heading in ("constant", "estimate", "from", "to", ""):
        grid.add_column(heading, justify="left" if heading in ("constant", "") else "right")
    for name, one in answer["constants"].items():
        cells = (significant(one[key], 3) for key in ("value", "from", "to"))
        grid.add_row(name, *cells, one["what"])
    show(grid)
    for line in answer["advice"]:
        print(line)


@app.command("tune", epilog=KEYS)
def tune_command(
    settings: Settings = None,
    methods: Methods = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds on which the best is confirmed.")] = options.SEEDS,
    budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Limit for each method, in whole runs, confirming included.",
            show_default="a quarter of the grid's to search, then what confirming takes",
        ),
    ] = None,
    out: Out = None,
    force: Force = False,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Find eta, gamma and the server's momentum or rate of methods on a task, by successive halving.

    Tries rates around the auto ones, without momentum and with 0.9 unless the settings or the grid choose the
    server's optimiser. With an adaptive one (fedadam, server.name=adam) it tries five values of server.rate,
    from 0.0025 to 0.04, unless that is given. A grid adds other settings: grid.tau=5,10,20
    grid.uplink.bits=1,2. Scores are on a tenth of the training samples, which is held out, and on separate
    seeds (from 10000 on). Writes tuned.toml, a config for fedcom run and fedcom compare. On a GPU, runs that
    differ only in eta, gamma, server.rate and seed are computed together. After an interruption, the same
    command continues where it stopped.
    """
    from fedcom.studies import tune

    table = settings_of(settings, trust)
    grid = table.pop("grid", {})
    names = methods_in(methods, table)
    force = force and earlier(None) is None  # torchrun's next attempt goes on
    how: dict[str, Any] = {"seeds": seeds, "budget": budget, "force": force}
    with results_folder(out, f"tune-{data_in(table)}") as out:
        found = tune.tune(table, grid, names, out, **how, device=device, quiet=quiet)
        for method, own in found.items():
            print(f"{method}: {tune.words(own)}")
        print(f"config in {out / 'tuned.toml'}")


@app.command("plan", epilog=KEYS)
def plan_command(
    settings: Settings = None,
    accuracy: Annotated[float | None, typer.Option(help="Test accuracy to reach, such as 0.9.")] = None,
    loss: Annotated[float | None, typer.Option(help="Training loss to reach.")] = None,
    megabytes_: Annotated[
        float | None, typer.Option("--megabytes", help="Budget per client, up and down together.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget of modelled time; needs a network.")] = None,
    by: Annotated[
        By | None,
        typer.Option(help="What to keep small.", show_default="seconds with a network, else bytes"),
    ] = None,
    taus: Annotated[
        str | None,
        typer.Option(help="Numbers of local steps to try, separated by commas.", show_default="the config's"),
    ] = None,
    constants: Annotated[
        str | None,
        typer.Option(help="Ask the theorems instead of a task: L=1,mu=0.05,sigma=1,m=100,gap=2."),
    ] = None,
    dim: Annotated[int, typer.Option(min=1, help="Parameters of the model, with --constants.")] = 200_000,
    alike: Annotated[
        bool, typer.Option("--alike", help="Assume that clients are alike, with --constants.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="Run what is recommended, and compare it with the prediction.")
    ] = False,
    out: Out = None,
    device: DeviceOption = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Predict rounds, bytes and modelled time of methods and codecs to a goal, and recommend one.

    The goal is an accuracy or a loss to reach, or a budget of bytes or time to make the most of. Candidates
    are the labels in the config's methods section, or else twelve built-in ones, four of them with momentum
    at the server. Each candidate has a pilot run at auto rates for an eighth of run.rounds, on separate
    seeds and held-out samples (for a loss, on all training samples), and its curve is extrapolated. The three
    most promising continue to half of run.rounds. Writes plan.toml, a config for fedcom run.

    With --constants nothing is run: the theorems' bounds decide, which are far above what happens.
    """
    from fedcom.studies import plan

    table = settings_of(settings, trust)
    if constants is not None:
        _by_theory(table, constants, loss, dim, alike, as_json)
        return
    goal = plan.Goal(accuracy, loss, None if megabytes_ is None else 1e6 * megabytes_, seconds)
    cost: Any = None if by is None else by.value
    try:
        steps = [int(tau) for tau in taus.split(",")] if taus else []
    except ValueError:
        raise ConfigError(f"--taus takes whole numbers, as in 5,10,20; got {taus!r}") from None
    with given_or_fresh(out, f"plan-{data_in(table)}") as out:
        how: dict[str, Any] = {"by": cost, "taus": steps, "device": device, "quiet": quiet}
        found = plan.plan(table, goal, out, **how)
        best = found[0]
        told: dict[str, Any] = {"plan": [asdict(p) for p in found]}
        if not as_json:
            show(plan.render(found, goal))
            print(plan.why(found, goal))
        if run and best.rounds is not None:
            made = plan.candidates(table, steps)
            told["outcome"] = plan.outcome(made, best, goal, out / "run", device, quiet)
            if not as_json:
                print(plan.beside(best, told["outcome"], goal))
        if as_json:
            print(json.dumps(told, indent=2))
        else:
            print(f"plan in {out}")
            if best.rounds is not None:
                print(f"to run it: fedcom run {shlex.quote(str(out / 'plan.toml'))}")


def _by_theory(table: "Table", text: str, loss: float | None, dim: int, alike: bool, as_json: bool) -> None:
    """What the theorems say."""
    from fedcom.config import Config
    from fedcom.studies import plan

    if loss is None:
        raise ConfigError("with --constants the goal is --loss: how far above its least the loss may end")
    network = Config.of({"network": table["network"]}).network if "network" in table else None
    found = plan.by_theory(plan.read_constants(text), loss, dim, alike=alike, network=network)
    if as_json:
        print(json.dumps([asdict(p) for p in found], indent=2))
    else:
        show(plan.render(found, plan.Goal(loss=loss)))


def probed(config: "Config", device: str, clients: int, samples: int, quiet: bool = True) -> dict[str, Any]:
    """What `fedcom probe` finds, as plain data."""
    from fedcom.engines.arguments import pick_device
    from fedcom.rounds.cohort import Cohort
    from fedcom.runs.prepare import build_task
    from fedcom.theory import probe
    from fedcom.theory.advice import advise, found
    from fedcom.theory.probes import promised

    task, config = build_task(config)
    task = task.to(pick_device(device))

    def show(what: str) -> None:
        if not quiet:
            print(f"fedcom: measuring {what}", file=sys.stderr)

    a, links = config.algorithm, config.links
    seen = probe(task, a, links, clients=clients, samples=samples, seed=config.run.seed, show=show)
    cohort = Cohort.of(a, task.sizes.cpu(), config.run.participation)
    best, lines = advise(seen, a, cohort)
    bound = promised(links, task.objective.layout)
    if bound is not None and not links.uplink.lossless:
        lines.append(f"The codec promises q up to {bound:.3g} for any vector.")
    constants = {
        name: {"value": e.value, "from": e.value - e.below, "to": e.value + e.above, "what": what}
        for name, (e, what) in found(seen, task.clients).items()
    }
    rates = None if best is None else {"eta": best.eta, "gamma": best.gamma}
    return {"constants": constants, "probed": seen.probed, "rates": rates, "advice": lines}
