"""How runs stand is told from their folders, while they go on and after their process is gone."""

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcom.cli import app
from fedcom.engines.remote.messages import Call
from fedcom.errors import ConfigError
from fedcom.reports.page.collect import collect
from fedcom.runs.folder import claim
from fedcom.runs.status import Status, render, state, statuses
from tests.deployment.test_job import job
from tests.processes import PATIENCE, started

LONG = ("model.hidden=8", "algorithm.tau=1", "run.rounds=1000000", "run.eval_every=5")


def make(
    out: Path, status: str | None, rounds: int = 100, every: int = 10, done: int = 30, **more: Any
) -> Path:
    """A run's folder as `fedcom run` leaves it, at half a second per round."""
    out.mkdir(parents=True)
    (out / "config.toml").write_text(f"[run]\nrounds = {rounds}\nseed = 0\n")
    rows = [
        {"round": r, "train_loss": 2 - r / 100, "test_accuracy": r / 200, "seconds": 1 + r / 2}
        for r in range(0, done + 1, every)
    ]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status is not None:
        (out / "summary.json").write_text(json.dumps({"status": status, **more}))
    return out


def by_name(root: Path) -> dict[str, Status]:
    return {str(Path(one.folder).relative_to(root)): one for one in statuses([root])}


def test_each_state_is_told_with_its_figures(tmp_path: Path) -> None:
    make(tmp_path / "a" / "done", "done", done=100, rounds_done=100)
    make(tmp_path / "stopped", "interrupted", rounds_done=37, reason="SIGTERM")
    make(tmp_path / "wild", "diverged", rounds_done=31, reason="no longer finite")
    make(tmp_path / "broke", "failed", rounds_done=30, reason="the disk is full")
    make(tmp_path / "dead", "running")
    make(tmp_path / "early", None, done=-1)
    with claim(make(tmp_path / "going", "running"), used=True):
        found = by_name(tmp_path)
    assert list(found) == ["a/done", "broke", "dead", "early", "going", "stopped", "wild"]
    states = ["done", "failed", "dead", "dead", "running", "interrupted", "diverged"]
    assert [one.state for one in found.values()] == states
    assert [one.done for one in found.values()] == [100, 30, 30, 0, 30, 37, 31]
    going = found["going"]
    assert (going.total, going.rate, going.left) == (100, 2.0, 35.0)
    assert (going.loss, going.accuracy, going.reason) == (1.7, 0.15, None)
    assert [one.left for one in found.values() if one.state != "running"] == [None] * 6
    assert found["broke"].reason == "the disk is full"


def test_the_rate_is_that_of_late(tmp_path: Path) -> None:
    rows = [{"round": r, "seconds": 100.0 if r else 0.0} for r in range(2)]
    rows += [{"round": r, "seconds": 100 + r / 4} for r in range(2, 20)]
    make(tmp_path / "a", "running")
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert by_name(tmp_path)["a"].rate == 4.0


def test_files_that_are_cut_or_not_what_they_should_be_are_left_out(tmp_path: Path) -> None:
    out = make(tmp_path / "a", "running")
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"round": 40, "tr')
    (out / "summary.json").write_text("[1")
    (out / "config.toml").write_bytes(b"\xff")
    (tmp_path / "b" / "metrics.jsonl").mkdir(parents=True)
    (tmp_path / "b" / "config.toml").touch()
    found = by_name(tmp_path)
    assert (found["a"].state, found["a"].done, found["a"].total) == ("dead", 30, None)
    assert (found["b"].state, found["b"].done) == ("dead", 0)
    with pytest.raises(ConfigError, match=r"no folder .*/c; name folders"):
        statuses([tmp_path / "c"])


