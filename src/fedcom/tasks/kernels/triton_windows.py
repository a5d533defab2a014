"""The kernels of windows.py: what convolutions with 2x2 max-pooling do beside their matrix products.

This is Triton. Images are [images, CHANNELS, HEIGHT, WIDTH], and PADDING zeros are around each. A patch is of
PATCH x PATCH pixels and begins at every second one, so an image has DOWN x ACROSS of them, one per window.
`count` columns are the windows of some images, image by image. A program has one row and some of its columns,
or all of them.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def table(
    images,
    out,
    count,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    PATCH: tl.constexpr,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a pixel of every patch: rows of `out` are those of [batches, CHANNELS, PATCH, PATCH]."""
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    batch, pixel = row // (CHANNELS * PATCH * PATCH), row % (CHANNELS * PATCH * PATCH)
    channel, i, j = pixel // (PATCH * PATCH), pixel // PATCH % PATCH, pixel % PATCH
    image, window = column // (DOWN * ACROSS), column % (DOWN * ACROSS)
    y, x = 2 * (window // ACROSS) + i - PADDING, 2 * (window % ACROSS) + j - PADDING
    inside = (column < count) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    first = batch.to(tl.int64) * (count // (DOWN * ACROSS)) * (CHANNELS * HEIGHT * WIDTH)
    place = (image * CHANNELS + channel) * (HEIGHT * WIDTH) + y * WIDTH + x
    value = tl.load(images + first + place, mask=inside, other=0)
    tl.store(out + row.to(tl.int64) * count + column, value, mask=column < count)


@triton.jit(do_not_specialize=["count", "parts", "stride"])
def pool(
    products,
    bias,
    values,
    largest,
    count,
    parts,
    stride,
    OUTPUTS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest of four products [batches, 4, OUTPUTS, count], which one it is, and ReLU of it and a bias.

    Args:
        parts: batches per client.
        stride: between the biases of two clients.
    """
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    batch, output, valid = row // OUTPUTS, row % OUTPUTS, column < count
    first = products + (batch.to(tl.int64) * 4 * OUTPUTS + output) * count + column
    best = tl.load(first, mask=valid, other=0)
    place = tl.zeros((BLOCK,), tl.int8)
    for k in tl.static_range(1, 4):
        value = tl.load(first + k * OUTPUTS * count, mask=valid, other=0)
        better = (value > best) | (value != value)  # the first of equal ones; what is not a number stays
        best, place = tl.where(better, value, best), tl.where(better, k, place).to(tl.int8)
    if BIAS:
        best += tl.load(bias + (batch // parts).to(tl.int64) * stride + output)
    to = row.to(tl.int64) * count + column
    tl.store(values + to, tl.where(best < 0, 0, best), mask=valid)
    tl.store(largest + to, place, mask=valid)


@triton.jit(do_not_specialize=["count"])
def errors(
    g,
    values,
    largest,
    out,
    sums,
    count,
    OUTPUTS: tl.constexpr,
    WINDOWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients by the four products [batches, 4, OUTPUTS, count], and their sums [batches, OUTPUTS].

    Args:
        g: by the values, but in the order of images [batches, images, OUTPUTS, WINDOWS].
    """
    row = tl.program_id(0)
    batch, output = row // OUTPUTS, row % OUTPUTS
    first = g + batch.to(tl.int64) * OUTPUTS * count + output * WINDOWS
    to = out + (batch.to(tl.int64) * 4 * OUTPUTS + output) * count
    total = tl.zeros((BLOCK,), g.dtype.element_ty)
    for block in range(BLOCKS):
        column = block * BLOCK + tl.arange(0, BLOCK)
        valid, here = column < count, row.to(tl.int64) * count + column
        through = tl.load(
            first + column // WINDOWS * (OUTPUTS * WINDOWS) + column % WINDOWS, mask=valid, other=0
        )
        through = tl.where(tl.load(values + here, mask=valid, other=0) <= 0, 0, through)
        place = tl.load(largest + here, mask=valid, other=0)
        total += through
        for k in tl.static_range(4):
            tl.store(to + k * OUTPUTS * count + column, tl.where(place == k, through, 0), mask=valid)
    tl.store(sums + row, tl.sum(total))


@triton.jit(do_not_specialize=["count"])
def fold(
    patches,
    out,
    count,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    PATCH: tl.constexpr,
    DOWN: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Images of sums of what all patches [batches, CHANNELS, PATCH, PATCH, count] have at each pixel."""
    row, pixel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    batch, channel = row // CHANNELS, row % CHANNELS
    image, place = pixel // (HEIGHT * WIDTH), pixel % (HEIGHT * WIDTH)
    images = count // (DOWN * ACROSS)
    y, x = place // WIDTH + PADDING, place % WIDTH + PADDING
    first = patches + row.to(tl.int64) * (PATCH * PATCH) * count
    total = tl.zeros((BLOCK,), patches.dtype.element_ty)
    for a in tl.static_range((PATCH + 1) // 2):
        for b in tl.static_range((PATCH + 1) // 2):
            window_y, window_x, i, j = y // 2 - a, x // 2 - b, y % 2 + 2 * a, x % 2 + 2 * b
            there = (window_y >= 0) & (window_y < DOWN) & (window_x >= 0) & (window_x < ACROSS)
            there &= (i < PATCH) & (j < PATCH) & (image < images)
            column = image * (DOWN * ACROSS) + window_y * ACROSS + window_x
            total += tl.load(first + (i * PATCH + j) * count + column, mask=there, other=0)
    to = (batch.to(tl.int64) * images + image) * (CHANNELS * HEIGHT * WIDTH) + channel * (HEIGHT * WIDTH)
    tl.store(out + to + place, total, mask=image < images)
