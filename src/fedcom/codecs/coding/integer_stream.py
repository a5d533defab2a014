"""Integers of any size to bytes: small ones are symbols, large ones a symbol and some raw bits.

Each magnitude below 16 has a symbol of its own. From there on every octave, a range from one power of two to
the next, has four symbols: the symbol gives the leading bits, and the other bits travel raw. Within a quarter
of an octave the values of a smooth distribution are nearly uniform, so little is lost. The frequencies of the
symbols are counted and travel in front, 15 bits each.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.coding.entropy import (
    PRECISION,
    STATES,
    count_words,
    countable,
    decode,
    encode,
    histogram,
    normalise,
    share,
    stream_bytes,
    tables,
)
from fedcom.codecs.kernels.arrays import Codes, Ints, Symbols
from fedcom.codecs.kernels.jit import COMPILED, jit
from fedcom.codecs.wire import Field
from fedcom.errors import WireError

_EXACT = 16  # magnitudes below this have symbols of their own
MOST = 2 * (_EXACT + 4 * 27) - 1  # the number of symbols below 2^31: two signs for each, but one for zero
_LARGE = [(4 + quarter) << octave for octave in range(2, 29) for quarter in range(4)]
_MAGNITUDES = np.array([*range(_EXACT), *_LARGE], np.int32)  # the smallest of each symbol
_NONE = np.empty(0, np.int64)
_VALUES = np.stack([-_MAGNITUDES, np.roll(_MAGNITUDES, -1)], 1).flatten()[:MOST]  # what symbols stand for


def pack(codes: Tensor) -> bytes:
    """The bytes of one vector of integers of magnitudes below 2^31."""
    array = codes.cpu().to(torch.int32).numpy()
    symbols = np.empty(len(array), np.uint8)
    _cut_small(array, symbols)
    large = _places(array)
    raw = np.zeros((_cut_large(array, large, symbols) + 7) // 8, np.uint8)
    _write_bits(array, large, raw)
    frequencies = normalise(torch.from_numpy(_count(symbols)))
    head = len(frequencies).to_bytes(2, "little") + _table(len(frequencies)).pack(frequencies)
    stream = encode(symbols, frequencies.numpy())
    return head + len(stream).to_bytes(4, "little") + stream + raw.tobytes()


def unpack(body: memoryview, n: int) -> Tensor:
    """The n integers in a message's bytes."""
    frequencies, start = _read_table(body)
    stream = int.from_bytes(body[start : start + 4], "little")
    start += 4
    if start + stream > len(body):
        raise WireError(f"a stream of {stream} bytes does not fit in a message of {len(body)}")
    codes = decode(body[start : start + stream], frequencies, _VALUES, n)
    raw = np.frombuffer(body[start + stream :], np.uint8).copy()
    large = _places(codes) if len(frequencies) >= 2 * _EXACT else _NONE
    bits = _raw_bits(codes, large)
    if len(raw) != (bits + 7) // 8:
        raise WireError(f"{len(raw)} bytes of raw bits where {(bits + 7) // 8} are due")
    if bits % 8 and raw[-1] >> (bits % 8):
        raise WireError("a message has stray bits after its raw bits")
    _read_bits(raw, large, codes)
    return torch.from_numpy(codes)


def nbytes(codes: Tensor, exact: bool = True) -> Tensor:
    """The bytes of each row; `countable` says where they can be exact."""
    rows = codes.reshape(-1, codes.shape[-1])
    if exact and countable(codes):
        sizes = torch.empty(len(rows), dtype=torch.int64, device="cpu")
        _measure(rows.to(torch.int32).numpy(), _table(1).bits, sizes.numpy())
    else:
        sizes = counted_bytes(*tally(rows))
    return sizes.reshape(codes.shape[:-1])


def counted_bytes(counts: Tensor, raw: Tensor) -> Tensor:
    """About the bytes of rows that `tally` has counted; within a few bytes of the real size."""
    frequencies = normalise(counts)
    used = (counts > 0).long().cumsum(-1).argmax(-1) + 1
    table = 2 + (used * _table(1).bits + 7) // 8
    return table + 4 + stream_bytes(counts, frequencies) + (raw + 7) // 8


def entropy_rate(counts: Tensor, raw: Tensor) -> Tensor:
    """The bits per integer of counted rows, if symbols take their entropy and raw bits are added."""
    n = counts.sum(-1)
    share = counts.double() / n.unsqueeze(-1)
    return -(share * share.clamp(min=1e-300).log2()).sum(-1) + raw.double() / n


def tally(codes: Tensor) -> tuple[Tensor, Tensor]:
    """How often each symbol occurs in each row, and how many raw bits each row has."""
    if not COMPILED or codes.device.type != "cpu":
        symbols, widths = cut(codes)
        return histogram(symbols, MOST), widths.sum(-1)
    counts = np.zeros((len(codes), MOST), np.int64)
    raw = [_tally(row, count) for row, count in zip(codes.to(torch.int32).numpy(), counts, strict=True)]
    return torch.from_numpy(counts), torch.tensor(raw, device="cpu")


def cut(codes: Tensor) -> tuple[Tensor, Tensor]:
    """The symbol and the number of raw bits of each integer; positive integers have odd symbols."""
    value = codes.to(torch.int64).abs()
    octave = torch.frexp(value.double())[1].to(torch.int64) - 1  # 2^octave <= value
    shift = (octave - 2).clamp(min=0)
    symbol = torch.where(value < _EXACT, value, _EXACT + 4 * (octave - 4) + ((value >> shift) & 3))
    widths = torch.where(value < _EXACT, torch.zeros_like(shift), shift)
    return 2 * symbol - (codes > 0).to(torch.int64), widths


