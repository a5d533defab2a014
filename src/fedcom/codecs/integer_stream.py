"""Integers of any size to bytes: small ones are symbols, large ones a symbol and some raw bits.

Magnitudes below 16 are symbols of their own. Above, four symbols an octave name the leading bits, and the
rest travels raw: within a quarter of an octave the values of any smooth distribution are as good as uniform.
The frequencies of the symbols are measured and travel in front, 15 bits each.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.entropy import PRECISION, Ints, decode, encode, histogram, normalise, stream_bytes
from fedcom.codecs.kernels import jit
from fedcom.errors import WireError
from fedcom.wire import Field

_EXACT = 16
_MOST = 2 * (_EXACT + 4 * 27) + 1  # symbols for magnitudes below 2^31
_WIDTHS = torch.tensor([0] * _EXACT + [e - 2 for e in range(4, 31) for _ in range(4)])


def pack(codes: Tensor) -> bytes:
    """The bytes of one vector of integers below 2^31."""
    symbols, raw, widths = (part.cpu() for part in cut(codes))
    frequencies = normalise(torch.bincount(symbols))
    head = len(frequencies).to_bytes(2, "little") + _table(len(frequencies)).pack(frequencies)
    stream = encode(symbols.numpy(), frequencies.numpy())
    return head + len(stream).to_bytes(4, "little") + stream + _pack_raw(raw.numpy(), widths.numpy())


def unpack(body: memoryview, n: int) -> Tensor:
    """The n integers of a message's bytes."""
    frequencies, start = _read_table(body)
    stream = int.from_bytes(body[start : start + 4], "little")
    start += 4
    if start + stream > len(body):
        raise WireError(f"a stream of {stream} bytes does not fit in a message of {len(body)}")
    symbols = torch.from_numpy(decode(body[start : start + stream], frequencies, n))
    magnitude = (symbols + 1) // 2
    widths = _WIDTHS[magnitude]
    raw = _unpack_raw(body[start + stream :], widths.numpy())
    octave, quarter = (magnitude - _EXACT) // 4 + 4, (magnitude - _EXACT) % 4
    large = ((4 + quarter) << (octave - 2).clamp(min=0)) + torch.from_numpy(raw)
    value = torch.where(magnitude < _EXACT, magnitude, large)
    return torch.where(symbols % 2 == 1, value, -value)


def nbytes(codes: Tensor) -> Tensor:
    """The size of each row's bytes, from the counts of its symbols; within a few bytes."""
    symbols, _, widths = cut(codes.reshape(-1, codes.shape[-1]))
    counts = histogram(symbols, _MOST)
    frequencies = normalise(counts)
    used = (counts > 0).long().cumsum(-1).argmax(-1) + 1
    table = 2 + (used * _table(1).bits + 7) // 8
    return table + 4 + stream_bytes(counts, frequencies) + (widths.sum(-1) + 7) // 8


def bits(codes: Tensor) -> Tensor:
    """The entropy of each row's symbols and raw bits, a coordinate."""
    symbols, _, widths = cut(codes)
    share = histogram(symbols, _MOST).double() / codes.shape[-1]
    return -(share * share.clamp(min=1e-300).log2()).sum(-1) + widths.double().mean(-1)


def cut(codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The symbol, the raw bits and their number for each integer; positive ones have odd symbols."""
    value = codes.to(torch.int64).abs()
    octave = torch.frexp(value.double())[1].to(torch.int64) - 1  # 2^octave <= value
    shift = (octave - 2).clamp(min=0)
    symbol = torch.where(value < _EXACT, value, _EXACT + 4 * (octave - 4) + ((value >> shift) & 3))
    widths = torch.where(value < _EXACT, torch.zeros_like(shift), shift)
    return 2 * symbol - (codes > 0).to(torch.int64), value & ((1 << widths) - 1), widths


def _read_table(body: memoryview) -> tuple[Ints, int]:
    size = int.from_bytes(body[:2], "little")
    field = _table(size)
    if not 1 <= size <= _MOST or len(body) < 2 + field.nbytes + 4:
        raise WireError(f"a table of {size} symbols does not fit in a message of {len(body)} bytes")
    frequencies = field.unpack(body[2 : 2 + field.nbytes]).numpy()
    if frequencies.sum() != 1 << PRECISION:
        raise WireError(f"frequencies sum to {frequencies.sum()}, not to {1 << PRECISION}")
    return frequencies, 2 + field.nbytes


def _table(size: int) -> Field:
    return Field("table", size, PRECISION + 1)


def _pack_raw(raw: Ints, widths: Ints) -> bytes:
    out = np.zeros((int(widths.sum()) + 7) // 8, np.uint8)
    _write_bits(raw, widths, out)
    return out.tobytes()


def _unpack_raw(data: memoryview, widths: Ints) -> Ints:
    if len(data) != (int(widths.sum()) + 7) // 8:
        raise WireError(f"{len(data)} bytes of raw bits where {(int(widths.sum()) + 7) // 8} are due")
    raw = np.zeros(len(widths), np.int64)
    _read_bits(np.frombuffer(data, np.uint8), widths, raw)
    return raw


@jit
def _write_bits(raw: Ints, widths: Ints, out: NDArray[np.uint8]) -> None:
    position = 0
    for i in range(len(raw)):
        for j in range(widths[i]):
            out[position >> 3] |= ((raw[i] >> j) & 1) << (position & 7)
            position += 1


@jit
def _read_bits(data: NDArray[np.uint8], widths: Ints, raw: Ints) -> None:
    position = 0
    for i in range(len(raw)):
        for j in range(widths[i]):
            raw[i] |= ((data[position >> 3] >> (position & 7)) & 1) << j
            position += 1
