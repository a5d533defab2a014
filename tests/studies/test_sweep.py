"""Sweeps: the grid, what is resumed, what is best, and the warnings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedcom.cli import app
from fedcom.config import Config
from fedcom.errors import ConfigError
from fedcom.reports.page.collect import SavedSweep
from fedcom.reports.page.points import grids
from fedcom.studies import sweep, sweep_report, tune
from fedcom.studies.trial_runs import _Stack, run_stack
from fedcom.studies.trials import Trial, lists, points, stacks

TABLE = {
    "data": {"name": "digits", "clients": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"tau": 2, "batch": 10},
    "run": {"rounds": 3},
}


def test_points_are_all_combinations() -> None:
    grid = {"eta": [0.1, 0.2], "gamma": 1.0, "uplink": {"bits": [2, 4]}}
    found = [dict(point) for point in points(grid)]
    assert len(found) == 4
    assert found[1] == {"eta": 0.1, "gamma": 1.0, "uplink.bits": 4}
    words = points({"eta": "auto, 0.1", "uplink": {"name": "int,rotated"}})
    assert words[-1] == (("eta", 0.1), ("uplink.name", "rotated"))
    assert words[0] == (("eta", "auto"), ("uplink.name", "int"))
    with pytest.raises(ConfigError, match="needs a grid"):
        points({})
    with pytest.raises(ConfigError, match="section of the grid 'uplnk'"):
        points({"uplnk": {"bits": [2]}})


def test_a_sweep_runs_every_point_and_seed_once(tmp_path: Path) -> None:
    records = sweep.sweep(
        TABLE,
        {"eta": [0.05, 0.1], "uplink": {"bits": [2, 8]}},
        ["fedcomgate"],
        tmp_path,
        seeds=2,
        quiet=True,
        device="cpu",
    )
    assert len(records) == 8
    assert {(r["point"]["eta"], r["point"]["uplink.bits"], r["seed"]) for r in records} == {
        (eta, bits, seed) for eta in (0.05, 0.1) for bits in (2, 8) for seed in (0, 1)
    }
    by_bits = {r["point"]["uplink.bits"]: r["uplink_bytes"] for r in records}
    assert by_bits[8] > 3 * by_bits[2]


def test_finished_runs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"eta": [0.05, 0.1]}
    before = sweep.sweep(TABLE, grid, ["fedavg"], tmp_path, quiet=True, device="cpu")
    log = tmp_path / "results.jsonl"
    log.write_text(log.read_text().splitlines()[0] + '\n3\n{"key": "[cut')
    ran: list[str] = []
    real = run_stack

    def note(trials: Sequence[Trial], *options: Any) -> Any:
        ran.extend(trial.key for trial in trials)
        return real(trials, *options)

    monkeypatch.setattr(sweep, "run_stack", note)
    after = sweep.sweep(TABLE, grid, ["fedavg"], tmp_path, quiet=True, device="cpu")
    assert [r["train_loss"] for r in after] == [r["train_loss"] for r in before]
    assert ran == [after[1]["key"]]
    with pytest.raises(ConfigError, match="another sweep"):
        sweep.sweep(TABLE, {"eta": [0.3]}, ["fedavg"], tmp_path, quiet=True, device="cpu")


def test_a_key_that_a_method_does_not_have_is_dropped_for_it(tmp_path: Path) -> None:
    records = sweep.sweep(
        TABLE,
        {"eta": [0.1], "damping": [0.5, 1.0]},
        ["fedavg", "fedcomgate"],
        tmp_path,
        quiet=True,
        device="cpu",
    )
    assert [r["method"] for r in records] == ["fedavg", "fedcomgate", "fedcomgate"]


def test_seeds_and_the_rounds_of_a_tuning_are_no_part_of_a_grid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give run.seed, the first one, and seeds"):
        lists({"run": {"seed": [1, 2]}})
    with pytest.raises(ConfigError, match=r"run.rounds cannot be tuned"):
        tune.tune(TABLE, {"run": {"rounds": [2, 4]}}, ["fedavg"], tmp_path / "t", device="cpu")
    assert not (tmp_path / "t").exists()


def test_a_key_no_method_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key 'etaa' to sweep; did you mean 'eta'"):
        sweep.sweep(TABLE, {"etaa": [0.1]}, ["fedavg"], tmp_path, quiet=True, device="cpu")


def record(eta: float, seed: int, accuracy: float | None, status: str = "done") -> dict[str, object]:
    scores = {"test_accuracy": accuracy, "train_loss": 1.0, "uplink_bytes": 10.0} if status == "done" else {}
    return {"method": "m", "point": {"eta": eta}, "seed": seed, "status": status, **scores}


def test_the_best_is_the_mean_over_seeds_and_an_edge_is_reported() -> None:
    records = [
        record(0.1, 0, 0.9), record(0.1, 1, 0.5),
        record(0.2, 0, 0.8), record(0.2, 1, 0.8),
        record(0.4, 0, 0.99), record(0.4, 1, None, "diverged"),
    ]  # fmt: skip
    table = sweep_report.summary(records)
    (best,) = [entry for entry in table if entry["best"]]
    assert best["point"] == {"eta": 0.2}  # a seed diverged at 0.4, and 0.1 has a mean of 0.7
    assert best["test_accuracy"] == pytest.approx(0.8)
    assert best["edges"] == []
    edge = sweep_report.summary(records[:4])
    assert "grid's edge (eta=0.2)" in sweep_report.warnings_of(edge)[0]
    lost = sweep_report.summary([record(0.4, 1, None, "diverged")])
    assert "every point diverged" in sweep_report.warnings_of(lost)[0]


def test_of_equal_scores_the_lower_loss_is_best_and_a_regression_goes_by_its_test_loss() -> None:
    even = [{**record(eta, 0, 0.5), "train_loss": loss} for eta, loss in ((0.1, 2.0), (0.2, 1.0), (0.4, 1.5))]
    (best,) = [entry for entry in sweep_report.summary(even) if entry["best"]]
    assert best["point"] == {"eta": 0.2}
    losses = {0.1: 0.3, 0.2: 0.5, 0.4: 0.4}
    told = [{**r, "test_accuracy": None, "test_loss": losses[r["point"]["eta"]]} for r in even]
    table = sweep_report.summary(told)
    (best,) = [entry for entry in table if entry["best"]]
    assert best["point"] == {"eta": 0.1}
    assert "| test loss |" in sweep_report.markdown(table)
    assert sweep_report.figure(table).axes[0].get_ylabel() == "test loss"
    (grid,) = grids([SavedSweep(Path("s"), told, 3)])
    assert (grid["title"], [point["score"] for point in grid["points"]]) == ("test loss", [0.3, 0.5, 0.4])


def test_a_section_algorithm_is_no_other_key_than_none() -> None:
    assert lists({"algorithm": {"eta": [0.1, 0.2]}, "uplink": {"bits": 2}}) == lists(
        {"eta": [0.1, 0.2], "uplink": {"bits": [2]}}
    )
    with pytest.raises(ConfigError, match=r"grid.eta and grid.algorithm.eta are the same"):
        lists({"algorithm": {"eta": 0.1}, "eta": 0.2})


def test_the_command_writes_a_table_and_a_figure(tmp_path: Path) -> None:
    out = tmp_path / "s"
    settings = ["data.clients=5", "model.hidden=8", "run.rounds=2", "grid.eta=0.05,0.1", "grid.gamma=1,2"]
    options = ["--methods", "fedavg,fedcomgate", "--out", str(out), "-q", "--device", "cpu"]
    done = CliRunner().invoke(app, ["sweep", *settings, *options])
    assert done.exit_code == 0, done.output
    assert "fedcomgate" in done.stdout
    table = json.loads((out / "table.json").read_text())
    assert len(table) == 8
    assert sum(entry["best"] for entry in table) == 2
    assert (out / "sweep.png").stat().st_size > 5000
    assert "grid's edge" in (out / "table.md").read_text()


def test_commas_within_the_brackets_of_a_schedule_part_no_values() -> None:
    given = {"eta_schedule": "cosine(end=0.1),warmup(rounds=2, then=cosine),constant"}
    assert lists(given) == {"eta_schedule": ["cosine(end=0.1)", "warmup(rounds=2, then=cosine)", "constant"]}


def test_words_and_numbers_go_together_in_a_grid(tmp_path: Path) -> None:
    out = tmp_path / "s"
    settings = [
        "data.clients=5",
        "model.hidden=8",
        "run.rounds=1",
        "grid.eta=0.1,auto",
        "grid.uplink.name=int,sign",
    ]
    done = CliRunner().invoke(app, ["sweep", *settings, "--out", str(out), "-q", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    table = json.loads((out / "table.json").read_text())
    assert {str(entry["point"]["eta"]) for entry in table} == {"0.1", "auto"}
    assert (out / "sweep.png").stat().st_size > 5000


def test_a_sweep_of_a_model_with_its_own_data_has_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["model.name=quadratic", "data.clients=3", "run.rounds=1", "grid.eta=0.1", "-q", "--device", "cpu"]
    told = CliRunner().invoke(app, ["sweep", *args])
    assert told.exit_code == 0, told.output
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sweep-quadratic-001"]


def test_runs_that_only_deal_the_same_data_otherwise_share_a_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deals = [{"partition": "labels", "classes_per_client": k} for k in (2, 5)] + [{"partition": "dirichlet"}]
    tables = [{**TABLE, "data": {"name": "digits", "clients": 5, **deal}} for deal in deals]
    for table in tables:
        table["algorithm"] = {"name": "fedavg", "epochs": 1, "batch": 40, "average": "models"}
    trials = [Trial("fedavg", (), 0, Config.of(table)) for table in tables]
    (stack,) = stacks(trials)
    assert len(stack) == 3
    others = {"partition": "natural"}, {"clients": 6}, {"pixels": "unit"}
    for other in others:
        table = {**tables[0], "data": {**tables[0]["data"], **other}}
        assert len(stacks([*trials, Trial("fedavg", (), 0, Config.of(table))])) == 1 + (other != others[0])
    local = {"name": "momentum"}
    pulled = [
        Trial(f"mu {mu}", (), 0, Config.of({**tables[0], "local": {**local, "mu": mu}})) for mu in (0, 1)
    ]
    plain = [Trial(f"mu {mu}", (), 0, Config.of({**tables[0], "local": {"mu": mu}})) for mu in (0.0, 0.5)]
    assert [len(stack) for stack in stacks([*trials, *pulled, *plain])] == [4, 2, 1]

    def rows() -> list[list[dict[str, Any]]]:
        found = run_stack(stack, lambda run: {1, 3}, "cpu", quiet=True)
        timed = ("seconds",)
        return [[{k: v for k, v in row.items() if k not in timed} for row in own] for _, _, own in found]

    alone = rows()
    monkeypatch.setattr("fedcom.studies.trial_runs.runs_that_fit", lambda simulation: 9)
    for mine, other in zip(rows(), alone, strict=True):
        assert [row["round"] for row in mine] == [1, 3]
        for row, same in zip(mine, other, strict=True):
            assert row == pytest.approx(same, rel=1e-5)

    class Small(_Stack):
        """A stack on a machine with too little memory for all three runs."""

        def play(self, *how: Any) -> Any:
            if len(self.alive) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().play(*how)

    monkeypatch.setattr("fedcom.studies.trial_runs._Stack", Small)
    assert [len(own) for own in rows()] == [2, 2, 2]
    assert "too little memory for 3 runs at once; going on with 1" in capsys.readouterr().err
