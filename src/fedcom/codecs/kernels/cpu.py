"""Loops over float32 vectors on a CPU that take the place of some lines of torch, without temporaries.

They run only if numba compiles them. Stacks are taken row by row, each with its own key. Results are those of
the torch lines, bit for bit; only sums, which are in float64, are added in another order.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import float32 as F
from numpy import uint32 as U
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.kernels import butterflies
from fedcom.codecs.kernels.arrays import Codes, Floats, Ints, Keys
from fedcom.codecs.kernels.jit import COMPILED, bits, jit, sum_jit
from fedcom.draws import Draw

# low, step, ends of the pieces, the largest code, keys, whether to round at random
_Scales = tuple[Floats, Floats, Ints, F, Keys, bool]


def ready(x: Tensor, draw: Draw) -> bool:
    """Whether the loops here can take the place of torch for a float32 x."""
    cpu = x.device.type == "cpu" and draw.key.device.type == "cpu"
    return COMPILED and cpu and draw.key.dim() < x.dim()


def dithered(x: Tensor, step: Tensor, most: int, draw: Draw) -> Tensor:
    """The codes round(x/step + u), clamped to +-most, and 0 for NaN."""
    codes = _room(*x.shape, dtype=torch.int32)
    _dithered(_rows(x), _each(x, step), F(most), _keys(x, draw), _rows(codes))
    return codes


def undithered(codes: Tensor, step: Tensor, draw: Draw) -> Tensor:
    """The vector (codes - u) step."""
    x = _room(*codes.shape)
    _undithered(_rows(codes), _each(x, step), _keys(x, draw), _rows(x))
    return x


class Affine(NamedTuple):
    """Affine integers: one pair of scales for each piece of each row."""

    low: Tensor  # the value of code 0
    step: Tensor
    sizes: list[int]  # of the pieces
    top: int  # the largest code


def integers(x: Tensor, affine: Affine, draw: Draw | None) -> Tensor:
    """The codes (x - low)/step, clamped to 0..top, rounded at random; without a draw, to the nearest."""
    codes = _room(*x.shape, dtype=torch.int32)
    _integers(_rows(x), _scales(x, affine, draw), _rows(codes))
    return codes


def values(codes: Tensor, low: Tensor, step: Tensor, sizes: list[int]) -> Tensor:
    """The vector codes * step + low; `Affine` explains the parameters."""
    x = _room(*codes.shape)
    _values(_rows(codes), _rows(low), _rows(step), _ends(sizes), _rows(x))
    return x


def heard(x: Tensor, affine: Affine, draw: Draw | None, low: Tensor) -> Tensor:
    """The values of the codes of x, where `low` is the value of code 0 as the receiver sees it."""
    out = _room(*x.shape)
    _heard(_rows(x), _scales(x, affine, draw), _rows(low), _rows(out))
    return out


def product(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each row of x with that of y, in float64, as a column."""
    sums = _room(*x.shape[:-1], 1, dtype=torch.float64)
    _product(_rows(x), _rows(y), sums.view(-1).numpy())
    return sums


