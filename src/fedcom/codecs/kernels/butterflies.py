"""The rotations of coding/hadamard.py as loops over float32 arrays [clients, R, B] of R rows of B numbers."""

import numpy as np
from numpy import float32 as F
from numpy import uint32 as U
from numpy import uint64 as W

from fedcom import draws
from fedcom.codecs.kernels.arrays import Floats, Keys, Whole
from fedcom.codecs.kernels.jit import bits, jit

_BITS = U(1) << np.arange(32, dtype=U)
_FIRST, _SECOND = draws.salt("first"), draws.salt("second")
_SPARE = 4096  # so many numbers fit twice in a fast cache
_mix = jit(draws.mix)


@jit
def rotate(x: Floats, keys: Keys, y: Floats, z: Floats) -> None:
    """Fill z with the rotated vectors of x; y is room for what lies between."""
    b, scale = y.shape[2], F(1.0 / np.sqrt(y.shape[2]))
    spare = np.empty(_SPARE, F)
    for r in range(len(x)):
        flat, turned = y[r].reshape(-1), z[r].reshape(-1)
        flat[: x.shape[1]] = x[r]
        flat[x.shape[1] :] = 0
        _sign(flat, F(1), F(1), _mix(keys[r], _FIRST))
        _transform(y[r], spare)
        _transpose(y[r], z[r].reshape(b, y.shape[1]))
        _sign(turned, scale, F(1), _mix(keys[r], _SECOND))
        _transform(z[r], spare)
        for i in range(len(turned)):
            turned[i] *= scale


@jit
def unrotate(
    codes: Whole, low: int, centres: Floats, sizes: Floats, keys: Keys, z: Floats, x: Floats
) -> None:
    """Fill x with the unrotated centres of codes, times one size per client.

    z is room for what lies between.
    """
    b, scale = z.shape[2], F(1.0 / np.sqrt(z.shape[2]))
    spare = np.empty(_SPARE, F)
    for r in range(len(codes)):
        flat = z[r].reshape(-1)
        look_up(codes[r], low, centres, flat)
        _transform(z[r], spare)
        _sign(flat, scale, F(1), _mix(keys[r], _SECOND))
        _transpose_back(flat.reshape(b, z.shape[1]), x[r])
        _transform(x[r], spare)
        _sign(x[r].reshape(-1), scale, sizes[r], _mix(keys[r], _FIRST))


@jit
def look_up(codes: Whole, low: int, centres: Floats, y: Floats) -> None:
    """Fill y with the centres of codes that begin at low."""
    last = U(len(centres) - 1)  # no code of a forged message reaches beyond the table
    if len(centres) == 3:  # choices instead of look-ups: several codes at once
        a, b, c = centres[0], centres[1], centres[2]
        first, second = np.int32(low), np.int32(low + 1)
        for i in range(len(codes)):
            y[i] = a if codes[i] == first else (b if codes[i] == second else c)
        return
    for i in range(len(codes)):
        y[i] = centres[min(U(codes[i] - low), last)]


@jit
def _sign(x: Floats, scale: F, size: F, key: int) -> None:
    """Multiply by a scale with a random sign, 32 signs from each random number, and then by a size."""
    low, high = U(key), U(key >> 32)
    for k in range((len(x) + 31) // 32):
        word, some = bits(k, low, high), x[32 * k : 32 * k + 32]
        for j in range(len(some)):
            some[j] = some[j] * (-scale if word & _BITS[j] else scale) * size


@jit
def _transpose(x: Floats, y: Floats) -> None:
    """Fill y with x transposed, four rows at a time, so that what is written lies together."""
    whole = len(x) // 4 * 4
    for r in range(0, whole, 4):
        p, q, s, t = x[r], x[r + 1], x[r + 2], x[r + 3]
        for c in range(len(y)):
            y[c, r], y[c, r + 1], y[c, r + 2], y[c, r + 3] = p[c], q[c], s[c], t[c]
    for r in range(whole, len(x)):
        for c in range(len(y)):
            y[c, r] = x[r, c]


@jit
def _transpose_back(y: Floats, x: Floats) -> None:
    """Fill x with y transposed, sixteen columns at a time, so that both stay in the cache."""
    whole = len(y) // 16 * 16
    for start in range(0, whole, 16):
        for r in range(len(x)):
            for c in range(16):
                x[r, start + c] = y[start + c, r]
    for c in range(whole, len(y)):
        for r in range(len(x)):
            x[r, c] = y[c, r]


@jit
def _transform(rows: Floats, spare: Floats) -> None:
    """The Walsh-Hadamard transform of each row, not yet scaled; rows have a power of four as length."""
    near, n = 1, rows.shape[1]
    while 16 * near <= min(n, len(spare)):
        near *= 16
    for r in range(len(rows)):
        for start in range(0, n, near):
            _near(rows[r, start : start + near], spare[:near])
        h = near
        while h < n:
            _far(rows[r], h)
            h *= 4


@jit
def _near(x: Floats, spare: Floats) -> None:
    """All levels of a few numbers, as many as a power of sixteen.

    Every pass writes its sums to the four quarters of the other array. So all passes are alike, and after the
    last one every sum is in its own place.
    """
    h = 1
    while h < len(x):
        _two_levels(x, spare)
        _two_levels(spare, x)
        h *= 16


@jit
def _two_levels(x: Floats, y: Floats) -> None:
    """Fill y with the sums of two levels of x."""
    n = W(len(x) // 4)
    for k in range(len(x) // 4):
        i, j = W(k), W(4 * k)
        p, q, r, s = x[j], x[j + W(1)], x[j + W(2)], x[j + W(3)]
        a, b, c, d = p + q, p - q, r + s, r - s
        y[i], y[i + n], y[i + W(2) * n], y[i + W(3) * n] = a + c, b + d, a - c, b - d


@jit
def _far(x: Floats, h: int) -> None:
    """The two levels that add numbers h and 2h apart."""
    for start in range(0, len(x), 4 * h):
        p, q = x[start : start + h], x[start + h : start + 2 * h]
        r, s = x[start + 2 * h : start + 3 * h], x[start + 3 * h : start + 4 * h]
        for i in range(h):
            a, b, c, d = p[i] + q[i], p[i] - q[i], r[i] + s[i], r[i] - s[i]
            p[i], q[i], r[i], s[i] = a + c, b + d, a - c, b - d