def _read_table(body: memoryview) -> tuple[Ints, int]:
    """The frequencies at the start of a message, and where they end."""
    size = int.from_bytes(body[:2], "little")
    field = _table(size)
    if not 1 <= size <= MOST or len(body) < 2 + field.nbytes + 4:
        raise WireError(f"a table of {size} symbols does not fit in a message of {len(body)} bytes")
    return field.unpack(body[2 : 2 + field.nbytes]).long().numpy(), 2 + field.nbytes


def _table(size: int) -> Field:
    """How a table of frequencies travels."""
    return Field("table", size, PRECISION + 1)


def _count(symbols: Symbols) -> Ints:
    """How often each symbol occurs, up to the last one that does."""
    counts = np.zeros((4, MOST), np.int64)
    _add_counts(symbols, counts)
    total: Ints = counts.sum(0)
    return total[: int(symbols.max()) + 1]


def _places(codes: Codes) -> Ints:
    """The positions of the integers that have raw bits."""
    places = np.empty(len(codes), np.int64)
    return places[: _find_large(codes, places)]


@jit
def _measure(codes: Codes, width: int, sizes: Ints) -> None:
    """Fill in the exact bytes of each row, without making them; `width` is the bits of a frequency."""
    symbols, places = np.empty(codes.shape[1], np.uint8), np.empty(codes.shape[1], np.int64)
    frequencies = np.empty((1, MOST), np.int64)
    for r in range(len(codes)):
        _cut_small(codes[r], symbols)
        raw = _cut_large(codes[r], places[: _find_large(codes[r], places)], symbols)
        counts = np.zeros((4, MOST), np.int64)
        _add_counts(symbols, counts)
        found = counts.sum(0)
        share(found.astype(np.float64).reshape(1, -1), frequencies)
        words = count_words(symbols, 0, 0, tables(frequencies[0]))
        used = found.nonzero()[0][-1] + 1
        sizes[r] = 2 + (used * width + 7) // 8 + 4 + STATES + 2 * words + (raw + 7) // 8


@jit
def _cut_small(codes: Codes, symbols: Symbols) -> None:
    """Fill in the symbols of magnitudes below 16; larger ones get those of 16 until _cut_large."""
    for i in range(len(codes)):
        magnitude = min(abs(codes[i]), np.int32(_EXACT))
        symbols[i] = np.uint8(np.int32(magnitude + magnitude) - np.int32(codes[i] > 0))


@jit
def _find_large(codes: Codes, places: Ints) -> int:
    """Fill in the positions of magnitudes of 16 or more, and return how many there are.

    Blocks of 64 are looked at whole first, because most of them have none.
    """
    found = 0
    for start in range(0, len(codes), 64):
        some, most = codes[start : start + 64], np.int32(0)
        for i in range(len(some)):
            most = max(most, abs(some[i]))
        for i in range(len(some) if most >= _EXACT else 0):
            if abs(some[i]) >= _EXACT:
                places[found] = start + i
                found += 1
    return found


@jit
def _cut_large(codes: Codes, large: Ints, symbols: Symbols) -> int:
    """Correct the symbols of large magnitudes, and return how many raw bits they have."""
    total = 0
    for i in large:
        magnitude = abs(np.int64(codes[i]))
        width = _width(magnitude)
        symbol = _EXACT + 4 * (width - 2) + ((magnitude >> width) & 3)
        symbols[i] = 2 * symbol - (codes[i] > 0)
        total += width
    return total


@jit
def _add_counts(symbols: Symbols, counts: Ints) -> None:
    """Count symbols in four tables in turn, so that a repeated symbol need not wait for its own counter."""
    whole = len(symbols) // 4 * 4
    for i in range(0, whole, 4):
        for j in range(4):
            counts[j, symbols[i + j]] += 1
    for i in range(whole, len(symbols)):
        counts[0, symbols[i]] += 1


@jit
def _width(magnitude: np.int64) -> int:
    """How many bits of a magnitude of 16 or more travel raw: all but the three leading ones."""
    width = 2
    while magnitude >> (width + 3):
        width += 1
    return width


@jit
def _tally(codes: Codes, counts: Ints) -> int:
    """Add the symbols of some integers to counts, and return how many raw bits the integers have."""
    total = 0
    for code in codes:
        symbol = magnitude = abs(np.int64(code))
        if magnitude >= _EXACT:
            width = _width(magnitude)
            symbol = _EXACT + 4 * (width - 2) + ((magnitude >> width) & 3)
            total += width
        counts[2 * symbol - (code > 0)] += 1
    return total


@jit
def _raw_bits(codes: Codes, large: Ints) -> int:
    """How many raw bits the integers at some positions have."""
    total = 0
    for i in large:
        total += _width(abs(np.int64(codes[i])))
    return total


@jit
def _write_bits(codes: Codes, large: Ints, out: NDArray[np.uint8]) -> None:
    """Write the raw bits of the integers at some positions, lowest bit first."""
    position = 0
    for i in large:
        magnitude = abs(np.int64(codes[i]))
        for j in range(_width(magnitude)):
            out[position >> 3] |= ((magnitude >> j) & 1) << (position & 7)
            position += 1


@jit
def _read_bits(data: NDArray[np.uint8], large: Ints, codes: Codes) -> None:
    """Add raw bits to the magnitudes at some positions; the caller has checked their number."""
    position = 0
    for i in large:
        raw = np.int64(0)
        for j in range(_width(abs(np.int64(codes[i])))):
            raw |= ((np.int64(data[position >> 3]) >> (position & 7)) & 1) << j
            position += 1
        codes[i] += raw if codes[i] > 0 else -raw
