"""Own data and models from the command line: files, functions, module classes."""

import json
import tomllib
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedcom import ConfigError, DataError
from fedcom.config import Config, read
from fedcom.data.dataset import Legend
from fedcom.data.own_files import read_own
from fedcom.draws import Draw
from fedcom.runs.prepare import build_task, prepare
from tests.cli.test_cli import Command, command

__all__ = ["command"]
N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N) % 4
OWNERS = np.array(["ann", "bob", "cid"])[np.arange(N) % 3]


def write_csv(path: Path, labels: Any = Y, client: bool = True) -> Path:
    lines = ["a,b,c,label" + ",client" * client]
    for i in range(N):
        row = [*(repr(float(v)) for v in X[i]), str(labels[i]), *([OWNERS[i]] if client else [])]
        lines.append(",".join(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def config(*overrides: str) -> Config:
    return Config.of(read(None, ["model.hidden=8", "algorithm.tau=2", "run.rounds=2", *overrides]))


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_a_file_is_the_same_data_whatever_its_kind(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"mine.{kind}"
    if kind == "csv":
        write_csv(path)
    elif kind == "npz":
        np.savez(path, x=X, y=Y, client=OWNERS)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y, "client": OWNERS}
        parquet.write_table(pyarrow.table(columns), path)
    data = read_own(path, None, None, None, Draw.seeded(0))
    assert torch.equal(data.x, torch.from_numpy(X))
    assert torch.equal(data.y, torch.from_numpy(Y))
    assert (data.classes, data.name) == (4, "mine")
    assert data.groups is not None
    assert data.groups.tolist() == [i % 3 for i in range(N)]
    task, filled = build_task(config(f"data.path={path}"))
    assert task.sizes.tolist() == [20, 20, 20]
    assert (filled.data.partition, filled.data.name, filled.data.path) == ("natural", None, str(path))


def test_columns_are_named_and_labels_may_be_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    text = write_csv(path, np.array(["cat", "dog"])[np.arange(N) % 2], client=False).read_text()
    path.write_text(text.replace("label", "animal", 1))
    data = read_own(path, "animal", None, 0.25, Draw.seeded(0))
    assert (len(data.y), len(data.test_y), data.classes) == (45, 15, 2)
    both = torch.cat((data.x, data.test_x))
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, X.tolist()))
    whole = read_own(path, "animal", None, str(path), Draw.seeded(0))
    assert torch.equal(whole.test_x, whole.x)
    assert torch.equal(whole.y, torch.arange(N) % 2)


def test_a_model_scores_other_files_by_the_names_of_its_features_and_labels(
    tmp_path: Path, command: Command
) -> None:
    def write(name: str, head: str, rows: Any) -> None:
        lines = (",".join(map(str, row)) for row in rows)
        (tmp_path / name).write_text("\n".join([head, *lines]) + "\n")

    whole = [(*map(float, row[:2]), "dog" if row[0] > 0 else "cat") for row in X]
    write("first.csv", "a,b,label", whole)
    write("turned.csv", "b,a,label", [(b, a, label) for a, b, label in whole])
    write("dogs.csv", "a,b,label", [row for row in whole if row[2] == "dog"])
    write("eels.csv", "a,b,label", [(a, b, label.replace("cat", "eel")) for a, b, label in whole])
    write("other.csv", "a,c,label", whole)
    rates = ("algorithm.name=fedavg", "algorithm.eta=0.5", "algorithm.tau=5", "run.rounds=8")
    settings = ("data.path=first.csv", "data.clients=3", "data.partition=iid", "model.name=logistic")
    assert command("run", *settings, *rates, "--out", "run", "--quiet", "--device", "cpu").code == 0

    def scored(file: str) -> Any:
        done = command("evaluate", "run", f"data.path={file}", "data.test=0.5", "--device", "cpu")
        return json.loads(done.out)["test_accuracy"] if done.code == 0 else done.err

    assert scored("first.csv") == scored("turned.csv") > 0.9
    assert scored("dogs.csv") > 0.9
    assert "eels.csv has the label 'eel', and the model has cat, dog" in scored("eels.csv")
    assert "the model has the column 'b', and other.csv has not" in scored("other.csv")


def test_names_that_a_model_has_none_of_stand_for_its_own_in_order(tmp_path: Path) -> None:
    path, known = (
        write_csv(tmp_path / "new.csv", np.arange(N) % 2 + 5, client=False),
        Legend(tuple("xyz"), ("cat", "dog")),
    )
    told = r"no (column|label) of the model's, so they are taken in order: '(a|5)' stands for '(x|cat)', "
    with pytest.warns(UserWarning, match=told) as warned:
        data = read_own(path, None, None, None, Draw.seeded(0), known=known)
    assert len(warned) == 2
    assert (data.legend, data.classes) == (Legend(tuple("abc"), ("5", "6")), 2)
    with pytest.raises(DataError, match="the model has the column 'a1', and"):
        read_own(path, None, None, None, Draw.seeded(0), known=Legend(("a1", "b", "c"), ()))


