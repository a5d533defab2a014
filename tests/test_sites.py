"""One csv with rows of several sites: each is scaled by itself, has test rows of its own, and is reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcom import ConfigError, Curve, DataError, Draw, compare, from_arrays, load
from fedcom.config import Config
from fedcom.data.dataset import normalised
from fedcom.data.own_files import read_own
from fedcom.reports.comparison import compare_table, markdown
from fedcom.runs.prepare import build_task, prepare
from fedcom.tasks.objective import Objective
from fedcom.tasks.task import Task

SITES = ("Lyon", "Oslo", "Rome")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """120 patients of three sites, whose scales differ a thousandfold."""
    draw = np.random.default_rng(0)
    lines = ["site,age,dose,ill,days,died"]
    for i in range(120):
        scale = 10.0 ** (i % 3)
        a, b = draw.normal(size=2)
        ill = int(a + 0.3 * draw.normal() > 0)
        days, died = int(1000 / (1 + np.exp(a))) + 1, int(draw.random() < 0.7)
        lines.append(f"{SITES[i % 3]},{scale * (50 + a):.6f},{scale * b:.6f},{ill},{days},{died}")
    (tmp_path / "patients.csv").write_text("\n".join(lines))
    return tmp_path / "patients.csv"


def table(file: Path, **data: Any) -> dict[str, Any]:
    return {
        "data": {"path": str(file), "client_column": "site", "test": 0.25, "normalise": "client", **data},
        "model": {"name": "binary"},
        "algorithm": {"name": "fedavg", "eta": 0.5, "batch": 8, "tau": 4, "weights": "size"},
        "run": {"rounds": 4, "eval_every": 4},
    }


def test_each_site_is_scaled_by_its_own_training_rows_and_keeps_its_test_rows(file: Path) -> None:
    task, config = build_task(Config.of(table(file, label_column="ill")))
    assert config.data.clients == 3
    assert task.test_sizes is not None
    assert sum(task.test_sizes) == len(task.test_y) == 30
    assert task.x.shape[1] == 4  # the columns of survival are features like others here
    for part in torch.split(task.x, task.sizes.tolist()):
        assert part[:, :2].mean(0).abs().max() < 1e-4
        assert (part[:, :2].std(0) - 1).abs().max() < 1e-4


def test_compare_reports_each_methods_worst_site(file: Path, tmp_path: Path) -> None:
    settings = table(file, label_column="ill")
    shown = compare(settings, ["fedavg", "fedcom"], out=tmp_path / "out", device="cpu", quiet=True)
    assert "worst client %" in str(shown)
    assert "worst tenth" not in str(shown)  # of the training rows: what is said of the test rows says more
    for entry in shown.table:
        assert entry["client_worst"] <= entry["client_mean"] <= 1
        assert entry["client_mean"] > 0.7
    assert "Worst client" in (tmp_path / "out" / "report.html").read_text()
    simulation, _ = prepare(Config.of(settings), "cpu")
    simulation.run()
    rows = simulation.clients()
    each = [row["test_accuracy"] for row in rows]
    assert np.mean(each) == pytest.approx(simulation.results[-1]["client_mean"])
    assert sum(row["test_samples"] for row in rows) == 30


def test_survival_from_columns_of_time_and_event(file: Path) -> None:
    settings = table(file, time_column="days", event_column="died") | {"model": {"name": "logistic"}}
    simulation, config = prepare(Config.of(settings), "cpu")
    assert simulation.task.objective.survival
    assert simulation.task.x.shape[1] == 3
    last = simulation.run()[-1]
    assert last["test_c_index"] > 0.6
    assert last["client_worst"] <= last["client_mean"]
    assert Config.of(config.table()).data.event_column == "died"
    shown = markdown(compare_table([Curve("fedavg", 0, list(simulation.results), "done")], None), None)
    assert f"| {last['test_c_index']:.3f} |" in shown
    assert "| client mean |" in shown


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"time_column": "days"}, "set both or neither"),
        ({"time_column": "days", "event_column": "died", "label_column": "ill"}, "leave label_column out"),
        ({"time_column": "days", "event_column": "site"}, "times and events are numbers"),
        ({"time_column": "days", "event_column": "age"}, "not times and events"),
        ({"time_column": "days", "event_column": "dead"}, "has no 'dead'"),
        ({"label_column": "ill", "client_column": None, "path": "file"}, "needs the client of each sample"),
        ({"normalise": "site"}, "normalise"),
    ],
)
def test_what_does_not_go_together_is_told(file: Path, data: dict[str, Any], match: str) -> None:
    if data.get("path"):  # the same without its first column
        lines = [line.split(",", 1)[1] for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines))
        data = {**data, "path": str(file)}
    settings = table(file, **data)
    settings["data"] = {key: value for key, value in settings["data"].items() if value is not None}
    with pytest.raises((ConfigError, DataError), match=match):
        build_task(Config.of(settings))


def rows_of(sizes: dict[str, int]) -> str:
    """A table whose feature numbers the rows, with those of all sites mixed."""
    sites = [site for k in range(max(sizes.values())) for site, size in sizes.items() if k < size]
    return "client,a,label\n" + "".join(f"{site},{i},{i % 2}\n" for i, site in enumerate(sites))


def cut(folder: Path, sizes: dict[str, int], share: float, seed: int = 0) -> Any:
    (folder / "cut.csv").write_text(rows_of(sizes))
    return read_own(folder / "cut.csv", None, None, share, Draw.seeded(seed).fold("test"))


def test_a_share_is_taken_of_each_sites_rows(tmp_path: Path) -> None:
    sizes = {"Aachen": 20, "Bergen": 6, "Cork": 2, "Delft": 1, "Evora": 3}
    data = cut(tmp_path, sizes, 0.25)
    assert data.names == tuple(sizes)
    assert torch.bincount(data.test_groups, minlength=5).tolist() == [5, 2, 1, 0, 1]
    assert torch.bincount(data.groups).tolist() == [15, 4, 1, 1, 2]
    most = cut(tmp_path, sizes, 0.9)
    assert torch.bincount(most.groups).tolist() == [2, 1, 1, 1, 1]
    again = cut(tmp_path, sizes, 0.25)
    assert torch.equal(again.test_x, data.test_x)
    assert any(not torch.equal(cut(tmp_path, sizes, 0.25, seed).test_x, data.test_x) for seed in (1, 2))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), st.integers(1, 30), min_size=1),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 3),
)
def test_every_row_is_trained_or_tested_on_and_no_site_is_without_either(
    tmp_path: Path, sizes: dict[str, int], share: float, seed: int
) -> None:
    data = cut(tmp_path, sizes, share, seed)
    both = torch.cat((data.x, data.test_x))[:, 0]
    assert sorted(both.tolist()) == list(range(sum(sizes.values())))
    for number, site in enumerate(sorted(sizes)):
        tested, trained = int((data.test_groups == number).sum()), int((data.groups == number).sum())
        assert trained >= 1
        assert tested + trained == sizes[site]
        assert tested == 0 if sizes[site] == 1 else tested >= 1
        assert abs(tested - share * sizes[site]) <= 1


def test_which_rows_a_site_tests_on_does_not_depend_on_other_sites(tmp_path: Path) -> None:
    header, *rows = rows_of({"b": 12}).splitlines()
    for name, others in (("alone", []), ("joined", [f"{site},{i},0" for i, site in enumerate("aacc")])):
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *others, *rows]))
    alone, joined = (
        read_own(tmp_path / f"{name}.csv", None, None, 0.3, Draw.seeded(0)) for name in ("alone", "joined")
    )
    assert joined.test_groups is not None
    assert torch.equal(joined.test_x[joined.test_groups == 1], alone.test_x)


def test_a_share_of_a_table_without_sites_keeps_a_row_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("a,label\n1,0\n2,1\n3,0\n")
    data = read_own(tmp_path / "few.csv", None, None, 0.99, Draw.seeded(0))
    assert (len(data.x), len(data.test_x)) == (1, 2)


def test_sites_of_one_row_have_no_test_rows_and_are_compared(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("client,a,label\n" + "".join(f"c{i},{i},{i % 2}\n" for i in range(6)))
    data = {"path": str(tmp_path / "few.csv"), "test": 0.25, "normalise": "client"}
    settings = {"data": data, "model": {"name": "binary"}, "run": {"rounds": 2}}
    task, _ = build_task(Config.of(settings))
    assert (task.clients, len(task.test_y)) == (6, 0)
    found = compare(settings, ["fedavg"], out=tmp_path / "out", device="cpu", quiet=True)
    assert ["client_worst" in entry for entry in found.table] == [False]


def test_rows_of_unknown_sites_count_in_the_score_of_all_and_sites_keep_their_own(tmp_path: Path) -> None:
    for name, sites in (("train", "ab"), ("test", "ab"), ("others", "bc")):
        rows = "".join(f"{sites[i % 2]},{i},{i % 3 % 2}\n" for i in range(8))
        (tmp_path / f"{name}.csv").write_text(f"client,a,label\n{rows}")
    data = {"path": str(tmp_path / "train.csv"), "test": str(tmp_path / "test.csv")}
    settings = {"data": data, "model": {"name": "logistic"}, "run": {"rounds": 1}}
    assert build_task(Config.of(settings))[0].test_sizes == (4, 4)
    data["test"] = str(tmp_path / "others.csv")
    with pytest.warns(UserWarning, match="in no client's own: 4 of 'c'") as told:
        task, _ = build_task(Config.of(settings))
    assert len(told) == 1
    assert task.test_sizes == (0, 4)
    assert task.test_x[:, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]  # b's rows, then those of nobody
    w = task.objective.start
    a, b = task.evaluate_clients(w)
    right = (task.objective.outputs(w, task.test_x).argmax(-1) == task.test_y).tolist()
    assert (a["test_samples"], a["test_accuracy"]) == (0, None)
    assert (b["test_samples"], b["test_accuracy"]) == (4, sum(right[:4]) / 4)
    scores = task.evaluate(w, torch.ones(2) / 2)
    assert scores["test_accuracy"] == sum(right) / 8
    assert (scores["client_worst"], scores["client_worst_name"]) == (b["test_accuracy"], "b")
    data["normalise"] = "client"
    with pytest.raises(DataError, match="rows of 'c', who has no training row"):
        build_task(Config.of(settings))


def test_the_warning_of_unknown_sites_names_a_few_of_them() -> None:
    x, y = torch.arange(6.0).reshape(6, 1), torch.arange(6) % 2
    with pytest.warns(UserWarning, match=r"6 of 'c', 'd', 'e', 2 more$") as told:
        data = from_arrays(x, y, x, y, list("aabbaa"), test_groups=list("ccdefg"))
    assert len(told) == 1
    assert data.test_groups is not None
    assert data.names == tuple("abcdefg")
    assert data.test_groups.tolist() == [2, 2, 3, 4, 5, 6]
    with pytest.raises(DataError, match="test samples of 'c', who has no training sample to scale them by"):
        normalised(data, "client")


def test_scaling_is_refused_or_told_where_it_would_change_nothing() -> None:
    with pytest.raises(ConfigError, match=r"data\.normalise scales samples that are there"):
        build_task(Config.of({"data": {"name": "synthetic", "lazy": True, "normalise": "all"}}))
    with pytest.warns(UserWarning, match=r"data\.normalise=all changes nothing"):
        build_task(Config.of({"data": {"normalise": "all", "clients": 3}, "model": {"name": "quadratic"}}))
    with pytest.raises(ConfigError, match="way to normalise"):
        load("synthetic", clients=3, normalise="site")


def test_test_samples_are_by_client_only_where_clients_are_the_natural_ones() -> None:
    x, y = torch.arange(12.0).reshape(12, 1), torch.arange(12) % 2
    groups = [3, 1, 2] * 4
    data = from_arrays(x, y, x + 100, y, groups, test_groups=[2, 1, 3] * 4)
    objective = Objective(torch.nn.Linear(1, 2))
    parts = [torch.tensor(groups) == g for g in (3, 1)]  # two of three, and in another order
    task = Task.build(objective, data, parts)
    assert task.test_sizes == (4, 4)
    assert task.test_x[:8, 0].tolist() == [102, 105, 108, 111, 101, 104, 107, 110]
    assert len(task.test_x) == 12
    mixed = Task.build(objective, data, [[0, 1], [2, 3, 4]])
    assert mixed.test_sizes is None
    assert "client_mean" not in mixed.evaluate(objective.start, torch.ones(2) / 2)
    scaled = normalised(data, "client")
    assert scaled.x[::3, 0].mean() == 0
    assert scaled.test_x[2::3, 0].mean() == pytest.approx((100 + 2) / float(x[::3, 0].std()), rel=1e-5)
