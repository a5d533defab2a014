"""The count sketch, worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from fedcom.codecs import CountSketch
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.vectors import Layout
from tests.codecs.cases import gaussian, keys, same
from tests.codecs.test_statistics import errors
from tests.codecs.test_values import quantise, vector

DRAW = Draw.seeded(5)


def slow(codec: CountSketch, x: Tensor, draw: Draw) -> tuple[list[list[float]], list[float]]:
    """The sums and the estimates, one coordinate after another."""
    where = Layout.vector(len(x), x.dtype)
    tables, estimates = [], [0.0] * len(x)
    for buckets, signs in codec.hashes(where, draw):
        table = [0.0] * codec.columns(where)
        for value, bucket, sign in zip(x.tolist(), buckets.tolist(), signs.tolist(), strict=True):
            table[bucket] += sign * value
        for i, (bucket, sign) in enumerate(zip(buckets.tolist(), signs.tolist(), strict=True)):
            estimates[i] += sign * table[bucket] / codec.rows
        tables.append(table)
    return tables, estimates


@pytest.mark.parametrize("codec", [CountSketch(0.3), CountSketch(0.5, rows=3), CountSketch(1.0, rows=2)])
def test_signed_sums_in_buckets(codec: CountSketch) -> None:
    x = gaussian(Layout.vector(40, torch.float64))
    where = Layout.vector(40, torch.float64)
    tables, estimates = slow(codec, x, DRAW)
    sums = codec.compress(x, where, DRAW)["sums"]
    assert sums.reshape(codec.rows, -1).tolist() == [pytest.approx(table) for table in tables]
    assert codec.quantise(x, where, DRAW).tolist() == pytest.approx(estimates)


def test_one_bucket_by_hand() -> None:
    # All three in one bucket: each hears the signed sum, times its own sign.
    where = Layout.vector(3)
    ((buckets, signs),) = CountSketch(0.1).hashes(where, DRAW)
    assert buckets.tolist() == [0, 0, 0]
    a, b, c = signs.tolist()
    assert {abs(a), abs(b), abs(c)} == {1}
    total = 1 * a + 2 * b + 4 * c
    assert quantise(CountSketch(0.1), vector(1, 2, 4), DRAW).tolist() == [a * total, b * total, c * total]


def test_a_vector_of_one_coordinate_is_kept() -> None:
    # Nothing else in its bucket: exact, and the others hear noise where they share it.
    x = torch.zeros(50)
    x[17] = -0.3
    for codec in (CountSketch(0.1), CountSketch(0.5, rows=5)):
        q = codec.quantise(x.expand(20, -1), Layout.vector(50), keys(20))
        assert torch.allclose(q[:, 17], torch.full((20,), -0.3))


@pytest.mark.parametrize(("rows", "columns"), [(1, 20), (2, 10), (5, 4), (7, 3)])
def test_the_variance_is_what_it_promises(rows: int, columns: int) -> None:
    # E|Q(x) - x|^2 = |x|^2 (d - 1)/(rows columns), with equality: rows average, columns spread.
    where, n = Layout.vector(200, torch.float64), 3000
    codec, x = CountSketch(0.1, rows), gaussian(where)
    assert codec.columns(where) == columns
    assert codec.variance(where) == pytest.approx(199 / (rows * columns))
    squares = errors(codec, x, where, n).square().sum(-1) / (x @ x)
    assert abs(float(squares.mean()) - codec.variance(where)) <= 5 * float(squares.std()) / math.sqrt(n)


def test_rows_make_the_tails_lighter() -> None:
    where = Layout.vector(200, torch.float64)
    x = torch.zeros(200, dtype=torch.float64)
    x[0] = x[1] = 1  # the estimate of x[0] is off by 1/rows for every row where the two meet
    worst = [float(errors(CountSketch(0.1, rows), x, where)[:, 0].abs().max()) for rows in (1, 5)]
    assert worst[0] == 1
    assert worst[1] < 1


def test_buckets_and_signs_are_fair_and_independent_of_each_other() -> None:
    where, n = Layout.vector(50), 4000
    codec = CountSketch(0.2, rows=2)
    (first, signs), (second, other) = codec.hashes(where, keys(n))
    for buckets in (first, second):
        assert int(buckets.min()) == 0
        assert int(buckets.max()) == 4
        assert float((buckets == 2).double().mean()) == pytest.approx(0.2, abs=5 * 0.4 / math.sqrt(n * 50))
    for product in (signs, other, signs * other, signs[:, :1] * signs[:, 1:], signs * (1 - 2 * (first % 2))):
        assert abs(float(product.double().mean())) <= 5 / math.sqrt(n)
    meet = float((first[:, :1] == first[:, 1:]).double().mean())
    assert meet == pytest.approx(0.2, abs=5 * 0.4 / math.sqrt(n))
    assert float((first == second).double().mean()) == pytest.approx(0.2, abs=5 * 0.4 / math.sqrt(n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_do_not_depend_on_the_order_of_addition(dtype: torch.dtype) -> None:
    # The same multiset in one bucket, forwards and backwards, signs turned along: the same bits.
    where = Layout.vector(500, dtype)
    ((_, signs),) = CountSketch(0.001).hashes(where, DRAW)
    y = gaussian(where)
    there, back = (CountSketch(0.001).compress(v * signs, where, DRAW)["sums"] for v in (y, y.flip(0)))
    assert there.shape == (1,)
    assert same(there, back)


def test_only_the_sums_travel() -> None:
    assert len(CountSketch(0.1).encode(torch.ones(1000), Layout.vector(1000), DRAW)) == 16 + 4 * 100
    assert len(CountSketch(0.1, 3).encode(torch.ones(1000), Layout.vector(1000), DRAW)) == 16 + 4 * 99


def test_very_small_numbers_of_a_float64_run() -> None:
    x = vector(1e-310, -3e-300, dtype=torch.float64)
    assert quantise(CountSketch(1.0), x, DRAW).isfinite().all()


def test_a_share_of_it_is_a_contraction() -> None:
    where = Layout.vector(1000, torch.float64)
    codec, x = CountSketch(0.1), gaussian(where)
    q = codec.quantise(x.expand(200, -1), where, keys(200))
    left = float((codec.kept(where) * q - x).square().sum(-1).mean() / (x @ x))
    assert left == pytest.approx(1 - codec.kept(where), abs=0.02)  # q/(1 + q)


def test_rates_and_parameters() -> None:
    assert CountSketch().at(3.2) == CountSketch(0.1)
    assert CountSketch().at(0) is None
    assert CountSketch().at(33) is None
    for ratio in (0.0, 1.5):
        with pytest.raises(ConfigError, match="ratio must be above 0 and at most 1"):
            CountSketch(ratio)
    for rows in (0, 65):
        with pytest.raises(ConfigError, match=f"rows must be between 1 and 64; got {rows}"):
            CountSketch(rows=rows)
