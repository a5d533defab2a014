"""Loops over float32 vectors on a CPU that take the place of some lines of torch, without temporaries.

They run only if numba compiles them. Stacks are taken row by row, each with its own key. Results are those of
the torch lines, bit for bit; only sums, which are in float64, are added in another order.
"""

import math
from typing import Any

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


def ready(x: Tensor, draw: Draw) -> bool:
    """Whether the loops here can take the place of torch for a float32 x."""
    cpu = x.device.type == "cpu" and draw.key.device.type == "cpu"
    return COMPILED and cpu and draw.key.dim() < x.dim()


def dithered(x: Tensor, step: Tensor, most: int, draw: Draw) -> Tensor:
    """The codes round(x/step + u), clamped to +-most, and 0 for NaN."""
    codes = torch.empty(x.shape, dtype=torch.int32)
    _dithered(_rows(x), _each(x, step), F(most), _keys(x, draw), _rows(codes))
    return codes


def undithered(codes: Tensor, step: Tensor, draw: Draw) -> Tensor:
    """The vector (codes - u) step."""
    x = torch.empty(codes.shape)
    _undithered(_rows(codes), _each(x, step), _keys(x, draw), _rows(x))
    return x


def power(x: Tensor) -> Tensor:
    """The sum of squares of each row, in float64, as a column."""
    return product(x, x)


def product(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each row of x with that of y, in float64, as a column."""
    sums = torch.empty(*x.shape[:-1], 1, dtype=torch.float64)
    _product(_rows(x), _rows(y), sums.view(-1).numpy())
    return sums


def levels(y: Tensor, step: Tensor, low: int, high: int) -> Tensor:
    """The codes round(y/step), clamped to low..high, and 0 for NaN."""
    codes = torch.empty(y.shape, dtype=torch.int32)
    _levels(_rows(y), _each(y, step), F(low), F(high), _rows(codes))
    return codes


def image(codes: Tensor, low: int, centres: Tensor) -> Tensor:
    """The centres of codes, of which low is the first; a code outside the table has the last centre."""
    y = torch.empty(codes.shape)
    butterflies.look_up(_rows(codes).reshape(-1), low, centres.numpy(), _rows(y).reshape(-1))
    return y


def rotate(x: Tensor, n: int, b: int, draw: Draw) -> Tensor:
    """The same as hadamard.rotate, for n coordinates after padding and rows of b."""
    y, z = torch.empty(*x.shape[:-1], n), torch.empty(*x.shape[:-1], n)
    butterflies.rotate(_rows(x), _keys(x, draw), _blocks(y, b), _blocks(z, b))
    return z


def unrotate(codes: Tensor, low: int, centres: Tensor, size: Tensor, d: int, b: int, draw: Draw) -> Tensor:
    """The same as hadamard.unrotate of the centres of codes, times one size per row."""
    z, x = torch.empty(codes.shape), torch.empty(codes.shape)
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
    codes = torch.empty(*y.shape[:-1], count, dtype=torch.int64)
    tops = torch.empty(*y.shape[:-1], count)
    _peaks(_rows(y).view(np.int32), start, size, _rows(codes), _rows(tops).view(np.int32))
    return codes, tops


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
def _dither(i: int, low: U, high: U) -> F:
    """u of coordinate i, uniform in [-1/2, 1/2)."""
    return F(np.int32(bits(i, low, high) >> U(8))) * F(2.0**-24) - F(0.5)


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


@sum_jit
def _product(x: Floats, y: Floats, sums: NDArray[np.float64]) -> None:
    for r in range(len(x)):
        a, b, total = x[r], y[r], 0.0
        for i in range(len(a)):
            total += np.float64(a[i]) * np.float64(b[i])
        sums[r] = total


@jit
def _levels(y: Floats, step: Floats, low: F, high: F, codes: Codes) -> None:
    for r in range(len(y)):
        row, out, size = y[r], codes[r], step[r]
        for i in range(len(row)):
            v = np.rint(row[i] / size)
            v = F(0) if v != v else v
            out[i] = np.int32(min(max(v, low), high))


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
