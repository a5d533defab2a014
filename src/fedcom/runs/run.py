"""Run a config and write its folder: config, metrics, summary, bytes and model."""

import json
import math
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedcom.config import Config, dumps
from fedcom.engines.local.eager import repeatable
from fedcom.engines.simulation import Row, Simulation
from fedcom.errors import Diverged
from fedcom.runs.curve import Curve, milestones
from fedcom.runs.display import progress
from fedcom.runs.folder import make_folder, write_json
from fedcom.runs.prepare import prepare
from fedcom.tasks.similarity import chosen_clients, similarity
from fedcom.version import VERSION

FILES = (
    "config.toml",
    "metrics.jsonl",
    "summary.json",
    "ledger.json",
    "partition.json",
    "similarity.json",
    "environment.json",
    "model.safetensors",
)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        error: what ended the run early; None for a run that finished.
    """

    curve: Curve
    error: Diverged | KeyboardInterrupt | None


def execute(
    config: Config,
    out: Path,
    *,
    device: str = "auto",
    quiet: bool = False,
    label: str | None = None,
    callbacks: Sequence[Callable[[Row], None]] = (),
) -> Outcome:
    """Run a config and write its results into a folder, also if the run diverges or is interrupted.

    Args:
        out: the folder; made if it does not exist. Files of an earlier run in it are replaced.
        device: "auto", "cpu" or "cuda".
        quiet: show no progress.
        label: the run's name in the progress display and in its curve; None for the algorithm's name.
        callbacks: each is called with every row.
    """
    simulation, config = prepare(config, device)
    make_folder(out, FILES)
    (out / "config.toml").write_text(dumps(config.table()), encoding="utf-8")
    write_json(out / "environment.json", environment(simulation))
    write_json(out / "partition.json", _partition(simulation))
    write_json(out / "similarity.json", _similarity(simulation))
    rows: list[Row] = []
    status, error = "done", None
    label = label or config.algorithm.name
    with (out / "metrics.jsonl").open("w") as log, progress(config.run.rounds, label, quiet) as show:
        try:
            for row in simulation.run([*callbacks, rows.append, _logger(log), show.update], show.advance):
                del row
        except (Diverged, KeyboardInterrupt) as caught:
            error = caught
            status = "diverged" if isinstance(caught, Diverged) else "interrupted"
    curve = Curve(label, config.run.seed, rows, status)
    _finish(simulation, config, curve, out)
    return Outcome(curve, error)


def environment(simulation: Simulation) -> dict[str, Any]:
    """Versions, device and command: what is needed to repeat a run on another machine."""
    device = simulation.server.w.device
    return {
        "fedcom": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "chunk": simulation.chunk,
        "command": sys.argv,
    }


def device_name(device: torch.device) -> str:
    """The name of the GPU, or the architecture of the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"


def _logger(log: Any) -> Callable[[Row], None]:
    def write(row: Row) -> None:
        log.write(json.dumps(row, allow_nan=False) + "\n")
        log.flush()

    return write


def _partition(simulation: Simulation) -> dict[str, Any]:
    task = simulation.task
    counts = task.label_counts() if task.classes else None
    shown = {} if task.shown is None else {"shown": task.shown.tolist()}
    return {"clients": task.clients, **shown, "sizes": task.shown_sizes.tolist(), "label_counts": counts}


def _similarity(simulation: Simulation) -> dict[str, Any]:
    """Cosines between some clients' gradients at the starting model; None where one is not finite."""
    task, w = simulation.task, simulation.server.w
    with repeatable(simulation.options.tf32):
        cosine = similarity(task, w).cpu()
    rows = [[round(c, 4) if math.isfinite(c) else None for c in row] for row in cosine.tolist()]
    return {"clients": chosen_clients(task, w.numel()).tolist(), "cosine": rows}


def _finish(simulation: Simulation, config: Config, curve: Curve, out: Path) -> None:
    """Write the summary, the ledger and the model."""
    from safetensors.torch import save_file

    last = dict(curve.rows[-1]) if curve.rows else {}
    goals = milestones(curve.rows, config.run.target_accuracy)
    ending = {"status": curve.status, "rounds_done": simulation.round, "algorithm": config.algorithm.name}
    size = {"parameters": simulation.server.w.numel()}
    target = {"target_accuracy": config.run.target_accuracy}
    write_json(out / "summary.json", last | goals | target | ending | size)
    write_json(out / "ledger.json", simulation.ledger.as_dict())
    state = {
        name: value.detach().cpu().contiguous() for name, value in simulation.module().state_dict().items()
    }
    save_file(state, out / "model.safetensors")