def test_whole_numbers_are_no_classes_of_a_model_that_has_none(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "whole.csv", np.arange(N), client=False)
    assert read_own(path, None, None, None, Draw.seeded(0)).classes == N
    data = read_own(path, None, None, None, Draw.seeded(0), known=Legend(tuple("abc"), ()))
    assert (data.classes, data.y.shape, data.y.dtype) == (0, (N, 1), torch.float32)


def test_a_regression_from_a_file_is_trained_by_its_square_error(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "mine.csv", X @ np.array([1.0, 2.0, 3.0]) + 0.5, client=False)
    rates = ("algorithm.name=fedavg", "algorithm.eta=0.01", "run.rounds=20")
    made = config(f"data.path={path}", "data.test=0.2", "data.clients=4", *rates)
    simulation, filled = prepare(made, "cpu")
    first, *_, last = simulation.run()
    assert filled.data.partition == "iid"
    assert last["test_r2"] > first["test_r2"]
    assert last["test_accuracy"] is None


REFUSED = [
    ("data.path=none.csv", "no file none.csv"),
    ("data.path=mine.txt", "mine.txt is not .npz, .csv, .parquet"),
    ("data.path=mine.csv data.label_column=labell", "mine.csv has no 'labell'; did you mean 'label'?"),
    ("data.path=mine.csv data.client_column=who", "mine.csv has no 'who'"),
    ("data.path=mine.csv data.label_column=a data.client_column=label", "column 'client' of mine.csv holds"),
    ("data.path=mine.csv data.test=2", "data.test is a file or a share of the rows, such as 0.2; got 2"),
    ("data.path=ragged.csv", "line 3 of ragged.csv has 1 cells, the first 2"),
    ("data.path=gap.csv", "line 4 of gap.csv is empty in column 'b'; fill it in, or leave the line out"),
    ("data.path=unlabelled.csv", "line 3 of unlabelled.csv is empty in column 'label'"),
    ("data.path=word.csv", "column 'a' of word.csv holds 'many', but features must be numbers"),
    ("data.path=empty.csv", "empty.csv has no rows below its headings"),
    ("data.path=bare.csv", "bare.csv has no column beside label and client"),
    ("data.path=broken.npz", "broken.npz cannot be read"),
    ("data.path=one.npz", "one.npz cannot be read: it is not a zip of arrays"),
    ("data.path=claims.npz", "claims.npz cannot be read: the header of x.npy says (1000000000000,)"),
    ("data.path=bomb.npz", "bomb.npz holds 4"),
    ("data.path=bomb.parquet", "bomb.parquet holds 800,000 bytes once it is unpacked"),
    ("data.path=cut.npz", "cut.npz cannot be read"),
    ("data.path=short.npz data.test=0.5", "the arrays of short.npz have the shapes x [4, 1], y [3]"),
    ("data.path=single.npz data.test=0.5", "the arrays of single.npz have the shapes x [4, 1], y []"),
    ("data.path=lost.npz data.test=0.5", "x of lost.npz holds NaN or infinity, first in sample 2"),
    ("data.path=gap.parquet", "column 'a' of gap.parquet has empty cells"),
    ("data.path=index.parquet", "index.parquet has an index of pandas beside its columns"),
    ("data.path=mine.csv data.name=mnist", "data.path is a data set by itself; leave data.name out"),
    ("data.label_column=a", "data.label_column is about the file that data.path names; set data.path"),
]


def damaged_archives() -> None:
    """Files that are not the archives they say they are, or hold more than they seem to."""
    with open("one.npz", "wb") as file:
        np.save(file, np.zeros(3))  # a single array
    np.savez_compressed("bomb.npz", x=np.zeros(50_000), y=np.zeros(1))
    with zipfile.ZipFile("claims.npz", "w") as archive, archive.open("x.npy", "w") as member:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
        np.lib.format.write_array_header_1_0(member, header)  # type: ignore[arg-type]
    x = np.arange(4.0)[:, None]
    np.savez("short.npz", x=x, y=[0, 1, 1])
    np.savez("single.npz", x=x, y=1)
    np.savez("lost.npz", x=np.where(x == 2, np.nan, x), y=[0, 1, 1, 0])
    Path("cut.npz").write_bytes(Path("bomb.npz").read_bytes()[:-30])
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"a": np.zeros(50_000), "label": np.zeros(50_000)})
    pyarrow.parquet.write_table(table, "bomb.parquet")
    for name, columns in (("gap", {"a": [1, None]}), ("index", {"a": [1, 2], "__index_level_0__": [5, 7]})):
        pyarrow.parquet.write_table(pyarrow.table({**columns, "label": [0, 1]}), f"{name}.parquet")