def test_a_sweep_is_one_line_with_its_trials(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    out.mkdir()
    ends = [("a", "done"), ("b", "diverged")]
    text = "".join(json.dumps({"key": key, "status": status}) + "\n" for key, status in ends)
    (out / "results.jsonl").write_text(text + '{"key": "c"')
    (out / "trials.json").write_text('{"trials": 3}')
    (one,) = statuses([tmp_path])
    told = (one.kind, one.state, one.done, one.total, one.reason)
    assert told == ("trials", "unfinished", 2, 3, "1 diverged")
    with claim(out, used=True):
        assert statuses([tmp_path])[0].state == "running"
    (out / "trials.json").write_text('{"trials": 2}')
    assert statuses([tmp_path])[0].state == "done"


def test_80_columns_hold_every_number() -> None:
    from rich.console import Console

    name = "runs/a-long-name-of-a-comparison-001/fedcomgate-exact/seed-0"
    one = Status(name, "run", "interrupted", 12345, 100000, 123.4, 45678.0, 0.001234, 0.9876)
    Console(width=79, file=(file := io.StringIO())).print(render([one]))
    text = file.getvalue()
    for piece in ("interrupted", "12345/100000", "123", "13 h", "0.00123", "98.76"):
        assert piece in text
    assert max(map(len, text.splitlines())) < 80
    assert "…" not in text
    assert name in "".join(line.split(" ")[0] for line in text.splitlines())


def status_command(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["status", str(folder), *options], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_run_that_goes_on_is_running_and_one_that_was_killed_is_dead(tmp_path: Path) -> None:
    log = tmp_path / "a" / "metrics.jsonl"
    with started(tmp_path, "run", *LONG, "--quiet", "--device", "cpu", "--out", "a") as command:
        assert command.until(lambda: log.exists() and len(log.read_text()) > 2000)
        (told,) = json.loads(status_command(tmp_path, "--json"))
        assert (told["state"], told["total"]) == ("running", 1000000)
        assert told["done"] > 0
        assert told["rate"] > 0
        assert told["left"] > 0
        assert [run.status for run in collect([tmp_path]).runs] == ["running"]
        command.send(signal.SIGKILL)
        assert command.result().code == 137
    assert "dead" in status_command(tmp_path)
    assert state(tmp_path / "a", json.loads((tmp_path / "a" / "summary.json").read_text())) == "dead"
    assert [run.status for run in collect([tmp_path]).runs] == ["dead"]


def test_no_runs_are_told_so(tmp_path: Path) -> None:
    assert status_command(tmp_path) == f"no runs in {tmp_path}\n"
    assert status_command(tmp_path, "--json") == "[]\n"


class Troubled:
    """Three clients: 1 sends garbage, 2 is silent, and in round 3 nobody replies; then the server stops."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.client, self.rounds = TROUBLED.participant(0, folder), rounds

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        if self.rounds == 0:
            raise KeyboardInterrupt
        self.rounds -= 1
        for client, call in calls:
            if client == 1:
                hear(client, b"garbage")
            elif client == 0 and Call.unpack(call).envelope.round != 3:
                hear(client, self.client.answer(call))


TROUBLED = job("algorithm.name=fedavg", "run.rounds=6", "round.least=0.3", "round.pause=0", "round.rest=5")


def test_how_real_clients_stand_is_told_from_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        TROUBLED.serve(Troubled(tmp_path / "client", 2), out)
    (early,) = statuses([out])
    assert early.clients is not None
    assert (early.clients.missing, early.clients.left_out, early.clients.starts) == ({}, {}, 1)
    TROUBLED.serve(Troubled(tmp_path / "client", 9), out)
    (told,) = json.loads(status_command(out, "--json"))
    assert 0 <= told["clients"].pop("seconds") < PATIENCE
    assert told["clients"] == {
        "round": 5,
        "counted": 1,
        "called": 2,
        "void": 1,
        "starts": 2,
        "missing": {"1": 3, "2": 6},
        "left_out": {"1": 8},
        "refused": {"malformed": 3},
    }
    text = status_command(out)
    assert "1 of 2 clients counted in the last round" in text
    for line in (
        "missing in a row: client 1 3 rounds, client 2 6 rounds",
        "left out: client 1 until round 8",
        "refused: 3 malformed",
        "1 void round",
        "the server was started 2 times",
    ):
        assert f"{out}: {line}\n" in text
    (out / "audit.jsonl").write_text('[1]\n{"round": 9}\n{"round')
    assert statuses([out])[0].clients is None
