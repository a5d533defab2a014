"""Options that several commands share, and the help text on the keys of a config."""

import re
from pathlib import Path
from typing import Annotated

import typer

from fedcom.errors import unknown

# What other modules know too, but only with torch; tests compare them.
PORT = 8765  # of a live report
METHODS = "fedavg, fedpaq, scaffold, fedgate, fedcomgate"
LISTS = (
    *("algorithms", "server_optimisers", "local_optimisers", "schedules"),
    *("codecs", "datasets", "models", "partitions"),
)
RATES, REPEAT, DIM = "0.1,0.5,1,2,4,8", "8", 200_000
CLIENTS, SAMPLES, SEEDS = 20, 512, 3  # to probe; to confirm what was tuned
_STUDIES = (
    *(f"fig{number}" for number in range(1, 10)),
    *(
        "frontier-mnist",
        "frontier-fashion-mnist",
        "frontier-cifar-10",
        "optimisers",
        "language",
        "outer",
        "lora-stories15m",
        "lora-smollm2",
        "niid-bench-mnist",
        "niid-bench-fashion-mnist",
        "niid-bench-cifar-10",
        "niid-compressed-mnist",
        "niid-compressed-fashion-mnist",
        "niid-compressed-cifar-10",
        "flamby",
        "explorations",
        "tracking",
        "tables",
        "theory",
    ),
)
STUDIES = (
    f"{', '.join(_STUDIES)} or all; or rates, followed by the data sets or studies to tune them for. "
    "Then overrides."
)
QUICK = "A small version: 20 clients, 30 rounds (CIFAR-10: 10), one seed; tables, theory: fewer cases."
ONLY = (
    "The label of a panel or a point of the study: run or tune only this one. Repeat the option for several. "
    "Points of earlier calls are drawn too, if the study can be judged in part."
)
REPRODUCED = "runs/reproduce, or runs/reproduce-quick"


def studies(incomplete: str) -> list[str]:
    """The studies that begin with some letters, for a shell's completion."""
    return [name for name in (*_STUDIES, "all", "rates") if name.startswith(incomplete)]


