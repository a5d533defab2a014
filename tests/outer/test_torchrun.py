"""Outer steps of four real processes: the simulation's numbers, the same bits everywhere, failures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcom import FedCOM, Rotated, Simulation, Task
from tests.conftest import close
from tests.outer.worker import model, samples
from tests.processes import PATIENCE, program

WORKERS, STEPS, TURNS = 4, 5, 20


def torchrun(
    out: Path, restarts: int = 0, real: bool = False, workers: int = WORKERS, **given: Any
) -> list[Any]:
    """What each worker found.

    Args:
        real: whether the command itself starts them, or a process that has imported all.
    """
    given = {"out": str(out / "found"), **given}
    if real:
        options = ("--standalone", f"--nproc-per-node={workers}", f"--max-restarts={restarts}")
        script = (str(Path(__file__).with_name("worker.py")), json.dumps(given))
        command = [sys.executable, "-m", "torch.distributed.run", *options, *script]
        job = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert job.returncode == 0, job.stderr[-3000:]
    else:
        code = f"from tests.outer import worker\nworker.launch({workers}, {restarts}, {given!r})"
        end = program(out, code, environment={"GLOO_SOCKET_IFNAME": "lo"})
        assert end.code == 0, end.err[-3000:]
    return [torch.load(out / f"found-{rank}.pt") for rank in range(workers)]


def simulated() -> list[torch.Tensor]:
    """The models after each round of the same training in a simulation."""
    x, y = (torch.cat(parts) for parts in zip(*map(samples, range(WORKERS)), strict=True))
    task = Task.from_arrays(model(), x, y, partition=[[i] for i in range(WORKERS)], dtype="float64")
    method = FedCOM(
        eta=1e-2,
        gamma=0.7 / (1 - 0.9),
        tau=STEPS,
        batch=1,
        decay=1.0,  # as the workers' rates do not fall
        local={"name": "adamw", "keep": True},
        server={"name": "nesterov", "momentum": 0.9},
    )
    simulation, found = Simulation(task, method, Rotated(bits=0.25), rounds=TURNS, seed=0), []
    for _ in range(TURNS):
        simulation.step()
        found.append(simulation.state.server.w.clone())
    return found


def test_four_workers(tmp_path: Path) -> None:
    check_four(torchrun(tmp_path))


@pytest.mark.thorough
def test_the_command_torchrun(tmp_path: Path) -> None:
    check_four(torchrun(tmp_path, real=True))


def check_four(ends: list[Any]) -> None:
    first, *others = ends
    for found in (first, *others):
        assert found["same"]
        assert found["bytes"][0] == found["bytes"][1] > 0
        assert "worker 2" in found["not finite"][0]
        assert "not finite" in found["not finite"][0]
        late, damaged = found["refused"][-2:] if "worker 3" in found["refused"][0] else found["refused"][::-1]
        assert "outer step 1: the message of worker 3 is left out: it is of outer step 0" in late
        assert "outer step 1: the message of worker 2 is left out" in damaged
        assert all("workers differ in" in said for said in found["differ"])
        assert all(found["together"])
        assert found["least of shards"] == [10, 5]  # whatever their peers have
    for rank, found in enumerate(ends):
        (late, turns, early, none), led = found["ended"][:4], found["ended"][4:]
        for said, own in ((late, (3, 5)), (turns, (6, 7)), (led[0], (3, 5)), (led[1], (6, 7))):
            other = f"worker 0 has finished after {own[0]} steps, this one has taken {own[1]}"
            assert (other if rank else f"worker 1 takes further steps, this one has taken {own[0]}") in said
        for said in (early, led[2]):  # worker 0 goes on, and the others have finished
            assert ("worker 0 takes further" if rank else "worker 1 has finished after 4 steps") in said
        assert none == led[3] == "nothing"
    for found in ends:
        assert "other outer parameters" in found["drifted"]
        assert torch.equal(found["path"], first["path"])
    for ours, theirs in zip(first["path"], simulated(), strict=True):
        assert close(ours, theirs, 1e-6)
    assert close(first["led identity"], first["path"][:4], 1e-12)
    assert not torch.equal(first["led None"], first["path"][:4])  # coded again
    for down in ("identity", None):  # the leader's message goes to each, theirs to it alone
        sent = [found[f"sent {down}"] for found in ends]
        assert sent[0][0] == 3 * sent[1][1]
        assert sent[0][1] == sum(sent[i][0] for i in (1, 2, 3))
        assert all(received == counted for _, received, counted in sent)
    assert first["sent identity"][0] > 8 * 3 * 4 * 163  # float64 to three, four times
    net = model()
    x, y = (torch.cat(parts) for parts in zip(*map(samples, range(WORKERS)), strict=True))
    torch.nn.functional.cross_entropy(net(x), y).backward()
    whole = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    for found in ends:
        steps, received, counted = found["hook"]
        assert (steps, received) == (2, counted)
        assert found["gradient nan"].isnan().all()
    assert close(first["gradient 1.0"], whole, 1e-4)
    for rank, found in enumerate(ends):
        asked = torch.full((20, 600), 2.0 + rank % 2)  # the mean of 1 and 3, or of 2 and 4
        assert close(found["gradient of two"], asked, 1e-4)
        assert found["bytes of two"][0] == found["bytes of two"][1] > 2 * 12_020
        assert (
            f"gradient of process {rank % 2} cannot be read: a message of 9 bytes" in found["hook's damage"]
        )
        assert "process 0 is to exchange with [0, 1, 2, 3], process 1 with [1, 3]" in found["hook's groups"]
    # Weights 1, 2 and 4 of changes 1, 2 and 4, and a step of 0.7 (1 + 0.9).
    assert close(first["without it"], torch.tensor(1.33 * 21 / 7, dtype=torch.float64), 0.05)
    assert close(first["of two"], torch.tensor(1.5, dtype=torch.float64), 0.05)  # changes 1 and 2
    assert sum("another worker cannot read it" in found["refused"][-1] for found in ends) == 3


@pytest.mark.parametrize(
    ("real", "more"),
    [
        (False, {"delay": 1, "fragments": 2}),
        pytest.param(True, {}, marks=pytest.mark.thorough),
        pytest.param(True, {"delay": 1, "memory": 0.9, "codec": "topk"}, marks=pytest.mark.thorough),
    ],
)
def test_a_killed_worker_that_has_lost_its_checkpoints_joins_again(
    tmp_path: Path, real: bool, more: dict[str, Any]
) -> None:
    """It gets the outer parameters, moments and what was in flight from another; all go on the same."""
    folder = str(tmp_path / "saved")
    for found in torchrun(tmp_path, 1, real, 3, folder=folder, more=more, victim=1, forgets=True):
        assert found["same"]
        assert found["turns"] == ([8, 9] if "fragments" in more else [8])  # with one in finish
        # Killed after step 22, all go on from the last outer step or the one before.
        assert found["outer steps"] in ((7, 8) if "fragments" in more else (4, 5))


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{}, {"delay": 1, "fragments": 2}, {"memory": 0.9, "codec": "topk"}])
def test_a_killed_worker_is_started_again(tmp_path: Path, more: dict[str, Any]) -> None:
    whole = torchrun(tmp_path, folder=str(tmp_path / "whole"), more=more, victim=-1)
    ends = torchrun(tmp_path, 2, folder=str(tmp_path / "cut"), more=more, victim=1)
    for found, asked in zip(ends, whole, strict=True):
        assert found["same"]
        assert torch.equal(found["end"], asked["end"])


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "leads"), [("ddp", 2), ("fsdp", 4)])
def test_sites_of_several_processes(tmp_path: Path, kind: str, leads: int) -> None:
    """With DDP one process of a site sends all, with FSDP each sends its shards."""
    ends = torchrun(tmp_path, sites=kind)
    assert all(found["same"] for found in ends)
    assert sum(found["sent"] > 0 for found in ends) == leads
    assert sum(found["size"] for found in ends) == (4 if kind == "ddp" else 2) * 180
    assert all(found["losses"][-1] < found["losses"][0] / 1.5 for found in ends)
