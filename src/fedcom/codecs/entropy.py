"""A range asymmetric numeral system (Duda, 2013) coder: symbols of known frequencies, near their entropy.

Four interleaved states of 32 bits, 16-bit words, frequencies that sum to 2^14. A stream is the four final
states, then the words in the order the decoder reads them. A decoder that ends with its states where the
encoder began, having read every word, has seen a whole and unbroken stream.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.kernels import jit
from fedcom.errors import WireError
from fedcom.wire import Field

PRECISION = 14
TOTAL = 1 << PRECISION
_LOW = 1 << 16  # a state is at least this
_LANES = 4
STATES = 4 * _LANES  # bytes of the final states

Ints = NDArray[np.int64]
States = NDArray[np.uint64]  # unsigned: division takes half the time
Codes = NDArray[np.int32]
Symbols = NDArray[np.uint8]
Words = NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Alphabet:
    """How codes become symbols: code - low is cut into a symbol and `shift` low bits that travel raw."""

    low: int
    shift: int
    frequencies: Tensor

    @property
    def high(self) -> int:
        """The largest code."""
        return self.low + (len(self.frequencies) << self.shift) - 1

    def pack(self, codes: Tensor) -> bytes:
        """The bytes of one vector of codes."""
        shifted = codes.cpu() - self.low
        raw = self._raw(len(shifted)).pack(shifted & ((1 << self.shift) - 1)) if self.shift else b""
        symbols = (shifted >> self.shift).to(torch.uint8)
        return raw + encode(symbols.numpy(), self.frequencies.cpu().numpy())

    def unpack(self, body: memoryview, n: int) -> Tensor:
        """The n codes of a message's bytes."""
        raw = self._raw(n)
        size = raw.nbytes if self.shift else 0
        if len(body) < size:
            raise WireError(f"a message for {n} coordinates cannot have {len(body)} bytes")
        values = self.low + (np.arange(len(self.frequencies), dtype=np.int32) << self.shift)
        codes = torch.from_numpy(decode(body[size:], self.frequencies.cpu().numpy(), values, n))
        return codes + raw.unpack(body[:size]).to(torch.int32) if self.shift else codes

    def nbytes(self, codes: Tensor) -> Tensor:
        """The size of each row's stream and raw bits, from the counts of its symbols."""
        counts = histogram((codes - self.low) >> self.shift, len(self.frequencies))
        raw = self._raw(codes.shape[-1]).nbytes if self.shift else 0
        return raw + stream_bytes(counts, self.frequencies)

    def _raw(self, n: int) -> Field:
        return Field("raw", n, max(self.shift, 1))


def histogram(symbols: Tensor, size: int) -> Tensor:
    """How often each of `size` symbols occurs in each row."""
    counts = torch.zeros((*symbols.shape[:-1], size), dtype=torch.int64, device=symbols.device)
    if symbols.is_cuda:  # torch.bincount would wait for the device
        return counts.scatter_add_(-1, symbols.long(), counts.new_ones(()).expand(symbols.shape))
    for row, count in zip(symbols.flatten(0, -2), counts.flatten(0, -2), strict=True):
        count.copy_(torch.bincount(row, minlength=size))
    return counts


def encode(symbols: Symbols | Codes, frequencies: Ints) -> bytes:
    """The stream of some symbols; of several tables in a row, each starts at zero again."""
    shares = frequencies.astype(np.uint64)
    words = np.empty(len(symbols) + 1, np.uint16)
    states = np.full(_LANES, _LOW, np.uint64)
    count = _encode(symbols, shares, (np.cumsum(shares) - shares) % np.uint64(TOTAL), words, states)
    return states.astype("<u4").tobytes() + words[:count][::-1].astype("<u2").tobytes()


def decode(data: memoryview, frequencies: Ints, values: Codes, n: int) -> Codes:
    """The values of the n symbols of a stream, or a WireError."""
    if len(data) < STATES or len(data) % 2:
        raise WireError(f"an entropy-coded stream cannot have {len(data)} bytes")
    if frequencies.sum() != TOTAL:
        raise WireError(f"frequencies sum to {frequencies.sum()}, not to {TOTAL}")
    states = np.frombuffer(data[:STATES], "<u4").astype(np.int64)
    words = np.frombuffer(data, "<u2").astype(np.uint16)  # those of the states are skipped
    starts = np.cumsum(frequencies) - frequencies
    lookup = np.repeat(np.arange(len(frequencies), dtype=np.uint8), frequencies)
    out = np.empty(n, np.int32)
    used = _decode(states, words, frequencies, starts, lookup, values, out)
    if used != len(words) or (states != _LOW).any():
        raise WireError("an entropy-coded stream does not end where it should")
    return out


def stream_bytes(counts: Tensor, frequencies: Tensor) -> Tensor:
    """The size of the stream of symbols that occur so often, without making it; within a few bytes.

    The four states take up 24 of their 32 bits on average, 16 of which they began with.
    """
    cost = PRECISION - torch.log2(frequencies.clamp(min=1).double()).to(counts.device)
    bits = (counts * cost).sum(-1)
    return STATES + 2 * ((bits - 8 * _LANES) / 16).ceil().clamp(min=0).to(torch.int64)


def normalise(counts: Tensor) -> Tensor:
    """Frequencies that sum to 2^14 near given counts or probabilities, none that occurs below one."""
    counts = counts.double()
    share = counts / counts.sum(-1, keepdim=True).clamp(min=1e-300)
    frequencies = (share * TOTAL).round().clamp(min=1) * (counts > 0)
    frequencies = frequencies.to(torch.int64)
    excess = frequencies.sum(-1, keepdim=True) - TOTAL
    for _ in range(4):  # the commonest symbols pay or receive what rounding left over
        top = frequencies.argmax(-1, keepdim=True)
        pay = torch.minimum(excess, frequencies.gather(-1, top) // 2)
        frequencies = frequencies.scatter_add(-1, top, -pay)
        excess = excess - pay
        if not excess.any():
            break
    return frequencies


@jit
def _encode(
    symbols: Symbols | Codes, frequencies: States, starts: States, words: Words, states: States
) -> int:
    count = 0
    for i in range(len(symbols) - 1, -1, -1):
        f = frequencies[symbols[i]]
        x = states[i & 3]
        if x >= f << (32 - PRECISION):
            words[count] = x & 0xFFFF
            count += 1
            x >>= 16
        states[i & 3] = ((x // f) << PRECISION) + x % f + starts[symbols[i]]
    return count


@jit
def _decode(
    states: Ints, words: Words, frequencies: Ints, starts: Ints, lookup: Symbols, values: Codes, out: Codes
) -> int:
    """No branches: a stream that is too short repeats its last word, and is found out by the count."""
    used = STATES // 2
    for i in range(len(out)):
        x = states[i & 3]
        slot = x & (TOTAL - 1)
        s = lookup[slot]
        out[i] = values[s]
        x = frequencies[s] * (x >> PRECISION) + slot - starts[s]
        empty = x < _LOW
        word = words[min(used, len(words) - 1)]
        used += empty
        states[i & 3] = (x << 16) | word if empty else x
    return used
