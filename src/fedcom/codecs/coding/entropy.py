"""An entropy coder: symbols of known frequencies become a stream that is about as long as their entropy.

It is a range asymmetric numeral system (Duda, 2013) with four interleaved states of 32 bits, 16-bit words and
frequencies that sum to 2^14. A stream is the four final states of the encoder, then the words in the order in
which the decoder reads them. If the decoder ends in the states the encoder began with, and has read every
word, the stream was whole.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy import uint32 as U
from numpy import uint64 as W
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.kernels.arrays import Codes, Ints, Reals, Symbols, Whole
from fedcom.codecs.kernels.jit import COMPILED, jit, placed
from fedcom.codecs.wire import Field
from fedcom.errors import WireError

PRECISION = 14
TOTAL = 1 << PRECISION  # the sum of the frequencies
_LOW = 1 << 16  # a state is at least this
_LANES = 4  # the number of states
_FEW = 6  # so many symbols, or fewer, are counted one by one
_COUNTERS = 1 << 12  # for each row on a GPU
STATES = 4 * _LANES  # the bytes of the final states
_INVERSE = 46  # the bits after the point of 1/f

Shares = NDArray[U]
Words = NDArray[np.uint16]
Tables = tuple[Shares, Shares, NDArray[W]]  # of every symbol: its share, where its slots begin, and 1/share


@dataclass(frozen=True, eq=False)
class SymbolCoder:
    """Codes to bytes and back: the high bits of a code are an entropy-coded symbol, the low bits travel raw.

    Args:
        low: the smallest code; the symbol is (code - low) >> shift.
        shift: the number of low bits that travel raw.
        frequencies: those of the symbols; they sum to TOTAL.
    """

    low: int
    shift: int
    frequencies: Tensor

    @property
    def high(self) -> int:
        """The largest code."""
        return self.low + (len(self.frequencies) << self.shift) - 1

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that holds the codes; a GPU's are sooner copied so."""
        return torch.int8 if self.low >= -128 and self.high <= 127 else torch.int32

    def pack(self, codes: Tensor) -> bytes:
        """The bytes of one vector of codes."""
        shifted = codes.to(self.dtype).cpu().numpy() - self.low
        shifted = shifted.view(np.uint8) if shifted.dtype == np.int8 else shifted  # from 0 to 255
        frequencies = self.frequencies.cpu().numpy()
        if not self.shift:
            return encode(shifted, frequencies)
        low_bits = torch.from_numpy(shifted & ((1 << self.shift) - 1))
        return self._raw(len(shifted)).pack(low_bits) + encode(shifted >> self.shift, frequencies)

    def unpack(self, body: memoryview, n: int) -> Tensor:
        """The n codes in a message's bytes, of the coder's dtype."""
        raw = self._raw(n)
        size = raw.nbytes if self.shift else 0
        if len(body) < size:
            raise WireError(f"a message for {n} coordinates cannot have {len(body)} bytes")
        values = self.low + (np.arange(len(self.frequencies), dtype=np.int32) << self.shift)
        values = values.astype(np.int8) if self.dtype == torch.int8 else values
        codes = torch.from_numpy(decode(body[size:], self.frequencies.cpu().numpy(), values, n))
        return codes + raw.unpack(body[:size]).to(self.dtype) if self.shift else codes

    def nbytes(self, codes: Tensor, exact: bool = True) -> Tensor:
        """The bytes of each row; `countable` says where they can be exact."""
        raw = self._raw(codes.shape[-1]).nbytes if self.shift else 0
        if exact and countable(codes):
            return raw + stream_lengths(codes, self.frequencies, self.low, self.shift)
        return raw + stream_bytes(self._counts(codes), self.frequencies)

    def _counts(self, codes: Tensor) -> Tensor:
        """How often each symbol occurs in each row."""
        size = len(self.frequencies)
        if not COMPILED or codes.is_cuda:
            return histogram((codes - self.low) >> self.shift, size)
        counts = np.zeros((codes[..., 0].numel(), _LANES, size), np.int64)
        _tally(codes.numpy().reshape(len(counts), codes.shape[-1]), self.low, self.shift, counts)
        return torch.from_numpy(counts.sum(1)).reshape(*codes.shape[:-1], size)

    def _raw(self, n: int) -> Field:
        return Field("raw", n, max(self.shift, 1))


