"""compare, sweep, report and plot in Python, on tasks and on configs."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedcom
from fedcom import ConfigError, FedAvg, FedCOM, FedCOMGATE, Int, Links, Task, TopK
from tests.conftest import mlp_task
from tests.processes import program

pytest.importorskip("pandas")
QUIET: dict[str, Any] = {"device": "cpu", "quiet": True}
METHODS: dict[str, Any] = {"avg": "fedavg", "gate": FedCOMGATE(eta=0.1), "few": (FedCOM(eta=0.1), TopK(0.2))}


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).double().mean()


@pytest.fixture(scope="module")
def found() -> fedcom.Comparison:
    return fedcom.compare(mlp_task(), METHODS, rounds=3, seeds=2, metrics={"hits": hits}, **QUIET)


def test_a_comparison_is_the_runs_one_by_one(found: fedcom.Comparison) -> None:
    links = {"avg": None, "gate": None, "few": Links(TopK(0.2))}
    made = {"avg": FedAvg(), "gate": FedCOMGATE(eta=0.1), "few": FedCOM(eta=0.1)}
    frame = found.rows()
    assert list(frame)[:3] == ["method", "seed", "round"]
    assert len(frame) == 3 * 2 * 4
    for label, algorithm in made.items():
        for seed in (0, 1):
            alone = fedcom.Simulation(
                mlp_task(), algorithm, links[label], rounds=3, seed=seed, device="cpu"
            ).run()
            there = frame[(frame.method == label) & (frame.seed == seed)]
            for key in ("train_loss", "test_accuracy", "uplink_bytes"):
                assert list(there[key]) == alone[key]
            assert list(there["hits"]) == list(there["test_accuracy"])


def test_its_table_is_the_mean_over_seeds(found: fedcom.Comparison) -> None:
    rows = found.rows()
    means = rows[rows["round"] == 3].groupby("method").mean()
    for label in METHODS:
        assert found.frame().loc[label, "final_loss"] == pytest.approx(means.loc[label, "train_loss"])


def test_the_ten_lines_end_in_a_page_and_a_picture(found: fedcom.Comparison, tmp_path: Path) -> None:
    page = fedcom.report(found, tmp_path / "page.html")
    text = page.read_text()
    assert all(label in text for label in METHODS)
    figure = fedcom.plot(found, "round", "hits", title="Hits")
    figure.savefig(tmp_path / "a.png")
    assert {text.get_text() for text in figure.axes[0].texts} >= set(METHODS)
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_folders_results_and_sweeps_can_be_drawn(
    tmp_path: Path, found: fedcom.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulation = fedcom.Simulation(mlp_task(), "fedavg", rounds=3, device="cpu")
    results = fedcom.record(simulation, "a/run", quiet=True).curve.rows
    swept = fedcom.sweep(mlp_task(), {"eta": [0.1, 0.2]}, "fedavg", rounds=1, out="s", **QUIET)
    for what in ("a", Path("a/run"), simulation, simulation.results, {"mine": "a", "theirs": results}):
        for line in fedcom.plot(what, "round", "train_loss").axes[0].get_lines()[:1]:  # type: ignore[arg-type]
            assert list(line.get_ydata()) == [row["train_loss"] for row in results]  # type: ignore[arg-type]
    panel = fedcom.plot(swept).axes[0]
    assert panel.get_title(loc="left") == "fedavg"
    assert sorted(panel.get_lines()[0].get_xdata()) == [0.1, 0.2]  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="leave x and y out"):
        fedcom.plot(swept, x="round")
    with pytest.raises(ConfigError, match="no folder b;"):
        fedcom.plot("b")


def test_a_page_can_be_written_of_results_that_are_in_no_folder(
    tmp_path: Path, found: fedcom.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    simulation = fedcom.Simulation(mlp_task(), "fedavg", rounds=3, device="cpu")
    results = simulation.run()
    assert fedcom.report(results) == Path("report.html")
    text = Path("report.html").read_text()
    assert "results-1" in text
    assert "fedcom run " not in text  # there is no config to run
    swept = fedcom.sweep(mlp_task(), {"eta": [0.1, 0.2]}, "fedavg", rounds=1, **QUIET)
    outcome = fedcom.record(fedcom.Simulation(mlp_task(), "fedavg", rounds=1, device="cpu"), "a", quiet=True)
    page = fedcom.report([{"first": results, "second": results}, outcome, "a", found, swept], "all.html")
    text = page.read_text()
    assert all(label in text for label in ("first", "second", "fedavg", *METHODS))
    assert "9 runs · 1 sweep" in text.replace("10 runs", "9 runs")


def test_a_folder_is_completed_and_another_comparison_refused(tmp_path: Path) -> None:
    task = mlp_task()
    once = fedcom.compare(task, ["fedavg"], rounds=2, out=tmp_path / "a", **QUIET)
    before = (tmp_path / "a" / "fedavg" / "seed-0" / "metrics.jsonl").stat().st_mtime_ns
    again = fedcom.compare(task, ["fedavg"], rounds=2, out=tmp_path / "a", **QUIET)
    assert again.table == once.table
    assert (tmp_path / "a" / "fedavg" / "seed-0" / "metrics.jsonl").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="does not hold this comparison"):
        fedcom.compare(mlp_task(seed=5), ["fedavg"], rounds=2, out=tmp_path / "a", **QUIET)
    fedcom.compare(mlp_task(seed=5), ["fedavg"], rounds=2, out=tmp_path / "a", force=True, **QUIET)


def test_without_a_folder_nothing_stays(tmp_path: Path) -> None:
    code = """
