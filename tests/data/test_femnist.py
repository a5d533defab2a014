import json
import sys

import numpy as np
import pytest
import torch

from fedcom.data import load
from fedcom.errors import DataError

h5py = pytest.importorskip("h5py")

PIXELS = ((np.arange(9 * 784) * 5 % 101) / 100).reshape(9, 28, 28).astype(np.float32)
LABELS = np.array([0, 61, 3, 3, 17, 40, 8, 9, 1])
TRAIN = {"f0001_41": slice(0, 3), "f0002_05": slice(3, 4), "f0003_12": slice(4, 7)}
TEST = {"f0001_41": slice(7, 8), "f0003_12": slice(8, 9)}


def write_tff(path, writers, pixels=PIXELS, labels=LABELS):
    """TensorFlow Federated's layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for writer, rows in writers.items():
            file[f"examples/{writer}/pixels"] = pixels[rows]
            file[f"examples/{writer}/label"] = labels[rows]


def leaf(writers, pixels=PIXELS, labels=LABELS):
    """LEAF's layout as a dictionary."""
    data = {
        w: {"x": pixels[rows].reshape(-1, 784).tolist(), "y": labels[rows].tolist()}
        for w, rows in writers.items()
    }
    return {"users": list(data), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data}


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def tff(tmp_path):
    """A root with a small TFF FEMNIST."""
    write_tff(tmp_path / "tff" / "femnist" / "fed_emnist_train.h5", TRAIN)
    write_tff(tmp_path / "tff" / "femnist" / "fed_emnist_test.h5", TEST)
    return tmp_path / "tff"


@pytest.fixture
def leaf_root(tmp_path):
    """A root with a small LEAF FEMNIST in two training files."""
    one, two = (dict([item]) for item in list(TRAIN.items())[::2])
    write_json(tmp_path / "leaf/femnist/train/all_data_0.json", leaf(one | {"f0002_05": TRAIN["f0002_05"]}))
    write_json(tmp_path / "leaf/femnist/train/all_data_1.json", leaf(two))
    write_json(tmp_path / "leaf/femnist/test/all_data_0.json", leaf(TEST))
    return tmp_path / "leaf"


def test_both_formats_give_the_same_set(tff, leaf_root):
    one, two = load("femnist", tff), load("femnist", leaf_root)
    assert one.x.shape == (7, 1, 28, 28)
    assert one.test_x.shape == (2, 1, 28, 28)
    assert one.classes == 62
    assert one.groups.tolist() == two.groups.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert one.y.tolist() == two.y.tolist() == LABELS[:7].tolist()
    torch.testing.assert_close(one.x, two.x, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.test_x, two.test_x, rtol=0, atol=1e-6)


def test_ink_is_bright_and_the_training_set_is_normalised(tff):
    data = load("femnist", tff)
    ink = torch.from_numpy(1 - PIXELS[:7])[:, None]
    torch.testing.assert_close(data.x, (ink - ink.mean()) / ink.std(correction=0))


def test_without_h5py_the_error_says_what_to_install(tff, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"pip install 'fedcom\[femnist\]'"):
        load("femnist", tff)


def test_a_damaged_hdf5_is_named(tff):
    path = tff / "femnist" / "fed_emnist_test.h5"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"fed_emnist_test\.h5 is damaged"):
        load("femnist", tff)


def test_an_hdf5_of_something_else_is_named(tff):
    with h5py.File(tff / "femnist" / "fed_emnist_train.h5", "w") as file:
        file["pictures"] = np.zeros(3)
    with pytest.raises(DataError, match=r"not TFF's fed_emnist"):
        load("femnist", tff)


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (PIXELS * 255, LABELS, "must be 0 to 1"),
        (PIXELS * np.nan, LABELS, "must be 0 to 1"),
        (PIXELS[:, :27], LABELS, "not 28 x 28"),
        (PIXELS, LABELS + 10, "they must be 0 to 61"),
        (PIXELS, LABELS + 0.5, "labels of float64"),
    ],
)
def test_samples_out_of_range_are_refused(tff, pixels, labels, message):
    write_tff(tff / "femnist" / "fed_emnist_train.h5", TRAIN, pixels, labels)
    with pytest.raises(DataError, match=message):
        load("femnist", tff)


@pytest.mark.parametrize("content", [[], {}, {"users": ["a"], "num_samples": [1], "user_data": {}}, "x"])
def test_json_of_something_else_is_named(leaf_root, content):
    write_json(leaf_root / "femnist/train/all_data_1.json", content)
    with pytest.raises(DataError, match=r"all_data_1\.json is damaged or not LEAF's format"):
        load("femnist", leaf_root)


def test_truncated_json_is_named(leaf_root):
    path = leaf_root / "femnist/test/all_data_0.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"all_data_0\.json is damaged"):
        load("femnist", leaf_root)


def test_a_wrong_number_of_samples_is_refused(leaf_root):
    write_json(leaf_root / "femnist/train/all_data_1.json", leaf(TRAIN) | {"num_samples": [3, 1, 4]})
    with pytest.raises(DataError, match="num_samples says 4 for f0003_12"):
        load("femnist", leaf_root)


def test_a_folder_without_json_is_named(leaf_root):
    for path in (leaf_root / "femnist/test").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"test holds no \.json file"):
        load("femnist", leaf_root)


def test_an_incomplete_folder_names_both_layouts(tff):
    (tff / "femnist" / "fed_emnist_test.h5").unlink()
    with pytest.raises(DataError, match=r"lacks fed_emnist_test\.h5 \(.*\) or train, test \(.*leaf"):
        load("femnist", tff)