def histogram(symbols: Tensor, size: int) -> Tensor:
    """How often each of `size` symbols occurs in each row."""
    if symbols.is_cuda:
        return _histogram_on_gpu(symbols, size)
    counts = torch.zeros((*symbols.shape[:-1], size), dtype=torch.int64, device="cpu")
    rows = symbols.reshape(counts.numel() // size, symbols.shape[-1])
    for row, count in zip(rows, counts.view(-1, size), strict=True):
        count.copy_(torch.bincount(row, minlength=size))
    return counts


def _histogram_on_gpu(symbols: Tensor, size: int) -> Tensor:
    """The same on a GPU, without waiting for it.

    Every symbol has several counters, so that threads seldom wait for one another at the same one.
    """
    turns = max(1, _COUNTERS // size)
    turn = torch.arange(symbols.shape[-1], device=symbols.device) % turns
    counts = symbols.new_zeros((*symbols.shape[:-1], turns * size), dtype=torch.int64)
    counts.scatter_add_(-1, symbols + turn * size, counts.new_ones(()).expand(symbols.shape))
    return counts.reshape(*symbols.shape[:-1], turns, size).sum(-2)


def encode(symbols: Symbols | Codes, frequencies: Ints) -> bytes:
    """The stream of some symbols.

    Args:
        frequencies: of every symbol; several tables, each with the sum TOTAL, may follow one another.
    """
    words = np.empty(len(symbols) + 1, np.uint16)
    states = np.full(_LANES, _LOW, U)
    first = _encode(symbols, tables(frequencies), words, states)
    return states.astype("<u4").tobytes() + words[first:].astype("<u2").tobytes()


def decode(data: memoryview, frequencies: Ints, values: Whole, n: int) -> Whole:
    """The values of the n symbols of a stream; raises WireError if the stream is not whole.

    Args:
        values: what each symbol stands for, in the dtype that is returned.
    """
    if len(data) < STATES or len(data) % 2:
        raise WireError(f"an entropy-coded stream cannot have {len(data)} bytes")
    shares, starts, lookup = frequencies.astype(U), np.empty(len(frequencies), U), np.empty(TOTAL, np.uint8)
    if (total := _lay_out(frequencies, starts, lookup)) != TOTAL:
        raise WireError(f"frequencies sum to {total}, not to {TOTAL}")
    states = np.frombuffer(data[:STATES], "<u4").astype(U)
    words = np.frombuffer(bytes(data[STATES:]) + bytes(2 * _LANES), "<u2").astype(np.uint16)
    out = np.empty(n, values.dtype)
    used = _decode(states, words, (lookup, shares, starts, values), out)
    if used != len(words) - _LANES or states.tolist() != _LANES * [_LOW]:
        raise WireError("an entropy-coded stream does not end where it should")
    return out


@jit
def inverses(frequencies: Ints) -> NDArray[W]:
    """1/f, rounded up to 46 bits after the point.

    For x below 2^18 f, x times this has the whole part x // f and fits in 64 bits.
    """
    return (-(-(1 << _INVERSE) // np.maximum(frequencies, 1))).astype(W)


@jit
def tables(frequencies: Ints) -> Tables:
    """What the encoder looks up."""
    starts = (np.cumsum(frequencies) - frequencies) % TOTAL
    return frequencies.astype(U), starts.astype(U), inverses(frequencies)


def countable(codes: Tensor) -> bool:
    """Whether the exact bytes of codes can be counted: on a CPU, by compiled loops.

    Elsewhere they are estimated, which takes no steps one after the other.
    """
    return COMPILED and codes.device.type == "cpu"


def stream_lengths(codes: Tensor, frequencies: Tensor, low: int = 0, shift: int = 0) -> Tensor:
    """The exact bytes of the stream of each row, not made; the symbols are (codes - low) >> shift."""
    rows = codes.numpy().reshape(-1, codes.shape[-1])
    found = tables(frequencies.numpy())
    words = [count_words(row, low, shift, found) for row in rows]
    return torch.tensor([STATES + 2 * n for n in words], device="cpu").reshape(codes.shape[:-1])


def stream_bytes(counts: Tensor, frequencies: Tensor) -> Tensor:
    """About the bytes of a stream, from how often each symbol occurs; within a few bytes of the real size.

    On average the final states hold 24 bits each, 16 of which they began with.
    """
    here = frequencies.device == counts.device
    table = frequencies if here else placed(frequencies, counts.device, torch.int64)
    cost = PRECISION - torch.log2(table.clamp(min=1).double())
    bits = (counts * cost).sum(-1)
    return STATES + 2 * ((bits - 8 * _LANES) / 16).ceil().clamp(min=0).to(torch.int64)


def normalise(counts: Tensor) -> Tensor:
    """Frequencies that sum to 2^14 and are near given counts or probabilities.

    A symbol that occurs has a frequency of at least one.
    """
    if counts.is_cuda:
        return _normalise_there(counts.double())
    rows = counts.double().reshape(-1, counts.shape[-1])
    frequencies = torch.empty(rows.shape, dtype=torch.int64, device="cpu")
    share(rows.numpy(), frequencies.numpy())
    return frequencies.reshape(counts.shape)


def _normalise_there(counts: Tensor) -> Tensor:
    """The same as normalise on a GPU, without waiting for it."""
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    frequencies = ((share * TOTAL).round().clamp(min=1) * (counts > 0)).long()
    for _ in range(4):
        top = frequencies.argmax(-1, keepdim=True)
        excess = frequencies.sum(-1, keepdim=True) - TOTAL
        pay = torch.minimum(excess, frequencies.gather(-1, top) // 2)
        frequencies = frequencies.scatter_add(-1, top, -pay)
    return frequencies


@jit
def share(counts: Reals, frequencies: Ints) -> None:
    """Fill in the frequencies of each row of counts; `normalise` explains them."""
    for r in range(len(counts)):
        count, frequency, whole, excess = counts[r], frequencies[r], 0.0, -TOTAL
        for s in range(len(count)):
            whole += count[s]
        for s in range(len(count)):
            frequency[s] = max(int(np.rint(count[s] / whole * TOTAL)), 1) if count[s] > 0 else 0
            excess += frequency[s]
        while excess:  # the most frequent symbols take up what rounding left over
            top = frequency.argmax()
            pay = min(excess, frequency[top] // 2)
            frequency[top] -= pay
            excess -= pay


@jit
def _count(codes: Codes, wanted: np.int32) -> np.int32:
    """How often a code occurs."""
    found = np.int32(0)
    for i in range(len(codes)):
        found = np.int32(found + np.int32(codes[i] == wanted))
    return found


@jit
def _tally(codes: Codes, low: int, shift: int, counts: NDArray[np.int64]) -> None:
    """Count symbols in tables that take turns: a repeated symbol need not wait for its own counter.

    A few symbols are counted one after the other, which needs no tables and is quicker.
    """
    first, bits, last = U(low), U(shift), U(counts.shape[2] - 1)
    for r in range(len(codes)):
        row, tables = codes[r], counts[r].reshape(-1)
        if counts.shape[2] <= _FEW and shift == 0:
            tables[last] = len(row)
            for s in range(last):
                tables[s] = _count(row, np.int32(low + s))
                tables[last] -= tables[s]
            continue
        for i in range(0, len(row), _LANES):
            some = row[i : i + _LANES]
            for j in range(len(some)):
                tables[W(j) * W(counts.shape[2]) + W(min(U(U(some[j]) - first) >> bits, last))] += 1


@jit
def _encode(symbols: Symbols | Codes, tables: Tables, words: Words, states: Shares) -> int:
    """Fill in the words from the last to the first, and return the position of the first."""
    at, whole = W(len(words) - 1), len(symbols) // _LANES * _LANES
    for i in range(len(symbols) - 1, whole - 1, -1):
        states[i - whole], at = _put(symbols[i], states[i - whole], tables, words, at)
    a, b, c, d = states[0], states[1], states[2], states[3]  # in registers
    for i in range(whole - _LANES, -1, -_LANES):
        j = W(i)
        d, at = _put(symbols[j + W(3)], d, tables, words, at)
        c, at = _put(symbols[j + W(2)], c, tables, words, at)
        b, at = _put(symbols[j + W(1)], b, tables, words, at)
        a, at = _put(symbols[j], a, tables, words, at)
    states[0], states[1], states[2], states[3] = a, b, c, d
    return int(at + W(1))


@jit
def _put(symbol: int, x: U, tables: Tables, words: Words, at: W) -> tuple[U, W]:
    """The state after a symbol, and the position of the next word."""
    words[at] = x & U(0xFFFF)
    x, full = _pushed(U(symbol), x, tables)
    return x, at - full


@jit
def _pushed(s: U, x: U, tables: Tables) -> tuple[U, W]:
    """The state after a symbol, and whether a word leaves the state first; without branches and divisions."""
    shares, starts, inverses = tables
    full = x >> U(32 - PRECISION) >= shares[s]
    x = U(x >> U(16)) if full else x
    quotient = U(W(x) * inverses[s] >> W(_INVERSE))
    return U(U(quotient * U(U(TOTAL) - shares[s])) + U(x + starts[s])), W(full)


@jit
def count_words(codes: Symbols | Codes, low: int, shift: int, tables: Tables) -> int:
    """How many words the stream of some codes has; `stream_lengths` explains low and shift."""
    first, bits, n, whole = U(low), U(shift), W(0), len(codes) // _LANES * _LANES
    states = np.full(_LANES, U(_LOW), U)
    for i in range(len(codes) - 1, whole - 1, -1):
        states[i - whole], full = _pushed(U(U(codes[i]) - first) >> bits, states[i - whole], tables)
        n += full
    a, b, c, d = states[0], states[1], states[2], states[3]  # in registers
    for i in range(whole - _LANES, -1, -_LANES):
        j = W(i)
        d, p = _pushed(U(U(codes[j + W(3)]) - first) >> bits, d, tables)
        c, q = _pushed(U(U(codes[j + W(2)]) - first) >> bits, c, tables)
        b, r = _pushed(U(U(codes[j + W(1)]) - first) >> bits, b, tables)
        a, s = _pushed(U(U(codes[j]) - first) >> bits, a, tables)
        n += p + q + r + s
    return int(n)


@jit
def _lay_out(frequencies: Ints, starts: Shares, lookup: Symbols) -> int:
    """Fill in where each symbol's slots begin and which symbol has each slot; return the number of slots."""
    total = 0
    for s in range(len(frequencies)):
        starts[s] = total
        lookup[total : total + frequencies[s]] = s
        total += frequencies[s]
    return total


@jit
def _decode(states: Shares, words: Words, tables: tuple[Symbols, Shares, Shares, Whole], out: Whole) -> int:
    """Fill in the values, and return how many words were read.

    A stream that is too short is read on into the spare words at its end, and the number shows it.
    """
    used, end, whole = W(0), W(len(words) - _LANES), len(out) // _LANES * _LANES
    a, b, c, d = states[0], states[1], states[2], states[3]  # in registers
    for i in range(0, whole, _LANES):
        j, start = W(i), min(used, end)
        out[j], a, at = _take(a, tables, words, start)
        out[j + W(1)], b, at = _take(b, tables, words, at)
        out[j + W(2)], c, at = _take(c, tables, words, at)
        out[j + W(3)], d, at = _take(d, tables, words, at)
        used += at - start
    states[0], states[1], states[2], states[3] = a, b, c, d
    for i in range(whole, len(out)):
        start = min(used, end)
        out[i], states[i - whole], at = _take(states[i - whole], tables, words, start)
        used += at - start
    return int(used)


@jit
def _take(x: U, tables: tuple[Symbols, Shares, Shares, Whole], words: Words, at: W) -> tuple[int, U, W]:
    """The value of the next symbol, the state after it and the position of the next word; no branches."""
    lookup, shares, starts, values = tables
    slot = x & U(TOTAL - 1)
    s = lookup[slot]
    x = U(U(shares[s] * U(x >> U(PRECISION))) + U(slot - starts[s]))
    empty, refilled = x < U(_LOW), U(U(x << U(16)) | U(words[at]))
    return values[s], refilled if empty else x, at + W(empty)
