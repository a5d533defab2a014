"""Dithered by bits: the rate is kept, the mean is the vector, and a model too small for it is refused."""

import re

import pytest
import torch

from fedcom import FedCOMGATE, Links, Simulation
from fedcom.codecs import Auto, Codec, Dithered, LowRank, Rotated
from fedcom.codecs.coding import integer_stream
from fedcom.codecs.dithered import least_bits
from fedcom.draws import Draw
from fedcom.errors import ConfigError, NotFinite
from fedcom.vectors import Layout
from tests.codecs.cases import KINDS, LONG, each_dtype, gaussian, keys, layout, same
from tests.codecs.test_auto import LARGE, large_vector
from tests.codecs.test_statistics import errors, excess, long_vector
from tests.conftest import mlp_task

RATED = [Dithered(bits=bits) for bits in (0.5, 2.0)]
each = pytest.mark.parametrize("codec", RATED, ids=repr)


def long(dtype: torch.dtype) -> Layout:
    return Layout(LONG.names, LONG.shapes, dtype)


@each
@each_dtype
def test_bytes_carry_what_simulation_sees(codec: Codec, dtype: torch.dtype) -> None:
    where, draws = long(dtype), keys(3)
    x = gaussian(where, n=3)
    stack = codec.quantise(x, where, draws)
    for row, heard, key in zip(x, stack, draws.key, strict=True):
        data = codec.encode(row, where, Draw(key))
        assert same(codec.decode(data, where, Draw(key)), heard)
        assert (
            abs(sum(codec.itemise(codec.compress(row, where, Draw(key)), where).values()) - len(data)) <= 12
        )


@pytest.mark.parametrize("bits", [0.1, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_promises_a_variance(kind: str, bits: float) -> None:
    codec, x = Dithered(bits=bits), large_vector(kind)
    q = float((codec.quantise(x, LARGE, Draw.seeded(0)) - x).square().sum() / (x @ x))
    assert q <= codec.variance(LARGE)
    if kind == "gaussian":
        assert q >= codec.variance(LARGE) / 4


@pytest.mark.covers(1)
@each
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_the_vector(codec: Codec, kind: str) -> None:
    assert excess(errors(codec, long_vector(kind), LONG, 200)) <= 1


@pytest.mark.covers(2)
@pytest.mark.parametrize("bits", [0.1, 0.25, 0.5, 1.0, 1.8, 4.0, 8.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "make", [Rotated, lambda bits: Dithered(bits=bits), Auto], ids=("rotated", "dithered", "auto")
)
def test_the_rate_is_kept(make: type[Rotated], kind: str, bits: float) -> None:
    codec, x = make(bits), large_vector(kind)
    sizes = [len(codec.encode(x, LARGE, Draw.seeded(seed))) for seed in range(4)]
    strict = isinstance(codec, Dithered)  # the others stray about their rate by 0.6 sqrt(d) bits
    stray = 4 * 0.6 * LARGE.size**0.5 + (0.02 * bits * LARGE.size if kind == "sparse" else 0)
    assert max(sizes) <= bits * LARGE.size / 8 + (0 if strict else stray / 8)
    if kind == "gaussian" and bits >= 0.5:
        assert min(sizes) >= 0.92 * bits * LARGE.size / 8


def test_vectors_whose_sample_misleads_keep_the_rate() -> None:
    # Every other coordinate of the sample's places is zero, and those in between are not.
    x = large_vector("gaussian")
    x[torch.arange(16_384) * LARGE.size // 16_384] = 0
    for bits in (0.5, 2.0):
        sizes = [len(Dithered(bits=bits).encode(x, LARGE, Draw.seeded(seed))) for seed in range(4)]
        assert 0.85 * bits * LARGE.size / 8 <= max(sizes) <= bits * LARGE.size / 8


@each
@each_dtype
def test_edges(codec: Codec, dtype: torch.dtype) -> None:
    where, draw = long(dtype), Draw.seeded(0)
    assert not codec.quantise(torch.zeros(where.size, dtype=dtype), where, draw).any()
    x = gaussian(where).sign() * torch.linspace(1e-45, 1e-39, where.size, dtype=dtype)
    assert codec.quantise(x, where, draw).abs().max() <= 2e-38
    x = gaussian(where)
    assert same(codec.quantise(x * 2.0**60, where, draw), codec.quantise(x, where, draw) * 2.0**60)
    for bad in (float("nan"), float("inf")):
        x[7] = bad
        assert not codec.quantise(x, where, draw).isfinite().all()
        with pytest.raises(NotFinite, match="cannot send a vector that holds inf or NaN"):
            codec.encode(x, where, draw)


@pytest.mark.parametrize("d", [97, 1000, 20_000])
def test_the_least_rate_is_named_and_will_do(d: int) -> None:
    where, x = Layout.vector(d), Draw.seeded(1).normal(d)
    codec = Dithered(bits=least_bits(where) - 0.002)
    for use in (lambda: codec.variance(where), lambda: codec.encode(x, where, Draw.seeded(0))):
        with pytest.raises(ConfigError, match="raise bits or give q") as error:
            use()
        named = re.search(r"needs ([\d.]+) bits for each of this model's (\d+)", str(error.value))
        assert named is not None
        assert (float(named[1]), int(named[2])) == (least_bits(where), d)
    enough = Dithered(bits=least_bits(where))
    assert max(len(enough.encode(x, where, Draw(key))) for key in keys(8).key) <= least_bits(where) * d / 8
    q = (enough.quantise(x.expand(8, -1), where, keys(8)) - x).square().sum(-1) / (x @ x)
    assert float(q.mean()) < 1e4


def test_a_model_too_small_is_refused_before_round_0() -> None:
    for codec in (Dithered(bits=2.0), Auto(2.0)):
        with pytest.raises(ConfigError, match=r"dithered needs .* of this model's 66 coordinates"):
            Simulation(mlp_task(), FedCOMGATE(), Links(codec), device="cpu")
    with pytest.raises(ConfigError, match=r"the residual needs .*: lower rank or raise bits"):
        Simulation(mlp_task(), FedCOMGATE(), Links(LowRank(1, 2.0)), device="cpu")


def test_both_counts_of_symbols_agree() -> None:
    values = [0, 1, -1, 15, -15, 16, -17, 31, 32, 1000, -70_000, 2**31 - 1, 1 - 2**31]
    codes = torch.tensor([values, values[::-1]], dtype=torch.int32)
    symbols, widths = integer_stream.cut(codes)
    counts, raw = integer_stream.tally(codes)
    assert torch.equal(counts, integer_stream.histogram(symbols, counts.shape[-1]))
    assert raw.tolist() == widths.sum(-1).tolist()


def test_short_vectors_need_a_rate_of_their_own() -> None:
    # The codes' own 0.03, 56 bytes of header and table, and 5 sqrt(d) bits to spare.
    assert least_bits(layout("one", torch.float32)) == pytest.approx(
        0.03 + 8 * 56 / 97 + 5 / 97**0.5, abs=1e-3
    )
