"""The fused loops make the bytes and the numbers that torch makes without them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedcom.codecs import Codec, Dithered, Int, Peaks, Rotated
from fedcom.codecs.coding import hadamard, integer_stream
from fedcom.codecs.kernels import butterflies, cpu, jit
from fedcom.draws import Draw
from fedcom.errors import WireError
from fedcom.vectors import Layout
from tests.codecs.cases import keys, label, same

pytestmark = pytest.mark.skipif(not jit.COMPILED, reason="numba is not installed")
CODECS: list[Codec] = [
    Dithered(q=0.1),
    Dithered(q=1e-4),
    Dithered(q=1e-10),
    *map(Rotated, (0.5, 2.0, 7.9)),
    Peaks(50.0),
    *map(Int, (1, 8, 16)),
    Int(5, rounding="nearest"),
    Int(8, zero_point_noise=9),
]
SIZES = (1, 5, 97, 5000, 199210)
CASES = [
    *((codec, d) for codec in CODECS for d in SIZES),
    *((codec, d) for codec in (Dithered(bits=1.0), Peaks(0.02)) for d in SIZES[3:]),
]


def gaussian(d: int) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(d))


def vectors(d: int) -> dict[str, Tensor]:
    x = gaussian(d)
    sparse = x * (torch.arange(d) % (d // 3 + 1) == 0)
    broken = {name: x.index_fill(0, torch.tensor([d // 2]), float(name)) for name in ("nan", "inf", "-inf")}
    constant = torch.full((d,), -0.7)
    plain = {"gaussian": x, "heavy": x**3, "zero": 0 * x, "constant": constant, "sparse": sparse}
    return {**plain, "huge": x * 1e37, "tiny": x * 1e-42, **broken}


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the fused loops away."""
    monkeypatch.setattr(cpu, "ready", lambda *_: False)
    for module in ("coding.rotation", "coding.integer_stream"):
        monkeypatch.setattr(f"fedcom.codecs.{module}.COMPILED", False)


@pytest.mark.covers(1)
@pytest.mark.parametrize(
    ("codec", "d"), CASES, ids=lambda case: label(case) if isinstance(case, Codec) else None
)
def test_same_bytes_and_same_vectors(codec: Codec, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    where, draw = Layout.vector(d), Draw.seeded(d)

    def message(x: Tensor) -> bytes:
        """The message, also of a vector that `encode` refuses."""
        return codec.frame(codec.pack(codec.compress(x, where, draw), where), where)

    fast = {name: message(x) for name, x in vectors(d).items()}
    heard = {}
    for name, data in fast.items():
        if torch.isfinite(vectors(d)[name]).all() and name != "huge":
            heard[name] = codec.decode(data, where, draw)
            assert same(heard[name], codec.quantise(vectors(d)[name], where, draw)), name
    plainly(monkeypatch)
    for name, x in vectors(d).items():
        assert message(x) == fast[name], name
    for name, x in heard.items():
        assert same(codec.decode(fast[name], where, draw), x), name


@pytest.mark.covers(1)
@pytest.mark.parametrize("d", SIZES[:-1])
@pytest.mark.parametrize("shared", [False, True])
def test_stacks(d: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Draw.seeded(1) if shared else keys(3)
    x = torch.stack([gaussian(d), gaussian(d) ** 3, torch.zeros(d)])
    where = Layout.vector(d)
    codecs = [codec for codec, size in CASES if size == d]
    fast = [codec.quantise(x, where, draw) for codec in codecs]
    turned = hadamard.rotate(x, draw)
    back = hadamard.unrotate(turned, d, draw)
    plainly(monkeypatch)
    assert all(same(codec.quantise(x, where, draw), q) for codec, q in zip(codecs, fast, strict=True))
    assert same(hadamard.rotate(x, draw), turned)
    assert same(hadamard.unrotate(turned, d, draw), back)
    assert torch.allclose(back, x, atol=1e-5)


@settings(max_examples=100)
@given(st.data())
def test_integers_of_any_tensors(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4), "sizes")
    where = Layout(tuple(map(str, range(len(sizes)))), tuple((size,) for size in sizes))
    rows = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]), "leading axes")
    shape = (*rows, where.size)
    numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf])
    finite = st.floats(-10, 10, width=32)
    values = data.draw(arrays(np.float32, shape, elements=data.draw(st.sampled_from([finite, numbers]))), "x")
    x, own = torch.from_numpy(values), data.draw(st.booleans(), "own keys")
    draw = Draw.seeded(7).fold(torch.arange(math.prod(rows)).reshape(rows)) if own else Draw.seeded(7)
    codec = Int(
        data.draw(st.integers(1, 16), "bits"),
        rounding=data.draw(st.sampled_from(["stochastic", "nearest"])),
        scale=data.draw(st.sampled_from(["tensor", "vector"])),
        zero_point_noise=data.draw(st.sampled_from([0, 3])),
    )
    parts, heard = codec.compress(x, where, draw), codec.quantise(x, where, draw)
    assert same(codec.expand(parts, where, draw), heard)
    with pytest.MonkeyPatch.context() as patch:
        plainly(patch)
        assert all(same(part, parts[name]) for name, part in codec.compress(x, where, draw).items())
        assert same(codec.quantise(x, where, draw), heard)


