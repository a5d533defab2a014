"""A run's folder: its files, that they agree, that it can be run again, and how runs end."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcom.config import Config, read
from fedcom.engines.results import Row
from fedcom.errors import ConfigError, DataError, Diverged
from fedcom.runs import prepare as preparing
from fedcom.runs.files import CHECKPOINTS, FILES
from fedcom.runs.prepare import build_task, prepare
from fedcom.runs.record import Outcome
from fedcom.runs.run import execute

SMALL = ("model.hidden=16", "algorithm.tau=2", "run.rounds=4", "run.eval_every=3", "run.target_accuracy=0.2")
SCORES = ("train_loss", "test_accuracy", "worst_client_accuracy")


def config(*overrides: str) -> Config:
    return Config.of(read(None, [*SMALL, *overrides]))


def run(out: Path, *overrides: str, **options: Any) -> Outcome:
    return execute(config(*overrides), out, device="cpu", quiet=True, **options)


def rows_of(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_time(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def loaded(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of FedCOMGATE on half the clients; only read."""
    out = tmp_path_factory.mktemp("runs") / "a" / "b"
    assert run(out, "run.participation=0.5").error is None
    return out


def test_the_folder_holds_what_it_should_and_nothing_else(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == set(FILES)


def test_rows_are_those_of_round_0_every_eval_every_and_the_end(folder: Path) -> None:
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == [0, 3, 4]
    for key in (
        "train_loss",
        "test_accuracy",
        "uplink_bytes",
        "downlink_bytes",
        "uplink_bytes_total",
        "seconds",
    ):
        assert all(isinstance(row[key], int | float) for row in rows)
    assert rows[0]["uplink_bytes_total"] == 0
    assert [row["uplink_bytes"] * 20 for row in rows] == [row["uplink_bytes_total"] for row in rows]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)


def test_the_summary_is_the_last_row_and_the_milestones_flat(folder: Path) -> None:
    rows, summary = rows_of(folder), loaded(folder / "summary.json")
    assert rows[-1].items() <= summary.items()
    assert not any(isinstance(value, dict | list) for value in summary.values())
    assert summary["best_accuracy"] == max(row["test_accuracy"] for row in rows)
    first = next(row for row in rows if row["test_accuracy"] >= 0.2)
    assert summary["rounds_to_target"] == first["round"]
    assert summary["uplink_bytes_to_target"] == first["uplink_bytes"]
    assert summary["downlink_bytes_to_target"] == first["downlink_bytes"]
    assert (summary["status"], summary["rounds_done"], summary["algorithm"]) == ("done", 4, "fedcomgate")


def test_the_ledger_adds_up_to_the_last_row(folder: Path) -> None:
    ledger, last = loaded(folder / "ledger.json"), rows_of(folder)[-1]
    assert ledger["clients"] == 20
    for direction in ("uplink", "downlink"):
        items = [nbytes for vector in ledger[direction]["vectors"].values() for nbytes in vector.values()]
        assert sum(items) == ledger[direction]["total"] == last[f"{direction}_bytes_total"] > 0


def test_the_partition_and_the_environment_are_written(folder: Path) -> None:
    partition = loaded(folder / "partition.json")
    assert partition["clients"] == len(partition["sizes"]) == 20
    assert sum(partition["sizes"]) == 1438
    assert [sum(counts) for counts in partition["label_counts"]] == partition["sizes"]
    assert {"fedcom", "python", "torch", "numpy", "device"} <= set(loaded(folder / "environment.json"))


