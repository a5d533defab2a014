"""What is not finite, or too large for its message, has one meaning: NaN everywhere, and no message."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedcom.codecs import Auto, Codec, Dithered, Identity, LowRank, Peaks, Rotated, Sign, compact
from fedcom.codecs.base import Parts
from fedcom.codecs.coding import rotation
from fedcom.codecs.kernels import cpu
from fedcom.codecs.wire import Field
from fedcom.draws import Draw, Strata
from fedcom.errors import NotFinite
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Layout
from tests.codecs.cases import CODECS_TESTED, LONG, gaussian, keys, label, layout, same
from tests.codecs.kernels.test_cpu import plainly
from tests.conftest import CHAOS

SMALL = [*CODECS_TESTED, Dithered(bits=8.0), LowRank(1, q=0.1), LowRank(1, 9.0), Auto(q=0.1), Auto(8.0)]
LARGE: list[Codec] = [  # for the layout LONG
    *(Dithered(bits=2.0), LowRank(1, 1.0), LowRank(2, 2.0), Rotated(1.0, "trellis"), Rotated(0.3)),
    *(Auto(1.0), Auto(0.04), Auto(q=0.1), Auto(q=50.0), Peaks(0.05)),
]
CASES = [*((codec, "several") for codec in SMALL), *((codec, "long") for codec in LARGE)]
BAD = [torch.nan, torch.inf, -torch.inf]
HUGE = [3e38, -3e38, 1e38, torch.finfo(torch.float32).max, 1e36, -1e36]
WIDE = [1e39, -1e39, 1e154, -1e300, torch.finfo(torch.float64).max]  # finite in float64 alone


def place(name: str, dtype: torch.dtype) -> Layout:
    return Layout(LONG.names, LONG.shapes, dtype) if name == "long" else layout(name, dtype)


class NoWildCasts(TorchDispatchMode):
    """Fails where a float is cast to an integer that cannot hold it: the result depends on the machine."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        source = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}.get(func)
        if source is not None and args[source].is_floating_point() and _whole(out.dtype):
            most = 2.0 ** (8 * out.dtype.itemsize - 1)
            assert (args[source].double().abs() < most).all(), "a float is cast to an integer it does not fit"
        return out


def _whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and dtype is not torch.bool


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits, where a NaN is a NaN."""
    return torch.equal(a.isnan(), b.isnan()) and same(
        a.nan_to_num(0.0, torch.inf), b.nan_to_num(0.0, torch.inf)
    )


def heard_of(codec: Codec, x: Tensor, where: Layout, draw: Draw) -> tuple[Tensor, list[int]]:
    """What is heard of a stack, the same by every way that makes no bytes, and the bytes of each row."""
    heard, sizes = codec.transmit(x, where, draw)
    with NoWildCasts():
        parts = codec.compress(x, where, draw)
        assert alike(codec.expand(parts, where, draw), heard)
        assert alike(codec.quantise(x, where, draw), heard)
    for field in codec.fields(where):
        if not field.floating and field.name in parts:
            assert ((parts[field.name] >= 0) & (parts[field.name] < 2**field.bits)).all(), field.name
    total = sum(torch.as_tensor(size).expand(len(x)) for size in sizes.values())
    return heard, total.tolist()  # type: ignore[union-attr]


def size_of_zeros(codec: Codec, x: Tensor, where: Layout, draw: Draw) -> list[int]:
    """The bytes of vectors of zeros; those of auto by its first candidate."""
    if not isinstance(codec, Auto):
        return heard_of(codec, torch.zeros_like(x), where, draw)[1]
    tag = 0 if codec.format is compact else 1
    return [size + tag for size in size_of_zeros(codec.candidates(where)[0], x, where, draw)]


def follows_the_rule(codec: Codec, x: Tensor, where: Layout, draw: Draw) -> tuple[Tensor, list[int]]:
    """What is heard of a stack, and the bytes of each row, once both are as the rule says."""
    heard, sizes = heard_of(codec, x, where, draw)
    for i, row in enumerate(x):
        alone = codec.quantise(row, where, draw[i])
        assert alike(alone, heard[i])
        if heard[i].isfinite().all():
            assert row.isfinite().all()
            message = codec.encode(row, where, draw[i])
            assert same(codec.decode(message, where, draw[i]), heard[i])
        else:
            assert heard[i].isnan().all() or codec == Identity()
            assert sizes[i] == size_of_zeros(codec, x, where, draw)[i]
            with pytest.raises(NotFinite):
                codec.encode(row, where, draw[i])
    return heard, sizes


@settings(max_examples=400 if CHAOS else 30)
@given(st.data())
def test_every_codec_path_and_place(data: st.DataObject) -> None:
    codec, name = data.draw(st.sampled_from(CASES), "codec")
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), "dtype")
    where, n = place(name, dtype), data.draw(st.integers(1, 4), "rows")
    clean = gaussian(where, n=n)
    values = st.sampled_from(BAD + HUGE + WIDE if dtype == torch.float64 else BAD + HUGE)
    places = st.tuples(st.integers(0, n - 1), st.integers(0, where.size - 1), values)
    x, spoiled = clean.clone(), set()
    for row, i, value in data.draw(st.lists(places, min_size=1, max_size=4), "what is wrong"):
        x[row, i] = value
        spoiled.add(row)
    if data.draw(st.booleans(), "every coordinate is huge"):
        x[0] = x[0].sign() * data.draw(values.filter(np.isfinite), "size")
        spoiled.add(0)
    draw = keys(n, data.draw(st.integers(0, 9), "seed"))
    if codec.dithers and codec.unbiased and data.draw(st.booleans(), "correlated"):
        draw = Draw(draw.key, Strata(Draw.seeded(5), torch.arange(n), n))
    with pytest.MonkeyPatch.context() as patch:
        heard, sizes = follows_the_rule(codec, x, where, draw)
        untouched, before = heard_of(codec, clean, where, draw)
        for i in set(range(n)) - spoiled:
            assert same(heard[i], untouched[i])
            assert sizes[i] == before[i]
        plainly(patch)
        again, _ = follows_the_rule(codec, x, where, draw)
        if codec.name not in ("rotated", "auto", "lowrank"):  # their sums are added in another order there
            assert alike(again, heard)
        assert torch.equal(again.isnan(), heard.isnan())


@pytest.mark.covers(1)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("codec", "name"), CASES, ids=str)
def test_one_number_spoils_its_message_and_no_other(
    codec: Codec, name: str, dtype: torch.dtype, bad: float
) -> None:
    where = place(name, dtype)
    x = gaussian(where, n=3)
    clean = codec.quantise(x, where, keys(3))
    for i in (0, where.size // 2, where.size - 1):
        y = x.clone()
        y[1, i] = bad
        heard = codec.quantise(y, where, keys(3))
        assert same(heard[[0, 2]], clean[[0, 2]])
        assert heard[1].isnan().all() or codec == Identity()
        with pytest.raises(NotFinite):
            codec.encode(y[1], where, keys(3)[1])


@pytest.mark.parametrize("codec", [codec for codec, name in CASES if name == "several"], ids=label)
def test_numbers_far_below_the_largest_are_sent(codec: Codec) -> None:
    where = layout("several", torch.float32)
    x = torch.full((where.size,), 1e36)
    assert codec.quantise(x, where, Draw.seeded(0)).isfinite().all()


@pytest.mark.parametrize("codec", [Rotated(2.0), Rotated(2, "fixed"), Peaks(0.5)], ids=label)
def test_a_rotation_that_overflows_is_not_heard_as_zeros(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, whose kernels take the sum of squares before the rotation: it is finite."""
    x = torch.full((2, 5000), 3e38)
    power = x.double().square().sum(-1, keepdim=True)
    assert power.isfinite().all()
    monkeypatch.setattr(rotation, "power_of", lambda *_: power)
    assert codec.quantise(x, Layout.vector(5000), keys(2)).isnan().all()


