"""fedcom probe, tune and plan: what to run, before it is run."""

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from fedcom.cli.options import KEYS, AsJson, Device, DeviceOption, Quiet, Settings
from fedcom.config import Config, Table
from fedcom.engines.simulation import pick_device
from fedcom.formats import significant
from fedcom.rounds.cohort import Cohort
from fedcom.runs.prepare import build_task
from fedcom.theory import probe
from fedcom.theory.advice import advise, found
from fedcom.theory.probes import CLIENTS, SAMPLES, promised

ReadSettings = Callable[[list[str] | None], Table]


def register(app: typer.Typer, read: ReadSettings, output: Callable[[], Console]) -> None:
    """Add the commands to the command line.

    Args:
        read: the settings that a command's arguments say.
        output: standard output.
    """

    @app.command("probe", epilog=KEYS)
    def probe_command(
        settings: Settings = None,
        clients: Annotated[int, typer.Option(min=1, help="How many clients to look at, at most.")] = CLIENTS,
        samples: Annotated[
            int, typer.Option(min=1, help="Samples of each for Hessians, drawn at random, at most.")
        ] = SAMPLES,
        device: DeviceOption = Device.auto,
        quiet: Quiet = False,
        as_json: AsJson = False,
    ) -> None:
        """Estimate a task's constants at its first model: sharpness, noise, dissimilarity, the codec's q.

        Says what they mean for eta, gamma, tau and the codec. To look at a trained model, set
        run.init=DIR/model.safetensors.
        """
        answer = probed(Config.of(read(settings)), device.value, clients, samples, quiet)
        if as_json:
            print(json.dumps(answer, indent=2))
            return
        grid = Grid(box=None, pad_edge=False)
        for heading in ("constant", "estimate", "from", "to", ""):
            grid.add_column(heading, justify="left" if heading in ("constant", "") else "right")
        for name, one in answer["constants"].items():
            cells = (significant(one[key], 3) for key in ("value", "from", "to"))
            grid.add_row(name, *cells, one["what"])
        output().print(grid)
        for line in answer["advice"]:
            print(line)


def probed(config: Config, device: str, clients: int, samples: int, quiet: bool = True) -> dict[str, Any]:
    """What `fedcom probe` finds, as plain data."""
    task, config = build_task(config)
    task = task.to(pick_device(device))

    def show(what: str) -> None:
        if not quiet:
            print(f"fedcom: measuring {what}", file=sys.stderr)

    a, links = config.algorithm, config.links
    seen = probe(task, a, links, clients=clients, samples=samples, seed=config.run.seed, show=show)
    cohort = Cohort.of(a, task.sizes.cpu(), config.run.participation)
    best, lines = advise(seen, a, cohort.tau, cohort.sampled)
    bound = promised(links, task.objective.layout)
    if bound is not None and not links.uplink.lossless:
        lines.append(f"The codec promises q up to {bound:.3g} for any vector.")
    constants = {
        name: {"value": e.value, "from": e.value - e.below, "to": e.value + e.above, "what": what}
        for name, (e, what) in found(seen, task.clients).items()
    }
    rates = {"eta": best.eta, "gamma": best.gamma}
    return {"constants": constants, "probed": seen.probed, "rates": rates, "advice": lines}
