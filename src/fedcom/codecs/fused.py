"""Whole passes over CPU float32 vectors in one loop each; every one equals, bit for bit, the torch lines it stands for.

They run only where numba compiles them. Stacks are taken row by row, each with its own key.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.kernels import COMPILED, jit
from fedcom.draws import Draw

Floats = NDArray[np.float32]
Codes = NDArray[np.int32]
Keys = NDArray[np.int64]
F, U = np.float32, np.uint32


def ready(x: Tensor, draw: Draw) -> bool:
    """Whether the loops here can take the place of torch, given float32."""
    cpu = x.device.type == "cpu" and draw.key.device.type == "cpu"
    return COMPILED and cpu and draw.key.dim() < x.dim()


def dithered(x: Tensor, step: Tensor, most: int, draw: Draw) -> Tensor:
    """The codes round(x/step + u), cut to +-most, and 0 for NaN."""
    codes = torch.empty(x.shape, dtype=torch.int32)
    steps = step.expand(*x.shape[:-1], 1).reshape(-1).numpy()
    _dithered(_rows(x), steps, F(most), _keys(x, draw), _rows(codes))
    return codes


def undithered(codes: Tensor, step: Tensor, draw: Draw) -> Tensor:
    """(codes - u) step."""
    x = torch.empty(codes.shape)
    steps = step.expand(*x.shape[:-1], 1).reshape(-1).numpy()
    _undithered(_rows(codes), steps, _keys(x, draw), _rows(x))
    return x


def flip(x: Tensor, draw: Draw) -> Tensor:
    """A copy of x with random signs, 32 of each hash."""
    y = torch.empty(x.shape)
    _flip(_rows(x).view(U), _keys(x, draw), _rows(y).view(U))
    return y


def transform(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of the last axis, whose length is a power of four."""
    y = torch.empty(x.shape)
    _transform(_rows(x), _rows(y))
    return y


def _rows(x: Tensor) -> NDArray:
    rows: NDArray = x.detach().reshape(-1, x.shape[-1]).numpy()
    return rows


def _keys(x: Tensor, draw: Draw) -> Keys:
    keys: Keys = draw.key.expand(x.shape[:-1]).reshape(-1).numpy()
    return keys


@jit
def _hash(i: int, low: U, high: U) -> U:
    """Draw.bits, one number."""
    x = U(U(i) + low)
    x = U(U(U(x ^ (x >> U(17))) * U(0xED5AD4BB)) ^ high)
    x = U(U(x ^ (x >> U(11))) * U(0xAC4C1B51))
    x = U(U(x ^ (x >> U(15))) * U(0x31848BAB))
    return U(x ^ (x >> U(14)))


@jit
def _dither(i: int, low: U, high: U) -> F:
    return F(np.int32(_hash(i, low, high) >> U(8))) * F(2.0**-24) - F(0.5)


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
def _flip(x: NDArray[U], keys: Keys, y: NDArray[U]) -> None:
    for r in range(len(x)):
        low, high, row, out = U(keys[r]), U(keys[r] >> 32), x[r], y[r]
        whole = len(row) // 32
        for k in range(whole):
            word = _hash(k, low, high)
            for j in range(32):
                out[32 * k + j] = row[32 * k + j] ^ (U(word << U(31 - j)) & U(0x80000000))
        word = _hash(whole, low, high)
        for j in range(len(row) % 32):
            out[32 * whole + j] = row[32 * whole + j] ^ (U(word << U(31 - j)) & U(0x80000000))


@jit
def _transform(rows: Floats, out: Floats) -> None:
    scale = F(1.0 / np.sqrt(rows.shape[1]))
    for r in range(len(rows)):
        x, h = out[r], 4
        _stages_one_and_two(rows[r], x)
        while h < len(x):
            _two_stages(x, h)
            h *= 4
        for i in range(len(x)):
            x[i] *= scale


@jit
def _stages_one_and_two(x: Floats, y: Floats) -> None:
    y[: len(x) % 4] = x[: len(x) % 4]  # a row of one is its own transform
    for i in range(0, len(x) - 3, 4):
        a, b, c, d = x[i] + x[i + 1], x[i] - x[i + 1], x[i + 2] + x[i + 3], x[i + 2] - x[i + 3]
        y[i], y[i + 1], y[i + 2], y[i + 3] = a + c, b + d, a - c, b - d


@jit
def _two_stages(x: Floats, h: int) -> None:
    for start in range(0, len(x), 4 * h):
        p, q = x[start : start + h], x[start + h : start + 2 * h]
        r, s = x[start + 2 * h : start + 3 * h], x[start + 3 * h : start + 4 * h]
        for i in range(h):
            a, b, c, d = p[i] + q[i], p[i] - q[i], r[i] + s[i], r[i] - s[i]
            p[i], q[i], r[i], s[i] = a + c, b + d, a - c, b - d
