"""A run whose loss blows up goes back with a smaller eta, and tells."""

import json
import signal
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcom.algorithms import FedGATE
from fedcom.config import Config
from fedcom.errors import ConfigError, Diverged, Stopped
from fedcom.runs.prepare import prepare
from fedcom.runs.record import Outcome, record
from fedcom.runs.run import execute
from tests.conftest import close

WILD: dict[str, Any] = {  # far too large an eta: it diverges within some rounds
    "model": {"name": "quadratic", "dim": 8, "samples": 4},
    "data": {"clients": 6},
    "algorithm": {"name": "fedgate", "eta": 6.0, "gamma": 2.0, "batch": "full", "tau": 4, "decay": 1.0},
    "run": {"rounds": 60, "eval_every": 2, "on_divergence": "backoff"},
}


def config(**run: Any) -> Config:
    return Config.of({**WILD, "run": {**WILD["run"], **run}})


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.mark.filterwarnings("ignore:the training loss has grown")
def test_it_goes_back_until_it_converges(tmp_path: Path) -> None:
    assert isinstance(execute(config(on_divergence="stop"), tmp_path / "a", quiet=True).error, Diverged)
    outcome = execute(config(), tmp_path / "b", quiet=True)
    assert outcome.error is None
    rows = outcome.curve.rows
    assert [row["round"] for row in rows] == list(range(0, 61, 2))  # each round once
    assert rows[-1]["train_loss"] < 1e-3 * rows[0]["train_loss"]
    told = summary(tmp_path / "b")["backoffs"]
    assert [one["eta"] for one in told] == [6.0 * 0.5 ** (i + 1) for i in range(len(told))]
    assert all(one["back_to"] < one["round"] for one in told)
    assert rows[-1]["backoffs"] == len(told)
    assert rows[-1]["eta"] == told[-1]["eta"]
    lines = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    assert lines == rows
    assert tomllib.loads((tmp_path / "b" / "config.toml").read_text())["algorithm"]["eta"] == 6.0


def test_bytes_and_time_of_lost_rounds_stay_counted(tmp_path: Path) -> None:
    wild = replace(config(), network=Config.of({"network": {"preset": "lte"}}).network)
    outcome = execute(wild, tmp_path, quiet=True)
    calm = replace(wild, algorithm=replace(wild.algorithm, eta=0.1))
    simulation, _ = prepare(calm, "cpu")
    *_, last = simulation.run()
    played = 60 + sum(one["round"] - one["back_to"] for one in summary(tmp_path)["backoffs"])
    found = outcome.curve.rows[-1]
    assert found["uplink_bytes"] == pytest.approx(last["uplink_bytes"] * played / 60, rel=0.03)
    assert found["modelled_seconds"] == pytest.approx(last["modelled_seconds"] * played / 60, rel=0.1)


def test_a_run_that_never_calms_down_ends_as_diverged(tmp_path: Path) -> None:
    hopeless = replace(config(), algorithm=replace(config().algorithm, eta=1e9))
    outcome = execute(hopeless, tmp_path, quiet=True)
    assert isinstance(outcome.error, Diverged)
    assert len(summary(tmp_path)["backoffs"]) == 10


def test_what_a_run_goes_back_to_is_what_it_was() -> None:
    """From a copy and with the same eta, a run repeats itself, with sampling and momentum of its own."""
    table = {**WILD, "algorithm": {**WILD["algorithm"], "eta": 0.05}, "run": {"participation": 0.5}}
    simulation, _ = prepare(Config.of(table), "cpu")
    for _ in range(3):
        simulation.step()
    kept = simulation.keep()
    for _ in range(4):
        simulation.step()
    again = simulation.gone_back(kept, 0.05)
    assert again.round == 3
    for _ in range(4):
        again.step()
    assert torch.equal(again.server.w, simulation.server.w)
    for mine, other in zip(again.client_states(), simulation.client_states(), strict=True):
        assert torch.equal(mine, other)
    assert again.backoffs == [{"round": 7, "back_to": 3, "eta": 0.05}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run that nobody interrupts."""
    return execute(config(checkpoint_rounds=2), tmp_path_factory.mktemp("whole"), quiet=True)


@pytest.mark.parametrize("stop_at", [5, pytest.param(20, marks=pytest.mark.thorough), 41])
def test_an_interrupted_run_keeps_its_smaller_eta(tmp_path: Path, stop_at: int, whole: Outcome) -> None:
    seen = []

    def stop(row: dict[str, Any]) -> None:
        seen.append(row)
        if row["round"] >= stop_at and row.get("backoffs", 0) >= 1 and len(seen) < 200:
            seen.extend([row] * 200)
            raise Stopped(signal.SIGTERM, between_rounds=True)

    first = execute(config(checkpoint_rounds=2), tmp_path / "cut", quiet=True, callbacks=[stop])
    assert isinstance(first.error, Stopped)
    second = execute(config(checkpoint_rounds=2), tmp_path / "cut", start="resume", quiet=True)
    assert second.error is None
    told = summary(tmp_path / "cut")["backoffs"]
    assert told[-1]["eta"] < 6.0
    assert [row["round"] for row in second.curve.rows] == list(range(0, 61, 2))
    ends = [outcome.curve.rows[-1]["train_loss"] for outcome in (whole, second)]
    assert close(torch.tensor(ends[0]), torch.tensor(ends[1]), 1e-3)


def test_library_runs_back_off_too(tmp_path: Path) -> None:
    simulation, _ = prepare(config(), "cpu")
    outcome = record(simulation, tmp_path, on_divergence="backoff", quiet=True)
    assert outcome.error is None
    assert isinstance(simulation.algorithm, FedGATE)


def test_what_was_given_is_kept(tmp_path: Path) -> None:
    """Metrics, measure, storage, network: all but eta is as it was."""
    simulation, _ = prepare(config(), "cpu")
    task = replace(simulation.task, test_x=simulation.task.x, test_y=simulation.task.y)

    def largest(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(outputs.abs().max())

    def wrong(heard: torch.Tensor, meant: torch.Tensor) -> torch.Tensor:
        return 7 * torch.ones_like(heard[..., 0])

    given = {
        "metrics": {"largest": largest},
        "measure": wrong,
        "storage": "disk",
        "network": "lte",
        "chunk": 2,
    }
    wild = simulation.replaced(task=task, eval_every=2, **given)
    outcome = record(wild, tmp_path, on_divergence="backoff", quiet=True)
    assert outcome.curve.rows[-1]["backoffs"] > 0
    assert all("largest" in row and "modelled_seconds" in row for row in outcome.curve.rows)
    twin = wild.replaced(algorithm=replace(wild.algorithm, eta=0.5))
    assert (twin.rules.measure, twin.options, twin.settings) == (wrong, wild.options, wild.settings)


def test_rules_by_name() -> None:
    with pytest.raises(ConfigError, match="on_divergence"):
        config(on_divergence="wait")
    _, filled = prepare(config(on_divergence=None), "cpu")
    assert filled.run.on_divergence == "stop"  # as the rates are given
    auto = Config.of({**WILD, "algorithm": {"name": "fedgate", "eta": "auto"}, "run": {}})
    assert prepare(auto, "cpu")[1].run.on_divergence == "backoff"