def test_the_config_is_resolved_and_runs_again_to_the_same_numbers(folder: Path, tmp_path: Path) -> None:
    again = Config.of(read(folder / "config.toml"))
    assert (again.data.name, again.data.clients, again.data.partition) == ("digits", 20, "classes")
    assert prepare(again, "cpu")[1] == again
    execute(again, tmp_path / "again", device="cpu", quiet=True)
    assert without_time(rows_of(tmp_path / "again")) == without_time(rows_of(folder))
    for name in ("config.toml", "ledger.json", "partition.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_model_is_where_the_next_run_starts(tmp_path: Path, dtype: str) -> None:
    run(tmp_path / "a", f"run.dtype={dtype}")
    run(tmp_path / "b", f"run.dtype={dtype}", f"run.init={tmp_path}/a/model.safetensors", "run.rounds=0")
    last, first = rows_of(tmp_path / "a")[-1], rows_of(tmp_path / "b")[0]
    assert [first[key] for key in SCORES] == [last[key] for key in SCORES]


def test_a_model_file_that_is_missing_or_not_this_models_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a model")
    cases = {
        tmp_path / "none": "no model file {}; `fedcom run` leaves one",
        tmp_path: "no model file {}",
        tmp_path / "text": "{} does not hold this model: ",
        folder / "model.safetensors": "{} does not hold this model: ",
    }
    for path, message in cases.items():
        with pytest.raises(DataError) as caught:
            prepare(config(f"run.init={path}", "model.hidden=8"))
        assert message.format(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 4


def test_a_row_goes_to_every_callback(tmp_path: Path) -> None:
    seen: list[Row] = []
    outcome = run(tmp_path / "a", callbacks=[seen.append])
    assert seen == outcome.curve.rows == rows_of(tmp_path / "a")


def test_an_interrupted_run_keeps_what_it_measured(tmp_path: Path) -> None:
    def stop(row: Row) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", callbacks=[stop])
    summary = loaded(tmp_path / "a" / "summary.json")
    assert (summary["status"], summary["round"], summary["rounds_done"]) == ("interrupted", 3, 3)
    assert [row["round"] for row in rows_of(tmp_path / "a")] == [0, 3]
    assert (tmp_path / "a" / "model.safetensors").is_file()


def test_a_diverged_run_keeps_what_it_measured_as_json(tmp_path: Path) -> None:
    outcome = run(tmp_path / "a", "algorithm.eta=1e30", "run.eval_every=1")
    assert isinstance(outcome.error, Diverged)
    assert outcome.error.exit_code == 3
    assert "no longer finite after round" in str(outcome.error)
    assert loaded(tmp_path / "a" / "summary.json")["status"] == "diverged"
    assert rows_of(tmp_path / "a")[0]["round"] == 0


def test_a_second_run_replaces_the_first_ones_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "summary.json").write_text("old")
    run(tmp_path, "run.rounds=0", start="over")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert loaded(tmp_path / "summary.json")["round"] == 0


@pytest.mark.parametrize(
    "bad", ["data.name=digit", "run.init=none.safetensors", "data.classes_per_client=11"]
)
def test_a_run_that_cannot_begin_deletes_nothing(tmp_path: Path, bad: str) -> None:
    (tmp_path / "summary.json").write_text("old")
    with pytest.raises((ConfigError, DataError)):
        run(tmp_path, bad)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


REFUSED = [
    ("data.name=digit", "unknown data set 'digit'; did you mean 'digits'?"),
    ("data.partition=class", "unknown partition 'class'; did you mean 'classes'?"),
    ("data.partition=natural", "partition 'natural' needs a data set with authors"),
    ("data.classes_per_client=11", "classes_per_client is 11, but the data has 10 classes; lower it"),
    ("data.clients=5000", "clients must be from 1 to the number of samples, 1438; got 5000"),
    (
        "run.participation=0",
        "participation must be in (0, 1] and sample at least one client; got 0 of 20 clients",
    ),
    ("run.participation=1.5", "got 1.5 of 20 clients"),
    ("run.participation=nan", "participation must be a number; got nan"),
    ("run.participation=0.04", "got 0.04 of 20 clients"),
    (
        "run.participation=0.05",
        "fedcomgate tracks differences between clients and needs two per round; got 1 of 20",
    ),
    ("algorithm.tau=1,2,3", "tau needs one number, or one per client (20); got 3"),
    ("algorithm.name=fedavg uplink.name=int", "its twin with a codec is fedpaq (algorithm.name=fedpaq)"),
    ("algorithm.name=fedgate uplink.name=topk", "its twin with a codec is fedcomgate"),
    ("algorithm.name=fedavg downlink.name=int", "set algorithm.option=I to send the mean instead"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_settings_that_do_not_go_together_are_refused(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(config(*overrides.split()), "cpu")
    assert message in str(caught.value)


def test_wrong_settings_are_refused_before_the_data_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparing, "load", lambda *_, **__: pytest.fail("the data was read"))
    with pytest.raises(ConfigError, match="needs two per round"):
        prepare(config("data.clients=10", "run.participation=0.1", "data.name=mnist"))


@pytest.mark.parametrize(
    ("overrides", "name", "partition", "clients"),
    [
        ("data.partition=iid data.clients=7", "digits", "iid", 7),
        ("data.name=synthetic", "synthetic", "natural", 30),
        ("data.name=synthetic data.clients=5", "synthetic", "natural", 5),
        ("model.name=quadratic", "quadratic", "natural", 20),
        ("model.name=quadratic data.clients=4", "quadratic", "natural", 4),
    ],
)
def test_defaults_depend_on_the_data(overrides: str, name: str, partition: str, clients: int) -> None:
    table = read(None, overrides.split())
    simulation, filled = prepare(Config.of(table), "cpu")
    assert (filled.data.name, filled.data.partition, filled.data.clients) == (name, partition, clients)
    assert simulation.task.clients == clients


@pytest.mark.parametrize("name", ["text", "synthetic"])  # as fedcom's own data are called
def test_a_file_of_ones_own_may_have_any_name(tmp_path: Path, name: str) -> None:
    file, clients = tmp_path / f"{name}.csv", 1001  # from here on clients of synthetic are drawn
    file.write_text("a,label\n" + "".join(f"{i},{i % 2}\n" for i in range(2 * clients)))
    task, config = build_task(Config.of({"data": {"path": str(file), "clients": clients}}))
    assert (config.data.file, task.clients, len(task.y)) == (str(file), clients, 2 * clients)


def test_a_model_that_brings_its_data_takes_no_other() -> None:
    with pytest.raises(
        ConfigError, match=r"quadratic brings its own data; leave data\.name out, got 'digits'"
    ):
        prepare(Config.of(read(None, ["model.name=quadratic", "data.name=digits"])))


def test_the_start_depends_only_on_the_seed_and_torchs_generator_is_not_used() -> None:
    before = torch.get_rng_state()
    one, same, other = (
        prepare(config(*extra), "cpu")[0].server.w
        for extra in ((), ("algorithm.name=fedavg", "data.partition=iid"), ("run.seed=1",))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="device must be auto, cpu, cuda or one GPU, such as cuda:1; got 'tpu'"
    ):
        prepare(config(), "tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # as on a machine without a GPU
    with pytest.raises(ConfigError, match="torch sees no GPU; use device=cpu or auto"):
        prepare(config(), "cuda")


def test_pixels_may_be_left_from_0_to_1_and_images_be_augmented() -> None:
    standard, unit = (
        build_task(config(*given))[0] for given in ((), ("data.pixels=unit", "data.augment=true"))
    )
    assert (float(unit.x.min()), float(unit.x.max())) == (pytest.approx(0, abs=1e-6), pytest.approx(1))
    assert torch.allclose(standard.x, (unit.x - unit.x.mean()) / unit.x.std(), atol=1e-4)
    assert torch.equal(standard.y, unit.y)
    assert standard.augment is None
    assert unit.augment is not None
    with pytest.raises(ConfigError, match=r"data\.pixels=unit is for images"):
        build_task(config("data.name=synthetic", "data.pixels=unit", "data.lazy=false"))
    with pytest.raises(ConfigError, match=r"leave them out with data\.lazy"):
        build_task(config("data.name=synthetic", "data.augment=true", "data.lazy=true"))
    with pytest.raises(ConfigError, match="only images larger than"):
        build_task(config("data.name=synthetic", "data.augment=true", "data.lazy=false"))


@pytest.mark.parametrize("ended", ["done", "interrupted"])
def test_without_a_checkpoint_too_a_run_does_not_go_on_with_other_data(tmp_path: Path, ended: str) -> None:
    path, out = tmp_path / "own.csv", tmp_path / "out"
    settings = [
        f"data.path={path}",
        "data.clients=2",
        "model.name=logistic",
        "algorithm.eta=0.1",
        "algorithm.gamma=1",
    ]
    config, longer = (Config.of(read(None, [*settings, f"run.rounds={n}"])) for n in (1, 2))
    path.write_text("a,b,label\n" + "0.5,1,0\n0.25,0,1\n" * 10)
    execute(config, out, device="cpu", quiet=True)
    assert not (out / CHECKPOINTS).exists()
    (out / "summary.json").write_text(json.dumps(loaded(out / "summary.json") | {"status": ended}))
    before = {name.name: name.read_bytes() for name in out.iterdir()}
    text = path.read_text()
    path.write_text(text.replace("0.5", "0.75", 1))
    with pytest.raises(ConfigError, match="out holds a run on other data"):
        execute(longer, out, start="resume", device="cpu", quiet=True)
    assert {name.name: name.read_bytes() for name in out.iterdir()} == before
    path.write_text(text)
    assert len(execute(longer, out, start="resume", device="cpu", quiet=True).curve.rows) == 3
