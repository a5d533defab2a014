"""What the commands have in common: options, and the keys of a config."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG.toml | section.key=value",
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
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]

_PARAGRAPHS = (
    "Keys of the sections:",
    "data: name, root (folder of its files), clients, partition, classes_per_client (of partition classes), "
    "alpha (of dirichlet and synthetic), beta (of synthetic), lazy (draw synthetic's samples as needed)",
    "model: name, hidden (widths, such as 64,32)",
    "algorithm: name, eta, gamma, tau, epochs, batch, decay, weights, weight_decay, option, and the "
    "method's own, such as damping",
    "uplink, downlink: name and the codec's own, such as bits or ratio; memory (of what the codec drops: "
    "none, error-feedback or, up, paper); uplink also clip (largest norm of what a client sends), budgets "
    "(bits of each client) or bandwidths",
    "run: rounds, participation (share of clients per round), seed, eval_every, dtype, target_accuracy, init "
    "(a model.safetensors to start from), chunk (clients computed at once), engine (eager, graph or "
    "compiled), tf32 (fast matrix products of less precision on a GPU), store (of clients' state: auto, "
    "memory or disk), store_dtype (model or bfloat16), store_folder, encode (make messages' bytes)",
    "network, for modelled time: preset (3g, lte, broadband or datacenter), uplink and downlink (Mbit/s), "
    "latency (s), spread (of clients' speeds), compute (s per local step)",
    "Names to choose from: fedcom list algorithms, codecs, datasets, models or partitions. Or code of your "
    "own, by package.module:Name: it is imported, from the current folder too, and run.",
)
KEYS = "\n\n".join(_PARAGRAPHS)
