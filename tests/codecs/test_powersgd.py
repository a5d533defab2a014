"""PowerSGD, worked out by hand."""

import math
import struct

import pytest
import torch
from torch import Tensor

from fedcom.codecs import PowerSgd
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout
from tests.codecs.cases import gaussian, keys, layout, same
from tests.codecs.test_hostile import packed
from tests.codecs.test_statistics import errors

DRAW = Draw.seeded(0)


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout(("w",), (shape,), dtype)


def low_rank(m: int, n: int, rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    left, right = gaussian(Layout.vector(m * rank, dtype), 1), gaussian(Layout.vector(n * rank, dtype), 2)
    return (left.reshape(m, rank) @ right.reshape(rank, n)).flatten()


def test_a_matrix_of_rank_one_by_hand() -> None:
    # M = u v' with |u| = 5: P is u/5 up to its sign, and Q is 5 v.
    where, u, v = matrix(2, 3), torch.tensor([3.0, -4.0]), torch.tensor([1.0, 0.0, 2.0])
    parts = PowerSgd(1).compress(torch.outer(u, v).flatten(), where, DRAW)
    sign = parts["left"][0].sign()
    assert (sign * parts["left"]).tolist() == pytest.approx([0.6, -0.8])
    assert (sign * parts["right"]).tolist() == pytest.approx([5.0, 0.0, 10.0])
    assert PowerSgd(1).expand(parts, where, DRAW).tolist() == pytest.approx([3, 0, 6, -4, 0, -8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inner", [1, 2, 3])
def test_a_matrix_of_no_higher_rank_is_kept(inner: int, dtype: torch.dtype) -> None:
    where = matrix(20, 30, dtype=dtype)
    x = low_rank(20, 30, inner, dtype)
    q = PowerSgd(3).quantise(x, where, DRAW)
    # As an array of float32 it has all directions, and a start in a bad position sees more of the others.
    assert float((q - x).norm() / x.norm()) < (1e-6 if dtype == torch.float64 else 1e-4)


def test_directions_of_rounding_errors_are_left_out() -> None:
    x = torch.outer(torch.arange(1.0, 9.0), torch.ones(9)).flatten()  # rank 1
    left = PowerSgd(3).compress(x, matrix(8, 9), DRAW)["left"].reshape(8, 3)
    assert left[:, 0].norm() == pytest.approx(1)
    assert not left[:, 1:].any()


def test_the_left_factor_is_orthonormal_and_the_product_a_projection() -> None:
    where = matrix(12, 10, dtype=torch.float64)
    x = gaussian(where)
    parts = PowerSgd(2).compress(x, where, DRAW)
    p = parts["left"].double().reshape(12, 2)
    assert torch.allclose(p.T @ p, torch.eye(2, dtype=torch.float64), atol=1e-6)
    q = PowerSgd(2).expand(parts, where, DRAW).reshape(12, 10)
    assert torch.allclose(q, p @ p.T @ x.reshape(12, 10), atol=1e-8)
    assert torch.linalg.matrix_rank(q, rtol=1e-5) == 2


def test_an_orthogonal_matrix_attains_the_promise() -> None:
    # All directions weigh the same: any two of eight carry a quarter of |M|^2, whatever the start.
    where = matrix(8, 8, dtype=torch.float64)
    x = torch.linalg.qr(gaussian(where).reshape(8, 8)).Q.flatten()
    squares = errors(PowerSgd(2), x, where, 10).square().sum(-1)
    assert PowerSgd(2).variance(where) == 0.75
    assert squares.tolist() == pytest.approx([0.75 * 8] * 10)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6)])
@pytest.mark.parametrize("decay", [1.0, 0.7, 0.1])
def test_the_promise_is_met_whatever_the_spectrum(shape: tuple[int, int], decay: float) -> None:
    where = matrix(*shape, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(gaussian(where).reshape(shape), full_matrices=False)
    x = ((u * decay ** torch.arange(6)) @ vh).flatten()
    squares = errors(PowerSgd(2), x, where).square().sum(-1)
    slack = 5 * float(squares.std()) / math.sqrt(len(squares)) + 1e-9
    assert float(squares.mean()) <= 2 / 3 * float(x @ x) + slack


def test_what_travels_dense() -> None:
    # Factors of r(m + n) numbers, where those are fewer than m n; tensors are matrices [first, rest].
    shapes = ((3, 3), (3, 9), (64, 4, 3, 3), (500,), (), (1, 500), (4, 4), (5, 4))
    where = Layout(tuple(map(str, range(len(shapes)))), shapes)
    assert PowerSgd(2).shapes(where) == [None, (3, 9), (64, 36), None, None, None, None, (5, 4)]
    assert [(field.name, field.count) for field in PowerSgd(2).fields(where)] == [
        ("left", 2 * (3 + 64 + 5)),
        ("right", 2 * (9 + 36 + 4)),
        ("values", 9 + 500 + 1 + 500 + 16),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_tensors_stay_as_they_are(dtype: torch.dtype) -> None:
    where = layout("several", dtype)
    x = gaussian(where)
    assert same(where.split(PowerSgd(2).quantise(x, where, DRAW))[1], where.split(x)[1])
    flat = Layout.vector(100, dtype)
    assert same(PowerSgd(2).quantise(gaussian(flat), flat, DRAW), gaussian(flat))
    assert PowerSgd(2).variance(flat) == 0


def test_the_bytes_of_a_message() -> None:
    where = Layout(("w", "b"), ((2, 3), (2,)), torch.float64)
    x = torch.tensor([2.0, 4, 6, 0, 0, 0, 0.1, 0.2], dtype=torch.float64)
    body = PowerSgd(1).encode(x, where, DRAW)[16:]
    sign = struct.unpack("<f", body[:4])[0]
    assert abs(sign) == 1  # M = e_1 (2, 4, 6): P is e_1 or minus it
    assert body[8:20] == struct.pack("<3f", 2 * sign, 4 * sign, 6 * sign)
    assert body[20:] == struct.pack("<2d", 0.1, 0.2)


def test_each_key_and_each_tensor_has_a_start_of_its_own() -> None:
    where = Layout(("a", "b"), ((9, 9), (9, 9)))
    x = gaussian(matrix(9, 9)).repeat(2)
    q = PowerSgd(1).quantise(x.expand(2, -1), where, keys(2))
    first, second = where.split(q)
    assert not torch.allclose(first, second)
    assert not torch.allclose(q[0], q[1])


def test_the_receiver_draws_nothing() -> None:
    where = matrix(9, 9)
    data = PowerSgd(2).encode(gaussian(where), where, Draw.seeded(1))
    assert same(
        PowerSgd(2).decode(data, where, Draw.seeded(1)), PowerSgd(2).decode(data, where, Draw.seeded(2))
    )


def test_a_left_factor_beyond_one_is_refused() -> None:
    where = matrix(9, 9)
    for value in (1.01, -1e30):
        left = torch.zeros(18)
        left[3] = value
        with pytest.raises(WireError, match="not orthonormal"):
            PowerSgd(2).decode(packed(PowerSgd(2), where, left=left), where, DRAW)


def test_parameters() -> None:
    for rank in (0, -1, 1025):
        with pytest.raises(ConfigError, match=f"rank must be between 1 and 1024; got {rank}"):
            PowerSgd(rank)
    assert PowerSgd().at(1) is None
