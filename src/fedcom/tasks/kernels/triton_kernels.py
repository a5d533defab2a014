"""The kernels of gpu.py: each program holds some outputs of one layer of one client.

This is Triton, a language of its own with Python's syntax. What is marked constexpr is known when a kernel is
compiled. A model has D numbers; a layer's matrix W [OUT, IN] begins at PLACE, and its bias, if any, follows.
A minibatch has N samples. Tiles are powers of two: ROWS of samples, COLUMNS of outputs and INNER of inputs.

Minibatch `turn` is looked at; the one before it was looked at in the turn before. Outputs and errors of both
are kept: those of even turns first, then those of odd ones. Programs are of the clients from `start` on.
"""

# mypy: ignore-errors

import triton
import triton.language as tl

from fedcom.codecs.kernels.triton_draws import bits, mix, mix_id


@triton.jit(do_not_specialize=["salt", "clients"])
def draw(keys, salt, sizes, offsets, rows, clients, N: tl.constexpr, ROWS: tl.constexpr):
    """Fill rows [steps, clients, N] with numbers of samples, drawn with replacement.

    Args:
        keys: of the clients, for this round.
        salt: mixed in first.
        sizes: how many samples each client has.
        offsets: which is its first.
    """
    step, c, n = tl.program_id(0), tl.program_id(1), tl.arange(0, ROWS)
    key = mix_id(mix(tl.load(keys + c), salt), step)
    picked = (bits(n, key).to(tl.uint64) * tl.load(sizes + c).to(tl.uint64)) >> 32
    row = tl.load(offsets + c) + picked.to(tl.int64)
    tl.store(rows + (step.to(tl.int64) * clients + c) * N + n, row, mask=n < N)


