"""Runs in processes that are killed, stopped, or run out of disk go on and end with the same bits.

`make chaos` sets FEDCOM_CHAOS=1, with which each test does its worst; without it, a small part of that.
"""

import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcom.config import Config, read
from fedcom.engines.simulation import Simulation
from fedcom.errors import OutOfMemory
from fedcom.runs.files import CHECKPOINTS, FILES
from fedcom.runs.prepare import prepare
from fedcom.runs.record import record
from fedcom.studies.compare import FILES as COMPARISON
from fedcom.studies.compare import PLAN
from fedcom.studies.sweep import FILES as SWEEP
from tests.conftest import CHAOS
from tests.processes import Command, Result, finished, started

SMALL = ("model.hidden=16", "algorithm.tau=2", "algorithm.decay=1")
OFTEN = ("run.checkpoint_rounds=2",)
SAMPLED = (*SMALL, "run.participation=0.25", "run.store=disk", *OFTEN)
FOREVER = "run.rounds=1000000"
SIGNALS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}
PIPE = 141  # the exit code if the reader of standard error is gone


def rows_of(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of a file without their wall times; every line must be whole."""
    rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def results(folder: Path) -> tuple[bytes, bytes, list[dict[str, Any]]]:
    """All that two runs of the same settings have in common."""
    model, ledger = ((folder / name).read_bytes() for name in ("model.safetensors", "ledger.json"))
    return model, ledger, rows_of(folder)


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def done(result: Result) -> Result:
    assert result.code == 0, result
    return result


def manifests(folder: Path) -> list[int]:
    """The rounds of the checkpoints in a folder."""
    return sorted(int(path.stem) for path in folder.rglob(f"{CHECKPOINTS}/**/????????.json"))


# Kills


def kill_at_random(command: Command, draw: random.Random) -> None:
    """Kill a run while it starts, or a few rounds after it has gone on."""
    log = command.folder / "a" / "metrics.jsonl"
    if draw.random() < 0.2:
        command.process.join(draw.uniform(0, 0.6))
    else:
        had = command.folder / "a" / "environment.json"  # is written anew before the first round
        before = had.stat().st_mtime_ns if had.exists() else 0
        assert command.until(lambda: had.exists() and had.stat().st_mtime_ns > before), command.result()
        more = lines(log) + draw.randrange(8)
        assert command.until(lambda: lines(log) >= more), command.result()
        command.process.join(draw.uniform(0, 0.05))
    command.send(signal.SIGKILL)
    assert command.result().code == 137


METHODS = {
    "fedcomgate": (),
    "fedcomgate-exact": ("uplink.name=rotated", "uplink.bits=0.5"),
    "fedpaq": ("uplink.name=topk", "uplink.memory=error-feedback"),
}


@pytest.mark.parametrize(
    "method", [pytest.param("fedcomgate", marks=pytest.mark.thorough), "fedcomgate-exact", "fedpaq"]
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path, method: str) -> None:
    how = (*SAMPLED, f"algorithm.name={method}", *METHODS[method])
    draw, out = random.Random(method), tmp_path / "a"
    for _ in range(50 if CHAOS else 3):
        begun = (out / "config.toml").exists()
        go_on = ("--resume", "a") if begun else (*how, FOREVER, "--out", "a", "--force")
        with started(tmp_path, "run", *go_on, "-q") as command:
            kill_at_random(command, draw)
    reached = manifests(out)[-1]
    assert reached >= 2
    rounds = f"run.rounds={reached + 4}"
    done(finished(tmp_path, "run", "--resume", "a", rounds, "-q"))
    done(finished(tmp_path, "run", *how, rounds, "-q", "--out", "whole"))
    assert [row["round"] for row in rows_of(out)] == list(range(reached + 5))
    assert results(out) == results(tmp_path / "whole")
    assert summary(out)["status"] == "done"
    assert {path.name for path in out.iterdir()} == {*FILES, CHECKPOINTS}
    assert len(list((out / CHECKPOINTS).glob("*.json"))) == 2


# Signals and pipes


def stopped(folder: Path, ready: Callable[[], bool], how: Sequence[str], by: int) -> Result:
    """Start a command and stop it when it is ready, by a signal or by closing its pipe."""
    pipe, options = folder / "pipe", dict[str, Any]()
    if by == signal.SIGPIPE:
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        options["stderr"] = pipe
    with started(folder, *how, **options) as command:
        if by == signal.SIGPIPE:
            with pipe.open() as reader:
                command.until(ready)
                reader.readline()
        elif command.until(ready):
            command.send(by)
        return command.result()


@pytest.mark.parametrize("by", [*SIGNALS, signal.SIGPIPE] if CHAOS else [signal.SIGINT, signal.SIGPIPE])
def test_a_run_that_is_stopped_keeps_all_and_goes_on(tmp_path: Path, by: signal.Signals) -> None:
    how = ("run", *SMALL, "run.participation=0.5", FOREVER, "--out", "a")
    if by == signal.SIGPIPE:
        how = (*how, "run.rounds=1000")  # it notices when it next prints, which is every 50 rounds
    log = tmp_path / "a" / "metrics.jsonl"
    code, out, err = stopped(tmp_path, lambda: lines(log) >= 3, how, by)
    assert (code, out) == (SIGNALS.get(by, PIPE), "results in a\n")
    if by != signal.SIGPIPE:
        assert err.endswith(f"fedcom: stopped by {by.name}; go on with: fedcom run --resume a\n")
    told, rows = summary(tmp_path / "a"), rows_of(tmp_path / "a")
    assert told["status"] == "interrupted"
    assert told["reason"] == ("a closed pipe" if by == signal.SIGPIPE else by.name)
    reached = told["rounds_done"]
    assert manifests(tmp_path / "a") == [reached]
    assert [row["round"] for row in rows] == list(range(len(rows)))
    assert reached - 1 <= rows[-1]["round"] <= reached
    more = f"run.rounds={reached + 7}"
    done(finished(tmp_path, "run", "--resume", "a", more, "-q"))
    done(finished(tmp_path, "run", *SMALL, "run.participation=0.5", more, "-q", "--out", "whole"))
    assert results(tmp_path / "a") == results(tmp_path / "whole")


STUDIES = {
    "compare": ("compare", *SMALL, "run.rounds=24", "--methods", "fedavg,fedcomgate", "--out", "a"),
    "sweep": ("sweep", *SMALL, *OFTEN, "run.rounds=24", "grid.eta=0.05,0.1,0.2", "--out", "a"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a study that nobody stopped; only read."""
    made: dict[str, Path] = {}

    def study(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            done(finished(made[name], *STUDIES[name], "-q"))
        return made[name] / "a"

    return study


def study_results(folder: Path) -> list[Any]:
    if (folder / "results.jsonl").exists():
        return [sorted(rows_of(folder, "results.jsonl"), key=lambda row: row["key"])]
    return [results(folder / method / "seed-0") for method in ("fedavg", "fedcomgate")]


BOTH = [(study, by) for study in STUDIES for by in (*SIGNALS, signal.SIGPIPE)]
SOME = [
    ("compare", signal.SIGTERM),
    ("compare", signal.SIGPIPE),
    ("sweep", signal.SIGHUP),
    ("sweep", signal.SIGPIPE),
]


@pytest.mark.parametrize(("study", "by"), BOTH if CHAOS else SOME[::2])
def test_a_study_that_is_stopped_goes_on_with_the_same_command(
    tmp_path: Path, study: str, by: signal.Signals, undisturbed: Callable[[str], Path]
) -> None:
    """It is stopped in its second run; if this machine was too slow to do that in time, once more."""
    out = tmp_path / "a"

    def ready() -> bool:
        if study == "compare":
            return lines(out / "fedcomgate" / "seed-0" / "metrics.jsonl") >= 2
        return lines(out / "results.jsonl") >= 1 and bool(manifests(out))

    for _ in range(5):
        shutil.rmtree(out, ignore_errors=True)
        result = stopped(tmp_path, ready, STUDIES[study], by)
        if result.code != 0:
            break
    assert result.code == SIGNALS.get(by, PIPE), result
    assert manifests(out)
    if study == "compare":
        told = summary(out / "fedcomgate" / "seed-0")
        assert told["status"] == "interrupted"
        assert told["reason"] == ("a closed pipe" if by == signal.SIGPIPE else by.name)
        assert summary(out / "fedavg" / "seed-0")["status"] == "done"
        rows = rows_of(out / "fedcomgate" / "seed-0")
        assert [row["round"] for row in rows] == list(range(len(rows)))
    else:
        assert 1 <= len(rows_of(out, "results.jsonl")) < 3
    if by != signal.SIGPIPE:
        assert f"fedcom: stopped by {by.name}; go on with: fedcom {study} " in result.err
    done(finished(tmp_path, *STUDIES[study], "-q"))
    assert study_results(out) == study_results(undisturbed(study))


@pytest.mark.parametrize("command", ["run", *STUDIES])
def test_a_reader_of_the_results_that_is_gone_costs_no_result(tmp_path: Path, command: str) -> None:
    """As in `fedcom compare | true`: all is in the folder, and nothing is said but the exit code."""
    how = ("run", "--out", "a") if command == "run" else STUDIES[command]
    os.mkfifo(pipe := tmp_path / "pipe")
    (tmp_path / "streams").mkdir()
    settings = (*how, *SMALL, "run.rounds=1", "-q")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    gone = Command(tmp_path, settings, pipe, tmp_path / "streams" / "err")
    assert gone.until((tmp_path / "a").exists)
    os.close(reader)
    gone.process.join()
    told = (tmp_path / "streams" / "err").read_text()
    assert (gone.process.exitcode, told) == (141, "")
    last = {"run": "model.safetensors", "compare": "report.html", "sweep": "report.html"}
    assert (tmp_path / "a" / last[command]).is_file()


def test_an_ignored_hang_up_stops_nothing(tmp_path: Path) -> None:
    how = ("run", *SMALL, FOREVER, "-q", "--out", "a")
    with started(tmp_path, *how, ignored=[signal.SIGHUP]) as command:
        log = tmp_path / "a" / "metrics.jsonl"
        assert command.until(lambda: lines(log) >= 2)
        command.send(signal.SIGHUP)
        seen = lines(log)
        assert command.until(lambda: lines(log) >= seen + 5)
        command.send(signal.SIGTERM)
        assert command.result().code == 143


def test_a_second_signal_ends_a_round_that_would_take_forever(tmp_path: Path) -> None:
    with started(
        tmp_path, "run", "model.hidden=16", "algorithm.tau=100000000", "-q", "--out", "a"
    ) as command:
        assert command.until(lambda: lines(tmp_path / "a" / "metrics.jsonl") >= 1)
        command.send(signal.SIGINT)
        command.process.join(0.2)  # Python sees two signals as one if it is busy: then it stops after 8 s
        with suppress(ProcessLookupError):  # the first signal came before the round began, and was enough
            command.send(signal.SIGINT)
        code, _, err = command.result()
    assert code == 130
    assert err == "fedcom: stopped by SIGINT; go on with: fedcom run --resume a\n"
    told = summary(tmp_path / "a")
    assert (told["status"], told["reason"], told["rounds_done"]) == ("interrupted", "SIGINT", 0)
    assert not (tmp_path / "a" / ".lock").exists()


@pytest.mark.parametrize("command", ["run", *STUDIES])
def test_standard_error_may_be_closed_from_the_start(tmp_path: Path, command: str) -> None:
    how = ("run", "--out", "a") if command == "run" else STUDIES[command]
    settings = (*how, *SMALL, "run.rounds=1", "--out", "a")
    assert "a\n" in done(finished(tmp_path, *settings, stderr=None)).out
    refused = finished(tmp_path, "run", *SMALL, "--out", "a", stderr=None)
    assert (refused.code, refused.out) == (2, "")


# What cannot go on


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the folder a holds a finished run of 10 rounds with checkpoints; only read."""
    folder = tmp_path_factory.mktemp("whole")
    done(finished(folder, "run", *SAMPLED, "run.rounds=10", "run.eval_every=4", "-q", "--out", "a"))
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole / "a", tmp_path / "a")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["algorithm.eta=0.5"], "a holds a run with algorithm.eta=0.05, not 0.5; leave it as it was"),
        (["uplink.bits=4"], "a holds a run with uplink.bits=8, not 4; leave it as it was"),
        (["run.seed=7"], "a holds a run with run.seed=0, not 7; leave it as it was"),
        (["run.rounds=9"], "a holds 10 rounds; 9 (run.rounds) are fewer: raise it to go on"),
        (["--out", "b"], "--resume DIR goes on in DIR; leave --out and --force out"),
        (["--force"], "--resume DIR goes on in DIR; leave --out and --force out"),
    ],
)
def test_what_cannot_go_on_is_refused_and_left_as_it_was(
    copied: Path, arguments: list[str], message: str
) -> None:
    before = contents(copied / "a")
    got = finished(copied, "run", "--resume", "a", *arguments)
    assert (got.code, got.out) == (2, "")
    assert got.err.startswith(f"fedcom: {message}")
    assert got.err.count("\n") == 1
    assert contents(copied / "a") == before


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        got = finished(tmp_path, "run", "--resume", name)
        assert (got.code, got.out) == (2, "")
        assert got.err == f"fedcom: {name} holds no run to resume: it has no config.toml\n"
    assert not (tmp_path / "none").exists()


def test_a_run_may_be_made_longer(copied: Path) -> None:
    """The row of its last round is not one of the longer run's, as four does not divide ten."""
    assert [row["round"] for row in rows_of(copied / "a")] == [0, 4, 8, 10]
    done(finished(copied, "run", "--resume", "a", "run.rounds=18", "-q"))
    done(finished(copied, "run", *SAMPLED, "run.rounds=18", "run.eval_every=4", "-q", "--out", "b"))
    assert [row["round"] for row in rows_of(copied / "a")] == [0, 4, 8, 12, 16, 18]
    assert results(copied / "a") == results(copied / "b")
    assert tomllib.loads((copied / "a" / "config.toml").read_text())["run"]["rounds"] == 18


def test_a_finished_run_is_not_played_again(copied: Path) -> None:
    before = contents(copied / "a")
    done(finished(copied, "run", "--resume", "a", "-q"))
    assert contents(copied / "a") == before


# Many at once


def test_runs_started_at_once_have_a_folder_each(tmp_path: Path) -> None:
    many, how = 20 if CHAOS else 4, ("run", *SMALL, "run.rounds=3", "-q")
    with ExitStack() as stack:
        commands = [stack.enter_context(started(tmp_path, *how)) for _ in range(many)]
        printed = [done(command.result()).out for command in commands]
    folders = [f"runs/fedcom-digits-{i:03d}" for i in range(1, many + 1)]
    assert sorted(printed) == [f"results in {folder}\n" for folder in folders]
    first = results(tmp_path / folders[0])
    for folder in folders:
        assert {path.name for path in (tmp_path / folder).iterdir()} == set(FILES)
        assert results(tmp_path / folder) == first
        assert summary(tmp_path / folder)["status"] == "done"


@pytest.mark.parametrize(
    "second", [["--out", "a"], ["--out", "a", "--force"], ["--resume", "a"]][: 3 if CHAOS else 1]
)
def test_a_folder_in_use_is_refused_and_its_run_is_left_alone(tmp_path: Path, second: list[str]) -> None:
    with started(tmp_path, "run", *SMALL, FOREVER, "-q", "--out", "a") as first:
        assert first.until(lambda: lines(tmp_path / "a" / "metrics.jsonl") >= 2)
        got = finished(tmp_path, "run", *([] if "--resume" in second else [*SMALL, "-q"]), *second)
        assert (got.code, got.out) == (2, "")
        assert f"a is in use by process {first.pid} on " in got.err
        first.send(signal.SIGTERM)
        assert first.result().code == 143
    rows = rows_of(tmp_path / "a")
    assert [row["round"] for row in rows] == list(range(len(rows)))
    reached = summary(tmp_path / "a")["rounds_done"]
    done(finished(tmp_path, "run", "--resume", "a", f"run.rounds={reached + 1}", "-q"))


# Damage


def state_of(simulation: Simulation) -> list[Tensor]:
    """What the server and the clients keep, as copies."""
    side = simulation.state.server_side
    kept = [
        *side.state,
        *side.memory.values(),
        *simulation.client_states(),
        *simulation.client_memory().values(),
    ]
    return [x.clone() for x in kept]


def harm(path: Path, draw: random.Random) -> None:
    """Flip a bit, cut the file off, or blank a part of it, as a disk might."""
    data = bytearray(path.read_bytes())
    place = draw.randrange(len(data))
    kind = draw.randrange(3)
    if kind == 0:
        data[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[place:]
    else:
        data[place : place + 512] = bytes(len(data[place : place + 512]))
    path.write_bytes(data)


def test_no_damage_to_checkpoints_leads_to_a_wrong_model(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged checkpoint is told and passed over; what is restored is always what the run once was."""
    config = Config.of(read(whole / "a" / "config.toml", []))

    def new() -> Simulation:
        return prepare(config, "cpu")[0]

    true, states = new(), {}
    for i in range(11):
        states[i] = state_of(true)
        if i < 10:
            true.step()
    checkpoints = whole / "a" / CHECKPOINTS
    assert manifests(whole / "a") == [8, 10]
    draw, passed_over, simulation = random.Random(0), 0, new()
    for trial in range(200 if CHAOS else 25):
        shutil.copytree(checkpoints, folder := tmp_path / str(trial))
        for path in draw.sample(sorted(folder.iterdir()), draw.choice((1, 1, 1, 2))):
            harm(path, draw)
        caplog.clear()
        simulation = Simulation(
            simulation.task, config.algorithm, config.links, **simulation.settings, storage=config.run.storage
        )
        with caplog.at_level(logging.WARNING):
            found = simulation.restore(folder)
        told = "cannot be used" in caplog.text
        assert found == (simulation.round > 0)
        assert simulation.round in (0, 8, 10)
        assert told or simulation.round == 10
        passed_over += told
        assert all(
            torch.equal(a, b) for a, b in zip(state_of(simulation), states[simulation.round], strict=True)
        )
        shutil.rmtree(folder)
    assert passed_over


# Full disks and too little memory


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of a few megabytes; skips the test where none can be mounted."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        if mount is None or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("needs to mount a small disk, which takes root")
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def fill(disk: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def check_full_and_go_on(folder: Path, out: Path, result: Result, free: Callable[[], None]) -> None:
    """A run that a full disk ended says so, and goes on when there is room."""
    assert (result.code, result.out) == (5, ""), result
    assert result.err.count("\n") == 1
    assert "cannot write to" in result.err or "has room for" in result.err
    assert "free some space or choose another place; then go on with: fedcom run --resume " in result.err
    assert summary(out)["status"] in ("failed", "running")
    before = manifests(out)
    assert before
    rows = rows_of(out)
    assert [row["round"] for row in rows] == list(range(len(rows)))
    free()
    rounds = f"run.rounds={before[-1] + 9}"
    done(finished(folder, "run", "--resume", str(out), rounds, "-q"))
    done(finished(folder, "run", *SAMPLED, "run.store=memory", rounds, "-q", "--out", "whole"))
    assert results(out) == results(folder / "whole")


def test_a_disk_that_fills_up_ends_a_run_which_goes_on_later(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk:
        with started(tmp_path, "run", *SAMPLED, FOREVER, "-q", "--out", "disk/a") as command:
            assert command.until(lambda: len(manifests(disk / "a")) == 2)
            fill(disk)
            result = command.result()
        check_full_and_go_on(tmp_path, disk / "a", result, (disk / "ballast").unlink)


def test_so_does_the_disk_of_the_clients_state(tmp_path: Path) -> None:
    """Clients that take part for the first time need room: most of 600 have not when the disk is full."""
    many = ("data.clients=600", "data.partition=iid", "run.participation=0.05", "model.hidden=64")
    with small_disk(tmp_path / "disk", "20m") as disk:
        how = ("run.store=disk", "run.store_folder=disk", "run.eval_every=50", "algorithm.tau=1")
        with started(tmp_path, "run", *many, *how, *OFTEN, "run.rounds=400", "-q", "--out", "a") as command:
            assert command.until(lambda: len(manifests(tmp_path / "a")) == 2)
            fill(disk)
            code, _, err = command.result()
        assert code == 5, err
        assert "cannot write to disk: the disk is full; free some space or choose another place; then" in err
        assert summary(tmp_path / "a")["status"] == "failed"
        (disk / "ballast").unlink()
        reached = manifests(tmp_path / "a")[-1]
        rounds = f"run.rounds={reached + 3}"
        done(finished(tmp_path, "run", "--resume", "a", rounds, "-q"))
        done(finished(tmp_path, "run", *many, *how, rounds, "-q", "--out", "whole"))
        assert results(tmp_path / "a") == results(tmp_path / "whole")


def test_files_that_cannot_grow_end_a_run_which_goes_on_later(tmp_path: Path) -> None:
    """A limit on the size of files, set while the run is on, needs no root."""
    with started(tmp_path, "run", *SAMPLED, FOREVER, "-q", "--out", "a") as command:
        assert command.until(lambda: len(manifests(tmp_path / "a")) == 2)
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        result = command.result()
    check_full_and_go_on(tmp_path, tmp_path / "a", result, lambda: None)


@pytest.mark.parametrize("megabytes", [300, 768], ids=["no room for clients' state", "for copies"])
def test_too_little_memory_is_told_in_one_line(tmp_path: Path, megabytes: int) -> None:
    """The model fits into what the process may take, and a copy for each of twenty clients does not."""
    wide = ("model.hidden=50000", "run.chunk=20", "algorithm.tau=1", "run.rounds=2", "-q", "--out", "a")
    code, out, err = finished(tmp_path, "run", "paper", *wide, memory=megabytes * 2**20)
    assert (code, out) == (6, ""), err
    assert err.startswith("fedcom: out of memory (")
    assert "use a smaller run.chunk or run.microbatch, fewer clients per round" in err
    assert err.endswith("; then go on with: fedcom run --resume a\n")
    assert err.count("\n") == 1
    assert summary(tmp_path / "a")["status"] == "failed"


def test_so_is_a_failure_before_the_first_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("fedcom.runs.record.similarity_of", fail)
    simulation = prepare(Config.of(read(None, [*SMALL, "run.rounds=3"])), "cpu")[0]
    with pytest.raises(OutOfMemory, match="out of memory"):
        record(simulation, tmp_path / "a", quiet=True)
    assert summary(tmp_path / "a")["status"] == "failed"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_every_kind_of_it_is_known(tmp_path: Path, error: Exception) -> None:
    def fail(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            raise error

    simulation = prepare(Config.of(read(None, [*SMALL, "run.rounds=3"])), "cpu")[0]
    with pytest.raises(OutOfMemory, match="out of memory"):
        record(simulation, tmp_path / "a", quiet=True, callbacks=[fail])
    assert summary(tmp_path / "a")["status"] == "failed"
    assert [row["round"] for row in rows_of(tmp_path / "a")] == [0, 1]


# Studies


def test_a_forced_comparison_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Not even of a run that was killed."""
    how = ("compare", *SMALL, "-q", "--out", "a")
    with started(
        tmp_path, *how, FOREVER, "run.checkpoint_rounds=1", "--methods", "fedcomgate,fedavg"
    ) as command:
        assert command.until(lambda: bool(manifests(tmp_path / "a")))
        command.send(signal.SIGKILL)
        assert command.result().code == 137
    refused = finished(tmp_path, *how, "run.rounds=1", "--methods", "fedpaq")
    assert refused.code == 2
    assert "does not hold this comparison" in refused.err
    done(finished(tmp_path, *how, "run.rounds=1", "--methods", "fedpaq", "--force"))
    kept = {path.name for path in (tmp_path / "a").iterdir()}
    assert {"fedpaq", PLAN} <= kept <= {"fedpaq", PLAN, *COMPARISON}
    assert {path.name for path in (tmp_path / "a" / "fedpaq" / "seed-0").iterdir()} == set(FILES)


def test_a_forced_sweep_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    how = ("sweep", *SMALL, "-q", "--out", "a")
    with started(tmp_path, *how, FOREVER, "run.checkpoint_rounds=1", "grid.eta=0.1,0.2") as command:
        assert command.until(lambda: bool(manifests(tmp_path / "a")))
        command.send(signal.SIGKILL)
        assert command.result().code == 137
    refused = finished(tmp_path, *how, "run.rounds=1", "grid.eta=0.1")
    assert refused.code == 2
    assert "holds another sweep" in refused.err
    done(finished(tmp_path, *how, "run.rounds=1", "grid.eta=0.1", "--force"))
    assert [row["point"] for row in rows_of(tmp_path / "a", "results.jsonl")] == [{"eta": 0.1}]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {*SWEEP} - {"tuned.toml", "tuned.json"}


@pytest.mark.covers(1)
@pytest.mark.parametrize("label", ["../../evil", "..", ".", ".hidden", "a/b", "a\\\\b", "compare.json", ""])
@pytest.mark.parametrize("study", STUDIES)
def test_no_label_leads_out_of_the_folder(tmp_path: Path, study: str, label: str) -> None:
    (inside := tmp_path / "in" / "side").mkdir(parents=True)
    grid = "[grid]\neta = [0.1]\n" if study == "sweep" else ""
    (inside / "mine.toml").write_text(
        f'[run]\nrounds = 0\n[model]\nhidden = [8]\n[methods."{label}"]\nname = "fedavg"\n{grid}'
    )
    how = [study, "mine.toml", "-q", "--out", "out"]
    got = finished(inside, *how) if study == "compare" else finished(inside, *how, "--methods", "fedavg")
    if study == "compare":
        assert (got.code, got.out) == (2, ""), got
        assert "cannot name a folder; give the method another label" in got.err
        assert not (inside / "out").exists()
    beside = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    mine = {"in", "in/side", "in/side/mine.toml"}
    assert {name for name in beside if not name.startswith("in/side/out")} == mine


def test_a_point_that_diverges_does_not_stop_a_sweep_of_real_messages(tmp_path: Path) -> None:
    how = ("sweep", *SMALL, "run.rounds=3", "run.encode=true", "grid.eta=0.1,1e30,0.05", "-q", "--out", "a")
    done(finished(tmp_path, *how))
    ends = {row["point"]["eta"]: row["status"] for row in rows_of(tmp_path / "a", "results.jsonl")}
    assert ends == {0.1: "done", 1e30: "diverged", 0.05: "done"}
    assert not manifests(tmp_path / "a")
