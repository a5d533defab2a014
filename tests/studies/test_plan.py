"""Plans: curves are continued as they go on, costs follow, and what is recommended is what comes true."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedcom.algorithms import FedCOM
from fedcom.algorithms.optimisers import Momentum
from fedcom.cli import app
from fedcom.config import Config, dumps
from fedcom.config.methods import alone
from fedcom.errors import ConfigError
from fedcom.runs.prepare import prepare
from fedcom.studies import plan
from fedcom.studies.plan.pilots import chosen
from fedcom.theory import Constants, theorem
from fedcom.traffic.network import Network

CONFIG = Config.of({"algorithm": {"name": "fedcom"}})
METHOD = FedCOM(eta=0.1, gamma=2.0)


def rows(error: Any, rounds: int, every: int = 1) -> list[dict[str, Any]]:
    """The rows of a run whose accuracy is one minus a function of the round."""
    return [
        {
            "round": r,
            "test_accuracy": 1 - error(r),
            "train_loss": 2 * error(r),
            "uplink_bytes": 10.0 * r,
            "downlink_bytes": 100.0 * r + (50 if r else 0),
            "modelled_seconds": 3.0 * r,
        }
        for r in range(0, rounds + 1, every)
    ]


def falling(r: float) -> float:
    return 0.9 * float(max(r, 1)) ** -0.5


@pytest.mark.parametrize("rounds", [12, 50])
def test_a_curve_is_continued_as_it_goes_on(rounds: int) -> None:
    goal = plan.Goal(accuracy=0.9)  # 0.9 r^-1/2 = 0.1 at r = 81
    found = plan.predict("x", CONFIG, METHOD, [rows(falling, rounds)] * 2, goal)
    assert found.rounds == pytest.approx(81, abs=2)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.rounds <= found.high
    assert (found.up, found.down) == (10.0 * found.rounds, 100.0 * found.rounds + 50)
    assert found.seconds == 3.0 * found.rounds
    assert found.cost("bytes") == 110.0 * found.rounds + 50
    assert (found.eta, found.gamma, found.codec) == (0.1, 2.0, "int 8")


def test_what_the_pilot_reaches_is_measured_and_not_continued() -> None:
    found = plan.predict("x", CONFIG, METHOD, [rows(falling, 200)], plan.Goal(accuracy=0.9))
    assert found.how == "reached in the pilot"
    assert found.rounds == pytest.approx(82, abs=1)  # the median of three is a round late
    lucky = rows(falling, 50)
    lucky[20]["test_accuracy"] = 0.99
    found = plan.predict("x", CONFIG, METHOD, [lucky], plan.Goal(accuracy=0.9))
    assert found.how == "continued from 50 rounds"
    by_loss = plan.predict("x", CONFIG, METHOD, [rows(falling, 50)], plan.Goal(loss=0.2))
    assert by_loss.rounds == pytest.approx(81, abs=2)


def test_what_is_reached_at_the_start_costs_nothing() -> None:
    found = plan.predict("x", CONFIG, METHOD, [rows(falling, 50)], plan.Goal(loss=3.0))
    assert (found.rounds, found.up, found.down, found.seconds) == (0, 0.0, 0.0, 0.0)


def test_what_has_levelled_off_or_diverged_is_not_reached() -> None:
    level = plan.predict("x", CONFIG, METHOD, [rows(lambda r: 0.3, 50)], plan.Goal(accuracy=0.9))
    assert level.rounds is None
    assert level.cost("bytes") == math.inf
    assert "not reached" in level.how
    lost = plan.predict("x", CONFIG, METHOD, [rows(falling, 50), []], plan.Goal(accuracy=0.9))
    assert (lost.rounds, lost.how) == (None, "diverged in its pilot")
    assert "No candidate" in plan.why([level], plan.Goal(accuracy=0.9))


def test_a_budget_buys_rounds() -> None:
    found = plan.predict("x", CONFIG, METHOD, [rows(falling, 20)], plan.Goal(bytes=110 * 81 + 50.5))
    assert found.rounds == 81
    assert found.error == pytest.approx(0.1, rel=0.02)
    timed = plan.predict("x", CONFIG, METHOD, [rows(falling, 20)], plan.Goal(seconds=30))
    assert timed.rounds == 10
    assert timed.error == pytest.approx(falling(9), rel=0.1)
    poor = plan.predict("x", CONFIG, METHOD, [rows(falling, 20)], plan.Goal(bytes=100.0))
    assert (poor.rounds, poor.how) == (None, "the budget is less than one round")


@pytest.mark.parametrize(
    "goal", [{}, {"accuracy": 0.9, "loss": 1.0}, {"accuracy": 1.5}, {"bytes": 0.0}, {"seconds": -1.0}]
)
def test_goals_that_make_no_sense_are_refused(goal: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        plan.Goal(**goal)


def test_plans_by_theory_are_the_theorems() -> None:
    c = Constants(L=1, mu=0.1, sigma=0.5, m=50, gap=1, distance=1)
    network = Network(uplink=8.0, downlink=80.0, latency=0.1)
    found = plan.by_theory(c, 0.01, 1000, alike=True, network=network)
    dense = next(p for p in found if p.codec == "identity")
    assert (dense.rounds, dense.tau) == theorem(True, "strongly convex").target(c, 0.01)
    assert dense.down == 4000 * (dense.rounds or 0)
    assert dense.up == pytest.approx(4000 * (dense.rounds or 0), rel=0.02)
    per_round = 0.1 + 4000 / 1e7 + (dense.up or 0) / (dense.rounds or 1) / 1e6
    assert dense.seconds == pytest.approx((dense.rounds or 0) * per_round)
    assert [p.cost("bytes") for p in found] == sorted(p.cost("bytes") for p in found)
    with pytest.raises(ConfigError, match="no constant 'K'"):
        plan.read_constants("L=1,K=2")
    with pytest.raises(ConfigError, match="need L"):
        plan.read_constants("mu=2")
    assert plan.read_constants("L=2,mu=0.5,m=7").m == 7


def test_a_plan_comes_true(tmp_path: Path) -> None:
    small = ["data.name=digits", "data.clients=8", "model.hidden=16", "algorithm.batch=20", "run.rounds=24"]
    labels = ["methods.avg.name=fedavg", "methods.coarse.name=fedcom", "methods.coarse.uplink.name=rotated"]
    args = [
        "plan",
        *small,
        *labels,
        "methods.coarse.uplink.bits=0.25",
        "--accuracy",
        "0.75",
        "--run",
        "--json",
    ]
    told = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "p"), "--quiet", "--device", "cpu"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert {p["label"] for p in found["plan"]} == {"avg", "coarse"}
    best, outcome = found["plan"][0], found["outcome"]
    assert outcome["up"] + outcome["down"] <= 1.5 * (best["up"] + best["down"])
    config = (tmp_path / "p" / "plan.toml").read_text()
    assert f"rounds = {best['high']}" in config
    assert alone(str(tmp_path / "p" / "plan.toml"), []).run.rounds == best["high"]
    seeds = json.loads((tmp_path / "p" / "run" / "environment.json").read_text())
    assert seeds["device"]
    bad = CliRunner().invoke(app, ["plan", *small, "--out", str(tmp_path / "q")])
    assert isinstance(bad.exception, ConfigError)


def test_whatever_is_recommended_can_be_run_from_its_config(tmp_path: Path) -> None:
    small = {"data": {"name": "digits", "clients": 4}, "model": {"hidden": 4}, "algorithm": {"tau": 1}}
    table, file = plan.candidates(small), tmp_path / "plan.toml"
    heavy = [label for label in table["methods"] if "momentum" in label]
    assert len(heavy) == 4
    for label in heavy:
        best = plan.Prediction(label, "", "", rounds=1, high=2)
        file.write_text(dumps(chosen(table, best)))
        simulation, config = prepare(alone(str(file), []), "cpu")
        assert (config.algorithm.server, config.run.rounds) == (Momentum(0.9), 2)
        assert config.algorithm.gamma > 4  # auto knows the momentum
        row = list(simulation.run())[-1]
        repeats = simulation.rules.clients_repeat_step
        assert repeats == (config.links.downlink.name == "rotated")
        d = simulation.rules.layout.size
        assert (row["downlink_bytes"] < 4 * d * 2) == repeats  # the model once, then coded means


def test_a_plan_for_data_without_a_test_set_is_scored_on_held_out_samples(tmp_path: Path) -> None:
    lines = [f"{i % 2 + 0.1 * (i % 7)},{i % 5},{i % 2},{i % 4}" for i in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["x,z,label,client", *lines]))
    goal, out = plan.Goal(accuracy=0.9), tmp_path / "plan"
    table = {"data": {"path": str(tmp_path / "a.csv")}, "run": {"rounds": 16}, "model": {"hidden": 8}}
    table = plan.candidates({**table, "methods": {"avg": {"name": "fedavg", "eta": 0.5}}}, [])
    best = plan.plan(table, goal, out, device="cpu", quiet=True)[0]
    found = plan.outcome(table, best, goal, out / "run", "cpu", quiet=True)
    assert found["rounds"] is not None


def test_seconds_without_a_network_are_refused_before_any_pilot(tmp_path: Path) -> None:
    for goal, by in ((plan.Goal(seconds=1.0), None), (plan.Goal(accuracy=0.9), "seconds")):
        with pytest.raises(ConfigError, match="need a network"):
            plan.plan({}, goal, tmp_path / "a", by=by)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


def test_a_candidate_that_is_refused_leaves_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = {
        "model": {"name": "quadratic", "dim": 4, "samples": 4},
        "data": {"clients": 3},
        "run": {"rounds": 8},
        "methods": {"steps": {"name": "fedavg", "local": "adamw"}, "plain": {"name": "fedavg"}},
    }
    found = plan.plan(table, plan.Goal(loss=1e-9), tmp_path / "a", device="cpu", quiet=True)
    assert {p.label: p.how for p in found}["steps"] == "could not be run"
    assert "steps of local adamw" in capfd.readouterr().err
    del table["methods"]["plain"]
    with pytest.raises(ConfigError, match="none of the candidates can be run"):
        plan.plan(table, plan.Goal(loss=1e-9), tmp_path / "b", device="cpu", quiet=True)


def test_a_task_without_classes_is_planned_by_its_loss(tmp_path: Path) -> None:
    lines = [f"{i % 7},{i % 5},{3 * (i % 7) + i % 5 + 0.5},{'ab'[i % 2]}" for i in range(80)]
    (tmp_path / "mine.csv").write_text("\n".join(["p,q,price,client", *lines]))
    data = {"path": str(tmp_path / "mine.csv"), "label_column": "price", "test": 0.25}
    table = {
        "data": data,
        "algorithm": {"tau": 2, "batch": 8},
        "run": {"rounds": 8},
        "methods": {"fedavg": {}},
    }
    with pytest.raises(ConfigError, match=r"accuracy is for tasks of classes, and this has none; give loss"):
        plan.plan(table, plan.Goal(accuracy=0.9), tmp_path / "a", device="cpu", quiet=True)
    found = plan.plan(table, plan.Goal(bytes=1e6), tmp_path / "b", device="cpu", quiet=True)
    columns = [column.header for column in plan.render(found, plan.Goal(bytes=1e6)).columns]
    assert "loss" in columns
    assert "acc %" not in columns


@pytest.mark.parametrize("goal", [plan.Goal(loss=0.5), plan.Goal(bytes=1e6)])
def test_a_survival_plan_is_by_the_loss_of_all_patients(tmp_path: Path, goal: plan.Goal) -> None:
    """Three alike patients of a site: each has the event among 3, 2 and 1 at risk; of two, among 2 and 1."""
    lines = [f"0,{time},1,{site}" for site in "abcd" for time in (1, 2, 3)]
    (tmp_path / "mine.csv").write_text("\n".join(["p,days,died,client", *lines]))
    columns = {"time_column": "days", "event_column": "died"}
    table = {
        "data": {"path": str(tmp_path / "mine.csv"), **columns},
        "model": {"name": "logistic"},
        "algorithm": {"tau": 1, "batch": "full", "eta": 0.1, "gamma": 1},
        "run": {"rounds": 8},
        "methods": {"fedavg": {}},
    }
    (found,) = plan.plan(table, goal, tmp_path / "a", device="cpu", quiet=True)
    assert found.error == pytest.approx(math.log(3 * 2) / 3)  # and not log(2) / 2, which is below 0.5
    assert (found.rounds is None) == goal.reaches


def test_two_classes_with_one_output_are_planned_by_their_accuracy(tmp_path: Path) -> None:
    lines = [f"{i % 7},{i % 5},{int(i % 7 > 2)},{'ab'[i % 2]}" for i in range(80)]
    (tmp_path / "mine.csv").write_text("\n".join(["p,q,ill,client", *lines]))
    table = {
        "data": {"path": str(tmp_path / "mine.csv"), "label_column": "ill", "test": 0.25},
        "model": {"name": "binary"},
        "algorithm": {"tau": 2, "batch": 8},
        "run": {"rounds": 8},
        "methods": {"fedavg": {}},
    }
    (found,) = plan.plan(table, plan.Goal(accuracy=0.1), tmp_path / "a", device="cpu", quiet=True)
    assert (found.how, found.by_loss) == ("reached in the pilot", False)