def test_decimals_of_a_database_are_numbers(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    prices = pyarrow.array([Decimal("9.50"), Decimal("10.25"), Decimal("-1.00")])
    parquet.write_table(pyarrow.table({"a": prices, "label": prices}), tmp_path / "mine.parquet")
    data = read_own(tmp_path / "mine.parquet", None, None, None, Draw.seeded(0))
    assert (data.x.tolist(), data.y.tolist()) == ([[9.5], [10.25], [-1.0]], [[9.5], [10.25], [-1.0]])
    assert data.classes == 0


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_files_that_cannot_be_used_are_refused(
    overrides: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(Path("mine.csv"))
    Path("mine.txt").write_text("1")
    Path("ragged.csv").write_text("a,label\n1,2\n3\n")
    Path("gap.csv").write_text("a,b,label\n1,2,0\n\n3, ,1\n")
    Path("unlabelled.csv").write_text("a,label\n1,10\n2,\n3,9\n")
    Path("word.csv").write_text("a,label\n1,0\nmany,1\n")
    Path("empty.csv").write_text("a,label\n")
    Path("bare.csv").write_text("label\n1\n")
    Path("broken.npz").write_text("no zip")
    damaged_archives()
    if "bomb" in overrides:
        monkeypatch.setattr("os.sysconf", lambda name: 300)  # a machine of 90,000 bytes
    with pytest.raises((ConfigError, DataError)) as caught:
        build_task(config(*overrides.split()))
    assert message in str(caught.value)


MODULES = '''
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    """Two layers of my own."""

    def __init__(self, in_features: int, classes: int, width: int = 6, deep: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.deep = nn.Linear(in_features, width), nn.Linear(width, classes), deep

    def forward(self, x):
        return self.b(torch.tanh(self.a(x.flatten(1))))


class Needy(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()


def small(shape, num_classes, scale=1.0):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], num_classes))


def wrong():
    return 3


def points():
    y = torch.arange(40) % 2
    return y[:, None] + torch.zeros(40, 3), y


def tested():
    x, y = points()
    return x, y, x[:8], y[:8]


def datasets():
    return TensorDataset(*points()), TensorDataset(*points())
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"own_{tmp_path.name}".replace("-", "_")).with_suffix(".py").write_text(MODULES)
    return tmp_path


def name_of(here: Path) -> str:
    return f"own_{here.name}".replace("-", "_")


def test_a_class_and_its_arguments_from_the_command_line(command: Command, here: Path) -> None:
    module = name_of(here)
    settings = (f"model.name={module}:Net", "model.width=9", "algorithm.tau=2", "run.rounds=2")
    assert command("run", *settings, "-q", "--out", "a").code == 0
    kept = tomllib.loads((here / "a" / "config.toml").read_text())["model"]
    assert kept == {"name": f"{module}:Net", "width": 9, "deep": False}
    assert json.loads((here / "a" / "summary.json").read_text())["parameters"] == 64 * 9 + 9 + 9 * 10 + 10
    scores = json.loads(command("evaluate", "a").out)
    last = json.loads((here / "a" / "metrics.jsonl").read_text().splitlines()[-1])
    assert scores["train_loss"] == last["train_loss"]
    assert command("list", "models", f"{module}:Net").out.startswith(f"{module}:Net: Two layers of my own.")


def test_scores_on_a_file_name_it_and_its_clients_in_the_order_of_their_names(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = write_csv(Path("mine.csv")).read_text().splitlines()
    Path("mine.csv").write_text("\n".join([*lines, *[lines[2]] * 3]))  # three more rows of bob
    settings = ("data.path=mine.csv", "model.name=logistic", "algorithm.tau=2", "run.rounds=1")
    assert command("run", *settings, "-q", "--out", "a").code == 0
    scores = json.loads(command("evaluate", "a", "--by-client").out)
    assert scores["data"] == "mine.csv"
    assert [client["samples"] for client in scores["clients"]] == [20, 23, 20]


def test_a_function_that_makes_a_module_does_too(here: Path) -> None:
    module = name_of(here)
    made = Config.of(
        read(None, [f"model.name={module}:small", f"data.name={module}:points", "data.clients=2"])
    )
    simulation, _ = prepare(made, "cpu")
    assert simulation.server.w.numel() == 3 * 2 + 2


@pytest.mark.parametrize(("function", "tests"), [("points", 0), ("tested", 8), ("datasets", 40)])
def test_a_function_may_return_arrays_or_torch_datasets(here: Path, function: str, tests: int) -> None:
    task, filled = build_task(config(f"data.name={name_of(here)}:{function}", "data.clients=2"))
    assert (task.sizes.sum(), len(task.test_y), task.classes) == (40, tests, 2)
    assert filled.data.name == f"{name_of(here)}:{function}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("model.name={m}:Net model.widht=3", "has no key 'widht'; did you mean 'width'?"),
        ("model.name={m}:Net model.width=wide", "model.width must be a whole number; got 'wide'"),
        ("model.name={m}:Needy", "Needy needs depth; set model.depth=..."),
        ("model.name={m}:wrong", "wrong must be a torch.nn.Module; got int"),
        ("model.name={m}:MODULE", "has no MODULE"),
        ("model.name={m}:torch", "is no class derived from Model or torch.nn.Module"),
        ("data.name={m}:wrong", "gave a int; its function must return a fedcom.Dataset"),
    ],
)
def test_modules_and_functions_that_cannot_be_are_refused(here: Path, overrides: str, message: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        build_task(Config.of(read(None, overrides.format(m=name_of(here)).split())))
    assert message in str(caught.value)
