"""What every codec promises: bytes and simulation agree, stacks are rows, sizes are exact, draws decide."""

import pytest
import torch
from torch import Tensor

from fedcom.codecs import CODECS, Auto, Codec, Dithered, Identity, LowRank
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.vectors import Layout
from tests.codecs.cases import (
    CODECS_TESTED,
    DITHERED,
    FIXED,
    LONG,
    RANDOM,
    ROTATED,
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


def test_every_registered_codec_is_tested_here() -> None:
    elsewhere: set[type[Codec]] = {LowRank, Auto}  # made of the others, for matrices: test_lowrank.py
    assert {type(codec) for codec in CODECS_TESTED} | elsewhere == set(CODECS.values())


def test_names_and_ids_are_distinct_and_fit_the_header() -> None:
    assert all(name == codec.name for name, codec in CODECS.items())
    ids = [codec.id for codec in CODECS.values()]
    assert len(set(ids)) == len(ids)
    assert all(0 <= i < 256 for i in ids)


def test_ids_are_never_reused() -> None:
    known = {"identity": 0, "int": 1, "qsgd": 2, "natural": 3, "randk": 5}
    known |= {"topk": 15}  # 4 was top-k with plain indices
    known |= {"sign": 10, "terngrad": 11, "powersgd": 12, "count-sketch": 13, "peaks": 14}
    assert {name: CODECS[name].id for name in known} == known


def test_dithered_takes_q_or_bits() -> None:
    assert Dithered() == Dithered(q=0.1)
    with pytest.raises(ConfigError, match="takes q or bits"):
        Dithered(q=0.1, bits=2.0)


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_has_defaults(name: str) -> None:
    codec = CODECS[name]()
    assert codec.quantise(gaussian(LONG), LONG, Draw.seeded(0)).shape == (LONG.size,)


@pytest.mark.covers(2)
@each_layout
@each_dtype
@each_codec
def test_bytes_carry_what_simulation_sees(codec: Codec, dtype: torch.dtype, name: str) -> None:
    where = layout(name, dtype)
    for seed in range(4 if CHAOS else 2):
        x, draw = gaussian(where, seed), Draw.seeded(seed)
        heard = codec.decode(codec.encode(x, where, draw), where, draw)
        assert same(heard, codec.quantise(x, where, draw))


@pytest.mark.covers(2)
@each_layout
@each_dtype
@each_codec
def test_a_stack_is_its_rows(codec: Codec, dtype: torch.dtype, name: str) -> None:
    where, draw = layout(name, dtype), keys(5)
    x = gaussian(where, n=5)
    rows = [codec.quantise(row, where, Draw(key)) for row, key in zip(x, draw.key, strict=True)]
    assert same(codec.quantise(x, where, draw), torch.stack(rows))


@pytest.mark.covers(1)
@each_dtype
@each_codec
def test_a_wide_stack_is_its_rows(codec: Codec, dtype: torch.dtype) -> None:
    # Long rows are where a reduction may be split differently for a stack.
    where, draw = Layout(("a", "b"), ((300, 50), (5001,)), dtype), keys(3)
    x = gaussian(where, n=3)
    rows = [codec.quantise(row, where, Draw(key)) for row, key in zip(x, draw.key, strict=True)]
    assert same(codec.quantise(x, where, draw), torch.stack(rows))


@pytest.mark.covers(2)
@each_layout
@each_dtype
@each_codec
def test_sizes_are_known_without_the_bytes(codec: Codec, dtype: torch.dtype, name: str) -> None:
    where = layout(name, dtype)
    one = codec.itemise(codec.compress(gaussian(where), where, Draw.seeded(0)), where)
    many = codec.itemise(codec.compress(gaussian(where, n=5), where, keys(5)), where)
    real = len(codec.encode(gaussian(where), where, Draw.seeded(0)))
    assert real == sum(one.values())
    if codec.exact_size:
        for item, size in many.items():
            assert torch.as_tensor(size).expand(5).tolist() == 5 * [int(one[item])]


@pytest.mark.parametrize("codec", [c for c in CODECS_TESTED if not c.exact_size], ids=label)
@pytest.mark.parametrize("d", [3613, 60_000])
def test_sizes_of_coded_messages_are_known_too(codec: Codec, d: int) -> None:
    where, draw = Layout.vector(d), keys(3)
    x = gaussian(where, n=3) * torch.tensor([[1.0], [1e3], [0.0]])
    x[1] = x[1] ** 3
    ones = [
        codec.itemise(codec.compress(row, where, Draw(k)), where) for row, k in zip(x, draw.key, strict=True)
    ]
    reals = [len(codec.encode(row, where, Draw(key))) for row, key in zip(x, draw.key, strict=True)]
    assert [sum(one.values()) for one in ones] == reals
    stack = codec.itemise(codec.compress(x, where, draw), where)
    for item, sizes in stack.items():
        assert torch.as_tensor(sizes).expand(3).tolist() == [int(one[item]) for one in ones]


@pytest.mark.covers(1)
@each_dtype
@each_codec
def test_shape_and_dtype_stay(codec: Codec, dtype: torch.dtype) -> None:
    where = layout("several", dtype)
    q = codec.quantise(gaussian(where, n=3), where, keys(3))
    assert q.shape == (3, where.size)
    assert q.dtype == dtype


@each_codec
def test_the_vector_itself_is_left_alone(codec: Codec) -> None:
    where = layout("several", torch.float32)
    x = gaussian(where)
    before = x.clone()
    codec.decode(codec.encode(x, where, Draw.seeded(0)), where, Draw.seeded(0))
    assert same(x, before)


def _twice(codec: Codec, a: Draw, b: Draw) -> tuple[Tensor, Tensor]:
    where = layout("one", torch.float32)
    x = gaussian(where)
    return codec.quantise(x, where, a), codec.quantise(x, where, b)


@each_codec
def test_same_key_same_result(codec: Codec) -> None:
    assert same(*_twice(codec, Draw.seeded(3), Draw.seeded(3)))


@pytest.mark.parametrize("codec", RANDOM + DITHERED, ids=label)
def test_other_key_other_result(codec: Codec) -> None:
    assert not same(*_twice(codec, Draw.seeded(3), Draw.seeded(4)))


@pytest.mark.parametrize("codec", ROTATED, ids=label)
def test_other_key_other_rotation(codec: Codec) -> None:
    # Of a short vector at a low rate nothing is left but zeros, whatever the key.
    a, b = (codec.quantise(gaussian(LONG), LONG, Draw.seeded(seed)) for seed in (3, 4))
    assert not same(a, b)


@pytest.mark.parametrize("codec", FIXED, ids=label)
def test_codecs_that_draw_nothing_ignore_the_key(codec: Codec) -> None:
    assert same(*_twice(codec, Draw.seeded(3), Draw.seeded(4)))


@pytest.mark.covers(2)
@each_dtype
@each_codec
@pytest.mark.parametrize("power", [-80, 60, 80])
def test_a_power_of_two_passes_through(codec: Codec, dtype: torch.dtype, power: int) -> None:
    # All scales are relative, and multiplying by 2^power is exact: 1e-24 is treated as 1e24 is.
    where, draw = layout("several", dtype), Draw.seeded(0)
    x, factor = gaussian(where), 2.0**power
    assert same(codec.quantise(x * factor, where, draw), codec.quantise(x, where, draw) * factor)


@each_codec
def test_kept_is_the_share_that_travels(codec: Codec) -> None:
    where = Layout.vector(1000)
    q = codec.quantise(torch.full((1000,), 2.0), where, Draw.seeded(0))
    if codec.name in ("topk", "randk"):
        assert int((q != 0).sum()) == round(1000 * codec.kept(where))
    elif codec.unbiased:
        assert codec.kept(where) == 1 / (1 + codec.variance(where))
    else:
        assert codec.kept(where) == 1.0


def test_only_the_identity_is_lossless() -> None:
    assert [codec for codec in CODECS_TESTED if codec.lossless] == [Identity()]
    where = layout("several", torch.float64)
    x = gaussian(where)
    assert same(Identity().quantise(x, where, Draw.seeded(0)), x)
