"""What must hold of a deployment, whoever was killed: the model of one process, and sums that are zero."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedcom.config import Config, read
from fedcom.deployment.job import Job
from fedcom.engines.remote.engine import RemoteEngine
from fedcom.engines.remote.faults import AUDIT
from fedcom.runs.files import CHECKPOINTS
from tests.engines.remote.chaos import settled, weighted


def job_of(app: Path, settings: str) -> Job:
    """The app's job in this process."""
    package = app / app.name
    spec = importlib.util.spec_from_file_location("task_of_app", package / "task.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Job(Config.of(read(package / "fedcom.toml", settings.split())), module)


class Losing:
    """A transport in this process that loses the replies of given clients in given rounds."""

    def __init__(self, job: Job, folder: Path, lost: Mapping[int, Sequence[int]]) -> None:
        self.clients = {j: job.participant(j, folder / str(j)) for j in range(job.clients)}
        self.lost, self.round = lost, 0

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        for client, call in calls:
            if client not in self.lost.get(self.round, []):
                assert hear(client, self.clients[client].answer(call)) is None
        self.round += 1


def audit(out: Path) -> list[dict[str, Any]]:
    """Who was counted in which round."""
    return [json.loads(line) for line in (out / AUDIT).read_text().splitlines()]


def missing_in(out: Path) -> dict[int, list[int]]:
    """The clients that were called and not counted, by round; of a round played twice, the second time."""
    return {line["round"]: line["missing"] for line in audit(out) if line["missing"]}


def check(app: Path, out: Path, states: Path | None, settings: str, here: Path) -> int:
    """Assert what must hold at a deployment's last checkpoint; returns how many rounds it has done.

    Args:
        states: one folder of state per client, named after its number; None: sums are not checked.
        here: a folder for the same job in one process.
    """
    job = job_of(app, settings)
    played, folder = job.simulation(job.server_task()), out / CHECKPOINTS
    clients = Losing(job, here if states is None else states, {})
    task = played.task
    how = {"terms": job.config.round, "checksum": task.checksum, "frozen": task.objective.frozen}
    played.join(RemoteEngine(played.state, clients, folder / "remote", **how), 0)
    assert played.restore(folder)
    same = job_of(app, f"{settings} run.rounds={played.round}")
    same.serve(Losing(same, here / "clients", missing_in(out)), here / "run")
    theirs = played.module().state_dict()
    mine = load_file(here / "run" / "model.safetensors")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    if states is not None:
        kept = [state.delta for state, _ in settled(played, clients.clients)]
        scale = max(float(delta.abs().max()) for delta in kept)
        assert scale > 0
        assert float(weighted(played, kept).abs().max()) <= 1e-5 * scale
    return played.round
