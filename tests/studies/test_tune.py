"""Tuning: budgets are kept, the best point is found, held-out samples stay out, the config can be run."""

import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedcom.algorithms.optimisers import Adam, Momentum
from fedcom.cli import app
from fedcom.config import Config, read
from fedcom.config.methods import alone, variant, with_point
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.runs.prepare import build_task, prepare
from fedcom.studies import sweep_report, tune
from fedcom.studies.compare import variants
from fedcom.studies.trials import Trial

SMALL = ["data.name=digits", "data.clients=8", "model.hidden=16", "run.rounds=12", "algorithm.batch=20"]


@pytest.mark.parametrize("points", [1, 2, 5, 12, 20, 100, 1000])
@pytest.mark.parametrize("budget", [4.0, 5.0, 25.0])
def test_rungs_keep_the_budget(points: int, budget: float) -> None:
    rungs = tune.Rungs(200, budget).of(points)
    cost = sum(many * rounds for many, rounds in rungs) / 200
    assert cost <= max(budget, points / 200 + budget)  # every point runs for a round at least
    assert rungs[0][0] == points
    assert rungs[-1][1] == 200
    assert [many for many, _ in rungs] == sorted((many for many, _ in rungs), reverse=True)
    assert tune.Rungs(200, None).of(points) == [(points, 200)]


def scored(peak: dict[str, float], limit: float = math.inf) -> tuple[tune.RunTrials, list[Trial]]:
    """Runs that score the higher the nearer they are to a peak, and diverge above a limit."""
    seen: list[Trial] = []

    def run(trials: Sequence[Trial]) -> list[dict[str, Any]]:
        found = []
        for trial in trials:
            point = dict(trial.point)
            heavy = point.get("server") == "momentum"
            point["gamma"] /= 4 if heavy else 1  # the best gamma is four times as large
            far = -heavy + sum(abs(math.log(point[key] / best)) for key, best in peak.items())
            short = point.get("run.rounds", 100) / 100
            row = {"test_accuracy": 0.5 + 0.4 * short - 0.05 * far, "train_loss": far, "uplink_bytes": 1.0}
            status = "done" if point["eta"] <= limit else "diverged"
            found.append({**trial.facts, "status": status, **row})
        seen.extend(trials)
        return found

    return run, seen


GRID = {"eta": [0.01, 0.02, 0.05, 0.1, 0.2], "gamma": [1.0, 2.0, 4.0, 8.0]}


def test_the_best_point_is_found_with_a_quarter_of_the_runs() -> None:
    run, _ = scored({"eta": 0.05, "gamma": 4.0})
    table = {"run": {"rounds": 100}}
    found = tune.tune_one(table, "fedcomgate", GRID, 1, run, budget=5, start=[{"eta": 0.1, "gamma": 2.0}])
    assert (found["eta"], found["gamma"], found["edges"]) == (0.05, 4.0, [])
    assert found["spent"] <= 5.2
    run, _ = scored({"eta": 0.4, "gamma": 2.0})
    beyond = tune.tune_one(table, "fedcomgate", GRID, 1, run, budget=5)
    assert (beyond["eta"], beyond["note"]) == (0.4, "grid widened by eta 0.4, eta 0.8")
    assert not any("grid's edge" in note for note in sweep_report.warnings_of(beyond["table"]))


