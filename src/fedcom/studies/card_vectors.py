"""The vectors that codecs are measured on: made-up ones, a real update, or vectors from files."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcom.config import Config
from fedcom.data.files import locate
from fedcom.draws import Draw
from fedcom.errors import DataError
from fedcom.rounds.cohort import Cohort
from fedcom.rounds.round import Assignment, client_work, facts
from fedcom.rounds.rules import Rules
from fedcom.runs.prepare import build_task
from fedcom.tasks.oracle import DataOracle
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Layout

DIM = 200_000  # coordinates of the made-up vectors


class Vector(NamedTuple):
    """One vector to compress.

    Args:
        x: all coordinates, in one flat tensor.
        layout: the tensors that the vector consists of.
        drawn: whether the figure has a panel for it.
    """

    name: str
    x: Tensor
    layout: Layout
    drawn: bool = True


def vectors(dim: int = DIM, files: Sequence[Path] = ()) -> list[Vector]:
    """The vectors in the files; without files, the made-up ones and a real update."""
    return [read_vector(path) for path in dict.fromkeys(files)] or [*made_up(dim), real_update()]


def made_up(dim: int) -> list[Vector]:
    """Gaussian, heavy-tailed (cubed normal) and sparse (1% of a Gaussian) vectors of `dim` coordinates.

    Each has the layout of one matrix, as square as `dim` allows, since low-rank codecs need matrices.
    """
    rows = next(rows for rows in range(math.isqrt(dim), 0, -1) if dim % rows == 0)
    draw, layout = Draw.seeded(0), Layout(("made-up",), ((rows, dim // rows),))
    kept = draw.fold("sparse").permutation(dim)[: max(1, round(dim / 100))]
    x = draw.fold("values").normal(dim)
    sparse = torch.zeros(dim).index_copy(0, kept, x[kept])
    named = (("gaussian", x, True), ("heavy-tailed", x**3, False), ("sparse", sparse, False))
    return [Vector(name, values, layout, drawn) for name, values, drawn in named]


def real_update() -> Vector:
    """D of one client in round 0 of FedAvg: on MNIST if FEDCOM_DATA has it, else on digits."""
    root = os.environ.get("FEDCOM_DATA")
    data = {"name": "mnist", "root": root} if _has_mnist(root) else {"name": "digits"}
    task, config = build_task(Config.of({"data": data, "algorithm": {"name": "fedavg"}}))
    algorithm, layout, w = config.algorithm, task.objective.layout, task.objective.start
    cohort = Cohort.of(algorithm, task.sizes, 1.0)
    rules = Rules(algorithm, config.links, layout, cohort.clients, cohort.sampled)
    first = torch.zeros(1, dtype=torch.int64)
    draw = Draw.seeded(0).fold(0).fold(first)
    rnd = facts(rules, algorithm.local_rate(0), cohort.tau, 1.0, 0.0)
    oracle = DataOracle.of(task, first, draw, algorithm)
    given = Assignment(
        first,
        *rules.init_client(w),
        algorithm.broadcast(rules.init_server(w).state),
        oracle,
        cohort.steps,
        rnd,
        draw,
    )
    sent = client_work(rules, given, Channel("uplink", [Ledger(task.clients)])).sent
    return Vector(f"{task.name} update", sent["D"][0], layout)


def _has_mnist(root: str | None) -> bool:
    try:
        return bool(root) and not locate("mnist", root).missing()
    except DataError:
        return False


def read_vector(path: Path) -> Vector:
    """The vector in a file: one array of one or two axes (.npy), or all tensors together (.safetensors)."""
    if path.suffix not in (".npy", ".safetensors"):
        raise DataError(f"{path} is neither .npy nor .safetensors; save the vector as one of these")
    if not path.is_file():
        raise DataError(f"no vector file {path}; numpy.save makes one")
    try:
        tensors = _read(path)
    except Exception as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())}; save it again") from None
    if path.suffix == ".npy" and tensors[""].dim() not in (1, 2):
        raise DataError(f"{path} holds an array of shape {tuple(tensors[''].shape)}; save one or two axes")
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
    x = torch.cat([torch.zeros(0), *(tensor.reshape(-1).to(torch.float32) for tensor in tensors.values())])
    if not x.isfinite().all():
        raise DataError(f"{path} holds NaN, infinity or a number beyond float32; remove or scale it")
    if not x.any():
        raise DataError(f"{path} holds no number but zero; its relative error is not defined")
    return Vector(str(path), x, Layout(tuple(tensors), tuple(tuple(t.shape) for t in tensors.values())))


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        return load_file(path)
    array = np.load(path, allow_pickle=False)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds {array.dtype}, not real numbers")
    return {"": torch.from_numpy(array.astype(np.float64))}
