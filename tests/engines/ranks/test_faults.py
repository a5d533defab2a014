"""Ranks that die, runs that are started again, and checkpoints that go on on another number of ranks."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests import processes
from tests.processes import PATIENCE, Command, free_ports, started

SMALL = (
    "model.hidden=8",
    "algorithm.tau=2",
    "algorithm.decay=1",
    "algorithm.name=fedcomgate-exact",
    "run.participation=0.5",
)
WAITS = """
import pathlib, time
from fedcom.engines.local.eager import EagerEngine

def step(self, play=EagerEngine.step):
    while self.round == 14 and not pathlib.Path("go").exists():
        time.sleep(0.003)
    play(self)

EagerEngine.step = step
"""
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def finished(folder: Path, *arguments: str, ranks: int = 1) -> None:
    """Play a job to its end."""
    if ranks == 1:
        assert (alone := processes.finished(folder, *arguments)).code == 0, alone
        return
    with by_hand(folder, ranks, *arguments) as commands:
        ends = [command.result() for command in commands]
    assert {end.code for end in ends} == {0}, ends


def result(folder: Path) -> tuple[bytes, str, list[dict[str, object]]]:
    """The model, the ledger and the rows without wall times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
    return (folder / "model.safetensors").read_bytes(), (folder / "ledger.json").read_text(), rows


@contextlib.contextmanager
def by_hand(
    folder: Path,
    ranks: int,
    *arguments: str,
    timeout: float = PATIENCE,
    waiting: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[list[Command]]:
    """The processes of a job that nobody watches over.

    Args:
        waiting: the ranks that stay before round 15 of a run until there is a file `go` in the folder.
        environment: variables that they have besides the usual ones.
    """
    (port,) = map(str, free_ports(1))
    where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    where |= {**ENVIRONMENT, "FEDCOM_TIMEOUT": str(timeout), **(environment or {})}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                started(
                    folder,
                    *arguments,
                    environment={**where, "RANK": str(rank)},
                    prelude=WAITS if rank in waiting else "",
                )
            )
            for rank in range(ranks)
        ]


def wait_for_rows(path: Path, rows: int) -> None:
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= rows)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("server", [pytest.param("sgd", marks=pytest.mark.thorough), "momentum"])
def test_a_checkpoint_of_three_ranks_goes_on_on_two_and_on_one(tmp_path: Path, server: str) -> None:
    run = ("run", *SMALL, f"server.name={server}", "run.checkpoint_rounds=3", "-q")
    finished(tmp_path, *run, "run.rounds=10", "--out", "whole")
    finished(tmp_path, *run, "run.rounds=5", "--out", "part", ranks=3)
    finished(tmp_path, "run", "--resume", "part", "run.rounds=8", "-q", ranks=2)
    finished(tmp_path, "run", "--resume", "part", "run.rounds=10", "-q")
    assert result(tmp_path / "part") == result(tmp_path / "whole")


def test_when_a_rank_is_killed_the_others_end_with_a_clear_line(tmp_path: Path) -> None:
    long = ("run", *SMALL, "run.rounds=1000000", "-q", "--out", "a")
    with by_hand(tmp_path, 3, *long) as commands:
        wait_for_rows(tmp_path / "a" / "metrics.jsonl", 2)
        commands[1].send(signal.SIGKILL)
        ends = [command.result() for command in commands]
    assert [end.code for end in ends] == [7, 137, 7]
    assert "fedcom: another process of this run ended or did not answer" in ends[0].err
    assert ends[0].err.count("\n") == 1
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["rounds_done"] >= 1


def test_a_rank_that_hangs_is_given_up(tmp_path: Path) -> None:
    long = ("run", *SMALL, "run.rounds=1000000", "-q", "--out", "a")
    with by_hand(tmp_path, 3, *long, timeout=20) as commands:
        wait_for_rows(tmp_path / "a" / "metrics.jsonl", 2)
        commands[1].send(signal.SIGSTOP)
        ends = [commands[rank].result() for rank in (0, 2)]
    assert [end.code for end in ends] == [7, 7]
    assert "fedcom: another process of this run ended or did not answer" in ends[0].err
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "failed"


