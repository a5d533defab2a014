"""What is written about a run once: where it ran, its settings, its clients' data, its model's accuracy."""

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedcom.codecs import CODECS
from fedcom.config import Table, method_sections
from fedcom.engines.local.eager import repeatable
from fedcom.engines.simulation import Simulation
from fedcom.plain import plain
from fedcom.redaction import own_command
from fedcom.runs.files import DATA_CHECKSUM
from fedcom.tasks.similarity import chosen_clients, similarity
from fedcom.tasks.task import Task
from fedcom.version import VERSION


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
        **({} if (command := own_command()) is None else {"command": command}),
    }


def device_name(device: torch.device) -> str:
    """The name of the GPU, or the architecture of the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"


def table_of(simulation: Simulation) -> Table:
    """The settings of a simulation made in Python; its data and model are known by name only."""
    links, task, options = simulation.rules.links, simulation.task, simulation.options
    settings = {key: value for key, value in simulation.settings.items() if value is not None}
    network = simulation.state.network
    table: Table = {
        "recorded": {"by": "fedcom.record", DATA_CHECKSUM: task.checksum},
        "data": {"name": task.name, "clients": task.clients},
        "model": {"name": type(task.objective.module).__name__},
        **method_sections(simulation.algorithm),
        "uplink": plain(links.uplink, CODECS) | {"memory": links.uplink_memory, "clip": links.clip},
        "downlink": plain(links.downlink, CODECS) | {"memory": links.downlink_memory},
        "run": {**settings, "encode": links.encode, "store": options.storage.home},
        **({} if network is None else {"network": asdict(network)}),
    }
    return {name: {k: v for k, v in section.items() if v is not None} for name, section in table.items()}


def partition_of(simulation: Simulation) -> dict[str, Any]:
    task = simulation.task
    counts = task.label_counts() if task.classes and not task.blind else None
    shown = {} if task.shown is None else {"shown": task.shown.tolist()}
    sizes = task.shown_sizes.tolist()
    about = {"clients": task.clients, **shown, **_names(task), "sizes": sizes, "label_counts": counts}
    return {**about, DATA_CHECKSUM: task.checksum}


def _names(task: Task, clients: Sequence[int] | None = None) -> dict[str, list[str]]:
    """The names of some clients, or all on which a model is evaluated; empty if they have none."""
    if task.names is None:
        return {}
    if clients is None:
        clients = range(task.clients) if task.shown is None else task.shown.tolist()
    return {"names": [task.names[client] for client in clients]}


def accuracy_of(simulation: Simulation) -> dict[str, Any]:
    with repeatable(simulation.options.tf32):
        found = simulation.task.details(simulation.server.w, simulation.own())
    clients = [accuracy if accuracy is None else round(accuracy, 5) for accuracy in found.client_accuracy]
    return {"clients": clients, **_names(simulation.task), "confusion": found.confusion}


def similarity_of(simulation: Simulation) -> dict[str, Any]:
    """Cosines between some clients' gradients at the starting model; None where one is not finite."""
    task, w = simulation.task, simulation.server.w
    if task.blind:
        return {"clients": [], "cosine": []}
    with repeatable(simulation.options.tf32):
        cosine = similarity(task, w).cpu()
    rows = [[round(c, 4) if math.isfinite(c) else None for c in row] for row in cosine.tolist()]
    clients = chosen_clients(task, w.numel()).tolist()
    return {"clients": clients, **_names(task, clients), "cosine": rows}
