"""Means and variances over keys: E Q(x) = x where a codec says so, and E|Q(x) - x|^2 <= v |x|^2 always.

Seeds are fixed, so these tests are deterministic; thresholds are those a right codec misses once in
two million (5 sigma).
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcom.codecs import Codec, Dithered, Identity, Int, Natural, Peaks, Qsgd, RandK, TopK
from fedcom.vectors import Layout
from tests.codecs.cases import (
    CODECS_TESTED,
    FIXED,
    KINDS,
    LONG,
    PACKED,
    PEAKS,
    ROTATED,
    each_codec,
    each_dtype,
    each_layout,
    gaussian,
    keys,
    label,
    layout,
    shaped,
)
from tests.conftest import CHAOS

SEEDS = 400
RARE = 14.4  # -log of the chance of 5 sigma, two-sided
UNBIASED = [codec for codec in CODECS_TESTED if codec.unbiased and codec not in ROTATED]


def errors(codec: Codec, x: Tensor, where: Layout, n: int = SEEDS, seed: int = 0) -> Tensor:
    """Q(x) - x for n keys, in float64."""
    return codec.quantise(x.expand(n, -1), where, keys(n, seed)).double() - x.double()


def tiny(codec: Codec, x: Tensor) -> float:
    """The squared error of arithmetic: scales are float32, and so may be the vector."""
    noise = getattr(codec, "zero_point_noise", 0)  # a step is never below float32's smallest number
    return (2e-6 * float(x.double().norm())) ** 2 + len(x) * (2e-45 * (1 + noise)) ** 2


def excess(error: Tensor) -> float:
    """|mean error|^2 over what chance explains; above 1 once in two million.

    N |mean|^2 is a quadratic form in nearly normal numbers of covariance C, and Laurent and Massart (2000)
    have P(> tr C + 2 sqrt(tr(C^2) t) + 2 |C| t) <= exp(-t) for it.
    """
    mean = error.mean(0)
    centred = (error - mean) / math.sqrt(len(error) - 1)
    c = centred.T @ centred if len(mean) < len(error) else centred @ centred.T  # the same but for zeros
    bound = c.trace() + 2 * c.norm() * math.sqrt(RARE) + 2 * torch.linalg.matrix_norm(c, 2) * RARE
    return len(error) * float(mean @ mean) / max(float(bound), 1e-300)


@pytest.mark.covers(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["one", "several"])
@pytest.mark.parametrize("codec", UNBIASED, ids=label)
@each_dtype
def test_the_mean_is_the_vector(codec: Codec, dtype: torch.dtype, name: str, kind: str) -> None:
    where = layout(name, dtype)
    x = shaped(kind, where)
    blocks = getattr(codec, "blocks", lambda where: where)(where)  # each with a scale of its own
    for error, part in zip(blocks.split(errors(codec, x, where)), blocks.split(x), strict=True):
        assert float(error.mean(0).square().sum()) <= tiny(codec, part) or excess(error) <= 1


@pytest.mark.parametrize("codec", [Int(2, "nearest"), TopK(0.4), TopK(0.4, "int", 5)], ids=label)
def test_the_bias_of_biased_codecs_is_seen(codec: Codec) -> None:
    # The test above would be worth little if these passed it.
    where = layout("one", torch.float64)
    assert not codec.unbiased
    assert excess(errors(codec, gaussian(where), where)) > 10


def holds(codec: Codec, x: Tensor, where: Layout, n: int, seed: int = 0) -> bool:
    """Whether the mean squared error over n keys is within five deviations of the promise."""
    squares = errors(codec, x, where, n, seed).square().sum(-1)
    slack = 5 * float(squares.std()) / math.sqrt(n) + tiny(codec, x)
    promise = codec.variance(where) * float(x.double() @ x.double())
    return float(squares.mean()) <= promise * (1 + 1e-6) + slack


@pytest.mark.covers(2)
@each_layout
@each_dtype
@pytest.mark.parametrize(
    "codec", [codec for codec in CODECS_TESTED if codec not in PACKED + PEAKS], ids=label
)
def test_the_promised_variance_holds(codec: Codec, dtype: torch.dtype, name: str) -> None:
    where = layout(name, dtype)
    assert [kind for kind in KINDS if not holds(codec, shaped(kind, where), where, SEEDS)] == []


@pytest.mark.covers(2)
@each_layout
@each_dtype
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("q", [1e-4, 0.1, 10.0])
def test_dithered_has_the_variance_asked_for(q: float, kind: str, dtype: torch.dtype, name: str) -> None:
    # Not at most q but q, on every vector: the error is uniform over a step whatever x is.
    where = layout(name, dtype)
    x = shaped(kind, where)
    squares = errors(Dithered(q=q), x, where, 1000).square().sum(-1) / float(x.double() @ x.double())
    assert abs(float(squares.mean()) / q - 1) <= 5 * float(squares.std()) / q / math.sqrt(1000) + 1e-5


def long_vector(kind: str) -> Tensor:
    """Vectors of some thousand coordinates, hard in different ways."""
    x = gaussian(Layout.vector(LONG.size)) * 1e3
    if kind == "heavy-tailed":
        return x**3
    if kind == "sparse":
        return torch.zeros_like(x).index_put_(
            (torch.tensor([5, 2003, 3000]),), torch.tensor([1.0, -2.0, 0.5])
        )
    return torch.full_like(x, -0.7) if kind == "constant" else x


@pytest.mark.covers(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", [*ROTATED, Peaks(0.03), Peaks(0.1), Peaks(0.4)], ids=label)
def test_the_mean_and_variance_of_codecs_that_rotate(codec: Codec, kind: str) -> None:
    x = long_vector(kind)
    error = errors(codec, x, LONG)
    assert excess(error) <= 1
    q = float(error.square().sum(-1).mean()) / float(x.double() @ x.double())
    # The promise counts the padding's share of the error. Three spikes are not quite Gaussian at this size.
    low, high = {"sparse": (0.85 if codec.name == "peaks" else 0.9, 1.08)}.get(kind, (0.9, 1.0))
    assert low <= q / codec.variance(LONG) <= high


@pytest.mark.covers(2)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@each_dtype
@each_codec
def test_the_promise_holds_at_any_scale(codec: Codec, dtype: torch.dtype, scale: float) -> None:
    where = layout("one", dtype)
    assert holds(codec, gaussian(where) * (1e3 * scale), where, 100)


numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@pytest.mark.parametrize("codec", CODECS_TESTED, ids=label)
@given(values=st.lists(numbers, min_size=12, max_size=12), seed=st.integers(0, 1000))
@settings(
    max_examples=25 if CHAOS else 8, derandomize=True
)  # a bound that chance breaks at times holds for fixed ones
def test_the_promise_holds_for_vectors_nobody_thought_of(
    codec: Codec, values: list[float], seed: int
) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    where = Layout(("a", "b"), ((3, 3), (3,)), torch.float64)
    # Powers of two this small have no float32 neighbours: the natural codec's promise starts at 2^-126.
    assert holds(codec, torch.where(x.abs() < 1e-30, 0.0, x), where, 64, seed)


def test_promises_by_hand() -> None:
    where = Layout(("a", "b"), ((60,), (40,)))
    assert Identity().variance(where) == 0
    assert Natural().variance(where) == 1 / 8
    assert Int(2).variance(where) == pytest.approx(60 / (2 * 9))
    assert Int(2, scale="vector").variance(where) == pytest.approx(100 / (2 * 9))
    assert Int(2, zero_point_noise=3).variance(where) == pytest.approx(60 * 2 * (1 / 4 + 4) / 9)
    assert Qsgd(100, "vector").variance(where) == pytest.approx(100 / 100**2)
    assert Qsgd(4, "vector").variance(where) == pytest.approx(10 / 4)
    assert Qsgd(4).variance(where) == pytest.approx(math.sqrt(60) / 4)
    assert TopK(0.1).variance(where) == pytest.approx(0.9)
    assert TopK(0.1, "int", 5).variance(where) == pytest.approx(0.9 + 10 / (2 * 31**2))
    assert TopK(0.1, chunk=36).variance(where) == pytest.approx(1 - 3 / 28)  # 4 of 36 twice, 3 of 28
    levels = (1 - 2**-10) / (1 + 1 / 2 + 1 / 3 + 1 / 4)  # of what is kept, at worst
    assert TopK(0.1, "levels", chunk=36).variance(where) == pytest.approx(1 - 3 / 28 * levels)
    assert RandK(0.1).variance(where) == pytest.approx(9)


@pytest.mark.parametrize("ratio", [0.1, 0.37, 0.9])
def test_sparsifiers_meet_their_promise_exactly(ratio: float) -> None:
    # On a constant vector the kept coordinates do not matter, so there is nothing to average.
    where = Layout.vector(100, torch.float64)
    x = torch.full((100,), 3.0, dtype=torch.float64)
    for codec in (TopK(ratio), RandK(ratio)):
        squares = errors(codec, x, where, 20).square().sum(-1)
        expected = codec.variance(where) * float(x @ x)
        assert torch.allclose(squares, torch.full_like(squares, expected), rtol=1e-12)


def test_zero_point_noise_has_the_variance_it_adds() -> None:
    where, r = layout("one", torch.float64), 3
    x = gaussian(where)
    step = float(x.max() - x.min()) / 255
    added = errors(Int(8, "nearest", zero_point_noise=r), x, where, 4000).mean(-1) / step
    # The whole vector moves by a uniform number of steps: mean 0, variance r(r+1)/3 = 4, fourth moment 28.
    assert abs(float(added.mean())) < 5 * math.sqrt(4 / 4000) + 0.1
    assert abs(float(added.var()) - 4) < 5 * math.sqrt((28 - 16) / 4000)


@pytest.mark.parametrize("codec", FIXED, ids=label)
def test_codecs_that_draw_nothing_have_no_spread(codec: Codec) -> None:
    where = layout("several", torch.float64)
    assert float(errors(codec, gaussian(where), where, 5).var(0).max()) == 0


def test_every_pair_of_coordinates_is_kept_equally_often() -> None:
    # Uniform subsets: P(i kept) = k/d and P(i and j kept) = k(k-1)/(d(d-1)).
    d, k, n = 10, 3, 4000
    kept = RandK(k / d).quantise(torch.ones(n, d), Layout.vector(d), keys(n)).ne(0).double()
    pairs = kept.T @ kept / n
    p, pp = k / d, k * (k - 1) / (d * (d - 1))
    off = pairs[~torch.eye(d, dtype=torch.bool)]
    assert float((pairs.diag() - p).abs().max()) < 5 * math.sqrt(p * (1 - p) / n)
    assert float((off - pp).abs().max()) < 5 * math.sqrt(pp * (1 - pp) / n)
