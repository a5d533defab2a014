"""The real data sets, on machines where FEDCOM_DATA names a folder that has them."""

import os
from pathlib import Path

import pytest
import torch

from fedcom.data import load, split
from fedcom.data.sources import SOURCES
from fedcom.draws import Draw

ROOT = os.environ.get("FEDCOM_DATA")  # read before the fixtures unset it

SHAPES = {
    "mnist": ((60_000, 1, 28, 28), (10_000, 1, 28, 28)),
    "fashion-mnist": ((60_000, 1, 28, 28), (10_000, 1, 28, 28)),
    "mnist-by-writer": ((60_000, 1, 28, 28), (10_000, 1, 28, 28)),
    "cifar-10": ((50_000, 3, 32, 32), (10_000, 3, 32, 32)),
}


def real(name):
    """A data set; the test is skipped if its files are not there."""
    if not ROOT:
        pytest.skip("FEDCOM_DATA is not set")
    if not any((Path(ROOT) / source.folder).is_dir() for source in SOURCES[name]):
        pytest.skip(f"FEDCOM_DATA does not hold {name}")
    return load(name, ROOT)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_classes_and_normalisation(name):
    data = real(name)
    assert (data.x.shape, data.test_x.shape) == SHAPES[name]
    assert data.y.unique().tolist() == data.test_y.unique().tolist() == list(range(10))
    var, mean = torch.var_mean(data.x)
    assert abs(float(mean)) < 1e-4
    assert abs(float(var) - 1) < 1e-4
    assert abs(float(data.test_x.mean())) < 0.05


def test_mnist_was_written_by_539_writers():
    data = real("mnist-by-writer")
    parts = split("natural", data.y, data.groups, None, Draw.seeded(0))
    assert len(parts) == 539
    assert (min(map(len, parts)), max(map(len, parts))) == (19, 131)


def test_the_hospitals_have_the_published_sizes():
    heart, brca = real("heart-disease"), real("tcga-brca")
    assert (heart.groups.bincount() + heart.test_groups.bincount()).tolist() == [303, 261, 46, 130]
    assert heart.test_groups.bincount().tolist() == [104, 89, 16, 45]
    assert heart.x.shape[1] == 13
    assert brca.groups.bincount().tolist() == [248, 156, 164, 129, 129, 40]
    assert brca.test_groups.bincount().tolist() == [63, 40, 42, 33, 33, 11]
    assert brca.x.shape[1] == 39


def test_shakespeares_roles_say_what_they_say():
    data = real("shakespeare")
    assert len(data.groups.unique()) == len(data.test_groups.unique()) == 633
    assert (data.y != 1).all()  # no character is unknown
    text = data.tokens.decode(data.x.flatten())
    assert "Frailty, thy name is woman" in text.replace("\n", " ")
    assert text.count("[") == 0
    assert not any(word in text for word in ("SCENE I", "ACT I"))
