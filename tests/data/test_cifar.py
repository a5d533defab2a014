import os
import pickle
import struct

import numpy as np
import pytest
import torch

from fedcom.data import load
from fedcom.data.cifar import parse_pickle, parse_records
from fedcom.data.sources import SOURCES, Source
from fedcom.errors import DataError
from tests.data.made import lay, sha256

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def batch(seed, n=4):
    """Labels and pixels of a small batch."""
    pixels = (np.arange(n * 3072).reshape(n, 3072) * (seed + 3) % 256).astype(np.uint8)
    return (np.arange(n, dtype=np.uint8) + seed) % 10, pixels


def records(seed):
    """A batch in the binary format."""
    labels, pixels = batch(seed)
    return np.concatenate((labels[:, None], pixels), axis=1).tobytes()


def pickled(seed, protocol=4, **changes):
    """A batch in the python format."""
    labels, pixels = batch(seed)
    content = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"one", **changes}
    return pickle.dumps(content, protocol)


def python2_pickle(labels, pixels):
    """A batch as the official files have it: protocol 2, byte strings, numpy's old module names and flags."""
    string = b"T" + struct.pack("<I", pixels.size) + pixels.tobytes()
    shape = b"K" + bytes([len(pixels)]) + b"M\x00\x0c\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + string + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def lay_set(root, folder, contents, monkeypatch):
    """Write a small CIFAR-10 whose checksums the table of sources has."""
    lay(root / folder, contents)
    source = Source(
        folder, {name: sha256(content) for name, content in contents.items()}, mirrors=("http://x/",)
    )
    monkeypatch.setitem(SOURCES, "cifar-10", (source,))


def test_both_formats_give_the_same_set(tmp_path, monkeypatch):
    binary = {f"{name}.bin": records(seed) for seed, name in enumerate(BATCHES)}
    lay_set(tmp_path, "cifar-10-batches-bin", binary, monkeypatch)
    one = load("cifar-10", tmp_path)
    lay_set(tmp_path, "cifar-10-batches-py", {n: pickled(s) for s, n in enumerate(BATCHES)}, monkeypatch)
    two = load("cifar-10", tmp_path)
    assert one.x.shape == (20, 3, 32, 32)
    assert one.test_x.shape == (4, 3, 32, 32)
    for field in ("x", "y", "test_x", "test_y"):
        assert torch.equal(getattr(one, field), getattr(two, field))


def test_a_record_is_a_label_and_three_planes():
    part = parse_records(bytes([7]) + bytes(1024) + b"\1" * 1024 + b"\2" * 1024, "file")
    assert part.y.tolist() == [7]
    assert part.x[0, :, 31, 31].tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", records(0)[:-1], records(0) + b"x"])
def test_damaged_records_are_refused(content):
    with pytest.raises(DataError, match="multiple of 3073"):
        parse_records(content, "file")


@pytest.mark.parametrize("protocol", range(5))
def test_every_old_pickle_protocol_is_read(protocol):
    labels, pixels = batch(1)
    part = parse_pickle(pickled(1, protocol), "file")
    assert part.y.tolist() == labels.tolist()
    np.testing.assert_array_equal(part.x.reshape(-1, 3072), pixels)


def test_a_pickle_of_python_2_is_read():
    labels, pixels = batch(2)
    part = parse_pickle(python2_pickle(labels, pixels), "file")
    assert part.y.tolist() == labels.tolist()
    np.testing.assert_array_equal(part.x.reshape(-1, 3072), pixels)


class Evil:
    """An object whose unpickling calls a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    ("call", "name"),
    [((os.mkdir, "made"), "mkdir"), ((eval, "1"), "builtins.eval"), ((np.load, "made"), "numpy.load")],
)
def test_a_malicious_pickle_is_refused_by_name(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"bad.file is refused.*asks for .*{name}"):
        parse_pickle(pickle.dumps({b"data": Evil(*call)}), "bad.file")
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_objects_are_refused():
    with pytest.raises(DataError, match="array of object"):
        parse_pickle(pickled(0, x=np.array([{}, None])), "file")


@pytest.mark.parametrize(
    "content",
    [pickled(0)[:500], b"", b"garbage", pickle.dumps([1]), pickle.dumps({b"data": 3}), pickle.dumps({})],
)
def test_damaged_pickles_are_refused(content):
    with pytest.raises(DataError, match="not a pickled CIFAR-10 batch"):
        parse_pickle(content, "file")


def test_data_of_the_wrong_shape_is_refused():
    content = pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}, 4)
    with pytest.raises(DataError, match=r"shape \[N, 3072\]"):
        parse_pickle(content, "file")


def test_a_label_beyond_the_classes_is_refused(tmp_path, monkeypatch):
    contents = {f"{name}.bin": bytes([10]) + bytes(3072) for name in BATCHES}
    lay_set(tmp_path, "cifar-10-batches-bin", contents, monkeypatch)
    with pytest.raises(DataError, match="labels from 10 to 10; they must be 0 to 9"):
        load("cifar-10", tmp_path)


def test_a_pickle_with_the_wrong_checksum_is_never_unpickled(tmp_path, monkeypatch):
    lay_set(tmp_path, "cifar-10-batches-py", {n: pickled(s) for s, n in enumerate(BATCHES)}, monkeypatch)
    lay(tmp_path / "cifar-10-batches-py", {"data_batch_3": pickle.dumps(Evil(os.mkdir, "made"))})
    with pytest.raises(DataError, match="data_batch_3 has the wrong checksum"):
        load("cifar-10", tmp_path)
