"""Small cases worked out by hand, one codec at a time, and parameters that make no sense."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcom.codecs import Codec, Int, Natural, Qsgd, RandK, TopK
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.vectors import Layout
from tests.codecs.cases import gaussian, keys, layout

EPS = 2.0**-23


def vector(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def quantise(codec: Codec, x: Tensor, draw: Draw | None = None) -> Tensor:
    return codec.quantise(x, Layout.vector(x.shape[-1], x.dtype), draw or Draw.seeded(0))


def shares(codec: Codec, values: list[float], n: int = 4000) -> tuple[Tensor, list[list[float]]]:
    """Q(x) over n keys, and the distinct values each coordinate took."""
    q = quantise(codec, vector(*values).expand(n, -1), keys(n))
    return q, [column.unique().tolist() for column in q.T]


def near(p: float, n: int = 4000) -> Any:
    """A frequency over n draws within 5 sigma of p."""
    return pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)


# Affine integers


def test_int_two_bits_nearest() -> None:
    codec, where, draw = Int(2, "nearest"), Layout.vector(4), Draw.seeded(0)
    parts = codec.compress(vector(0, 1, 2, 3), where, draw)
    assert parts["codes"].tolist() == [0, 1, 2, 3]
    assert parts["low"].tolist() == [0.0]
    assert parts["step"].tolist() == [1 + EPS]  # the float32 just above (3 - 0) / 3
    assert codec.expand(parts, where, draw).tolist() == [0.0, 1 + EPS, 2 + 2 * EPS, 3 + 4 * EPS]


def test_int_rounds_to_nearest() -> None:
    parts = Int(2, "nearest").compress(vector(-1, -0.6, -0.4, 0.4, 0.6, 2), Layout.vector(6), Draw.seeded(0))
    assert parts["codes"].tolist() == [0, 0, 1, 1, 2, 3]


def test_int_rounds_up_as_often_as_it_should() -> None:
    q, values = shares(Int(1), [0.0, 0.25, 0.5, 1.0])
    top = 1 + EPS
    assert values == [[0.0], [0.0, top], [0.0, top], [top]]
    assert (q > 0).double().mean(0).tolist() == [0.0, near(0.25), near(0.5), 1.0]


def test_int_scales_each_tensor_or_the_whole() -> None:
    where = Layout(("a", "b"), ((2,), (2,)))
    x = vector(0, 1, 0, 100)
    draw = Draw.seeded(0)
    assert Int(2).compress(x, where, draw)["step"].tolist() == pytest.approx([1 / 3, 100 / 3])
    assert Int(2, scale="vector").compress(x, where, draw)["step"].tolist() == pytest.approx([100 / 3])
    small = Int(8, "nearest").quantise(x, where, draw)[1]
    assert small == pytest.approx(1.0)
    assert Int(8, "nearest", "vector").quantise(x, where, draw)[1] == pytest.approx(3 * 100 / 255)


def test_the_bytes_of_an_int_message() -> None:
    where = Layout.vector(4)
    message = Int(4, "nearest").encode(vector(0, 1, 2, 3), where, Draw.seeded(0))
    step = struct.unpack("<f", struct.pack("<I", 0x3E4CCCCD + 1))[0]  # the float32 just above 0.2
    body = struct.pack("<ff", 0.0, step) + bytes([0x05, 0xAF])  # codes 0, 5, 10, 15
    header = (
        b"FC"
        + bytes([1, 1])
        + struct.pack("<III", Int(4, "nearest").fingerprint(where), 10, zlib.crc32(body))
    )
    assert message == header + body


def test_zero_point_noise_shifts_whole_tensors_by_whole_steps() -> None:
    where, r, n = layout("several", torch.float64), 3, 300
    x, draw = gaussian(where), keys(n)
    plain = Int(8).quantise(x.expand(n, -1), where, draw)
    noisy = Int(8, zero_point_noise=r).quantise(x.expand(n, -1), where, draw)
    seen = []
    for block, shift in zip(where.split(x), where.split(noisy - plain), strict=True):
        steps = shift / (float(block.max() - block.min()) / 255)
        assert float((steps - steps.round()).abs().max()) < 1e-3
        assert torch.equal(steps.round(), steps[:, :1].round().expand_as(steps))  # one shift a tensor
        seen.append(steps[:, 0].round().long())
        assert sorted(seen[-1].unique().tolist()) == list(range(-r, r + 1))
    assert not torch.equal(seen[0], seen[1])  # each tensor has its own


@pytest.mark.parametrize("bits", [1, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_int_scales_reach_from_the_smallest_to_the_largest(bits: int, dtype: torch.dtype) -> None:
    # They travel as float32 and must not fall short of the data, or its ends would be clipped.
    where = layout("several", dtype)
    for seed in range(20):
        x = gaussian(where, seed)
        parts = Int(bits).compress(x, where, Draw.seeded(seed))
        for block, low, step in zip(where.split(x), parts["low"], parts["step"], strict=True):
            assert low <= block.min()
            high = low.double() + step.double() * (2**bits - 1)
            slack = 0 if dtype == torch.float64 else 1e-7 * (block.max() - block.min())
            assert high + slack >= block.max()


# QSGD


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_qsgd_norms_do_not_fall_short(dtype: torch.dtype) -> None:
    where = layout("several", dtype)
    for seed in range(20):
        x = gaussian(where, seed)
        norms = Qsgd(3).compress(x, where, Draw.seeded(seed))["norm"]
        for block, norm in zip(where.split(x), norms, strict=True):
            assert block.double().norm() <= norm <= block.double().norm() * (1 + 2 * EPS)


def test_qsgd_one_level() -> None:
    q, values = shares(Qsgd(1), [3.0, -4.0, 0.0])
    assert values == [[0.0, pytest.approx(5.0)], [pytest.approx(-5.0), 0.0], [0.0]]
    assert (q != 0).double().mean(0).tolist() == [near(0.6), near(0.8), 0.0]


def test_qsgd_levels_between() -> None:
    # 3/5 of four levels is 2.4: level 2 or 3, which are 2.5 and 3.75.
    q, values = shares(Qsgd(4), [3.0, -4.0])
    assert values == [
        [pytest.approx(2.5), pytest.approx(3.75)],
        [pytest.approx(-5.0), pytest.approx(-3.75)],
    ]
    assert (q[:, 0] > 3).double().mean().item() == near(0.4)
    assert (q[:, 1] < -4).double().mean().item() == near(0.2)


def test_qsgd_norms_are_per_tensor_or_whole() -> None:
    where = Layout(("a", "b"), ((2,), (1,)))
    x, draw = vector(3, 4, 12), Draw.seeded(0)
    assert Qsgd(9).compress(x, where, draw)["norm"].tolist() == pytest.approx([5.0, 12.0])
    assert Qsgd(9, "vector").compress(x, where, draw)["norm"].tolist() == pytest.approx([13.0])


@pytest.mark.parametrize(
    ("levels", "bits"), [(1, 2), (3, 3), (4, 4), (7, 4), (127, 8), (128, 9), (32767, 16)]
)
def test_qsgd_width_holds_every_level(levels: int, bits: int) -> None:
    assert Qsgd(levels).fields(Layout.vector(10))[1].bits == bits


# Natural compression


def test_natural_gives_the_powers_of_two_around_x() -> None:
    q, values = shares(Natural(), [3.0, -5.0, 1.75, 0.0, 4.0])
    assert values == [[2.0, 4.0], [-8.0, -4.0], [1.0, 2.0], [0.0], [4.0]]
    assert (q.abs() > vector(3, 5, 1.75, 1, 5)).double().mean(0).tolist() == [
        near(0.5),
        near(0.25),
        near(0.75),
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_natural_stays_within_a_factor_of_two(dtype: torch.dtype) -> None:
    x = gaussian(Layout.vector(2000, dtype)) * 10.0 ** torch.linspace(-30, 30, 2000).to(dtype)
    q = quantise(Natural(), x)
    mantissa, _ = torch.frexp(q)
    assert torch.equal(mantissa.abs(), torch.full_like(x, 0.5))
    assert torch.equal(q.sign(), x.sign())
    assert ((q.abs() > x.abs() / 2) & (q.abs() < 2 * x.abs())).all()


@pytest.mark.parametrize("exponent", [-126, -60, -1, 0, 1, 127])
def test_natural_keeps_powers_of_two(exponent: int) -> None:
    x = vector(2.0**exponent, -(2.0**exponent))
    assert torch.equal(quantise(Natural(), x.expand(100, -1), keys(100)), x.expand(100, -1))


def test_natural_ends_at_two_to_the_127() -> None:
    q, values = shares(Natural(), [1.5 * 2.0**126, 3e38, -3e38])
    assert values == [[2.0**126, 2.0**127], [2.0**127], [-(2.0**127)]]
    assert (q[:, 0] > 1e38).double().mean().item() == near(0.5)


def test_natural_rounds_subnormals_to_zero_or_the_smallest_power() -> None:
    q, values = shares(Natural(), [2.0**-128, -(2.0**-127)])
    assert values == [[0.0, 2.0**-126], [-(2.0**-126), 0.0]]
    assert (q != 0).double().mean(0).tolist() == [near(0.25), near(0.5)]


def test_natural_does_not_hide_what_float32_cannot_hold() -> None:
    assert quantise(Natural(), vector(1.0, 1e39, dtype=torch.float64)).isnan().all()


# Top-k


@pytest.mark.parametrize("ratio", [0.5, 0.4])
def test_topk_keeps_the_largest(ratio: float) -> None:
    assert quantise(TopK(ratio), vector(1, -5, 3, 0.5)).tolist() == [0.0, -5.0, 3.0, 0.0]


def test_topk_keeps_the_largest_of_the_whole_vector() -> None:
    where = Layout(("a", "b"), ((4,), (4,)))
    x = vector(1, 2, 3, 4, 50, 60, 70, 80)
    assert TopK(0.5).quantise(x, where, Draw.seeded(0)).tolist() == [0, 0, 0, 0, 50, 60, 70, 80]


def test_topk_of_ties_keeps_exactly_k() -> None:
    assert int((quantise(TopK(0.3), torch.full((50,), -2.0)) != 0).sum()) == 15


def test_topk_keeps_a_share_of_every_chunk() -> None:
    x = vector(9, 8, 7, 1, 2, -3, 40, 50, 0.5, 0.25)
    q = quantise(TopK(0.5, chunk=4), x)  # two of four, two of four, one of the two that are left
    assert q.tolist() == [9, 8, 0, 0, 0, 0, 40, 50, 0.5, 0]


def test_the_bytes_of_topk_messages() -> None:
    where, x = Layout.vector(4), vector(0, 0, -4, 0.5)
    body = TopK(1 / 4).encode(x, where, Draw.seeded(0))[16:]
    assert body == bytes([64]) + struct.pack("<f", -4.0)  # the third of four: tests/codecs/coding
    body = TopK(1.0).encode(x, where, Draw.seeded(0))[16:]
    assert body == struct.pack("<4f", 0, 0, -4, 0.5)  # all are kept: there are no positions
    # Levels 4 and 0.5 as twelve bits of float32, then minus large, plus small.
    body = TopK(1 / 2, "levels").encode(x, where, Draw.seeded(0))[16:]
    assert body[-4:] == bytes([0x81, 0x07, 0xE0, 0b11_00_0000])
    assert len(body) == 5


def test_the_two_levels_of_topk_have_the_least_error() -> None:
    # Of 8, -7, 2, 1 and 0 the means of the two largest and of the others, 7.5 and 1, lose least.
    x = vector(8, -7, 2, 1, 0, 0, 0, 0, 0, 0)
    q = quantise(TopK(0.5, "levels"), x)
    assert sorted(q.tolist()) == [-7.5, 0, 0, 0, 0, 0, 1, 1, 1, 7.5]
    kept = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    q = quantise(TopK(1.0, "levels"), kept)
    size, lost = kept.abs().sort().values, []
    for n in range(1, 30):
        lost.append(sum(float((part - part.mean()).square().sum()) for part in (size[:n], size[n:])))
    rounding = float(kept @ kept) * 2.0**-10
    assert min(lost) - 1e-12 <= float((q - kept).square().sum()) <= min(lost) + rounding


def test_topk_at_the_rate_of_others() -> None:
    # 64 of each 4096 with 2-bit values: log2 C(4096, 64) + 128 + 24 bits of each chunk, and the header.
    codec = TopK(64 / 4096, "levels", chunk=4096)
    for d in (199_210, 2**18, 1_000_000):
        where = Layout.vector(d)
        data = codec.encode(gaussian(where), where, Draw.seeded(0))
        assert 8 * len(data) / d < 0.153
        assert len(data) == sum(codec.itemise({}, where).values())
    whole = Layout.vector(2**18)
    assert 8 * sum(TopK(0.01).itemise({}, whole).values()) / 2**18 == pytest.approx(0.32 + 0.0808, abs=6e-4)


def test_topk_values_may_be_integers() -> None:
    # The kept ones are -4, 2 and -1, in steps of 2: -1 becomes -2 or 0; the rest stay zero.
    x = vector(0.1, -4, 0.2, 2, -1, 0.05)
    q, values = shares(TopK(0.5, "int", 2), x.tolist())
    assert [values[i] for i in (0, 2, 5)] == [[0.0]] * 3
    assert values[1] == [-4.0]
    assert values[3] == [pytest.approx(2.0)]
    assert values[4] == [pytest.approx(-2.0), pytest.approx(0.0, abs=1e-5)]
    assert (q[:, 4] > -1).double().mean().item() == near(0.5)


# Rand-k


def test_randk_scales_what_it_keeps() -> None:
    x = gaussian(Layout.vector(50))
    q = quantise(RandK(0.2), x)
    kept = q != 0
    assert int(kept.sum()) == 10
    assert torch.equal(q[kept], x[kept] * 5)


def test_which_coordinates_depends_on_the_key_alone() -> None:
    where = Layout.vector(50)
    a, b = (quantise(RandK(0.2), gaussian(where, seed), Draw.seeded(9)) != 0 for seed in (1, 2))
    c = quantise(RandK(0.2), gaussian(where, 1), Draw.seeded(10)) != 0
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    indices = RandK(0.2).indices(where, Draw.seeded(9))
    assert indices.tolist() == a.nonzero().flatten().tolist()


def test_randk_sends_no_indices() -> None:
    assert len(RandK(0.1).encode(torch.ones(1000), Layout.vector(1000), Draw.seeded(0))) == 16 + 4 * 100


# Parameters


@pytest.mark.parametrize(
    ("make", "value"),
    [
        *((lambda v: Int(bits=v), value) for value in (0, 17, -1, 32)),
        *((lambda v: Int(zero_point_noise=v), value) for value in (-1, 65536)),
        *((lambda v: Qsgd(levels=v), value) for value in (0, -3, 32768)),
        *((lambda v: TopK(ratio=v), value) for value in (0.0, -0.1, 1.5, float("nan"))),
        *((lambda v: TopK(values="int", bits=v), value) for value in (0, 17)),
        *((lambda v: RandK(ratio=v), value) for value in (0.0, -1e-9, 1.0001, float("inf"))),
    ],
)
def test_parameters_out_of_range_are_named(make: Callable[[float], Codec], value: float) -> None:
    with pytest.raises(ConfigError, match=rf"must be .*; got {value!r}$"):
        make(value)


@pytest.mark.parametrize("codec", [Int(16), Int(zero_point_noise=65535), Qsgd(32767), TopK(1), RandK(1)])
def test_the_ends_of_the_ranges_work(codec: Codec) -> None:
    x = gaussian(Layout.vector(20))
    assert quantise(codec, x).isfinite().all()


def test_a_tiny_ratio_still_keeps_one() -> None:
    x = vector(1, -7, 2)
    assert quantise(TopK(1e-6), x).tolist() == [0.0, -7.0, 0.0]
    assert int((quantise(RandK(1e-6), x) != 0).sum()) == 1
