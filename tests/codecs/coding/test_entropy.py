"""The entropy coder and the stream of integers: what goes in comes out, in hardly more bytes than it must."""

import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.coding import integer_stream
from fedcom.codecs.coding.entropy import (
    STATES,
    TOTAL,
    SymbolCoder,
    _histogram_on_gpu,
    decode,
    encode,
    histogram,
    inverses,
    normalise,
    stream_bytes,
)
from fedcom.codecs.coding.uniform import for_rate
from fedcom.errors import WireError


def back(data: bytes, frequencies: NDArray[np.int64], n: int) -> list[int]:
    """The n symbols of a stream."""
    return decode(memoryview(data), frequencies, np.arange(len(frequencies), dtype=np.int32), n).tolist()


often = settings(max_examples=80)


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """Frequencies of an alphabet of 1 to 247 symbols, some of which may not occur."""
    size = draw(st.integers(1, 247))
    kind = draw(st.sampled_from(["even", "steep", "one"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = {
        "even": rng.integers(0, 10, size),
        "steep": (1e6 * np.exp(-0.2 * rng.permutation(size))).astype(np.int64),
        "one": np.zeros(size, np.int64),
    }[kind]
    counts[rng.integers(size)] += 1
    return normalise(torch.from_numpy(counts))


@often
@given(tables(), st.integers(0, 2000), st.integers(0, 2**32 - 1))
def test_symbols_come_back_from_a_stream_of_their_entropy(table: Tensor, n: int, seed: int) -> None:
    frequencies = table.numpy()
    symbols = np.random.default_rng(seed).choice(len(frequencies), n, p=frequencies / TOTAL)
    data = encode(symbols.astype(np.uint8), frequencies)
    assert back(data, frequencies, n) == symbols.tolist()
    bits = float(-np.log2(frequencies[symbols] / TOTAL).sum())
    assert bits / 8 + 8 - 2 <= len(data) + 1e-6 * bits  # the states began with 8 bytes
    assert len(data) <= 1.001 * bits / 8 + STATES
    counted = stream_bytes(histogram(torch.from_numpy(symbols)[None], len(frequencies)), table)
    assert abs(int(counted) - len(data)) <= max(12, 0.002 * len(data))


@often
@given(tables(), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_a_stream_cut_or_continued_is_refused(table: Tensor, n: int, seed: int) -> None:
    frequencies = table.numpy()
    symbols = np.random.default_rng(seed).choice(len(frequencies), n, p=frequencies / TOTAL)
    data = encode(symbols.astype(np.uint8), frequencies)
    for wrong in (data[:-2], data[:-1], data[:15], b"", data + b"\0", data + b"\0\0"):
        with pytest.raises(WireError, match="entropy-coded stream"):
            back(wrong, frequencies, n)


def test_nothing_and_the_same_thing_again_cost_only_the_states() -> None:
    one = np.array([TOTAL])
    for n in (0, 1, 100_000):
        data = encode(np.zeros(n, np.uint8), one)
        assert data == bytes([0, 0, 1, 0]) * 4
        assert back(data, one, n) == [0] * n
        assert int(stream_bytes(torch.tensor([n]), torch.from_numpy(one))) == STATES


@pytest.mark.parametrize("state", [0, 1, 0x3FFF, 0x4000, 0xFFFF, 0x10001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("table", [[TOTAL], [1, TOTAL - 1], [TOTAL // 2, 0, TOTAL // 2], [0, TOTAL, 0]])
def test_states_no_encoder_leaves(state: int, table: list[int]) -> None:
    # Any 32-bit state stays below 2^32 and above -1, so that every index is in range; the end gives it away.
    data = state.to_bytes(4, "little") * 4
    for words in (b"", b"\xff\xff" * 5, bytes(40)):
        with pytest.raises(WireError, match="does not end where it should"):
            back(data + words, np.array(table), 21)


def test_inverses_divide_exactly() -> None:
    # The states an encoder divides by f are below 2^18 f; a wrong inverse fails first where quotients change.
    f = np.arange(1, TOTAL + 1)
    inverse = [int(i) for i in inverses(f)]
    for quotient in (1, 2, 3, 2**17, 2**18 - 1, 2**18):
        for x in (quotient * f - 1, np.minimum(quotient * f, 2**18 * f - 1)):
            products = [int(a) * b for a, b in zip(x, inverse, strict=True)]
            assert max(products) < 2**64
            assert [p >> 46 for p in products] == (x // f).tolist()


@pytest.mark.parametrize("table", [[], [0], [TOTAL - 1], [TOTAL, 1], [2**40]])
def test_tables_with_another_sum(table: list[int]) -> None:
    with pytest.raises(WireError, match=f"not to {TOTAL}"):
        back(bytes(16), np.array(table, np.int64), 5)


def check_normalised(counts: Tensor) -> None:
    frequencies = normalise(counts)
    assert (frequencies.sum(-1) == TOTAL).all()
    assert ((frequencies >= 1) == (counts > 0)).all()
    assert (frequencies >= 0).all()


@pytest.mark.parametrize(
    "counts",
    [
        [10**9] + [1] * 200,
        [1] * 200 + [10**9],
        [1] * 249,
        [1],
        [10**12],
        [0] * 100 + [3],
        [1, 0, 1],
        [1, 2**40],
        [1e-300, 1.0],
        [1e-12] * 199 + [1.0],
        [131] * 124 + [1] * 125,  # roundings up that the largest cannot pay alone
        [3] * 240 + [1] * 9,
    ],
)
def test_extreme_counts(counts: list[float]) -> None:
    check_normalised(torch.tensor(counts))
    check_normalised(torch.tensor([counts, counts[::-1]]))


@often
@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**9)), min_size=1, max_size=249).filter(any))
def test_any_counts(counts: list[int]) -> None:
    check_normalised(torch.tensor(counts))


def test_even_counts_and_halves() -> None:
    for size in range(1, 250):
        check_normalised(torch.ones(size))
        # All shares rounded up by a half is the most there is to pay.
        halves = torch.full((size,), math.floor(TOTAL / size) + 0.5, dtype=torch.float64)
        halves[-1] = max(0.5, TOTAL - float(halves[:-1].sum()))
        check_normalised(halves)


@pytest.mark.parametrize("bits", [0.02, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 7.3, 8.0, 9.0])
def test_tables_of_the_rotated_codec(bits: float) -> None:
    coder = for_rate(bits).coder
    assert int(coder.frequencies.sum()) == TOTAL
    assert int(coder.frequencies.min()) >= 1
    assert len(coder.frequencies) <= 200
    codes = torch.arange(coder.low, coder.high + 1)
    assert coder.unpack(memoryview(coder.pack(codes)), len(codes)).tolist() == codes.tolist()
    assert len(for_rate(bits).centres) == len(codes)


@pytest.mark.parametrize("shift", [0, 1, 5, 8])
def test_low_bits_travel_raw(shift: int) -> None:
    coder = SymbolCoder(-70, shift, normalise(torch.tensor([1, 5, 2])))
    codes = torch.randint(-70, coder.high + 1, (501,), generator=torch.Generator().manual_seed(0))
    data = coder.pack(codes)
    assert coder.unpack(memoryview(data), 501).tolist() == codes.tolist()
    for size in coder.nbytes(torch.stack([codes, codes])).tolist():
        assert abs(size - len(data)) <= 12
    for wrong in (data[:-2], b"", data[:10]):
        with pytest.raises(WireError):
            coder.unpack(memoryview(wrong), 501)


# Integers

small = st.integers(-20, 20)
large = st.integers(-(2**31) + 1, 2**31 - 1)


@often
@given(st.lists(st.one_of(small, large), min_size=1, max_size=300))
def test_integers_come_back(values: list[int]) -> None:
    codes = torch.tensor(values)
    data = integer_stream.pack(codes)
    assert integer_stream.unpack(memoryview(data), len(values)).tolist() == values
    assert abs(int(integer_stream.nbytes(codes)) - len(data)) <= max(12, 0.002 * len(data))


def test_the_ends_of_every_symbol_come_back() -> None:
    powers = [2**e + delta for e in range(31) for delta in (-1, 0, 1)] + [2**31 - 1]
    quarters = [q * 2**e + delta for e in range(2, 29) for q in (5, 6, 7) for delta in (-1, 0)]
    values = [sign * v for v in powers + quarters for sign in (1, -1)]
    assert (
        integer_stream.unpack(memoryview(integer_stream.pack(torch.tensor(values))), len(values)).tolist()
        == values
    )


@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 30.0, 1e4, 1e8])
def test_a_stream_of_normal_integers_is_near_their_entropy(scale: float) -> None:
    n = 50_000
    x = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    codes = (x * scale).round().long()
    edges = torch.arange(-6 * scale - 1, 6 * scale + 1).round() + 0.5 if scale < 100 else None
    if edges is None:
        entropy = math.log2(scale * math.sqrt(2 * math.pi * math.e))
    else:
        mass = torch.special.ndtr(edges.double() / scale).diff().clamp(min=1e-300)
        entropy = float(-(mass * mass.log2()).sum())
    data = integer_stream.pack(codes)
    assert integer_stream.unpack(memoryview(data), n).tolist() == codes.tolist()
    most = 0.01 if scale < 10 else 0.06  # within a quarter of an octave values are not quite uniform
    assert 8 * len(data) / n <= entropy + most + 8 * 450 / n  # the table is at most some hundred bytes
    assert float(integer_stream.entropy_rate(*integer_stream.tally(codes[None]))) == pytest.approx(
        entropy, abs=0.06
    )


GOLDEN = {
    (0, 0, 0): "010080001000000000000100000001000000010000000100",
    (1, -1, 0, 0, 2, 0, 0, -3): "070040002000400080000000000400001000000000a04100002810000000040000581000",
}


@pytest.mark.parametrize("values", GOLDEN)
def test_the_bytes_of_small_examples(values: tuple[int, ...]) -> None:
    # Size of the table, frequencies, length of the stream, four states, words, raw bits: this is the format.
    assert integer_stream.pack(torch.tensor(values)).hex() == GOLDEN[values]


def test_the_bytes_of_large_integers() -> None:
    data = integer_stream.pack(torch.tensor([2**31 - 1, 1 - 2**31, 1000, -70000, 0]))
    assert (len(data), zlib.crc32(data)) == (496, 998566550)


def test_the_bytes_of_a_stream() -> None:
    frequencies, symbols = np.array([TOTAL // 2, TOTAL // 4, TOTAL // 4]), np.arange(40) ** 2 % 3
    assert (
        encode(symbols.astype(np.uint8), frequencies).hex()
        == "94020100a5240200292502009402010000a00020004000a0"
    )


@pytest.mark.covers(1)
@pytest.mark.parametrize("size", [1, 3, 300, 5000])
@pytest.mark.parametrize("n", [1, 7, 9000])
def test_a_gpus_way_of_counting_counts(size: int, n: int) -> None:
    symbols = torch.randint(0, size, (4, n), dtype=torch.int32)
    assert torch.equal(_histogram_on_gpu(symbols, size), histogram(symbols, size))


@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 300])
def test_a_cpus_ways_of_counting_count(size: int, shift: int) -> None:
    """A few symbols are counted in another way than many."""
    low = -(size << shift) // 2
    codes = torch.randint(low, low + (size << shift), (4, 901), dtype=torch.int32)
    coder = SymbolCoder(low, shift, torch.ones(size, dtype=torch.int64))
    assert torch.equal(coder._counts(codes), histogram((codes - low) >> shift, size))
