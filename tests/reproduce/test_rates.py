"""Tuning: grids that are widened at their edges, seeds that no figure uses, files that panels read."""

import json
import math
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcom.errors import ConfigError
from fedcom.reproduce import STUDIES, Scale, command, rates
from fedcom.reproduce import study as studies
from fedcom.reproduce.panels import settings
from fedcom.studies import tune
from fedcom.studies.trials import Trial
from tests.reproduce.made_up import TINY

ROOT = Path(__file__).parents[2]


def test_rates_are_tuned_and_widened_at_an_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune.widened([0.1, 0.2], 0.2) == [0.1, 0.2, 0.4]
    assert tune.widened([1.0, 2.0, 4.0], 1.0) == [0.5, 1.0, 2.0, 4.0]
    monkeypatch.setattr(rates, "TUNED", ("fedavg",))
    monkeypatch.setattr(rates, "SEEDS", 3)
    monkeypatch.setitem(rates.GRIDS, "mnist", {"eta": [0.01, 0.02], "gamma": [1.0]})
    longer = (*TINY, "model.hidden=16", "run.rounds=12", "run.eval_every=2")
    path = rates.tune("mnist", Scale(True, 1, longer), tmp_path, "cpu", True)
    found = tomllib.loads(path.read_text())
    assert found["tuning"]["seed"] == rates.SEED
    assert found["methods"]["fedavg"]["eta"] > 0.02
    assert "widened" in found["found"]["fedavg"]["note"]
    (best,) = (
        entry for entry in json.loads((tmp_path / "mnist" / "table.json").read_text()) if entry["best"]
    )
    assert best["runs"] == 3
    assert round(100 * best["test_accuracy"], 2) == found["found"]["fedavg"]["accuracy"]


def scored(peak: tuple[float, float], limit: float = 1e9) -> tune.RunTrials:
    """Runs that score the higher the nearer their eta and gamma are to a peak, and diverge above a limit."""

    def run(trials: Sequence[Trial]) -> list[dict[str, Any]]:
        found = []
        for trial in trials:
            far = sum(abs(math.log(v / best)) for (_, v), best in zip(trial.point, peak, strict=True))
            status = "done" if dict(trial.point)["eta"] <= limit else "diverged"
            row = {"test_accuracy": 0.9 - 0.1 * far, "train_loss": far, "uplink_bytes": 1.0}
            found.append({**trial.facts, "status": status, **row})
        return found

    return run


def tuned(run: tune.RunTrials) -> dict[str, Any]:
    (panel, *_) = STUDIES["frontier-mnist"].plan(Scale(True, 1, TINY))
    grid = tune.around({"eta": 0.1, "gamma": 4.0}, rates.NEAR)
    return tune.tune_one(panel.table, "exact peaks 0.03", grid, 3, run)


def test_the_grid_lies_around_the_methods_rates_and_follows_the_best_point() -> None:
    assert tune.around({"eta": 0.05, "gamma": 1.0}, rates.NEAR) == {
        "eta": [0.025, 0.05, 0.1],
        "gamma": [0.5, 1.0, 2.0],
    }
    inside = tuned(scored((0.1, 4.0)))
    assert (inside["eta"], inside["gamma"], inside["note"]) == (0.1, 4.0, "inside the grid")
    far = tuned(scored((0.0125, 8.0)))
    assert (far["eta"], far["gamma"], far["edges"]) == (0.0125, 8.0, [])
    assert far["note"] == "grid widened by eta 0.00625, eta 0.0125, eta 0.025, gamma 16"


def test_a_grid_that_diverges_everywhere_is_widened_downwards() -> None:
    assert tuned(scored((0.2, 4.0), limit=0.01))["eta"] == 0.00625
    assert tuned(scored((0.2, 4.0), limit=0.0))["note"] == "every point diverged"


def test_points_are_tuned_on_seeds_of_their_own_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rates, "NEAR", {"eta": (1.0,), "gamma": (1.0,)})
    (base, *_) = STUDIES["frontier-mnist"].plan(Scale(True, 1, TINY))
    labels = ("fedavg", "local-sgd", "exact peaks 0.03", "fedcom peaks 0.03")
    some = replace(base, methods=labels, rates=("mnist", *base.rates))
    some.table["methods"]["local-sgd"] = {}  # has no gamma
    some.table["methods"]["exact peaks 0.03"]["uplink"] = {"name": "int", "bits": 4}
    (tmp_path / "experiments" / "rates").mkdir(parents=True)
    shutil.copy(studies.experiment_file("rates/mnist.toml"), tmp_path / "experiments" / "rates")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / base.rates[-1] / f"{base.rates[-1]}.toml"
    with pytest.raises(ConfigError, match=r"no rates of fedcom peaks 0\.03; the messages above say why"):
        rates.tune_panel(some, tmp_path, "cpu", True)
    log = path.parent / "results.jsonl"
    assert {json.loads(line)["seed"] for line in log.read_text().splitlines()} == {100, 101, 102}
    found = tomllib.loads(path.read_text())["methods"]
    assert set(found) == set(some.methods[1:3])  # fedavg has rates for this task already
    assert set(found["local-sgd"]) == {"eta"}
    assert "fedcom peaks 0.03 cannot be tuned" in capsys.readouterr().err  # the model is too small
    before, told = log.read_text(), path.read_text()
    others = replace(some, methods=labels[:3])
    assert rates.tune_panel(others, tmp_path, "cpu", True).read_text() == told
    assert log.read_text() == before