def test_the_loops_cast_no_nan() -> None:
    """Run by Python, which refuses to make an integer of NaN, as a processor does not."""
    x = np.array([[1.0, np.nan, np.inf, -np.inf, 3e38, -3e38]], np.float32)
    codes, keys_ = np.zeros(x.shape, np.int32), np.zeros(1, np.int64)
    one = np.ones((1, 1), np.float32)
    for low, step in ((one, one), (one, one * np.float32(np.nan)), (-one * np.float32(np.inf), one)):
        scales = (low, step, np.array([0, 6]), np.float32(255), keys_, False)
        with np.errstate(all="ignore"):
            _python(cpu._integers)(x, scales, codes)
        assert ((codes >= 0) & (codes <= 255)).all()


def _python(loop: Any) -> Any:
    """A loop as Python runs it; the functions it calls may be compiled."""
    return loop.py_func


@dataclass(frozen=True)
class Halves(Codec):
    """Somebody's codec: signs and a mean, which divides by zero and never looks for NaN."""

    name: ClassVar[str] = "halves"
    id: ClassVar[int] = 200

    @property
    def unbiased(self) -> bool:
        return False

    def variance(self, layout: Layout) -> float:
        return 1.0

    def fields(self, layout: Layout) -> list[Field]:
        return [Field("mean", 1, 32, floating=True), Field("signs", layout.size, 1)]

    def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
        mean = x.nan_to_num(0.0, 0.0, 0.0).sum(-1, keepdim=True) / (x != 0).sum(-1, keepdim=True)
        return {"mean": mean.to(torch.float32), "signs": (x > 0).to(torch.int32)}

    def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
        return (2 * parts["signs"] - 1) * parts["mean"].to(layout.dtype)


@pytest.mark.parametrize("bad", BAD)
def test_somebodys_codec_cannot_hide_what_is_not_finite(bad: float) -> None:
    where, codec = layout("several", torch.float32), Halves()
    x = gaussian(where, n=3)
    clean = codec.quantise(x, where, keys(3))
    x[1, 7] = bad
    for heard in (codec.quantise(x, where, keys(3)), codec.transmit(x, where, keys(3))[0]):
        assert heard[1].isnan().all()
        assert same(heard[[0, 2]], clean[[0, 2]])
    with pytest.raises(NotFinite, match="cannot send"):
        codec.encode(x[1], where, Draw.seeded(0))


def test_somebodys_codec_that_makes_nan_is_heard_as_it_is_and_sends_nothing() -> None:
    where, codec = layout("several", torch.float32), Halves()
    zeros = torch.zeros(where.size)
    assert codec.quantise(zeros, where, Draw.seeded(0)).isnan().all()
    with pytest.raises(NotFinite, match=r"halves cannot send this vector: its 'mean'"):
        codec.encode(zeros, where, Draw.seeded(0))


@pytest.mark.parametrize("codec", [Sign(), Rotated(2.0), Peaks(50.0), Halves()], ids=label)
def test_a_channel_that_makes_bytes_refuses_what_another_hears_as_nan(codec: Codec) -> None:
    where = layout("several", torch.float32)
    x = gaussian(where, n=2)
    x[1, 3] = torch.inf
    counted = Channel("uplink", [Ledger(2)]).send("D", x, where, codec, keys(2))
    assert counted[1].isnan().all()
    with pytest.raises(NotFinite, match=f"{codec.name} cannot send a vector that holds inf or NaN"):
        Channel("uplink", [Ledger(2)], encode=True).send("D", x, where, codec, keys(2))
