"""Values at the edges of floating point: nothing is invented, and nothing broken is hidden."""

import pytest
import torch
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.errors import NotFinite
from fedcom.vectors import Layout
from tests.codecs.cases import (
    CODECS_TESTED,
    each_codec,
    each_dtype,
    each_layout,
    gaussian,
    keys,
    label,
    layout,
    same,
)
from tests.conftest import CHAOS

SMALLEST = 2.0**-149  # of float32


def both(codec: Codec, x: Tensor, where: Layout, draw: Draw) -> Tensor:
    """Q(x), once it is the same by simulation and by bytes."""
    q = codec.quantise(x, where, draw)
    assert same(codec.decode(codec.encode(x, where, draw), where, draw), q)
    return q


@pytest.mark.covers(2)
@each_layout
@each_dtype
@each_codec
def test_zero_stays_zero(codec: Codec, dtype: torch.dtype, name: str) -> None:
    where = layout(name, dtype)
    for seed, zero in enumerate([0.0, -0.0] * (3 if CHAOS else 1)):
        x = torch.full((where.size,), zero, dtype=dtype)
        # The int codec's low is one number below zero in float64, and zero-point noise adds whole steps.
        most = (1 + getattr(codec, "zero_point_noise", 0)) * SMALLEST if codec.name == "int" else 0.0
        assert both(codec, x, where, Draw.seeded(seed)).abs().max() <= most


@pytest.mark.covers(2)
@each_layout
@each_dtype
@each_codec
def test_single_coordinate_and_constant_vectors(codec: Codec, dtype: torch.dtype, name: str) -> None:
    where = layout(name, dtype)
    for value in (1.0, -3e-5, 1e30, -1e30, 1e-30):
        x = torch.full((where.size,), value, dtype=dtype)
        q = both(codec, x, where, Draw.seeded(1))
        assert q.isfinite().all()
        if codec.name in ("identity", "int"):  # nothing to round, but for the float32 of the scale
            assert torch.allclose(q, x, rtol=1e-6)
        if codec.name == "randk" or (codec.name == "topk" and name == "single"):
            kept, near = q != 0, 2**-5 if getattr(codec, "values", "") == "levels" else 1e-6
            assert torch.allclose(q[kept], x[kept] * len(x) / int(kept.sum()), rtol=near)


@each_codec
def test_minus_zero_among_others(codec: Codec) -> None:
    where = layout("one", torch.float32)
    x = gaussian(where)
    x[::2] = -0.0
    plain = torch.where(x == 0, 0.0, x)
    q = both(codec, x, where, Draw.seeded(0))
    assert torch.equal(q, codec.quantise(plain, where, Draw.seeded(0)))  # equal as numbers


@pytest.mark.covers(1)
@each_dtype
@each_codec
def test_subnormal_numbers(codec: Codec, dtype: torch.dtype) -> None:
    where = layout("several", dtype)
    x = gaussian(layout("several", torch.float64)).sign().to(dtype) * torch.linspace(1e-45, 1e-39, where.size)
    for seed in range(5):
        q = both(codec, x.to(dtype), where, Draw.seeded(seed))
        assert q.isfinite().all()
        assert q.abs().max() <= 2e-38


@pytest.mark.covers(1)
@each_dtype
@each_codec
def test_very_large_and_very_small_together(codec: Codec, dtype: torch.dtype) -> None:
    where = layout("several", dtype)
    x = torch.cat([torch.full((size,), s) for size, s in zip(where.sizes, (1e30, 1e-30, 1.0), strict=True)])
    x = x.to(dtype) * gaussian(Layout.vector(where.size, dtype)).sign()
    q = both(codec, x, where, Draw.seeded(0))
    assert q.isfinite().all()
    assert q.abs().max() <= 2e30 * where.size  # rand-k and QSGD's scale up, within reason


@pytest.mark.covers(2)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@each_dtype
@each_codec
def test_what_is_not_finite_is_seen(codec: Codec, dtype: torch.dtype, bad: float) -> None:
    where = layout("several", dtype)
    n = where.size
    x = gaussian(where).repeat(n, 1)
    x.diagonal().fill_(bad)  # in every place once, each row with a key of its own
    q = codec.quantise(x, where, keys(n))
    assert (q.isnan() if codec.name != "identity" else q.isfinite().logical_not().any(-1)).all()


@pytest.mark.covers(1)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@each_codec
def test_what_is_not_finite_is_refused_by_the_receiver(codec: Codec, bad: float) -> None:
    where = layout("several", torch.float32)
    for i in range(0, where.size, 9):
        x = gaussian(where)
        x[i] = bad
        draw = Draw.seeded(i)
        forged = codec.frame(codec.pack(codec.compress(x, where, draw), where), where)
        with pytest.raises(NotFinite):
            codec.decode(forged, where, draw)


@pytest.mark.parametrize("codec", CODECS_TESTED, ids=label)
def test_one_diverged_client_leaves_the_others_alone(codec: Codec) -> None:
    where = layout("several", torch.float32)
    x = gaussian(where, n=4)
    clean = codec.quantise(x, where, keys(4))
    x[2, 5] = float("nan")
    q = codec.quantise(x, where, keys(4))
    assert q[2].isnan().all() or codec.name == "identity"
    for i in (0, 1, 3):
        assert same(q[i], clean[i])


@pytest.mark.covers(1)
@each_dtype
@each_codec
def test_near_the_largest_number_the_result_is_right_or_not_finite(codec: Codec, dtype: torch.dtype) -> None:
    # 3e38 nearly fills a float32: sums and differences of such numbers overflow, and that must show.
    where = Layout.vector(20, dtype)
    x = gaussian(where).sign() * 3e38
    q = codec.quantise(x, where, Draw.seeded(0)).double()
    if q.isfinite().all():
        error = float((q / 3e38 - x.double() / 3e38).square().sum())
        # The error of these on such x depends on the key.
        chance = 2 if codec.name in ("count-sketch", "peaks") else 1
        assert error <= chance * 20.001 * max(codec.variance(where), 1 / 4)  # 1/4: natural above 2^127


@each_codec
def test_tensors_without_numbers(codec: Codec) -> None:
    whole = Layout(("a", "b", "c", "d"), ((0,), (40, 2), (3, 0), (9,)))
    bare = Layout(("b", "d"), ((40, 2), (9,)))
    x = gaussian(bare)
    q = both(codec, x, whole, Draw.seeded(0))
    # PowerSGD begins each matrix from numbers of its own place.
    assert codec.name == "powersgd" or same(q, both(codec, x, bare, Draw.seeded(0)))
