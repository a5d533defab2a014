"""Options that several commands share, and the help text on the keys of a config."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Device(StrEnum):
    """The device to compute on."""

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
Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results in that folder.")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute; auto uses the GPU if there is one.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_PARAGRAPHS = (
    "Keys of the sections:",
    "data: name, root (folder of its files), clients, partition, classes_per_client (for partition classes), "
    "alpha (for dirichlet and synthetic), beta (for synthetic), lazy (draw synthetic's samples when needed), "
    "validation (share of the training samples to score on in place of the test set)",
    "model: name, hidden (widths, such as 64,32)",
    "algorithm: name, eta and gamma (numbers, or auto: from the sharpness of the task), tau, epochs, batch, "
    "decay, weights, weight_decay, option, and the "
    "method's own keys, such as damping",
    "uplink, downlink: name and the codec's own keys, such as bits or ratio; memory (of what the codec "
    "drops: none, error-feedback or, for uplink only, paper); uplink also clip (largest norm of what a "
    "client sends), budgets (bits for each client) or bandwidths, correlated (spread the dither of a round "
    "over its clients); downlink also first (how the first model travels: dense or seed)",
    "run: rounds, participation (share of clients per round), seed, eval_every, dtype, target_accuracy, init "
    "(a model.safetensors to start from), chunk (clients computed at once), engine (eager, graph or "
    "compiled), tf32 (fast matrix products of less precision on a GPU), store (where clients' state is kept: "
    "auto, memory or disk), store_dtype (model or bfloat16), store_folder, encode (make the bytes of "
    "every message instead of counting them), checkpoint_minutes and checkpoint_rounds (between two "
    "checkpoints; 10 minutes unless told otherwise, 0: none), transport (between the processes of torchrun, "
    "mpirun or srun: chain, bytes or reduce), on_divergence (stop, or backoff: go back with half the eta if "
    "the loss blows up; backoff where rates are auto)",
    "network, for modelled time: preset (3g, lte, broadband or datacenter), uplink and downlink (Mbit/s), "
    "latency (s), spread (of clients' speeds), compute (s per local step)",
    "Names to choose from: fedcom list algorithms, codecs, datasets, models or partitions. To use your own "
    "code, write package.module:Name; it is imported, also from the current folder, and run.",
)
KEYS = "\n\n".join(_PARAGRAPHS)
