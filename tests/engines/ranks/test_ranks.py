"""Runs on several ranks: the same bits as in one process, whatever starts them and whatever travels."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fedcom.config import Config, read
from fedcom.engines.ranks import ranks
from fedcom.engines.ranks.ranks import ALONE, Ranks, find, meeting_place
from fedcom.errors import ConfigError, OutOfMemory, RankLost
from fedcom.runs.prepare import build_task
from fedcom.runs.record import out_of_memory
from tests.choice import cover
from tests.conftest import CHAOS
from tests.processes import PATIENCE, Result, free_ports, started

JOB = Path(__file__).with_name("job.py")
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
ROUNDS = 20 if CHAOS else 4
SMALL = ["model.hidden=8", f"run.rounds={ROUNDS}", f"run.eval_every={ROUNDS // 2}", "algorithm.tau=2"]


def normed(batch_norm: str) -> list[str]:
    """A model that drops and has BatchNorm, in `make chaos`; torch takes seconds to load for it."""
    return ["model.name=tests.engines.ranks.nets:Net", f"model.batch_norm={batch_norm}"] if CHAOS else []


METHODS = {
    "fedcomgate": ["uplink.name=int", "uplink.bits=4", "run.participation=0.35"],
    "fedcomgate-exact": ["uplink.name=rotated", "uplink.bits=1", "run.participation=0.35", "run.store=disk"],
    "scaffold": ["algorithm.weights=size", "network.preset=lte"],
    "fedpaq": ["uplink.name=topk", "uplink.ratio=0.1", "uplink.memory=error-feedback"],
    "diana": ["algorithm.tau=1", "run.participation=0.5"],
    "fedavgm": [
        *("run.participation=0.35", "local.name=adamw", "local.keep=true", "algorithm.eta=0.01"),
        *("adapter.name=fedex", "adapter.alpha=2"),
    ],
    "fedexp": ["uplink.name=int", "run.participation=0.35", *normed("averaged")],
    "scaffold-m": ["server.name=momentum", "run.participation=0.35", *normed("own")],
    "fedgate": ["server.name=nesterov", "server.momentum=0.5", "run.store=disk", "local.name=momentum"],
    "fedcom": [
        *("uplink.name=int", "downlink.name=rotated", "downlink.bits=2", "algorithm.option=I"),
        *("server.name=adam", "run.participation=0.35", "adapter.name=rolora", "adapter.rank=2"),
    ],
}


def cases() -> dict[str, list[str]]:
    """Every method, with some transport in some precision; with all of them in `make chaos`."""
    every = list(product(METHODS, ("chain", "bytes"), ("float32", "float64")))
    numbers = tuple(product(range(len(METHODS)), range(2), range(2)))
    return {
        f"{method}-{transport}-{dtype}": [
            f"algorithm.name={method}",
            f"run.transport={transport}",
            f"run.dtype={dtype}",
            *(["run.encode=true"] if transport == "bytes" else []),
            *SMALL,
            *METHODS[method],
        ]
        for method, transport, dtype in (every if CHAOS else [every[i] for i in cover(numbers, 1)])
    }


def torchrun(ranks: int) -> tuple[str, ...]:
    return (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks))


def play(
    folder: Path,
    launcher: int | Sequence[str] = 1,
    runs: dict[str, list[str]] | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """What the job finds, by case.

    Args:
        launcher: what starts the ranks; a number: the tests do, by forking that many.
    """
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(runs or cases()))
    arguments = (str(folder / "cases.json"), str(folder), device)
    if isinstance(launcher, int):
        ends = forked(folder, launcher, *arguments)
        assert {end.code for end in ends} == {0}, ends[0].err[-3000:]
    else:
        path = os.pathsep.join([str(JOB.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, **ENVIRONMENT}
        command = [*launcher, str(JOB), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-3000:]
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    return {name: {**facts, "w": torch.load(folder / f"{name}.pt")} for name, facts in found.items()}


def forked(folder: Path, ranks: int, *arguments: str) -> list[Result]:
    """How the processes of the job end that import nothing again."""
    code = f"from tests.engines.ranks import job\njob.whole(*{arguments!r})\nraise SystemExit"
    where = dict[str, str]()
    if ranks > 1:
        (port,) = map(str, free_ports(1))
        where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **ENVIRONMENT}
    with ExitStack() as stack:
        commands = [
            stack.enter_context(
                started(folder, prelude=code, environment={**where, **({"RANK": str(rank)} if where else {})})
            )
            for rank in range(ranks)
        ]
        return [command.result() for command in commands]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = play(tmp_path_factory.mktemp("ranks") / "alone")
    assert found.keys() == cases().keys()
    return found


REDUCED = {
    f"reduced-{t}": [f"run.transport={t}", "algorithm.name=fednova", *SMALL] for t in ("reduce", "chain")
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What three ranks find."""
    return play(tmp_path_factory.mktemp("ranks") / "three", 3, runs={**cases(), **REDUCED})