def test_panels_take_the_rates_of_their_own_task_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "experiments" / "rates"
    folder.mkdir(parents=True)
    (folder / "frontier-mnist.toml").write_text('[methods."exact peaks 0.03"]\neta = 0.3\ngamma = 0.7\n')
    (folder / "frontier-mnist-sampled.toml").write_text("[methods.fedavg]\neta = 0.4\ngamma = 0.6\n")
    (folder / "frontier-mnist-1-class.toml").write_text("[methods]\n")
    monkeypatch.chdir(tmp_path)
    panels = STUDIES["frontier-mnist"].plan(Scale())
    main, one, _, sampled = panels
    found = {(p.name, r.method): r.config.algorithm for p in panels for r in p.runs(1)}
    assert found["mnist", "exact peaks 0.03"].eta == 0.3
    assert found["mnist", "exact peaks 0.03, momentum"].eta == found["mnist", "fedcomgate"].eta
    assert found["mnist-sampled", "fedavg"].gamma == 0.6
    assert "exact peaks 0.03" not in main.untuned
    assert {"exact peaks 0.03, momentum", "fedcomgate"} < set(main.untuned)
    assert set(one.untuned) == set(one.methods)
    assert "fedavg" not in sampled.untuned


def test_what_has_no_rates_to_tune_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rates for"):
        command.run(["rates", "fig4"], True, None, tmp_path, "cpu", True)


@pytest.mark.parametrize("data", rates.GRIDS)
def test_every_method_has_rates_on_every_data_set(data: str) -> None:
    found = tomllib.loads((ROOT / "experiments" / "rates" / f"{data}.toml").read_text())
    assert set(found["methods"]) == {*rates.TUNED, *rates.SAME}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments" / "rates").glob("*.toml")), ids=lambda p: p.stem
)
def test_committed_rates_are_as_tuning_writes_them(path: Path) -> None:
    found = tomllib.loads(path.read_text())
    best = {m: {"accuracy": None, **found["methods"][m], **found["found"][m]} for m in found["methods"]}
    for own in best.values():
        own |= {"server.rate": own["rate"]} if "rate" in own else {}
    head = rates.HEAD if path.stem in rates.GRIDS else rates.PANEL_HEAD
    assert path.read_text() == rates.text(head.format(path.stem), found["tuning"], best)


def test_points_that_follow_another_have_its_servers_rate_too() -> None:
    follower = {**settings("fedcom peaks 0.1, adam"), "rates_of": "fedavg, adam"}
    table = {
        "data": {"name": "shakespeare"},
        "methods": {"fedavg, adam": settings("fedavg, adam"), "small": follower},
    }
    studies.lay_rates(table, ("fedavg, adam", "small"), ("language",))
    told = studies.rates_in("language")["fedavg, adam"]
    for own in table["methods"].values():
        assert (own["eta"], own["server"]) == (told["eta"], {"name": "adam", "rate": told["rate"]})


def test_the_rate_of_an_adaptive_server_is_widened() -> None:
    (panel, *_) = STUDIES["frontier-mnist"].plan(Scale(True, 1, TINY))
    table = {**panel.table, "methods": {"x": {"name": "fedavg", "server": {"name": "adam"}}}}
    grid = {"eta": [0.05, 0.1, 0.2], "server.rate": [0.01, 0.02]}
    found = tune.tune_one(table, "x", grid, 1, scored((0.1, 0.08)))
    assert (found["eta"], found["server.rate"], found["edges"]) == (0.1, 0.08, [])
    assert found["note"] == "grid widened by server.rate 0.04, server.rate 0.08, server.rate 0.16"


def test_the_search_begins_where_optimisers_need_it() -> None:
    rates_of_fedavg = {"eta": 0.2, "gamma": 2.0}
    grid = rates._first_grid(settings("fedavg, momentum"), rates_of_fedavg, rates.NEAR)
    assert grid == {"eta": [0.05, 0.1, 0.2], "gamma": [4.0, 8.0, 16.0]}
    grid = rates._first_grid(settings("fedavg, local adamw, adam"), rates_of_fedavg, rates.NEAR)
    assert grid == {"eta": [0.0005, 0.001, 0.002], "server.rate": list(tune.SERVER_RATES)}
    text = rates.text(
        "", {}, {"x": {"eta": 0.1, "server.rate": 0.01, "accuracy": 1, "edges": [], "note": ""}}
    )
    assert tomllib.loads(text)["methods"]["x"] == {"eta": 0.1, "rate": 0.01}