def test_a_port_of_another_program_is_told_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # takes connections, and never says a word
        port = str(other.getsockname()[1])
        run = ("run", *SMALL, "run.rounds=2", "-q", "--out", "a")
        with by_hand(tmp_path, 2, *run, timeout=3, environment={"MASTER_PORT": port}) as commands:
            leader, follower = (command.result() for command in commands)
    assert (leader.code, follower.code) == (2, 7)
    assert leader.err == f"fedcom: another program listens on port {port}; choose another MASTER_PORT\n"
    assert f"127.0.0.1:{port} takes connections but is not where" in follower.err


def test_when_rank_0_is_killed_the_others_end_too(tmp_path: Path) -> None:
    long = ("run", *SMALL, "run.rounds=1000000", "-q", "--out", "a")
    with by_hand(tmp_path, 2, *long) as commands:
        wait_for_rows(tmp_path / "a" / "metrics.jsonl", 2)
        commands[0].send(signal.SIGKILL)
        assert commands[1].result().code == 7


def test_a_signal_to_all_ranks_stops_the_run_after_the_round(tmp_path: Path) -> None:
    constant = ("run", *SMALL, "-q")
    with by_hand(tmp_path, 2, *constant, "run.rounds=1000000", "--out", "a") as commands:
        wait_for_rows(tmp_path / "a" / "metrics.jsonl", 2)
        for command in commands:
            command.send(signal.SIGTERM)
        ends = [command.result() for command in commands]
    assert [end.code for end in ends] == [143, 0]
    assert ends[0].err == "fedcom: stopped by SIGTERM; go on with: fedcom run --resume a\n"
    done = json.loads((tmp_path / "a" / "summary.json").read_text())["rounds_done"]
    finished(tmp_path, *constant, f"run.rounds={done}", "--out", "whole")
    rows, whole = result(tmp_path / "a")[2], result(tmp_path / "whole")[2]
    assert len(rows) in (done, done + 1)  # the signal came before the last round was measured, or after
    assert rows == whole[: len(rows)]
    assert list((tmp_path / "a" / "checkpoints").glob("*.json"))


def test_there_may_be_more_ranks_than_clients(tmp_path: Path) -> None:
    few = ("run", "model.hidden=8", "data.clients=2", "algorithm.tau=2", "run.rounds=4", "-q", "--out")
    finished(tmp_path, *few, "one")
    finished(tmp_path, *few, "many", ranks=3)
    assert result(tmp_path / "many") == result(tmp_path / "one")


def test_different_arguments_of_ranks_are_told(tmp_path: Path) -> None:
    (port,) = map(str, free_ports(1))
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **ENVIRONMENT}
    few = ("run", "model.hidden=8", "data.clients=4", "algorithm.tau=2", "run.rounds=2", "-q", "--out", "a")
    with (
        started(tmp_path, *few, environment={**where, "RANK": "0"}) as first,
        started(tmp_path, *few, "run.seed=7", environment={**where, "RANK": "1"}) as second,
    ):
        ends = [first.result(), second.result()]
    assert [end.code for end in ends] == [0, 0]
    assert (
        ends[0].err == "fedcom: ranks were started with different arguments; those of rank 0 count for all\n"
    )
    assert ends[1].err == ""


def test_a_wrong_setting_ends_all_ranks(tmp_path: Path) -> None:
    with by_hand(tmp_path, 2, "run", "algorithm.eta=fast") as commands:
        ends = [command.result() for command in commands]
    assert [end.code for end in ends] == [2, 0]
    assert ends[0].err == "fedcom: algorithm.eta must be a number or 'auto'; got 'fast'\n"
    assert ends[1].err == ""


def locked_by(folder: Path) -> int | None:
    """The process that plays the run in a folder, if one does."""
    with contextlib.suppress(OSError, ValueError):  # no file, or one that is being written
        return int(json.loads((folder / ".lock").read_text())["pid"])
    return None