def equal(found: dict[str, Any], alone: dict[str, Any], ranks: int) -> None:
    assert found.keys() == alone.keys()
    for name, one in alone.items():
        many = found[name]
        assert many["ranks"] == ranks
        assert torch.equal(many["w"], one["w"]), name
        for key in ("rows", "ledger", "states", "server"):
            assert many[key] == one[key], (name, key)
        if "-bytes-" in name:
            assert many["received"] == many["ledger"]["uplink"]["total"] > 0


def test_three_ranks_give_the_bits_of_one_process(three: dict[str, Any], alone: dict[str, Any]) -> None:
    equal({name: found for name, found in three.items() if name not in REDUCED}, alone, 3)


@pytest.mark.thorough
def test_so_do_two_that_torchrun_starts(tmp_path: Path, alone: dict[str, Any]) -> None:
    equal(play(tmp_path / "a", torchrun(2)), alone, 2)


def test_reduced_sums_are_equal_to_rounding(three: dict[str, Any]) -> None:
    reduced, chained = (three[name] for name in REDUCED)
    assert reduced["ledger"] == chained["ledger"]
    assert torch.allclose(reduced["w"], chained["w"], rtol=1e-4, atol=1e-5)


RECORDED = {
    "fedavg": ["algorithm.name=fedavg"],
    "scaffold-sampled": ["algorithm.name=scaffold", "run.participation=0.35", "network.preset=lte"],
    "fedgate": ["algorithm.name=fedgate", "algorithm.weights=size"],
    "momentum": ["algorithm.name=fedcom", "server.name=momentum"],
    "fedpaq-biased": ["algorithm.name=fedpaq", "uplink.name=topk", "uplink.memory=error-feedback"],
}


def test_rounds_are_recorded_around_the_exchange(tmp_path: Path) -> None:
    # In float64, as a tape holds torch's operations and not the loops that take float32 steps on a CPU.
    rounds = 8 if CHAOS else 5
    common = [*SMALL, f"run.rounds={rounds}", "run.eval_every=4", "run.chunk=20", "run.dtype=float64"]
    chained, reduced = (
        {
            f"{name}-{transport}": [*common, f"run.transport={transport}", *settings]
            for name, settings in RECORDED.items()
        }
        for transport in ("chain", "reduce")
    )
    played = play(tmp_path / "played", 2, runs=reduced)  # two sums have one order
    tapes = {**chained, **reduced}
    if not CHAOS:  # every second one of either transport
        tapes = dict([*list(chained.items())[::2], *list(reduced.items())[1::2]])
    recorded = play(tmp_path / "recorded", 2, runs=tapes, device="tape")
    assert recorded.keys() == tapes.keys()
    for name, many in recorded.items():
        one = played[name.replace("-chain", "-reduce")]
        assert many["replayed"] >= (1 if "sampled" in name else rounds - 1), name
        assert torch.equal(many["w"], one["w"]), name
        for key in ("rows", "ledger", "states", "server"):
            assert many[key] == one[key], (name, key)


ON_A_GPU = {
    "fedavg": ["algorithm.name=fedavg"],
    "fedcomgate": ["algorithm.name=fedcomgate", "uplink.name=int", "uplink.bits=8"],
    "scaffold": ["algorithm.name=scaffold", "run.participation=0.35", "network.preset=lte"],
    "fedcomgate-exact": ["algorithm.name=fedcomgate-exact", "uplink.name=rotated", "run.participation=0.5"],
}


