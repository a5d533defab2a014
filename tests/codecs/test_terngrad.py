"""TernGrad, worked out by hand."""

import math
import struct

import pytest
import torch

from fedcom.codecs import TernGrad
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout
from tests.codecs.cases import keys
from tests.codecs.test_hostile import packed
from tests.codecs.test_statistics import errors
from tests.codecs.test_values import EPS, near, shares, vector

DRAW = Draw.seeded(0)
TOP = 4 + 4 * EPS  # the float32 just above 4


def test_levels_and_how_often_each_occurs() -> None:
    q, values = shares(TernGrad(), [4.0, -3.0, 1.0, 0.0, -4.0])
    assert values == [[TOP], [-TOP, 0.0], [0.0, TOP], [0.0], [-TOP]]
    assert (q != 0).double().mean(0).tolist() == [1.0, near(0.75), near(0.25), 0.0, 1.0]


def test_scales_are_per_tensor_or_whole() -> None:
    where = Layout(("a", "b"), ((2,), (1, 2)))
    x = vector(1, -3, 10, 30)
    assert TernGrad().compress(x, where, DRAW)["scale"].tolist() == pytest.approx([3, 30])
    assert TernGrad("vector").compress(x, where, DRAW)["scale"].tolist() == pytest.approx([30])


def test_five_coordinates_a_byte() -> None:
    # Minus, zero and plus are 0, 1 and 2, the first most significant; the last byte is filled with zeros.
    body = TernGrad().encode(vector(4, -4, 0, 0, 4, -4, 4), Layout.vector(7), DRAW)[16:]
    first, last = 2 * 81 + 0 * 27 + 1 * 9 + 1 * 3 + 2, 0 * 81 + 2 * 27
    assert body == struct.pack("<f", TOP) + bytes([first, last])


@pytest.mark.parametrize(("d", "size"), [(1, 1), (5, 1), (6, 2), (1000, 200), (1001, 201)])
def test_the_size_of_a_message(d: int, size: int) -> None:
    assert len(TernGrad().encode(torch.ones(d), Layout.vector(d), DRAW)) == 16 + 4 + size


@pytest.mark.parametrize("d", [1, 4, 101])
def test_the_promise_is_the_worst_case(d: int) -> None:
    # One s and d - 1 times a = s/(sqrt(d) + 1): s|x|_1 - |x|^2 = (d - 1) a (s - a), s itself without error.
    where = Layout.vector(d, torch.float64)
    a = 1 / (math.sqrt(d) + 1)
    x = torch.full((d,), a, dtype=torch.float64)
    x[0] = 1
    expected = (d - 1) * a * (1 - a)
    assert TernGrad().variance(where) * float(x @ x) == pytest.approx(expected)
    squares = errors(TernGrad(), x, where, 4000).square().sum(-1)
    assert abs(float(squares.mean()) - expected) <= 5 * float(squares.std()) / math.sqrt(4000) + 1e-6


def test_no_vector_is_worse() -> None:
    d = 30
    bound = TernGrad().variance(Layout.vector(d))
    for power in (0.2, 1.0, 3.0, 10.0):
        x = torch.linspace(0, 1, d, dtype=torch.float64) ** power
        assert float(x.sum() - x @ x) <= bound * float(x @ x)


def test_bytes_that_mean_nothing() -> None:
    where = Layout.vector(7)
    for codes, reason in (
        ([243, 0], "a byte above 242"),
        ([0, 255], "a byte above 242"),
        ([0, 1], "stray trits"),  # of 5 trits in the last byte 2 are coordinates
        ([0, 26], "stray trits"),
        ([0, 242], "stray trits"),
    ):
        with pytest.raises(WireError, match=reason):
            TernGrad().decode(packed(TernGrad(), where, codes=torch.tensor(codes)), where, DRAW)
    data = packed(TernGrad(), where, codes=torch.tensor([242, 81 + 54]), scale=torch.tensor([1.0]))
    assert TernGrad().decode(data, where, DRAW).tolist() == [1, 1, 1, 1, 1, 0, 1]


def test_a_negative_scale_is_refused() -> None:
    where = Layout.vector(7)
    with pytest.raises(WireError, match="negative scale"):
        TernGrad().decode(packed(TernGrad(), where, scale=torch.tensor([-1.0])), where, DRAW)


def test_it_is_no_contraction() -> None:
    # Error feedback relies on a share of it: test_memory.py.
    where = Layout.vector(2000, torch.float64)
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = TernGrad().quantise(x.expand(50, -1), where, keys(50))
    assert float((q - x).square().sum(-1).mean()) > float(x @ x)


def test_rates() -> None:
    assert TernGrad().at(1.6) == TernGrad()
    assert TernGrad().at(2) is None