@triton.jit
def _high(x):
    """The part of x that TF32 holds."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _product(a, b, total, EXACT: tl.constexpr):
    """total + a b: of three TF32 products, which is about as near as float32, or of one."""
    if EXACT:
        a_high, b_high = _high(a), _high(b)
        total = tl.dot(a - a_high, b_high, total, input_precision="tf32")
        total = tl.dot(a_high, b - b_high, total, input_precision="tf32")
        return tl.dot(a_high, b_high, total, input_precision="tf32")
    return tl.dot(a, b, total, input_precision="tf32")


@triton.jit
def _stepped(
    m,
    g,
    rate,
    keep,
    root,
    first,
    second,
    share1,
    share2,
    eps,
    at,
    inside,
    HEAVY: tl.constexpr,
    ADAM: tl.constexpr,
):
    """Numbers m of a model after a step along g, its moments written over; with rate 0 all stay as they are.

    Args:
        keep: the share of m that decoupled weight decay leaves.
        root: what the root of the mean square is multiplied by, to correct its bias.
        share1: HEAVY: of the first moment that is kept; ADAM: of this gradient in it.
        share2: ADAM: of this gradient's square in the second moment.
        at: where the numbers are among the moments.
    """
    if ADAM or HEAVY:
        kept = tl.load(first + at, mask=inside, other=0.0)
        b = kept + share1 * (g - kept) if ADAM else share1 * kept + g
        tl.store(first + at, tl.where(rate != 0, b, kept), mask=inside)
        if ADAM:
            square = tl.load(second + at, mask=inside, other=0.0)
            v = square + share2 * (g * g - square)
            tl.store(second + at, tl.where(rate != 0, v, square), mask=inside)
            b = b / (tl.sqrt(v) * root + eps)
        return tl.where(rate != 0, keep * m - rate * b, m)
    return tl.where(rate != 0, m - rate * g, m)


@triton.jit(do_not_specialize=["turn", "clients", "start"])
def layer(
    w,
    new,
    delta,
    eta,
    keep,
    root,
    first,
    second,
    share1,
    share2,
    eps,
    decay,
    x,
    errors,
    out,
    before,
    rows,
    y,
    weight,
    turn,
    clients,
    start,
    D: tl.constexpr,
    PLACE: tl.constexpr,
    N: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BIAS: tl.constexpr,
    SHARED: tl.constexpr,
    STEP: tl.constexpr,
    LOOK: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    TRACKS: tl.constexpr,
    DECAYS: tl.constexpr,
    HEAVY: tl.constexpr,
    ADAM: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Take a step with the minibatch before (STEP), then see what the layer makes of this one (LOOK).

    STEP: new = w - eta (errors^T x + decay w - delta); a client whose eta is zero stays as it is. The step is
    taken with momentum (HEAVY) or by Adam (ADAM), as `_stepped` does it.
    LOOK: out = max(x W^T + bias, 0). Of the LAST layer, out are the errors of the weighted losses instead,
    and `before` are the errors of the layer before, unless this is the FIRST.

    Args:
        w: the models before: one per client, or one that all have (SHARED).
        new: the models after; may be w.
        eta: [steps, clients], as are keep and root.
        first: the first moments of the models, and second the second ones.
        x: what the layer sees: the outputs of the layer before; of the FIRST layer, all samples there are.
        rows: which samples are in each minibatch [steps, clients, N].
        y: the targets of all samples.
        weight: of the samples of each minibatch [steps, clients, N].
    """
    tiles: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    c, begins = start + (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * COLUMNS
    n, o, k = tl.arange(0, ROWS), begins + tl.arange(0, COLUMNS), tl.arange(0, INNER)
    real, live = n < N, o < OUT
    some = tl.minimum(n, N - 1)  # padding sees the last sample, so that loads need no mask
    this, last = (turn % 2 * clients + c) * N, ((turn + 1) % 2 * clients + c) * N
    here = (turn * clients + c) * N + some
    w += PLACE if SHARED else c * D + PLACE
    new += c * D + PLACE
    delta += c * D + PLACE
    first += c * D + PLACE
    second += c * D + PLACE
    if STEP:
        now = (turn - 1) * clients + c
        rate, left, scale = tl.load(eta + now), tl.load(keep + now), tl.load(root + now)
        e = tl.load(
            errors + (last + n)[None, :] * OUT + o[:, None], mask=real[None, :] & live[:, None], other=0.0
        )
        seen_at = x + (tl.load(rows + here - clients * N) if FIRST else last + some)[:, None] * IN
    if LOOK:
        next_at = x + (tl.load(rows + here) if FIRST else this + some)[None, :] * IN
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for begin in range(0, IN, INNER):
        i = begin + k
        where, inside = o[:, None] * IN + i[None, :], live[:, None] & (i < IN)[None, :]
        m = tl.load(w + where, mask=inside, other=0.0)
        if STEP:
            seen = tl.load(seen_at + i[None, :], mask=(i < IN)[None, :], other=0.0)
            g = _product(e, seen, tl.zeros((COLUMNS, INNER), tl.float32), EXACT)
            if TRACKS:
                g -= tl.load(delta + where, mask=inside, other=0.0)
            if DECAYS:
                g += decay * m
            m = _stepped(
                m, g, rate, left, scale, first, second, share1, share2, eps, where, inside, HEAVY, ADAM
            )
            tl.store(new + where, m, mask=inside)
        if LOOK:
            seen_next = tl.load(next_at + i[:, None], mask=(i < IN)[:, None], other=0.0)
            total = _product(m, seen_next, total, EXACT)
    if BIAS:
        at = OUT * IN + o
        b = tl.load(w + at, mask=live, other=0.0)
        if STEP:
            g_bias = tl.sum(e, 1)
            if TRACKS:
                g_bias -= tl.load(delta + at, mask=live, other=0.0)
            if DECAYS:
                g_bias += decay * b
            b = _stepped(
                b, g_bias, rate, left, scale, first, second, share1, share2, eps, at, live, HEAVY, ADAM
            )
            tl.store(new + at, b, mask=live)
        if LOOK:
            total += b[:, None]
    if LOOK:
        if LAST:
            total = tl.where(live[:, None], total, float("-inf"))
            share = tl.exp(total - tl.max(total, 0)[None, :])
            share = share / tl.sum(share, 0)[None, :]
            target = tl.load(y + tl.load(rows + here))
            total = tl.where(o[:, None] == target[None, :], share - 1, share)
            total *= tl.load(weight + here)[None, :]
        else:
            total = tl.where(total <= 0, 0.0, total)  # NaN stays
        tl.store(out + (this + n)[None, :] * OUT + o[:, None], total, mask=real[None, :] & live[:, None])
        if LAST and not FIRST:
            tl.debug_barrier()  # what other threads have just written is read again
            for begin in range(0, IN, INNER):
                i = begin + k
                where, inside = o[None, :] * IN + i[:, None], live[None, :] & (i < IN)[:, None]
                m = tl.load((new if STEP else w) + where, mask=inside, other=0.0)
                passed = _product(m, total, tl.zeros((INNER, ROWS), tl.float32), EXACT)
                above = tl.load(next_at + i[:, None], mask=(i < IN)[:, None], other=0.0) > 0
                tl.store(
                    before + (this + n)[None, :] * IN + i[:, None],
                    tl.where(above, passed, 0.0),
                    mask=real[None, :] & (i < IN)[:, None],
                )


@triton.jit(do_not_specialize=["turn", "clients", "start"])
def back(
    w,
    errors,
    x,
    before,
    turn,
    clients,
    start,
    D: tl.constexpr,
    PLACE: tl.constexpr,
    N: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SHARED: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Fill `before` with the errors of the layer before: errors W where its outputs x are above zero.

    Here a program has COLUMNS of inputs, and INNER outputs at a time.
    """
    tiles: tl.constexpr = (IN + COLUMNS - 1) // COLUMNS
    c, first = start + (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * COLUMNS
    n, i, k = tl.arange(0, ROWS), first + tl.arange(0, COLUMNS), tl.arange(0, INNER)
    this, some = (turn % 2 * clients + c) * N, tl.minimum(n, N - 1)
    w += PLACE if SHARED else c * D + PLACE
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, OUT, INNER):
        o = begin + k
        e = tl.load(errors + (this + some)[:, None] * OUT + o[None, :], mask=(o < OUT)[None, :], other=0.0)
        m = tl.load(w + o[:, None] * IN + i[None, :], mask=(o < OUT)[:, None] & (i < IN)[None, :], other=0.0)
        total = _product(e, m, total, EXACT)
    at, real = (this + n)[:, None] * IN + i[None, :], (n < N)[:, None] & (i < IN)[None, :]
    above = tl.load(x + at, mask=real, other=0.0) > 0
    tl.store(before + at, tl.where(above, total, 0.0), mask=real)