def quantised(y: Tensor, step: Tensor, low: int, high: int, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The codes round(y/step), clamped to low..high, 0 for NaN; and each row's product with their centres."""
    codes = _room(*y.shape, dtype=torch.int32)
    sums = _room(*y.shape[:-1], 1, dtype=torch.float64)
    scales = _each(y, step), F(low), F(high)
    _quantised(_rows(y), *scales, centres.numpy(), _rows(codes), sums.view(-1).numpy())
    return codes, sums


def image(codes: Tensor, low: int, centres: Tensor) -> Tensor:
    """The centres of codes that begin at low; a code outside the table has the last centre."""
    y = _room(*codes.shape)
    butterflies.look_up(_rows(codes).reshape(-1), low, centres.numpy(), _rows(y).reshape(-1))
    return y


def rotate(x: Tensor, n: int, b: int, draw: Draw) -> Tensor:
    """The same as hadamard.rotate, for n coordinates after padding and rows of b."""
    y, z = _room(*x.shape[:-1], n), _room(*x.shape[:-1], n)
    butterflies.rotate(_rows(x), _keys(x, draw), _blocks(y, b), _blocks(z, b))
    return z


def unrotate(codes: Tensor, low: int, centres: Tensor, size: Tensor, d: int, b: int, draw: Draw) -> Tensor:
    """The same as hadamard.unrotate of the centres of codes, times one size per row."""
    z, x = _room(*codes.shape), _room(*codes.shape)
    rows, points = _rows(codes), centres.numpy()
    butterflies.unrotate(rows, low, points, _each(x, size), _keys(x, draw), _blocks(z, b), _blocks(x, b))
    return x.narrow(-1, 0, d)


def peaks(y: Tensor, start: int, count: int, size: int) -> tuple[Tensor, Tensor]:
    """The largest magnitude in each block of each row: its code, and itself.

    Args:
        start: where the first block begins.
        count: how many blocks there are; the last may reach beyond the row.
        size: the coordinates of a block.
    """
    codes = _room(*y.shape[:-1], count, dtype=torch.int64)
    tops = _room(*y.shape[:-1], count)
    _peaks(_rows(y).view(np.int32), start, size, _rows(codes), _rows(tops).view(np.int32))
    return codes, tops


def _room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory for results, whatever dtype and device torch has as its defaults."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _scales(x: Tensor, affine: Affine, draw: Draw | None) -> "_Scales":
    low, step, sizes, top = affine
    keys = np.zeros(math.prod(x.shape[:-1]), np.int64) if draw is None else _keys(x, draw)
    return _rows(low), _rows(step), _ends(sizes), F(top), keys, draw is not None


def _ends(sizes: list[int]) -> Ints:
    """Where pieces of these sizes end, after a zero."""
    return np.cumsum([0, *sizes])


def _blocks(x: Tensor, b: int) -> Floats:
    """x as an array [clients, R, b]."""
    blocks: Floats = x.numpy()
    return blocks.reshape(-1, x.shape[-1] // b, b)


def _rows(x: Tensor) -> NDArray[Any]:
    """x as an array [clients, d]."""
    rows: NDArray[Any] = x.detach().numpy()
    return rows.reshape(-1, x.shape[-1])


def _keys(x: Tensor, draw: Draw) -> Keys:
    """One key per row of x."""
    return _each(x, draw.key)


def _each(x: Tensor, values: Tensor) -> NDArray[Any]:
    """One value per row of x, repeated where one value was given for all rows."""
    flat, rows = values.numpy().reshape(-1), math.prod(x.shape[:-1])
    return flat if len(flat) == rows else np.resize(flat, rows)


@jit
def _uniform(i: int, low: U, high: U) -> F:
    """u of coordinate i, uniform in [0, 1)."""
    return F(np.int32(bits(i, low, high) >> U(8))) * F(2.0**-24)


@jit
def _dither(i: int, low: U, high: U) -> F:
    """u of coordinate i, uniform in [-1/2, 1/2)."""
    return _uniform(i, low, high) - F(0.5)


@jit
def _dithered(x: Floats, step: Floats, most: F, keys: Keys, codes: Codes) -> None:
    for r in range(len(x)):
        low, high, row, out, size = U(keys[r]), U(keys[r] >> 32), x[r], codes[r], step[r]
        for i in range(len(row)):
            v = np.rint(row[i] / size + _dither(i, low, high))
            v = F(0) if v != v else v
            out[i] = np.int32(min(max(v, -most), most))


@jit
def _undithered(codes: Codes, step: Floats, keys: Keys, x: Floats) -> None:
    for r in range(len(x)):
        low, high, row, out, size = U(keys[r]), U(keys[r] >> 32), codes[r], x[r], step[r]
        for i in range(len(row)):
            out[i] = (F(row[i]) - _dither(i, low, high)) * size


@jit
def _integer(x: F, low: F, step: F, top: F, u: F) -> F:
    """The code of a number, rounded up if u is less than what rounding down leaves; 0 of NaN."""
    z = F(x - low) / step
    floor = np.floor(z)
    v = floor + F(1) if u < z - floor else floor
    v = v if v > F(0) else F(0)
    return v if v < top else top


@jit
def _integers(x: Floats, scales: _Scales, codes: Codes) -> None:
    low, step, ends, top, keys, random = scales
    for r in range(len(x)):
        for k in range(len(ends) - 1):
            row, out = x[r, ends[k] : ends[k + 1]], codes[r, ends[k] : ends[k + 1]]
            one, two, a, b = U(U(keys[r]) + U(ends[k])), U(keys[r] >> 32), low[r, k], step[r, k]
            for i in range(len(row)):
                u = _uniform(i, one, two) if random else F(0.5)
                out[i] = np.int32(_integer(row[i], a, b, top, u))


@jit
def _values(codes: Codes, low: Floats, step: Floats, ends: Ints, x: Floats) -> None:
    for r in range(len(x)):
        for k in range(len(ends) - 1):
            row, out = codes[r, ends[k] : ends[k + 1]], x[r, ends[k] : ends[k + 1]]
            a, b = low[r, k], step[r, k]
            for i in range(len(row)):
                out[i] = F(F(row[i]) * b) + a


@jit
def _heard(x: Floats, scales: _Scales, first: Floats, heard: Floats) -> None:
    low, step, ends, top, keys, random = scales
    for r in range(len(x)):
        for k in range(len(ends) - 1):
            row, out = x[r, ends[k] : ends[k + 1]], heard[r, ends[k] : ends[k + 1]]
            one, two, a, b = U(U(keys[r]) + U(ends[k])), U(keys[r] >> 32), low[r, k], step[r, k]
            c = first[r, k]
            for i in range(len(row)):
                u = _uniform(i, one, two) if random else F(0.5)
                out[i] = F(_integer(row[i], a, b, top, u) * b) + c


@sum_jit
def _product(x: Floats, y: Floats, sums: NDArray[np.float64]) -> None:
    for r in range(len(x)):
        a, b, total = x[r], y[r], 0.0
        for i in range(len(a)):
            total += np.float64(a[i]) * np.float64(b[i])
        sums[r] = total


@jit
def _levels(y: Floats, step: F, low: F, high: F, codes: Codes) -> None:
    for i in range(len(y)):
        v = np.rint(y[i] / step)
        v = F(0) if v != v else v
        codes[i] = np.int32(min(max(v, low), high))


@jit
def _quantised(
    y: Floats, step: Floats, low: F, high: F, centres: Floats, codes: Codes, sums: NDArray[np.float64]
) -> None:
    for r in range(len(y)):  # two loops are quicker than one: the first is free of look-ups
        _levels(y[r], step[r], low, high, codes[r])
        sums[r] = _overlap(y[r], codes[r], np.int32(low), centres)


@sum_jit
def _overlap(y: Floats, codes: Codes, low: np.int32, centres: Floats) -> float:
    total = 0.0
    if len(centres) == 3:  # choices instead of look-ups: several codes at once
        a, b, c = np.float64(centres[0]), np.float64(centres[1]), np.float64(centres[2])
        second, third = np.int32(low + 1), np.int32(low + 2)
        for i in range(len(y)):
            total += np.float64(y[i]) * (c if codes[i] == third else (b if codes[i] == second else a))
        return total
    for i in range(len(y)):
        total += np.float64(y[i]) * np.float64(centres[U(codes[i] - low)])
    return total


@jit
def _peaks(y: Codes, start: int, size: int, codes: Ints, tops: Codes) -> None:
    """The peaks of float32 numbers given as integers: without the sign bit, these have the same order."""
    magnitude = np.int32(0x7FFFFFFF)
    for r in range(len(y)):
        for j in range(codes.shape[1]):
            block, top = y[r, start + j * size : start + (j + 1) * size], np.int32(0)
            for i in range(len(block)):
                top = max(top, block[i] & magnitude)
            place = 0
            while block[place] & magnitude != top:
                place += 1
            codes[r, j] = 2 * place + (top > 0 and block[place] < 0)
            tops[r, j] = top