@pytest.mark.gpu
def test_ranks_that_share_a_gpu_agree_with_one_process(tmp_path: Path) -> None:
    runs = {
        f"{name}-{transport}": [
            *SMALL,
            "run.dtype=float64",
            f"run.transport={transport}",
            f"run.encode={str(transport == 'bytes').lower()}",
            *settings,
        ]
        for name, settings in ON_A_GPU.items()
        for transport in ("chain", "bytes", "reduce")
    }
    alone = play(tmp_path / "one", (sys.executable,), runs=runs, device="cuda")
    for name, many in play(tmp_path / "two", torchrun(2), runs=runs, device="cuda").items():
        one = alone[name]
        assert torch.allclose(many["w"], one["w"], rtol=1e-6, atol=1e-8), name
        assert many["ledger"] == one["ledger"], name
        last, first = many["rows"][-1], one["rows"][-1]
        assert last == pytest.approx(first, rel=1e-6), name
        if name.endswith("-bytes"):
            assert many["received"] == many["ledger"]["uplink"]["total"] > 0
            assert many["replayed"] == 0
        else:
            assert many["replayed"] >= (1 if "participation" in str(runs[name]) else ROUNDS - 1), name


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun (apt-get install openmpi-bin)")
def test_mpirun_gives_the_bits_of_one_process(tmp_path: Path, alone: dict[str, Any]) -> None:
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable)
    equal(play(tmp_path / "a", mpirun), alone, 2)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ALONE),
        ({"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"}, Ranks(1, 3, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, Ranks(2, 4, 0)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}, Ranks(0, 2, 0)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, ALONE),  # a script that sbatch started
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, Ranks(1, 2, 1)),
    ],
)
def test_ranks_are_found_in_the_environment(environment: dict[str, str], expected: Ranks) -> None:
    assert find(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"RANK": "1", "WORLD_SIZE": "2"},
            "but MASTER_ADDR does not say where they meet; start them with torch",
        ),
        ({"RANK": "first", "WORLD_SIZE": "2"}, "RANK='first' in the environment is not a number; unset it"),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "::1", "MASTER_PORT": "x"},
            "MASTER_PORT='x' in the",
        ),
    ],
)
def test_an_environment_that_cannot_be_is_one_line(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ranks.join(environment)


def test_blocks_are_contiguous_and_cover_all_clients() -> None:
    for clients, size in ((20, 3), (2, 4), (7, 7), (10**6, 8)):
        blocks = [Ranks(rank, size).block(clients) for rank in range(size)]
        assert [blocks[0].start, *(block.stop for block in blocks)] == [
            *(block.start for block in blocks),
            clients,
        ]


def test_a_rank_holds_the_samples_of_its_own_clients_and_trains_to_the_same_gradients() -> None:
    task, _ = build_task(Config.of(read(None, ["data.clients=7", "model.hidden=4"])))
    for rank in range(3):
        block = Ranks(rank, 3).block(7)
        mine, clients = task.only(block), torch.arange(block.start, block.stop)
        assert len(mine.x) == int(task.sizes[block.start : block.stop].sum()) < len(task.x)
        position = torch.arange(9).expand(len(clients), -1)
        ours, theirs = mine.samples(clients, position), task.samples(clients, position)
        assert all(map(torch.equal, ours, theirs))
    assert len(task.only(range(0)).x) == int(task.sizes[0])


def test_blocks_of_samples_are_scored_by_whoever_holds_them_whole() -> None:
    task, _ = build_task(Config.of(read(None, ["data.clients=7", "model.hidden=4"])))
    w, shares = task.objective.start, [Ranks(rank, 3).block(7) for rank in range(3)]
    blocks = [task.whole_blocks(share, 50) for share in shares]
    assert blocks[0].start == 0
    assert blocks[2].stop == -(-len(task.x) // 50)
    assert all(first.stop <= second.start <= first.stop + 1 for first, second in pairwise(blocks))
    for share, own in zip(shares, blocks, strict=True):
        for block in own:
            theirs = task.only(share).score_block(w, block, 50)
            assert all(map(np.array_equal, theirs, task.score_block(w, block, 50)))
    assert len(task.whole_blocks(range(3, 3), 50)) == 0


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({"MASTER_ADDR": "there", "MASTER_PORT": "1"}, ("there", 1)),
        ({"SLURM_STEP_NODELIST": "node[07-09,12]", "SLURM_JOB_ID": "40123"}, ("node07", 20123)),
        ({"SLURM_STEP_NODELIST": "a1,b2"}, ("a1", 29500)),
        ({}, (None, 29500)),
    ],
)
def test_ranks_meet_at_a_given_address_or_on_the_first_machine(
    environment: dict[str, str], address: tuple[str | None, int]
) -> None:
    assert meeting_place(environment) == address


@pytest.mark.parametrize(
    "said",
    [
        "NCCL error in: a.cpp:1, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "ncclUnhandledCudaError: Failed to CUDA calloc 4194304 bytes",
        "CUDA error: out of memory",
    ],
)
def test_too_little_memory_is_not_told_as_a_lost_rank(said: str) -> None:
    for error in (RuntimeError(said), dist.DistBackendError(said), torch.OutOfMemoryError(said)):
        with pytest.raises(torch.OutOfMemoryError) as caught, ranks._lost_ranks_named():
            raise error
        assert error in (caught.value, caught.value.__cause__)
        assert isinstance(out_of_memory(caught.value), OutOfMemory)
    with pytest.raises(RankLost, match="ended or did not answer") as lost, ranks._lost_ranks_named():
        raise RuntimeError("Connection closed by peer")
    assert isinstance(lost.value.__cause__, RuntimeError)
