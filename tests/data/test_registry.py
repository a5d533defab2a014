import subprocess
import sys

import numpy as np
import pytest
import torch

from fedcom.data import DATASETS, PARTITIONS, load
from fedcom.data.sources import SOURCES
from fedcom.errors import ConfigError, DataError
from tests.data.made import idx, lay, source_of, zip_all


@pytest.mark.parametrize("function", [*DATASETS.values(), *PARTITIONS.values()])
def test_every_entry_has_a_description_of_one_line(function):
    assert 20 < len(function.__doc__.splitlines()[0]) <= 110


def test_data_works_with_only_torch_and_numpy_installed():
    code = """import sys
for name in ("sklearn", "sklearn.datasets", "pooch", "h5py", "rich", "scipy"):
    sys.modules[name] = None
from fedcom.data import load
from fedcom.errors import DataError
assert load("synthetic", clients=2).classes == 10
try:
    load("digits")
except DataError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("pip install scikit-learn\n")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match="unknown data set 'minst'; did you mean 'mnist'"):
        load("minst")


def test_digits_are_those_of_scikit_learn(monkeypatch):
    found = load("digits")
    monkeypatch.setattr("fedcom.data.registry.find_spec", lambda name: None)  # as if the file had moved
    again = load("digits")
    for name in ("x", "y", "test_x", "test_y"):
        assert torch.equal(getattr(found, name), getattr(again, name))


def test_digits_are_split_the_same_way_for_every_seed():
    one, two = load("digits", seed=0), load("digits", seed=1)
    assert torch.equal(one.x, two.x)
    assert one.x.shape == (1438, 1, 8, 8)
    assert one.test_x.shape == (359, 1, 8, 8)
    assert one.x.dtype == torch.float32
    assert one.y.dtype == torch.int64
    assert one.test_y.unique().tolist() == list(range(10))
    assert abs(float(one.x.mean())) < 1e-6
    assert float(one.x.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert one.groups is None


def test_mnist_is_normalised_by_the_training_set(small_mnist):
    data = load("mnist", small_mnist)
    raw = torch.arange(17 * 784).reshape(17, 1, 28, 28) * 7 % 256 / 255
    mean, std = raw[:12].mean(), raw[:12].std(correction=0)
    torch.testing.assert_close(data.x, (raw[:12] - mean) / std)
    torch.testing.assert_close(data.test_x, (raw[12:] - mean) / std)
    assert data.y.tolist() == [*range(10), 0, 1]
    assert data.test_y.tolist() == [2, 3, 4, 5, 6]
    assert data.classes == 10


def test_images_and_labels_must_agree_in_number(small_mnist, monkeypatch):
    contents = {p.name: b"" for p in (small_mnist / "mnist").iterdir()}
    contents = {name: idx(np.zeros((3, 2, 2)[: 3 if "images" in name else 1], "u1")) for name in contents}
    contents["t10k-labels-idx1-ubyte.gz"] = idx(np.zeros(4, "u1"))
    monkeypatch.setitem(SOURCES, "mnist", (source_of("mnist", contents),))
    lay(small_mnist / "mnist", zip_all(contents))
    with pytest.raises(DataError, match="mnist has 3 images but 4 labels"):
        load("mnist", small_mnist)


def test_an_array_with_other_axes_is_refused(small_mnist, monkeypatch):
    name = "train-labels-idx1-ubyte.gz"
    contents = {p.name: idx(np.zeros((3, 2, 2), "u1")) for p in (small_mnist / "mnist").iterdir()}
    monkeypatch.setitem(SOURCES, "mnist", (source_of("mnist", contents),))
    lay(small_mnist / "mnist", zip_all(contents))
    with pytest.raises(DataError, match=f"{name} has 3 axes, not 1"):
        load("mnist", small_mnist)


def lay_writers(root, monkeypatch, train_classes):
    """QMNIST's rows for the small MNIST: three writers, and more test rows than MNIST has."""
    rows = np.zeros((12, 8), "i4")
    rows[:, 0], rows[:, 2] = train_classes, [900, 7, 7, 50] * 3
    test = np.zeros((9, 8), "i4")
    test[:5, 0] = [2, 3, 4, 5, 6]
    contents = {"qmnist-train-labels-idx2-int.gz": idx(rows), "qmnist-test-labels-idx2-int.gz": idx(test)}
    monkeypatch.setitem(SOURCES, "mnist-by-writer", (source_of("mnist-by-writer", contents),))
    lay(root / "mnist-by-writer", zip_all(contents))


def test_writers_become_groups(small_mnist, monkeypatch):
    lay_writers(small_mnist, monkeypatch, np.arange(12) % 10)
    data = load("mnist-by-writer", small_mnist)
    assert data.groups.tolist() == [2, 0, 0, 1] * 3
    assert torch.equal(data.x, load("mnist", small_mnist).x)


def test_writers_that_do_not_match_the_digits_are_refused(small_mnist, monkeypatch):
    lay_writers(small_mnist, monkeypatch, np.arange(12) % 9)
    with pytest.raises(DataError, match=r"qmnist-train-labels-idx2-int\.gz does not match MNIST's labels"):
        load("mnist-by-writer", small_mnist)
