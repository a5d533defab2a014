"""Trackers, against the real packages, offline: what was written is read back."""

import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from fedcom import ConfigError, Csv, FedAvg, MLflow, Simulation, TensorBoard, WandB
from fedcom.config import Config, read
from fedcom.runs.run import execute
from tests.conftest import mlp_task
from tests.processes import PATIENCE

SMALL = ("model.hidden=8", "algorithm.tau=1", "run.rounds=3")
ROWS: list[dict[str, Any]] = [
    {"round": 0, "train_loss": 2.0, "q": None, "odd": math.inf},
    {"round": 1, "train_loss": 1.5, "q": 0.25, "odd": math.nan},
]


def run(folder: Path, *settings: str, **options: Any) -> list[dict[str, Any]]:
    config = Config.of(read(None, [*SMALL, *settings]))
    return list(execute(config, folder, device="cpu", quiet=True, **options).curve.rows)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_every_row_and_empty_cells_for_what_is_no_number(tmp_path: Path) -> None:
    write = Csv(tmp_path / "deep" / "rows.csv")
    for row in ROWS:
        write(row)
    assert lines(tmp_path / "deep" / "rows.csv") == [
        {"round": "0", "train_loss": "2.0", "q": "", "odd": ""},
        {"round": "1", "train_loss": "1.5", "q": "0.25", "odd": ""},
    ]
    later = Csv(tmp_path / "deep" / "rows.csv")  # of a run that goes on from round 1
    later({"round": 1, "train_loss": 1.25, "more": 7})
    assert [
        (row["round"], row["train_loss"], row["more"]) for row in lines(tmp_path / "deep" / "rows.csv")
    ] == [
        ("0", "2.0", ""),
        ("1", "1.25", "7"),
    ]


def test_a_simulation_calls_back(tmp_path: Path) -> None:
    results = Simulation(mlp_task(), FedAvg(tau=1), rounds=2, device="cpu").run([Csv(tmp_path / "a.csv")])
    assert [float(row["train_loss"]) for row in lines(tmp_path / "a.csv")] == results["train_loss"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_is_read_back(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(tmp_path)
    for row in ROWS:
        board(row)
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss")] == [(0, 2.0), (1, 1.5)]
    assert [(e.step, e.value) for e in events.Scalars("q")] == [(1, 0.25)]
    assert "odd" not in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow: pip install 'fedcom[tracking]'")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    track = MLflow("mine", "first", {"algorithm": {"eta": 0.5}})
    for row in ROWS:
        track(row)
    track.close()
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert found.data.params == {"algorithm.eta": "0.5"}
    assert set(found.data.metrics) == {"train_loss", "q"}
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == [(0, 2.0), (1, 1.5)]
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    rows = run(tmp_path / "a", "run.log=mlflow")
    (found,) = client.search_runs([client.get_experiment_by_name("fedcom").experiment_id])
    assert found.data.metrics["train_loss"] == rows[-1]["train_loss"]
    assert found.data.params["algorithm.name"] == "fedcomgate"
    run(tmp_path / "b", "run.log=mlflow", "run.rounds=30", "algorithm.eta=1e20")
    (last, _) = client.search_runs([client.get_experiment_by_name("fedcom").experiment_id])
    assert last.info.status == "FAILED"  # it diverged
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://there")
    with pytest.raises(ConfigError, match="MLflow cannot be used"):
        MLflow()


@pytest.mark.filterwarnings("ignore")
def test_wandb_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'fedcom[tracking]'")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    track = WandB("mine", "first", {"algorithm": {"eta": 0.5}}, tmp_path)
    for row in ROWS:
        track(row)
    track.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history = _history(file, 2)
    assert [(item["_step"], item["train_loss"]) for item in history] == [(0, 2.0), (1, 1.5)]
    assert history[1]["q"] == 0.25
    assert "odd" not in history[0]
    rows = run(tmp_path / "a", "run.log=wandb")
    (file,) = (tmp_path / "a").glob("wandb/offline-run-*/*.wandb")
    assert [item["train_loss"] for item in _history(file, 4)] == [row["train_loss"] for row in rows]


def _history(path: Path, rows: int) -> list[dict[str, Any]]:
    """The rows in one of wandb's own files, once they are there: a process of its own writes it."""
    until = time.monotonic() + PATIENCE
    while len(found := [item for item in _records(path) if "_step" in item]) < rows:
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def _records(path: Path) -> list[dict[str, Any]]:
    """The history in one of wandb's own files: a log in LevelDB's format of its protobuf records."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole, found = path.read_bytes(), 7, b"", list[dict[str, Any]]()
    while place + 7 <= len(data):
        if (room := 32768 - place % 32768) < 7:  # the end of a block is filled up
            place += room
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole = (whole if kind in (3, 4) else b"") + data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in items})
    return found


def test_a_run_logs_what_it_is_told_to(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    rows = run(tmp_path / "a", "run.log=csv,tensorboard")
    assert [float(row["train_loss"]) for row in lines(tmp_path / "a" / "metrics.csv")] == [
        row["train_loss"] for row in rows
    ]
    assert list((tmp_path / "a" / "tensorboard").glob("events*"))
    again = run(tmp_path / "a", "run.log=csv", start="over")
    assert len(lines(tmp_path / "a" / "metrics.csv")) == len(again) == 4
    assert not (tmp_path / "a" / "tensorboard").exists()
    assert 'log = ["csv"]' in (tmp_path / "a" / "config.toml").read_text()


def test_a_resumed_run_goes_on_with_its_csv(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", "run.log=csv", "run.rounds=6")
    run(tmp_path / "a", "run.log=csv", "run.checkpoint_rounds=2")
    run(tmp_path / "a", "run.log=csv", "run.rounds=6", start="resume")
    numbers = [row["train_loss"] for row in lines(tmp_path / "a" / "metrics.csv")]
    assert numbers == [str(row["train_loss"]) for row in whole]


def test_unknown_and_missing_trackers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown tracker in log 'tensorbord'; did you mean 'tensorboard'"):
        run(tmp_path / "a", "run.log=csv,tensorbord")
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"wandb cannot be imported .* pip install wandb"):
        run(tmp_path / "a", "run.log=wandb")
    assert not (tmp_path / "a").exists()