import atexit, warnings
warnings.simplefilter("error")
import fedcom
from tests.conftest import mlp_task
found = fedcom.compare(mlp_task(), ["fedavg"], rounds=1, quiet=True, device="cpu")
assert (found.folder / "fedavg" / "seed-0" / "metrics.jsonl").is_file()
print(found.folder)
atexit._run_exitfuncs()  # as at the end of an interpreter; a forked process leaves them out
"""
    done = program(tmp_path, code)
    assert (done.code, done.err) == (0, "")
    assert not Path(done.out.strip()).exists()


def test_seeds_may_differ_in_their_task() -> None:
    made: list[int] = []

    def task(seed: int) -> Task:
        made.append(seed)
        return mlp_task(seed=seed)

    frame = fedcom.compare(task, ["fedavg", "fedcom"], rounds=1, seeds=2, seed=3, **QUIET).rows()
    assert sorted(made) == [3, 4]  # once for all methods
    alone = fedcom.Simulation(mlp_task(seed=4), "fedavg", rounds=1, seed=4, device="cpu").run()
    there = frame[(frame.method == "fedavg") & (frame.seed == 4)]
    assert list(there["train_loss"]) == alone["train_loss"]


def test_a_config_can_be_compared_and_swept(tmp_path: Path) -> None:
    table = {
        "model": {"hidden": [8]},
        "data": {"clients": 4},
        "methods": {"few": {"name": "fedcom", "tau": 2}},
    }
    found = fedcom.compare(table, ["fedavg", "few"], rounds=1, **QUIET)
    assert list(found.frame().index) == ["fedavg", "few"]
    path = tmp_path / "a.toml"
    path.write_text("[model]\nhidden = [8]\n[data]\nclients = 4\n[run]\nrounds = 1\n")
    swept = fedcom.sweep(path, {"eta": [0.01, 0.1], "uplink.bits": [2, 4]}, ["fedcom"], **QUIET)
    assert len(swept.frame()) == 4


def test_a_sweep_is_the_runs_one_by_one(tmp_path: Path) -> None:
    task = mlp_task()
    grid = {"eta": [0.01, 0.1], "uplink": {"bits": (2, 4)}}
    swept = fedcom.sweep(task, grid, ["fedcom"], rounds=2, seeds=2, out=tmp_path / "s", **QUIET)
    assert len(swept.rows()) == 8
    for row in swept.rows().to_dict("records"):
        alone = fedcom.Simulation(
            task,
            FedCOM(eta=row["eta"]),
            Int(bits=row["uplink.bits"]),
            rounds=2,
            seed=row["seed"],
            device="cpu",
        ).run()
        assert row["train_loss"] == alone[-1]["train_loss"]
    best = swept.frame().sort_values("test_accuracy").iloc[-1]
    assert best["test_accuracy"] == max(swept.frame()["test_accuracy"])
    assert set(swept.best) == {"fedcom"}
    assert swept.warnings
    assert (tmp_path / "s" / "sweep.png").is_file()


def test_a_method_is_not_given_keys_that_it_lacks() -> None:
    swept = fedcom.sweep(mlp_task(), {"damping": [0.5, 1.0]}, ["fedavg", "fedcomgate"], rounds=1, **QUIET)
    assert [record["point"] for record in swept.records] == [{}, {"damping": 0.5}, {"damping": 1.0}]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([], "name at least one method"),
        (["fedavg", FedAvg(eta=0.1)], "fedavg is among the methods twice; give a mapping"),
        (["fedavgg"], "unknown algorithm 'fedavgg'; did you mean 'fedavg'?"),
        ({"a/b": "fedavg"}, "'a/b' cannot name a folder"),
        ([("fedavg", "int")], "fedavg: "),
    ],
)
def test_methods_that_cannot_be_are_refused(methods: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fedcom.compare(mlp_task(), methods, rounds=1, **QUIET)
    assert message in str(caught.value)


def test_other_things_that_cannot_be_are_refused(found: fedcom.Comparison) -> None:
    refused = [
        (lambda: fedcom.sweep(mlp_task(), {}, **QUIET), "a sweep needs a grid"),
        (lambda: fedcom.sweep(mlp_task(), {"etaa": [1]}, **QUIET), "did you mean 'eta'?"),
        (lambda: fedcom.sweep(mlp_task(), {"uplink.bit": [1]}, **QUIET), "did you mean 'bits'?"),
        (lambda: fedcom.sweep(mlp_task(), {"data.clients": [1]}, **QUIET), "a grid on a task is of"),
        (lambda: fedcom.compare({}, [FedAvg()], **QUIET), "with a config, methods are names"),
        (
            lambda: fedcom.compare({}, ["fedavg"], metrics={"hits": hits}, **QUIET),
            "metrics can be given with a task only",
        ),
        (lambda: fedcom.compare(lambda seed: 3, ["fedavg"], **QUIET), "the function must make a fedcom.Task"),  # type: ignore[arg-type,return-value]
        (lambda: fedcom.compare(mlp_task(), ["fedavg"], seeds=0, **QUIET), "seeds must be 1 or more"),
        (lambda: fedcom.compare(mlp_task(), ["fedavg"], rounds=-1, **QUIET), "rounds must be 0 or more"),
        (lambda: fedcom.plot(found, y="test_acuracy"), "did you mean 'test_accuracy'?"),
        (lambda: fedcom.plot(3), "expected a Comparison, a Sweep, Results, a folder of runs"),  # type: ignore[arg-type]
    ]
    for call, message in refused:
        with pytest.raises(ConfigError) as caught:
            call()
        assert message in str(caught.value)


def test_results_are_a_sequence_and_a_frame() -> None:
    results = fedcom.Simulation(mlp_task(), "fedcomgate", rounds=3, device="cpu").run()
    frame = results.frame()
    assert list(frame.index) == [row["round"] for row in results] == results["round"]
    assert frame["train_loss"].tolist() == results["train_loss"]
    assert math.isnan(frame["q"].iloc[0])
    assert len(results[1:]) == 3
    assert results[1:]["round"] == [1, 2, 3]
    json.dumps(list(results))
    assert fedcom.plot(results, "round", "train_loss").axes[0].lines
    assert fedcom.plot({"a": results, "b": results[:2]}).axes[0].lines


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"pandas cannot be imported .*pip install 'fedcom\[pandas\]'"):
        fedcom.Results([{"round": 0}]).frame()


def test_a_run_that_is_stopped_by_a_user_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(row: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedcom.compare(mlp_task(), ["fedavg"], rounds=1, metrics={"stop": lambda o, t: stop(o)}, **QUIET)


def test_tasks_are_not_touched(found: fedcom.Comparison) -> None:
    task = mlp_task()
    before = task.objective.start.clone()
    fedcom.compare(task, ["fedavg", "scaffold"], rounds=1, **QUIET)
    assert torch.equal(before, task.objective.start)