def test_codes_of_any_size_are_cut_as_torch_cuts_them() -> None:
    codes = torch.cat([torch.arange(-300, 301), 2 ** torch.arange(31), 1 - 2 ** torch.arange(31)])
    codes = torch.cat([codes, torch.tensor([2**31 - 128, 128 - 2**31])])
    symbols, widths = integer_stream.cut(codes)
    array = codes.to(torch.int32).numpy()
    got = np.empty(len(array), np.uint8)
    integer_stream._cut_small(array, got)
    large = np.flatnonzero(np.abs(array) >= 16)
    assert integer_stream._cut_large(array, large, got) == int(widths.sum())
    assert got.tolist() == symbols.tolist()
    assert (
        integer_stream.unpack(memoryview(integer_stream.pack(codes)), len(codes)).tolist() == codes.tolist()
    )


def test_the_loops_are_right_without_a_compiler() -> None:
    key, x = Draw.seeded(5), gaussian(70)
    with np.errstate(over="ignore"):
        words = [int(jit.bits.py_func(i, np.uint32(key.key), np.uint32(key.key >> 32))) for i in range(9)]
    assert words == [int(word) % 2**32 for word in key.bits(9)]
    for b in (1, 4, 16, 64):
        rows, again = (x[:64].clone().view(-1, b).numpy() for _ in range(2))
        butterflies._transform(rows, np.empty(16, np.float32))
        butterflies._transform.py_func(again, np.empty(16, np.float32))
        assert np.array_equal(rows, again)


def test_codes_without_a_centre_have_the_last() -> None:
    codes = torch.tensor([-(2**31), -3, -2, 1, 2, 2**31 - 1], dtype=torch.int32)
    assert cpu.image(codes, -2, torch.arange(4.0)).tolist() == [3, 3, 0, 3, 3, 3]
    assert cpu.image(codes, -2, torch.arange(3.0)).tolist() == [2, 2, 0, 2, 2, 2]


@pytest.mark.parametrize("points", [2, 3, 4])
def test_codes_are_multiplied_by_their_own_centres(points: int) -> None:
    """Three centres have a loop of their own."""
    y, centres, low = gaussian(4099).unsqueeze(0), torch.tensor([-1.5, 0.25, 2.0, 7.0])[:points], -1
    codes, overlap = cpu.quantised(y, torch.tensor([[0.7]]), low, low + points - 1, centres)
    assert set(codes.unique().tolist()) == set(range(low, low + points))
    image = centres[(codes - low).long()]
    assert torch.equal(cpu.image(codes, low, centres), image)
    assert torch.allclose(overlap, (y.double() * image).sum(-1, keepdim=True), rtol=1e-12)


def test_stray_raw_bits() -> None:
    body = bytearray(integer_stream.pack(torch.tensor([0, 17])))
    assert body[-1] == 0b01  # two raw bits
    body[-1] |= 0b100
    with pytest.raises(WireError, match="stray bits"):
        integer_stream.unpack(memoryview(body), 2)
