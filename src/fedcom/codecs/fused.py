"""Whole passes over CPU float32 vectors, each equal to the torch lines it stands for, with no temporaries.

They run only where numba compiles them. Stacks are taken row by row, each with its own key. Results agree
bit for bit; sums are made in float64 in an order of their own.
"""

from typing import Any

import numpy as np
import torch
from numpy import float32 as F
from numpy import uint32 as U
from numpy.typing import NDArray
from torch import Tensor

from fedcom.codecs.kernels import COMPILED, jit
from fedcom.draws import Draw

Floats = NDArray[np.float32]
Blocks = NDArray[np.float32]  # of each client, R rows of B
Codes = NDArray[np.int32]
Keys = NDArray[np.int64]


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


def power(x: Tensor) -> Tensor:
    """The sum of squares of each row, in float64, as a column."""
    return product(x, x)


def product(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of each row of x with that of y, in float64, as a column."""
    sums = np.empty((x[..., 0].numel(), 4))
    _product(_rows(x), _rows(y), sums)
    return torch.from_numpy(sums.sum(1)).reshape(*x.shape[:-1], 1)


def levels(y: Tensor, step: Tensor, low: int, high: int) -> Tensor:
    """The codes round(y/step), cut to low..high, and 0 for NaN."""
    codes = torch.empty(y.shape, dtype=torch.int32)
    _levels(_rows(y), step.reshape(-1).numpy(), F(low), F(high), _rows(codes))
    return codes


def image(codes: Tensor, low: int, centres: Tensor) -> Tensor:
    """The centres of codes, the first of which is low; codes beyond the ends have those of the ends."""
    y = torch.empty(codes.shape)
    _image(_rows(codes), low, centres.numpy(), _rows(y))
    return y


def rotate(x: Tensor, n: int, b: int, draw: Draw) -> Tensor:
    """hadamard.rotate."""
    y, z = (torch.empty(*x.shape[:-1], n) for _ in range(2))
    first, second = (_keys(x, draw.fold(part)) for part in ("first", "second"))
    _rotate(_rows(x), first, second, _blocks(y, n // b, b), _blocks(z, n // b, b))
    return z


def unrotate(y: Tensor, d: int, b: int, draw: Draw) -> Tensor:
    """hadamard.unrotate."""
    z, x = (torch.empty(y.shape) for _ in range(2))
    first, second = (_keys(x, draw.fold(part)) for part in ("first", "second"))
    blocks = y.shape[-1] // b
    _unrotate(_rows(y), first, second, _blocks(z, blocks, b), _blocks(x, blocks, b))
    return x[..., :d]


def _blocks(x: Tensor, *shape: int) -> NDArray[np.float32]:
    blocks: NDArray[np.float32] = x.view(-1, *shape).numpy()
    return blocks


def _rows(x: Tensor) -> NDArray[Any]:
    rows: NDArray[Any] = x.detach().reshape(-1, x.shape[-1]).numpy()
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
def _product(x: Floats, y: Floats, sums: NDArray[np.float64]) -> None:
    """Four sums at a time, which take turns to wait for their additions."""
    for r in range(len(x)):
        a, b, (p, q, s, t) = x[r], y[r], (0.0, 0.0, 0.0, 0.0)
        whole = len(a) - len(a) % 4
        for i in range(0, whole, 4):
            p += np.float64(a[i]) * np.float64(b[i])
            q += np.float64(a[i + 1]) * np.float64(b[i + 1])
            s += np.float64(a[i + 2]) * np.float64(b[i + 2])
            t += np.float64(a[i + 3]) * np.float64(b[i + 3])
        for i in range(whole, len(a)):
            p += np.float64(a[i]) * np.float64(b[i])
        sums[r, 0], sums[r, 1], sums[r, 2], sums[r, 3] = p, q, s, t


@jit
def _levels(y: Floats, step: Floats, low: F, high: F, codes: Codes) -> None:
    for r in range(len(y)):
        row, out, size = y[r], codes[r], step[r]
        for i in range(len(row)):
            v = np.rint(row[i] / size)
            v = F(0) if v != v else v
            out[i] = np.int32(min(max(v, low), high))


@jit
def _image(codes: Codes, low: int, centres: Floats, y: Floats) -> None:
    last = len(centres) - 1
    for r in range(len(codes)):
        row, out = codes[r], y[r]
        for i in range(len(row)):
            out[i] = centres[min(max(int(row[i]) - low, 0), last)]  # a bound the message cannot pass


@jit
def _rotate(x: Floats, first: Keys, second: Keys, y: Blocks, z: Blocks) -> None:
    for r in range(len(x)):
        flat = y[r].reshape(-1)
        flat[: x.shape[1]] = x[r]
        flat[x.shape[1] :] = 0
        _flip(flat.view(U), first[r])
        _transform(y[r])
        _transpose(y[r], z[r].reshape(y.shape[2], y.shape[1]))
        _flip(z[r].reshape(-1).view(U), second[r])
        _transform(z[r])


@jit
def _unrotate(y: Floats, first: Keys, second: Keys, z: Blocks, x: Blocks) -> None:
    for r in range(len(y)):
        flat = z[r].reshape(-1)
        flat[:] = y[r]
        _transform(z[r])
        _flip(flat.view(U), second[r])
        _transpose_back(flat.reshape(z.shape[2], z.shape[1]), x[r])
        _transform(x[r])
        _flip(x[r].reshape(-1).view(U), first[r])


@jit
def _flip(x: NDArray[U], key: int) -> None:
    """Random signs, 32 of each hash."""
    low, high, whole = U(key), U(key >> 32), len(x) // 32
    for k in range(whole):
        word = _hash(k, low, high)
        for j in range(32):
            x[32 * k + j] ^= U(word << U(31 - j)) & U(0x80000000)
    word = _hash(whole, low, high)
    for j in range(len(x) % 32):
        x[32 * whole + j] ^= U(word << U(31 - j)) & U(0x80000000)


@jit
def _transpose(x: Floats, y: Floats) -> None:
    """Sixteen columns at a time, so that what is read and written stays in the cache."""
    tiled = len(y) - len(y) % 16
    for start in range(0, tiled, 16):
        for r in range(len(x)):
            for c in range(16):
                y[start + c, r] = x[r, start + c]
    for c in range(tiled, len(y)):
        for r in range(len(x)):
            y[c, r] = x[r, c]


@jit
def _transpose_back(y: Floats, x: Floats) -> None:
    tiled = len(y) - len(y) % 16
    for start in range(0, tiled, 16):
        for r in range(len(x)):
            for c in range(16):
                x[r, start + c] = y[start + c, r]
    for c in range(tiled, len(y)):
        for r in range(len(x)):
            x[r, c] = y[c, r]


@jit
def _transform(rows: Floats) -> None:
    """The orthonormal Walsh-Hadamard transform of each row, whose length is a power of four."""
    scale = F(1.0 / np.sqrt(rows.shape[1]))
    for r in range(len(rows)):
        x, h = rows[r], 4
        _stages_one_and_two(x)
        while h < len(x):
            _two_stages(x, h)
            h *= 4
        for i in range(len(x)):
            x[i] *= scale


@jit
def _stages_one_and_two(x: Floats) -> None:
    for i in range(0, len(x) - 3, 4):
        a, b, c, d = x[i] + x[i + 1], x[i] - x[i + 1], x[i + 2] + x[i + 3], x[i + 2] - x[i + 3]
        x[i], x[i + 1], x[i + 2], x[i + 3] = a + c, b + d, a - c, b - d


@jit
def _two_stages(x: Floats, h: int) -> None:
    for start in range(0, len(x), 4 * h):
        p, q = x[start : start + h], x[start + h : start + 2 * h]
        r, s = x[start + 2 * h : start + 3 * h], x[start + 3 * h : start + 4 * h]
        for i in range(h):
            a, b, c, d = p[i] + q[i], p[i] - q[i], r[i] + s[i], r[i] - s[i]
            p[i], q[i], r[i], s[i] = a + c, b + d, a - c, b - d
