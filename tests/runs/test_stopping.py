"""Runs that end before their last round, and the best model that they leave."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedcom import ConfigError, Draw, FedAvg, FedCOMGATE, Simulation, Task, compare, record, sweep
from fedcom.config import Config
from fedcom.config.tables import override
from fedcom.engines.results import Row
from fedcom.engines.stopping import Best, Stopping
from fedcom.runs.prepare import build_task
from fedcom.runs.run import execute
from fedcom.runs.status import remarks, statuses
from fedcom.vectors import flatten
from tests.conftest import mlp_task, quadratic_task

W = torch.zeros(1)


def simulation(rounds: int = 12, **arguments: Any) -> Simulation:
    return Simulation(
        mlp_task(), FedAvg(eta=0.2, tau=2, batch=4, decay=1.0), rounds=rounds, device="cpu", **arguments
    )


def seen(rules: Stopping, values: list[float | None], figure: str = "test_loss") -> tuple[Best, list[Any]]:
    best, why = Best(), list[Any]()
    for done, value in enumerate(values):
        best, reason = rules.see({"round": done, figure: value}, best, W + done)
        why.append(reason)
    return best, why


def test_patience_by_hand() -> None:
    best, why = seen(Stopping(patience=2), [3.0, 2.0, 2.0, 2.5])
    assert (best.round, best.value, best.since) == (1, 2.0, 2)
    assert best.w == 1.0
    assert why[:3] == [None, None, None]
    assert why[3] == "test_loss was not better than the 2 after round 1 in 2 evaluations (patience=2)"
    best, why = seen(Stopping(patience=2), [3.0, 2.0, None, 1.0, 4.0], "test_loss")  # None: not finite
    assert (best.round, why[-1]) == (3, None)
    assert seen(Stopping(), [0.5, 0.7, 0.6], "test_accuracy")[0].round == 1
    assert seen(Stopping(best="f1"), [0.5, 0.7, 0.6], "f1")[0].round == 1
    assert seen(Stopping("f1<=0.1"), [0.5, 0.7, 0.2], "f1")[0].round == 2
    for small in ("test_bits_per_character", "client_spread", "mae"):
        assert seen(Stopping(best=small), [0.5, 0.4, 0.6], small)[0].round == 1


def test_a_bound_on_a_cost_says_nothing_of_the_best_model() -> None:
    rules, best = Stopping("seconds>=3", patience=2), Best()
    for done, accuracy in enumerate([0.5, 0.7, 0.6, 0.6]):
        best, why = rules.see({"round": done, "seconds": done, "test_accuracy": accuracy}, best, W + done)
    assert (best.round, best.figure, why) == (
        1,
        "test_accuracy",
        "seconds is 3 after round 3 (stop=seconds>=3)",
    )
    assert seen(Stopping("seconds>=9", best="seconds"), [3.0, 2.0, 4.0], "seconds")[0].figure == "seconds"


def test_a_row_that_is_measured_again_does_not_count_twice() -> None:
    rules = Stopping(patience=1)
    best, _ = rules.see({"round": 0, "test_loss": 1.0}, Best(), W)
    for _ in range(3):
        best, why = rules.see({"round": 0, "test_loss": 1.0}, best, W)
        assert (why, best.since) == (None, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop": "0.9"}, "stop is a figure of the rows and a bound"),
        ({"stop": "test_accuracy>0.9"}, "as in test_accuracy>=0.9 or train_loss<=0.1; got"),
        ({"stop": "test_accuracy>=high"}, "got 'test_accuracy>=high'"),
        ({"stop": "test_accuracy>=nan"}, "got 'test_accuracy>=nan'"),
        ({"stop": "test_acuracy>=0.9"}, "did you mean 'test_accuracy'"),
        ({"patience": 0}, "patience must be 1 evaluation or more; got 0"),
        ({"best": "loss"}, "best names 'loss', which rows do not hold"),
        ({"stop": 3}, "stop must be"),
    ],
)
def test_rules_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulation(**given)


def test_a_figure_that_the_task_does_not_have_is_named_at_once() -> None:
    run = Simulation(quadratic_task(), FedAvg(), rounds=3, device="cpu", stop="test_accuracy>=0.5")
    with pytest.raises(ConfigError, match=r"no test_accuracy; they have train_loss"):
        run.run()
    Simulation(quadratic_task(), FedAvg(), rounds=1, device="cpu", patience=1).run()


def test_a_run_ends_at_its_bound_and_keeps_the_best_model() -> None:
    whole = simulation()
    models = {}
    for row in whole.rows():
        models[row["round"]] = whole.server.w.clone()
    losses = whole.results["test_loss"]
    bound = sorted(losses)[5]
    first = next(i for i, loss in enumerate(losses) if loss <= bound)
    run = simulation(stop=f"test_loss<={bound}")
    rows = run.run()
    assert rows["test_loss"] == losses[: first + 1]
    assert run.ended == f"test_loss is {losses[first]:.6g} after round {first} (stop=test_loss<={bound})"
    assert torch.equal(run.server.w, models[first])
    assert whole.ended is None
    by_accuracy = whole.results["test_accuracy"]
    assert whole.best.round == by_accuracy.index(max(by_accuracy))
    assert whole.best.value == max(by_accuracy)
    assert torch.equal(flatten(whole.module(best=True), torch.float64), models[whole.best.round])


def test_rows_that_a_callback_changes_are_its_own(tmp_path: Path) -> None:
    whole, run, calls = simulation().run(), simulation(), [dict.clear, lambda row: row.update(train_loss=0)]
    assert run.run(calls)["train_loss"] == whole["train_loss"]
    record(simulation(), tmp_path, quiet=True, callbacks=calls)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["train_loss"] for row in rows] == whole["train_loss"]
    iterated = simulation()
    for row in iterated.rows():
        row.clear()
    assert iterated.results["train_loss"] == whole["train_loss"]


def test_a_callback_ends_a_run() -> None:
    calls: list[int] = []

    def third(row: Row) -> bool:
        return bool(row["round"] == 3)

    run = simulation()
    run.run([third, lambda row: calls.append(row["round"]), lambda row: "a word ends nothing"])
    assert calls == [0, 1, 2, 3]
    assert run.ended == "a callback ended it after round 3"
    for of in (np.bool_, torch.tensor):
        again = simulation()
        again.run(lambda row, of=of: of(row["round"] == 1))
        assert again.round == 1
    whole = simulation(rounds=2, stop="uplink_bytes>=1", eval_every=2)
    whole.run(lambda row: row["round"] == 2)
    assert (whole.round, whole.ended) == (2, None)  # all its rounds were played


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def best_in(folder: Path) -> tuple[Any, ...]:
    return tuple(summary(folder)[f"best_{key}"] for key in ("round", "by", "value"))


def test_a_folder_says_why_and_a_run_that_was_ended_is_finished(tmp_path: Path) -> None:
    outcome = record(simulation(patience=2, best="train_loss"), tmp_path, quiet=True, callbacks=at(4))
    told = summary(tmp_path)
    assert (told["status"], told["rounds_done"], told["ended_early"]) == ("done", 4, True)
    assert told["reason"] == "a callback ended it after round 4"
    losses = [row["train_loss"] for row in outcome.curve.rows]
    best = losses.index(min(losses))
    assert best_in(tmp_path) == (best, "train_loss", min(losses))
    (status,) = statuses([tmp_path])
    assert (status.state, status.done, status.total) == ("done", 4, 12)
    assert remarks(status) == [told["reason"]]
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = record(simulation(patience=2, best="train_loss"), tmp_path, start="resume", quiet=True)
    assert len(again.curve.rows) == 5
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    # Other rules let it go on, here from its start: it has no checkpoint.
    record(simulation(best="train_loss"), tmp_path, start="resume", quiet=True)
    assert summary(tmp_path)["rounds_done"] == 12
    assert "reason" not in summary(tmp_path)


def at(round_: int) -> Any:
    return lambda row: row["round"] == round_


def test_a_run_that_goes_on_counts_on_and_has_the_same_best(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"best": "test_loss", "patience": 30}
    record(simulation(**rules), tmp_path / "whole", quiet=True)
    out = tmp_path / "parts"
    record(simulation(**rules), out, quiet=True, rounds=2, callbacks=at(3))
    assert summary(out)["rounds_done"] == 3
    record(simulation(**{**rules, "patience": 31}), out, start="resume", quiet=True, rounds=2)
    models = [load_file(folder / "best.safetensors") for folder in (tmp_path / "whole", out)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert best_in(out) == best_in(tmp_path / "whole")
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 13


def test_a_loaded_run_knows_its_best_and_how_long_ago_that_was(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"best": "uplink_bytes", "patience": 4}  # better the fewer: round 0 is the best
    whole = simulation(**rules)
    start = whole.server.w.clone()
    whole.run()
    assert (whole.round, whole.best.round) == (4, 0)
    half = simulation(**rules)
    half.run(at(2))
    half.save(tmp_path)
    loaded = Simulation.load(tmp_path, mlp_task(), device="cpu")
    assert [row["round"] for row in loaded.run()] == [2, 3, 4]
    assert loaded.best.w is not None
    assert torch.equal(loaded.best.w, start)
    assert loaded.ended == whole.ended
    assert Simulation.load(tmp_path, mlp_task(), device="cpu", patience=6).run()[-1]["round"] == 6


def test_settings_of_a_config(tmp_path: Path) -> None:
    table: dict[str, Any] = {"data": {"name": "synthetic", "clients": 4}}
    override(table, "run.stop=train_loss<=100")
    execute(Config.of(table), tmp_path / "a", quiet=True, device="cpu")
    assert summary(tmp_path / "a")["rounds_done"] == 0
    assert (tmp_path / "a" / "best.safetensors").is_file()
    with pytest.raises(ConfigError, match="patience must be 1 or more"):
        Config.of({"run": {"patience": 0}})
    found = compare(mlp_task(), ["fedavg"], rounds=4, stop="train_loss<=100", quiet=True)
    assert [len(curve.rows) for curve in found.curves] == [1]
    for key, value in (("stop", "train_loss<=1"), ("patience", 3)):
        with pytest.raises(ConfigError, match=f"run.{key} would end some of them earlier"):
            sweep(mlp_task(), {"eta": [0.1], f"run.{key}": [value]}, quiet=True)


def test_a_validation_split_in_python_is_that_of_a_config() -> None:
    table = {"data": {"name": "digits", "clients": 4, "partition": "iid"}, "run": {"seed": 3}}
    task, _ = build_task(Config.of(table))
    held, _ = build_task(Config.of({**table, "data": {**table["data"], "validation": 0.25}}))
    mine = task.held_out(0.25, 3)
    assert torch.equal(mine.test_y, held.test_y)
    assert torch.equal(mine.x, held.x)
    assert torch.equal(task.held_out(0.25, Draw.seeded(3).fold("validation")).test_y, held.test_y)
    with pytest.raises(ConfigError, match="share is that of the training samples"):
        task.held_out(1.0)
    x, y = torch.zeros(4, 2), torch.arange(4) % 2
    with pytest.raises(ConfigError, match="no client has two samples"):
        Task.from_arrays(torch.nn.Linear(2, 2), x, y, clients=4).held_out(0.5)


def test_backing_off_keeps_the_best_model_of_the_rounds_that_stay(tmp_path: Path) -> None:
    run = Simulation(
        quadratic_task(), FedCOMGATE(eta=30.0, gamma=1.0, tau=2, batch="full"), rounds=12, device="cpu"
    )
    outcome = record(run, tmp_path, quiet=True, on_divergence="backoff")
    losses = [row["train_loss"] for row in outcome.curve.rows]
    assert summary(tmp_path)["backoffs"]
    assert best_in(tmp_path) == (losses.index(min(losses)), "train_loss", min(losses))