def known_list(name: str | None) -> str | None:
    """The name of a list of choices, if one is given; raises ConfigError on another."""
    if name is not None and name not in LISTS:
        raise unknown("list", name, LISTS)
    return name


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} is not auto, cpu, cuda or one GPU, such as cuda:1.")
    return name


Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG | section.key=value",
        help="A config: a file, or an experiment by name, such as mnist; then overrides such as "
        "data.name=mnist algorithm.eta=0.05 uplink.bits=4; unset=data.path,network takes a key and a section "
        "out of the file.",
        show_default=False,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Names separated by commas; labels from the config's methods section are names too.",
        show_default="the config's algorithm.name, or fedcomgate",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the results.", show_default="a fresh one under runs/")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite earlier results in that folder.")]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N",
        help="Where to compute; auto uses the GPU if there is one.",
        callback=_device,
        autocompletion=lambda: ["auto", "cpu", "cuda", "cuda:0"],
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Check everything, print the settings with all defaults, and stop. This imports code that the "
        "config names.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        envvar="FEDCOM_TRUST",
        help="Import code that a config outside the current folder names. Read both, config and code, first.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_PARAGRAPHS = (
    "Keys of the sections:",
    "data: name, or path (a file of yours: .npz, .csv or .parquet) with label_column (for survival "
    "time_column and event_column), client_column and test (another file, or a share to hold out), normalise "
    "(features: by client or all), root (folder of its files), clients, partition, classes_per_client (for "
    "partitions classes and labels), alpha (for dirichlet, dirichlet-capped and synthetic), beta (for "
    "synthetic), lazy (draw synthetic's samples when needed), validation (share of the training samples to "
    "score on in place of the test set), pixels (unit: pixels of images from 0 to 1), augment (shift and "
    "flip images at random); for text also length (tokens of a sequence), tokenizer (a tokenizer.json, else "
    "characters) and tokens (a file that fedcom cut wrote, in place of text); with name=text, path is a "
    "folder of text, or a .jsonl with text_column and client_column",
    "model: name, hidden (widths, such as 64,32; for gru its units), embed and layers (for gru), width, "
    "heads, layers, positions and tied (for transformer), path and dtype (for llama: the folder of its "
    "weights), batch_norm (frozen, averaged or own); for a class of yours, its arguments",
    "adapter, low-rank adapters of a frozen model: name (lora, ffa, rolora, fedex, flora or het), rank, "
    "alpha, layers (names or patterns), also (other parameters that are trained), ranks (for het)",
    "algorithm: name, eta and gamma (numbers, or auto: from the sharpness of the task), tau, epochs, batch, "
    "decay, eta_schedule and gamma_schedule (by round: constant, decay, cosine, warmup or step, with "
    "settings as in 'warmup(rounds=10, then=cosine)'), weights, weight_decay, average (models: where clients "
    "differ in steps), option, and the method's own keys, such as damping",
    "server, how the server steps along the mean: name (sgd, momentum, nesterov, adam, yogi or adagrad) and "
    "its own keys, such as momentum or rate",
    "local, how clients step along their gradients: name (sgd, momentum, adamw or muon) and its own keys, "
    "such as momentum; clip, weight_decay, mu (of FedProx), keep (moments between rounds), correction "
    "(inside or outside of the optimiser)",
    "uplink, downlink: name and the codec's own keys, such as bits or ratio; memory (for what the codec "
    "drops: none, error-feedback or, for uplink only, decayed-feedback or paper); uplink also clip (largest "
    "norm of what a client sends), budgets (bits for each client) or bandwidths, correlated (spread the "
    "dither of a round over its clients); downlink also first (how the first model travels: dense or seed)",
    "run: rounds, participation (share of clients per round), seed, eval_every, dtype, target_accuracy, init "
    "(a model.safetensors to start from), chunk (clients computed at once), microbatch (samples of a client "
    "computed at once, whose gradients are added up), engine (eager, graph or "
    "compiled), tf32 (fast matrix products of less precision on a GPU), store (where clients' state is kept: "
    "auto, memory or disk), store_dtype (model or bfloat16), store_folder, encode (make the bytes of every "
    "message instead of counting them), checkpoint_minutes and checkpoint_rounds (between two checkpoints; "
    "default 10 minutes, 0: none), transport (between the processes of torchrun, mpirun or srun: chain, "
    "bytes or reduce), on_divergence (stop, or backoff: go back with half the eta if the loss blows up; "
    "backoff where rates are auto), stop (ends the run, as in 'test_accuracy>=0.9'), patience (evaluations "
    "without a better model that end the run), best (the figure by which the best model is chosen, which is "
    "kept as best.safetensors), log (csv, tensorboard, mlflow, wandb; several with commas)",
    "network, for modelled time: preset (3g, lte, broadband or datacenter), uplink and downlink (Mbit/s), "
    "latency (s), spread (of clients' speeds), compute (s per local step)",
    "round, for real clients (fedcom flower): deadline (s), least (share of clients that must reply), clip "
    "(largest norm that the server accepts) and clip_times (the same in medians of the round), restarts (how "
    "often a client may lose its state), offences (bad replies in a row that leave a client out) and rest "
    "(for how many rounds), void (rounds without enough replies in a row that end a run) and pause (s after "
    "one), rebind (a client's number may pass to another node's key), metrics_port (for Prometheus)",
    f"Names to choose from: fedcom list {', '.join(LISTS[:-1])} or {LISTS[-1]}. "
    "To use your own code, write package.module:Name; it is imported from the current folder or from "
    "installed packages, and run. A config outside the current folder that names code needs --trust.",
)
KEYS = "\n\n".join(_PARAGRAPHS)
