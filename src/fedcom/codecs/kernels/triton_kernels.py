"""The kernels of gpu.py: each program transforms one row of one vector's rotation in registers.

This is Triton, a language of its own with Python's syntax. What is marked constexpr is known when a kernel is
compiled: B, the coordinates of a row, LEVELS = log2 B, and SCALE = 1/sqrt B. R is the number of rows, and d
the number of coordinates without padding.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from fedcom.codecs.kernels.triton_draws import bits, mix


@triton.jit
def _flip(x, i, key):
    """Multiply coordinates i by random signs: bit i % 32 of number i // 32 of Draw.bits."""
    z = bits(i >> 5, key)
    return tl.where((z >> (i & 31).to(tl.uint32)) & 1 == 1, -x, x)


@triton.jit
def _level(x, B: tl.constexpr, h: tl.constexpr):
    """One level of the transform: sums and differences of coordinates h apart."""
    pairs = tl.permute(tl.reshape(x, (B // (2 * h), 2, h)), (0, 2, 1))
    left, right = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(left + right, left - right), (0, 2, 1)), (B,))


@triton.jit
def _transform(x, B: tl.constexpr, LEVELS: tl.constexpr, SCALE: tl.constexpr):
    """The orthonormal Walsh-Hadamard transform."""
    for level in tl.static_range(LEVELS):
        x = _level(x, B, 1 << level)
    return x * SCALE


@triton.jit
def first(x, y, power, keys, part, d, R, B: tl.constexpr, LEVELS: tl.constexpr, SCALE: tl.constexpr):
    """The first rotation of x into y, and the sum of squares of each row."""
    r, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = r * B + tl.arange(0, B)
    v = tl.load(x + c * d + i, mask=i < d, other=0.0)
    wide = v.to(tl.float64)
    tl.store(power + c * R + r, tl.sum(wide * wide))
    v = _transform(_flip(v, i, mix(tl.load(keys + c), part)), B, LEVELS, SCALE)
    tl.store(y + c * R * B + i, v)


@triton.jit
def turn(y, z, keys, part, R, B: tl.constexpr, LEVELS: tl.constexpr, SCALE: tl.constexpr):
    """The second rotation of y into z."""
    r, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = r * B + tl.arange(0, B)
    v = tl.load(y + c * R * B + (i % R) * B + i // R)  # the matrix of rows, read column by column
    v = _transform(_flip(v, i, mix(tl.load(keys + c), part)), B, LEVELS, SCALE)
    tl.store(z + c * R * B + i, v)


@triton.jit
def second(
    y,
    codes,
    overlap,
    keys,
    part,
    steps,
    centres,
    R,
    low,
    high,
    B: tl.constexpr,
    LEVELS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """The second rotation, the codes, and the inner product of each row with their centres."""
    r, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = r * B + tl.arange(0, B)
    v = tl.load(y + c * R * B + (i % R) * B + i // R)  # the matrix of rows, read column by column
    v = _transform(_flip(v, i, mix(tl.load(keys + c), part)), B, LEVELS, SCALE)
    z = tl.div_rn(v, tl.load(steps + c))
    z = tl.minimum(tl.maximum(tl.where(z == z, z, 0.0), low), high)
    code = ((z + 12582912.0) - 12582912.0).to(tl.int32)  # 1.5 * 2^23: to the nearest, ties to even
    tl.store(codes + c * R * B + i, code)
    image = tl.load(centres + (code - low))
    tl.store(overlap + c * R + r, tl.sum(v.to(tl.float64) * image.to(tl.float64)))


@triton.jit
def unsecond(
    codes,
    y,
    keys,
    part,
    centres,
    low,
    last,
    R,
    B: tl.constexpr,
    LEVELS: tl.constexpr,
    SCALE: tl.constexpr,
):
    """Undo the second rotation of the centres of codes."""
    r, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = r * B + tl.arange(0, B)
    code = tl.load(codes + c * R * B + i) - low
    v = tl.load(centres + tl.minimum(tl.maximum(code, 0), last))
    v = _flip(_transform(v, B, LEVELS, SCALE), i, mix(tl.load(keys + c), part))
    tl.store(y + c * R * B + (i % R) * B + i // R, v)


@triton.jit
def unfirst(y, x, keys, part, d, R, B: tl.constexpr, LEVELS: tl.constexpr, SCALE: tl.constexpr):
    """Undo the first rotation."""
    r, c = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = r * B + tl.arange(0, B)
    v = _transform(tl.load(y + c * R * B + i), B, LEVELS, SCALE)
    v = _flip(v, i, mix(tl.load(keys + c), part))
    tl.store(x + c * d + i, v, mask=i < d)


@triton.jit
def tally(x, steps, keys, counts, raw, d, most, SYMBOLS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the symbols of round(x/step + u) to the counts of each row, and their raw bits to raw.

    coding/integer_stream.py explains symbols and raw bits.

    Args:
        most: the largest code.
    """
    c, i = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u = (bits(i, tl.load(keys + c).to(tl.uint64)) >> 8).to(tl.int32).to(
        tl.float32
    ) * 5.9604644775390625e-08 - 0.5
    z = tl.div_rn(tl.load(x + c * d + i, mask=i < d, other=0.0), tl.load(steps + c)) + u
    z = tl.minimum(tl.maximum(tl.where(z == z, z, 0.0), -most), most)
    low = tl.floor(z)
    up = (z - low > 0.5) | ((z - low == 0.5) & (low * 0.5 != tl.floor(low * 0.5)))  # to the nearest, or even
    code = tl.where(up, low + 1, low)
    value = tl.abs(code)
    whole, octave = value.to(tl.int32), (value.to(tl.int32, bitcast=True) >> 23) - 127
    width = tl.where(whole < 16, 0, octave - 2)
    symbol = tl.where(whole < 16, whole, 4 * octave + ((whole >> width) & 3))
    symbol = tl.where(i < d, 2 * symbol - (code > 0).to(tl.int32), SYMBOLS - 1)
    k = tl.arange(0, SYMBOLS)
    found = tl.histogram(symbol, SYMBOLS)
    tl.atomic_add(counts + c * SYMBOLS + k, found.to(tl.int64), mask=found > 0, sem="relaxed")
    tl.atomic_add(raw + c, tl.sum(tl.where(i < d, width, 0)).to(tl.int64), sem="relaxed")