def test_a_run_is_started_again_where_it_was(tmp_path: Path) -> None:
    """As torchrun does, which keeps what the ranks told it; the real one: in `make chaos`, below."""
    run = ("run", *SMALL, "run.rounds=24", "run.checkpoint_rounds=8", "-q")
    finished(tmp_path, *run, "--out", "whole")
    folder = tmp_path / "runs" / "fedcomgate-exact-digits-001"
    (port,) = free_ports(1)
    agent = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    where = {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    first, again = ({**where, "TORCHELASTIC_RESTART_COUNT": count} for count in "01")
    with by_hand(tmp_path, 2, *run, waiting=[0], environment=first) as commands:
        wait_until(lambda: bool(list((folder / "checkpoints").glob("*.json"))))
        commands[0].send(signal.SIGKILL)
        assert commands[1].result().code == 7
    assert (folder / "metrics.jsonl").read_text().count("\n") < 24
    with by_hand(tmp_path, 2, *run, environment=again) as commands:
        ends = [command.result() for command in commands]
    assert {end.code for end in ends} == {0}, ends
    assert result(folder) == result(tmp_path / "whole")
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.thorough
def test_torchrun_starts_a_run_again_where_it_was(tmp_path: Path) -> None:
    run = ("run", *SMALL, "run.rounds=150", "run.checkpoint_rounds=8", "-q")
    finished(tmp_path, *run, "--out", "whole")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts=3")
    command, environment = [*torchrun, "-m", "fedcom", *run], {**os.environ, **ENVIRONMENT}
    folder = tmp_path / "runs" / "fedcomgate-exact-digits-001"
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        killed = set[int]()
        for rows in (8, 20, 32):
            wait_until(lambda: locked_by(folder) not in {None, *killed})  # it has been started again
            wait_for_rows(folder / "metrics.jsonl", rows)
            victim = locked_by(folder)
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        _, err = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, err[-3000:]
    assert result(folder) == result(tmp_path / "whole")
    assert len(list((tmp_path / "runs").iterdir())) == 1


SWEEP = (
    *("sweep", *SMALL, "grid.eta=0.02,0.05", "grid.gamma=1,2"),
    *("run.rounds=30", "run.checkpoint_rounds=10", "-q", "--out", "a"),
)


def records(folder: Path) -> list[dict[str, object]]:
    """The records of a sweep without wall times."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    finished(folder, *SWEEP)
    return folder / "a"


def test_runs_of_a_sweep_are_shared_out_and_one_that_was_lost_is_run_by_the_same_command(
    tmp_path: Path, swept: Path
) -> None:
    ended = tmp_path / "a" / "checkpoints"
    with by_hand(tmp_path, 2, *SWEEP, waiting=[1]) as commands:
        wait_until(lambda: len(list(ended.glob("*.json"))) >= 1)  # the other is in the middle of a run
        commands[1].send(signal.SIGKILL)
        end = commands[0].result()
    assert end.code == 7
    assert "another process of this run ended or did not answer" in end.err
    assert len(list(ended.glob("*.json"))) == 3  # all but the one that was lost
    finished(tmp_path, *SWEEP)
    assert records(tmp_path / "a") == records(swept)
    assert files(tmp_path / "a") == files(swept)


def test_a_signal_stops_all_ranks_of_a_sweep_and_the_same_command_goes_on(
    tmp_path: Path, swept: Path
) -> None:
    with by_hand(tmp_path, 2, *SWEEP, waiting=[0, 1]) as commands:
        saves = tmp_path / "a" / "checkpoints"
        wait_until(lambda: len(list(saves.glob("*/"))) >= 2)  # both ranks are at it
        for command in commands:
            command.send(signal.SIGTERM)
        (tmp_path / "go").touch()
        ends = [command.result() for command in commands]
    assert [end.code for end in ends] == [143, 143]
    assert ends[0].err.startswith("fedcom: stopped by SIGTERM; go on with: fedcom sweep")
    assert ends[1].err == ""
    finished(tmp_path, *SWEEP, ranks=2)
    assert records(tmp_path / "a") == records(swept)
    assert files(tmp_path / "a") == files(swept)


@pytest.mark.thorough
def test_runs_of_a_comparison_are_shared_out(tmp_path: Path) -> None:
    runs = ("compare", "model.hidden=8", "algorithm.tau=2", "run.rounds=6", "-q", "--methods")
    methods = ("fedavg,fedcomgate,scaffold", "methods.fedavg.eta=1e30", "--out")
    finished(tmp_path, *runs, *methods, "one")
    finished(tmp_path, *runs, *methods, "two", ranks=2)
    assert files(tmp_path / "two") == files(tmp_path / "one")
    for method in ("fedavg", "fedcomgate", "scaffold"):
        assert result(tmp_path / "two" / method / "seed-0") == result(tmp_path / "one" / method / "seed-0")
    tables = [json.loads((tmp_path / name / "table.json").read_text()) for name in ("one", "two")]
    assert tables[0] == tables[1]
