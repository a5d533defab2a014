from typing import Any

import numpy as np
import pytest
import torch

from fedcom.data import from_arrays
from fedcom.errors import DataError

X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 0])


@pytest.mark.parametrize("wrap", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_arrays_and_tensors_become_the_same_set(wrap):
    data = from_arrays(
        wrap(X), wrap(Y), wrap(X[:2]), wrap(np.array([0, 4])), wrap(np.array([30, 10, 10, 20]))
    )
    assert data.x.is_floating_point()
    assert data.x.tolist() == X.tolist()
    assert data.y.dtype == torch.int64
    assert data.classes == 5
    assert data.groups.tolist() == [2, 0, 0, 1]
    assert data.name == "arrays"


def test_missing_test_arrays_become_empty():
    data = from_arrays(X, Y, name="mine")
    assert data.test_x.shape == (0, 3)
    assert data.test_y.shape == (0,)
    assert data.test_y.dtype == torch.int64
    assert data.classes == 3
    assert data.groups is None
    assert data.name == "mine"


def test_float_targets_are_a_regression():
    data = from_arrays(X, Y + 0.5)
    assert data.classes == 0
    assert data.y.tolist() == [0.5, 2.5, 1.5, 0.5]
    assert data.test_y.dtype == data.y.dtype
    assert data.y.is_floating_point()


@pytest.mark.parametrize("x", [X.astype(np.float32), torch.from_numpy(X.astype(np.float32))])
def test_the_users_arrays_are_copied(x):
    data = from_arrays(x, Y)
    x[0, 0] = 99
    assert data.x[0, 0] == 0


@pytest.mark.parametrize("dtype", [">f8", "<f4", "f2", "u1", ">i4", "?"])
def test_every_kind_of_number_is_taken(dtype):
    x = (X > 3).astype(dtype)
    x.flags.writeable = False
    assert from_arrays(x, Y).x.tolist() == (X > 3).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:3], Y), "x has 3 samples but y has 4 labels"),
        ((X, Y, X), "test_x and test_y go together"),
        ((X, Y, X[:, :2], Y), r"differ in kind.*\[3\].*\[2\]"),
        ((X, Y, X, Y + 0.5), "differ in kind.*whole.*floating"),
        ((X, Y, None, None, [1, 2]), "groups has shape.*4 whole numbers"),
        ((X, Y, None, None, [0.5] * 4), "groups has shape.*4 whole numbers"),
        ((X, Y - 1), "label -1.*renumber"),
        ((X, Y[:, None]), r"y has shape \[4, 1\]"),
        ((X * np.nan, Y), "x holds NaN"),
        ((X, Y + np.inf), "y holds NaN"),
        ((X[:0], Y[:0]), "x has no samples"),
        ((3.0, Y), "x is a single number"),
        ((np.array(["a", "b"]), Y), "x holds 'a', not numbers; .*get_dummies"),
        ((torch.zeros(4, dtype=torch.complex64), Y), "x has dtype complex64"),
        (([[1], [2, 3]], Y), "x is not an array"),
    ],
)
def test_bad_arrays_are_refused_by_name(arguments, message):
    with pytest.raises(DataError, match=message):
        from_arrays(*arguments)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_sample_without_a_group_is_no_group_called_none(missing: object) -> None:
    x, y = np.zeros((3, 1)), np.zeros(3, int)
    with pytest.raises(DataError, match=r"groups says (None|nan) of sample 1"):
        from_arrays(x, y, groups=np.array(["a", missing, "b"], object))
    with pytest.raises(DataError, match=r"test_groups says (None|nan) of sample 0"):
        from_arrays(x, y, x, y, groups=list("aab"), test_groups=np.array([missing, "a", "b"], object))
    with pytest.raises(DataError, match=r"test_groups has shape \[1\]"):
        from_arrays(x, y, x, y, groups=list("aab"), test_groups=["a"])


@pytest.mark.parametrize("values", [[0, 1, 2], [0.5, 1, 2], [np.int8(1), True, np.float32(2)]])
def test_numbers_in_an_array_of_objects_are_numbers(values: list[Any]) -> None:
    x, labels = np.array(values, dtype=object).reshape(3, 1), [0, 1, 1]
    assert torch.equal(from_arrays(x, labels).x, from_arrays(np.array(values).reshape(3, 1), labels).x)
    with pytest.raises(DataError, match="x holds None, not numbers"):
        from_arrays(np.array([*values, None], dtype=object), [*labels, 0])


def test_masked_entries_are_refused() -> None:
    x = np.ma.masked_greater(np.arange(12.0).reshape(4, 3), 10)
    with pytest.raises(DataError, match="x has masked entries"):
        from_arrays(x, np.array([0, 1, 0, 1]))


def test_named_test_inputs_may_be_in_another_order() -> None:
    ids, mask, y = (
        torch.arange(8).reshape(4, 2),
        torch.ones(4, 2, dtype=torch.int64),
        torch.tensor([0, 1, 0, 1]),
    )
    named, other = {"ids": ids, "mask": mask}, {"mask": mask, "ids": ids}
    found, alike = from_arrays(named, y, other, y), from_arrays(named, y, named, y)
    assert torch.equal(found.x, alike.x)
    assert torch.equal(found.test_x, alike.test_x)
