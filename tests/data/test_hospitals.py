"""Heart disease and TCGA-BRCA, from small files that are made up in the published formats."""

import pytest
import torch

from fedcom.data import load
from fedcom.data.sources import SOURCES, Source
from fedcom.errors import DataError
from tests.data.made import lay, sha256

HEART = {
    f"processed.{name}.data": "".join(
        f"{50 + i},{i % 2},{1 + i % 4},{120 + 3 * i},{200 + i * shift},0.0,{i % 3},150,0,1.5,?,?,?,{i % 5}\n"
        for i in range(20 + shift)
    ).encode()
    for shift, name in enumerate(("cleveland", "hungarian", "switzerland", "va"))
}
FOLDS = [f"{half}_{region}" for region in range(6) for half in ("train", "train", "test")]
BRCA = {
    "brca.csv": "\n".join(
        ["pid,age,stage,E,T", *(f"P{i},{40 + i},{i % 2},{i % 2}.0,{100 * i + 7}.0" for i in range(19))]
    ).encode(),
    "train_test_split.csv": "\n".join(
        ["pid,fold,fold2", *(f"P{i},{fold[:-2]},{fold}" for i, fold in reversed(list(enumerate(FOLDS))))]
    ).encode(),
}


def placed(monkeypatch, name, contents, mirrors=("http://127.0.0.1:9/",)):
    """Make these files the official ones of a data set."""
    sums = {file: sha256(content) for file, content in contents.items()}
    monkeypatch.setitem(SOURCES, name, (Source(name, dict(sums), sums, mirrors),))


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, contents in (("heart-disease", HEART), ("tcga-brca", BRCA)):
        placed(monkeypatch, name, contents)
        lay(tmp_path / name, contents)
    return tmp_path


def test_heart_disease_is_one_hot_split_by_hospital_and_normalised_by_its_training_part(root):
    data = load("heart-disease", root)
    assert data.classes == 2
    assert data.x.shape[1] == 13
    # scikit-learn rounds the test part up
    assert torch.bincount(data.test_groups).tolist() == [7, 8, 8, 8]
    assert torch.bincount(data.groups).tolist() == [13, 13, 14, 15]
    for hospital in range(4):
        own = data.x[data.groups == hospital]
        assert own.mean(0).abs().max() < 1e-5
        spread = own.std(0)  # the sixth column and others never change
        assert ((spread - 1).abs() < 1e-5).logical_or(spread == 0).all()
        assert 0 < data.y[data.groups == hospital].float().mean() < 1
    pooled = load("heart-disease", root, normalise="all")
    assert pooled.x.mean(0).abs().max() < 1e-5
    # the last two columns are the levels of the electrocardiogram but the first
    assert (pooled.x[:, 11] * pooled.x[:, 12]).unique().numel() == 2  # one of them or none, but never both


def test_rows_with_a_gap_in_a_column_that_is_kept_are_dropped(root, monkeypatch):
    gaps = {
        **HEART,
        "processed.va.data": HEART["processed.va.data"] + b"70,1,?,120,200,0,1,150,0,1,1,1,1,3\n",
    }
    placed(monkeypatch, "heart-disease", gaps)
    lay(root / "heart-disease", gaps)
    assert len(load("heart-disease", root).x) == 55


def test_brca_has_times_and_events_in_the_published_split(root):
    data = load("tcga-brca", root)
    assert data.survival
    assert data.classes == 0
    assert data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert data.test_groups.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.x[:3].tolist() == [[40, 0], [41, 1], [43, 1]]
    assert data.y[:3].tolist() == [[7, 0], [107, 1], [307, 1]]  # the third patient is a test patient
    assert data.test_y[0].tolist() == [207, 0]


def test_both_are_downloaded_each_file_from_the_mirror_that_has_it(server, cache, monkeypatch):
    lay(server.folder / "one", {"brca.csv": BRCA["brca.csv"]})
    lay(server.folder / "two", {"train_test_split.csv": BRCA["train_test_split.csv"], **HEART})
    placed(monkeypatch, "tcga-brca", BRCA, (f"{server.url}one/", f"{server.url}two/"))
    placed(monkeypatch, "heart-disease", HEART, (f"{server.url}two/",))
    assert len(load("tcga-brca").x) == 12
    assert len(load("heart-disease").x) == 55
    assert sorted(path.name for path in (cache / "tcga-brca").iterdir()) == sorted(BRCA)


@pytest.mark.parametrize(
    ("name", "file", "content", "match"),
    [
        ("heart-disease", "processed.va.data", b"1,2,3\n", "not what it should be"),
        ("heart-disease", "processed.va.data", b"1,2,3\n4\n", "differ in length"),
        ("heart-disease", "processed.va.data", b"\xff\xfe", "not CSV"),
        ("tcga-brca", "brca.csv", b"a,b\n1,2\n", "columns pid, features, E and T"),
        ("tcga-brca", "brca.csv", b"pid,age,E,T\nP0,old,1,2\n", "not what it should be"),
        ("tcga-brca", "brca.csv", b"pid,age,E,T\nQ,1,1,2\n", "no patients"),
    ],
)
def test_damaged_files_are_told(root, monkeypatch, name, file, content, match):
    contents = {**(HEART if name == "heart-disease" else BRCA), file: content}
    placed(monkeypatch, name, contents)
    lay(root / name, contents)
    with pytest.raises(DataError, match=match):
        load(name, root)


def test_a_changed_file_is_refused_by_its_checksum(root):
    lay(root / "tcga-brca", {"brca.csv": BRCA["brca.csv"] + b"\n"})
    with pytest.raises(DataError, match="wrong checksum"):
        load("tcga-brca", root)