def test_the_best_of_two_grids_is_found_and_only_its_own_is_widened() -> None:
    run, seen = scored({"eta": 0.05, "gamma": 4.0})  # with momentum eta 0.05, gamma 16
    heavy = {"eta": [0.02, 0.05, 0.1], "gamma": [2.0, 4.0, 8.0], "server": ["momentum"]}
    grids, table = [{**GRID, "server": ["sgd"]}, heavy], {"run": {"rounds": 100}}
    start = [{"eta": 0.1, "gamma": 2.0, "server": "sgd"}, {"eta": 0.05, "gamma": 4.0, "server": "momentum"}]
    found = tune.tune_one(table, "fedcomgate", grids, 1, run, budget=7, start=start)
    assert (found["eta"], found["gamma"], found["server"]) == (0.05, 16.0, "momentum")
    assert found["note"] == "grid widened by gamma 16, gamma 32"
    plain = {point["gamma"] for t in seen if (point := dict(t.point))["server"] == "sgd"}
    assert plain == {*GRID["gamma"]}
    assert all(t.config.algorithm.server.name == dict(t.point)["server"] for t in seen)
    text = tune.tuned_text({"data": {"name": "digits"}}, {"fedcomgate": found})
    assert "server momentum: 9" in text


@pytest.mark.parametrize(
    ("table", "grid", "servers"),
    [
        ({}, {}, {"sgd", "momentum"}),
        ({"server": {"name": "momentum"}}, {}, set()),
        ({"methods": {"fedcom": {"server": "sgd"}}}, {}, set()),
        ({"algorithm": {"server": "nesterov"}}, {}, set()),
        ({}, {"server": ["adam", "sgd"]}, {"adam", "sgd"}),
        ({}, {"server": {"momentum": [0.5, 0.9]}}, None),
    ],
)
def test_momentum_is_tried_unless_something_is_said_of_the_server(
    table: dict[str, Any], grid: dict[str, Any], servers: set[str] | None
) -> None:
    small = {"data": {"name": "digits", "clients": 4}, "model": {"hidden": 4}, **table}
    if servers is None:
        small = {**small, "server": {"name": "momentum"}}
    grids = tune._grids(small, grid, "fedcom", "cpu")
    assert {name for one, _ in grids for name in one.get("server", [])} == (servers or set())
    assert all(one[key][len(one[key]) // 2] == start[key] for one, start in grids for key in ("eta",))
    if servers == {"adam", "sgd"}:
        assert [one["gamma"] for one, _ in grids] == [[1.0], [0.5, 1.0, 2.0, 4.0]]  # idle with adam
    if not table and not grid:
        (plain, _), (heavy, _) = grids
        assert heavy["eta"][1] == plain["eta"][2]
        assert heavy["gamma"][1] > 4 * plain["gamma"][2]


def test_each_optimiser_of_a_grid_has_auto_rates_of_its_own() -> None:
    small = {"data": {"name": "digits", "clients": 4}, "model": {"hidden": 4}, "server": {"name": "momentum"}}
    for section, longer in (("local", False), ("server", True)):
        grids = tune._grids(small, {section: {"name": ["momentum"], "momentum": [0.5, 0.9]}}, "fedcom", "cpu")
        assert [one[f"{section}.momentum"] for one, _ in grids] == [[0.5], [0.9]]
        less, more = (start["eta"] * start["gamma"] for _, start in grids)
        assert (more > 2 * less) == longer
        assert (2 * more < less) != longer
    with pytest.raises(ConfigError, match=r"no auto rates .* steps of local adamw"):
        tune._grids(small, {"local": ["sgd", "adamw"]}, "fedcom", "cpu")


def test_rates_of_the_server_are_one_grid() -> None:
    small = {"data": {"name": "digits", "clients": 4}, "model": {"hidden": 4}, "server": {"name": "adam"}}
    ((grid, _),) = tune._grids(small, {"server.rate": [0.01, 0.02]}, "fedcom", "cpu")
    assert grid["server.rate"] == [0.01, 0.02]


@pytest.mark.parametrize(
    ("method", "table", "grid", "rates"),
    [
        ("fedyogi", {}, {}, [tune.SERVER_RATES]),
        ("fedadagrad", {}, {"server.rate": [0.1]}, [(0.1,)]),
        ("fedadam", {"server": {"rate": 0.3}}, {}, [None]),
        ("mine", {"methods": {"mine": {"name": "fedcom", "server": "adam"}}}, {}, [tune.SERVER_RATES]),
        ("fedadam", {"algorithm": {"server": {"name": "adam", "rate": 0.3}}}, {}, [None]),
        ("fedavg", {}, {"server": ["sgd", "adam"]}, [None, tune.SERVER_RATES]),
    ],
)
def test_several_rates_of_an_adaptive_server_are_tried_unless_one_is_given(
    method: str, table: dict[str, Any], grid: dict[str, Any], rates: list[tuple[float, ...] | None]
) -> None:
    small = {"data": {"name": "digits", "clients": 4}, "model": {"hidden": 4}, **table}
    found = tune._grids(small, grid, method, "cpu")
    assert [one.get("server.rate") for one, _ in found] == [own and list(own) for own in rates]
    for (one, start), own in zip(found, rates, strict=True):
        assert one.keys() == start.keys()
        assert start.get("server.rate") == (own and own[len(own) // 2])


def test_the_best_of_an_adaptive_server_and_another_is_found() -> None:
    def run(trials: Sequence[Trial]) -> list[dict[str, Any]]:
        found = []
        for trial in trials:
            point = dict(trial.point)
            far = abs(math.log(point.get("server.rate", 0.001) / 0.02)) + abs(math.log(point["eta"] / 0.1))
            row = {"test_accuracy": 0.9 - 0.01 * far, "train_loss": 1.0, "uplink_bytes": 1.0}
            found.append({**trial.facts, "status": "done", **row})
        return found

    plain: tune.Grid = {"eta": [0.05, 0.1, 0.2], "server": ["sgd"]}
    grids = [plain, {**plain, "server": ["adam"], "server.rate": [0.005, 0.01]}]
    found = tune.tune_one({"run": {"rounds": 100}}, "fedcom", grids, 2, run)
    assert (found["eta"], found["server"], found["server.rate"], found["edges"]) == (0.1, "adam", 0.02, [])
    assert found["note"] == "grid widened by server.rate 0.02, server.rate 0.04"
    assert sweep_report.figure(found["table"]).axes
    written = tomllib.loads(tune.tuned_text({}, {"fedcom": found}))
    assert variant(written, "fedcom").algorithm.server == Adam(rate=0.02)


def test_what_is_given_alone_stays_if_all_diverges() -> None:
    run, seen = scored({"eta": 0.1, "gamma": 1.0}, limit=0.0)
    found = tune.tune_one({}, "fedavg", {"eta": [1000.0], "gamma": [1.0]}, 1, run)
    assert found["note"] == "every point diverged"
    assert {trial.point for trial in seen} == {(("eta", 1000.0), ("gamma", 1.0))}
    tune.tune_one({}, "fedavg", {"eta": [1.0, 2.0], "gamma": [1.0]}, 1, run)
    assert {dict(trial.point)["gamma"] for trial in seen} == {1.0}


def test_a_search_without_an_end_says_so_and_its_best_is_confirmed() -> None:
    run, seen = scored({"eta": 1e-9, "gamma": 1.0})
    found = tune.tune_one({}, "fedavg", {"eta": [1.0, 2.0], "gamma": [1.0]}, 3, run)
    assert found["note"] == f"the search ended after {tune.TRIES} grids"
    assert found["edges"] == ["eta"]
    assert {t.seed for t in seen if dict(t.point)["eta"] == found["eta"]} == {0, 1, 2}


def test_a_rate_that_was_not_tried_any_more_is_no_edge() -> None:
    run, _ = scored({"eta": 10.0, "gamma": 1.0})
    grid = {"eta": [0.1, 0.2], "gamma": [1.0]}
    found = tune.tune_one({"run": {"rounds": 100}}, "fedavg", grid, 2, run, 2, limit=5.0)
    assert (found["note"], found["edges"]) == ("the budget ended the search", ["eta"])
    assert any("grid's edge" in note for note in sweep_report.warnings_of(found["table"]))


@pytest.mark.parametrize("limit", [4.3, 5.0, 7.0, 12.0, 40.0])
@pytest.mark.parametrize("peak", [0.05, 0.4])  # within the grid, and beyond it
def test_a_budget_counts_widening_and_confirming_too(limit: float, peak: float) -> None:
    run, seen = scored({"eta": peak, "gamma": 4.0})
    table = {"run": {"rounds": 100}}
    found = tune.tune_one(table, "fedcomgate", GRID, 3, run, limit - 2, limit=limit)
    played = sum({t.key: t.config.run.rounds for t in map(tune._unique, seen)}.values()) / 100
    assert found["spent"] == pytest.approx(played)
    assert played <= limit + 1e-9
    best = {key: found[key] for key in GRID}
    seeds = {trial.seed for trial in seen if dict(trial.point) == best}
    assert seeds == {0, 1, 2}  # confirming comes before widening
    assert (found["note"] == "the budget ended the search") == (peak > 0.2 and limit < 40)


def test_a_budget_that_cannot_be_kept_is_refused_with_the_least() -> None:
    run, seen = scored({"eta": 0.05, "gamma": 4.0})
    table = {"run": {"rounds": 100}}
    with pytest.raises(ConfigError, match=r"to search 20 points .* on 3 seeds takes 4.3; raise it"):
        tune.tune_one(table, "fedcomgate", GRID, 3, run, 0.0, limit=1.0)
    assert not seen
    assert tune.tune_one(table, "fedcomgate", GRID, 3, run, 4.3 - 2, limit=4.3)["spent"] <= 4.3


def test_of_points_that_score_alike_those_of_the_smaller_loss_run_on() -> None:
    run, _ = scored({"eta": 0.02, "gamma": 2.0})

    def alike(trials: Sequence[Trial]) -> list[dict[str, Any]]:
        return [{**record, "test_accuracy": 0.9} for record in run(trials)]

    found = tune.tune_one({"run": {"rounds": 100}}, "fedcomgate", GRID, 1, alike, budget=5)
    assert (found["eta"], found["gamma"]) == (0.02, 2.0)


def test_a_point_that_ran_to_the_end_counts_to_the_end() -> None:
    def run(trials: Sequence[Trial]) -> list[dict[str, Any]]:
        found = []
        for trial in trials:
            eta, gamma = (dict(trial.point)[key] for key in ("eta", "gamma"))
            far = abs(math.log(eta / 0.2)) + abs(math.log(gamma))
            short = trial.config.run.rounds < 100  # there the largest steps look best
            row = {"test_accuracy": 0.5 + 0.1 * eta * gamma if short else 0.9 - 0.1 * far}
            found.append({**trial.facts, "status": "done", "train_loss": 1.0, "uplink_bytes": 1.0, **row})
        return found

    grid = {"eta": [0.05, 0.1, 0.2], "gamma": [0.5, 1.0]}
    found = tune.tune_one({"run": {"rounds": 100}}, "fedavg", grid, 1, run, budget=3)
    assert (found["eta"], found["gamma"], found["accuracy"]) == (0.2, 1.0, 90.0)
    assert found["note"] == "grid widened by eta 0.4, gamma 2"


def test_what_diverges_is_dropped_on_the_way() -> None:
    run, seen = scored({"eta": 0.2, "gamma": 2.0}, limit=0.05)
    found = tune.tune_one({"run": {"rounds": 100}}, "fedcomgate", GRID, 3, run, budget=5)
    assert found["eta"] == 0.05
    whole = [trial for trial in seen if trial.config.run.rounds == 100]
    assert {trial.seed for trial in whole} == {0, 1, 2}  # confirmed on three seeds
    assert all(dict(trial.point)["eta"] <= 0.05 for trial in whole)


def test_held_out_samples_are_a_share_of_every_client() -> None:
    table = {"data": {"name": "digits", "clients": 7, "partition": "dirichlet", "alpha": 0.1}}
    whole, _ = build_task(Config.of(table))
    cut, config = build_task(Config.of({"data": {**table["data"], "validation": 0.1}}))
    assert config.data.validation == 0.1
    given = whole.sizes - cut.sizes
    assert bool((cut.sizes >= 1).all())
    assert torch.equal(given, (0.1 * whole.sizes).round().clamp(min=1).long().minimum(whole.sizes - 1))
    assert len(cut.test_y) == int(given.sum())
    assert len(cut.y) + len(cut.test_y) == len(whole.y)
    for client in range(7):  # what a client keeps is its own
        rows = [slice(int(t.offsets[client]), int(t.offsets[client] + t.sizes[client])) for t in (whole, cut)]
        mine, kept = whole.x[rows[0]].flatten(1), cut.x[rows[1]].flatten(1)
        assert bool((torch.cdist(kept, mine).amin(-1) < 0.05).all())
    other = whole.held_out(0.1, Draw.seeded(1))
    assert not torch.equal(other.test_x, cut.test_x)
    with pytest.raises(ConfigError, match="share of the training samples"):
        Config.of({"data": {"validation": 1.0}})


def test_a_task_is_tuned_and_its_config_runs(tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    args = [
        "tune",
        *SMALL,
        "grid.tau=5",
        "--methods",
        "fedcomgate,local-sgd",
        "--seeds",
        "2",
        "--budget",
        "8",
    ]
    told = CliRunner().invoke(app, [*args, "--out", str(out), "--quiet", "--device", "cpu"])
    assert told.exit_code == 0, told.output
    log = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {record["seed"] for record in log} <= {10_000, 10_001}
    rounds = [json.loads(record["key"])[1] for record in log if record["method"] == "fedcomgate"]
    played = sum(dict(point).get("run.rounds", 12) for point in rounds)  # of 12 in a whole run
    assert played <= 8 * 12  # with all that widening and confirming took
    assert f"{played / 12:.1f} whole runs" in told.output
    found = tomllib.loads((out / "tuned.toml").read_text())["methods"]
    assert set(found["fedcomgate"]) == {"eta", "gamma", "tau", "server"}
    tried = {record["point"]["server"] for record in log if record["method"] == "fedcomgate"}
    assert tried == {"sgd", "momentum"}
    assert set(found["local-sgd"]) == {"eta", "tau"}
    assert "validation" not in tomllib.loads((out / "tuned.toml").read_text())["data"]
    configs = dict(variants(read(out / "tuned.toml"), ["fedcomgate", "local-sgd"], range(1)))
    assert configs["fedcomgate"].algorithm.eta == found["fedcomgate"]["eta"]
    again = CliRunner().invoke(app, [*args, "--out", str(out), "--quiet", "--device", "cpu"])
    assert again.output == told.output
    assert len((out / "results.jsonl").read_text().splitlines()) == len(log)  # nothing was run again


def test_a_grid_of_what_is_no_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="numbers above 0"):
        tune.tune({}, {"eta": ["fast"]}, ["fedavg"], tmp_path / "a", device="cpu", quiet=True)


def test_one_methods_config_is_for_run(tmp_path: Path) -> None:
    table = {"data": {"name": "digits"}, "methods": {"mine, 1 bit": {"name": "fedcomgate"}}}
    point = {"eta": 0.1, "uplink.bits": 2, "run.rounds": 7, "accuracy": 91.5, "note": "n", "spent": 3.0}
    (tmp_path / "a.toml").write_text(tune.tuned_text(table, {"mine, 1 bit": point}))
    config = alone(str(tmp_path / "a.toml"), [])
    assert (config.algorithm.eta, config.run.rounds) == (0.1, 7)
    assert config.links.uplink.bits == 2  # type: ignore[attr-defined]
    for server in ("momentum", {"name": "momentum", "momentum": 0.5}):
        mine = {"name": "fedcomgate", "server": server}
        text = tune.tuned_text({"methods": {"mine": mine}}, {"mine": point})
        (tmp_path / "b.toml").write_text(text)
        mu = 0.9 if server == "momentum" else 0.5
        ((_, one),) = variants(read(tmp_path / "b.toml"), ["mine"], range(1))
        for made in (one, alone(str(tmp_path / "b.toml"), [])):
            assert made.algorithm.server == Momentum(mu)
    ((_, other),) = variants(read(tmp_path / "a.toml"), ["mine, 1 bit"], range(1))
    assert other.links.uplink == config.links.uplink
    assert prepare(config, "cpu")[0].algorithm.eta == 0.1


def test_a_tuned_label_leaves_other_labels_as_they_are(tmp_path: Path) -> None:
    fine = {"name": "fedcom", "uplink": {"name": "peaks", "bits": 0.3}, "option": "I"}
    others = {"models": {"name": "fedavg"}, "ints": {"name": "fedcom", "uplink": {"bits": 4}}}
    table = {"data": {"name": "digits"}, "algorithm": {"eta": 0.2}, "methods": {"fine": fine, **others}}
    found = {"eta": 0.1, "gamma": 2.0, "accuracy": 91.5, "note": "n", "spent": 3.0}
    (tmp_path / "a.toml").write_text(tune.tuned_text(table, {"fine": found}))
    written = read(tmp_path / "a.toml")
    for label in (*others, "fedpaq"):
        assert variant(written, label) == variant(table, label)
    assert alone(str(tmp_path / "a.toml"), []) == variant(written, "fine")
    assert variant(written, "fine").algorithm.gamma == 2


@pytest.mark.parametrize("shared", [{}, {"local": {"name": "momentum"}, "server": {"name": "nesterov"}}])
@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ({"local.name": "momentum", "local.momentum": 0.5}, ("momentum", 0.5)),
        ({"local": "adamw"}, ("adamw", None)),
        ({"local.name": "adamw", "server": "momentum"}, ("adamw", None)),
    ],
)
def test_a_tuned_config_has_the_clients_optimiser_that_was_found(
    tmp_path: Path, shared: dict[str, Any], point: dict[str, Any], expected: tuple[str, float | None]
) -> None:
    table = {"data": {"name": "digits"}, "adapter": {"rank": 2}, **shared}
    point = {"eta": 0.1, **point, "adapter.rank": 3}
    ((_, tried),) = variants(with_point(table, "fedavg", point.items()), ["fedavg"], range(1))
    found = {**point, "accuracy": 91.5, "note": "n", "spent": 3.0}
    (tmp_path / "a.toml").write_text(tune.tuned_text(table, {"fedavg": found}))
    ((_, one),) = variants(read(tmp_path / "a.toml"), ["fedavg"], range(1))
    for made in (one, alone(str(tmp_path / "a.toml"), [])):
        assert made.algorithm == tried.algorithm
        assert made.table()["adapter"] == tried.table()["adapter"]
        local = made.algorithm.local
        assert (local.name, getattr(local, "momentum", None)) == expected


def test_clients_optimisers_without_auto_rates_are_tuned_on_a_grid_of_rates(tmp_path: Path) -> None:
    small = {"data": {"name": "digits", "clients": 4}, "local": {"name": "adamw"}}
    grid = {"eta": [0.001, 0.002], "gamma": [1.0]}
    for table in (small, {"algorithm": {"eta": 0.1}, **small}):
        with pytest.raises(ConfigError, match=r"local adamw .* give grid.eta=0.0005,0.001,0.002 and"):
            tune._grids({**table, "server": {"name": "sgd"}}, {"eta": [0.001]}, "fedavg", "cpu")
    with pytest.raises(ConfigError, match="no auto rates"):
        tune.tune(small, {}, ["fedavg"], tmp_path / "refused", device="cpu", quiet=True)
    assert not (tmp_path / "refused").exists()  # so that the folder can be named again
    assert tune._grids({**small, "server": {"name": "sgd"}}, grid, "fedavg", "cpu") == [(grid, {})]
    assert len(tune._grids(small, grid, "fedavg", "cpu")) == 2
