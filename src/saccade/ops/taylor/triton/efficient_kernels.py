"""The efficient algorithm: features of a tile pair are formed in registers and fed to one product.

A row x is cut into tiles of 16. The outer product of tiles (m, n) is 256 features; by symmetry only
m <= n is needed, off-diagonal pairs counted twice. With sums over keys divided by N:

    S = sum (k (x) k) v^T                                                            (accumulate)
    L = sum k v^T,   G = sum k k^T,   p = sum k,   r = sum v                             (moments)
    o = (a (x (x) x) S + b x L + c r) / z,   z = a x G x + b x.p + c m                   (values)

and backwards, with dS, dL, dG, dp, dr accumulated in the same way from x, dy and dz,

    dx = 2 a (x (x) dy) S' + b dy L^T + dz (2 a x G + b p)                               (gradients)
    dv = a (k (x) k) dS + b k dL + c dr                                                  (values)
    dk = 2 a (k (x) v) dS' + b v dL^T + 2 a k dG + b dp                                  (gradients)

S' is S with its second feature axis last: contracting x (x) dy with it needs no reduction over
registers. Coefficients a, b, c are in the sums when they are stored.

Outer products are taken of rows as they lie in memory; alpha^2 (alpha in x (x) dy) multiplies what
comes out of a product, or the other operand of one, never the features.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.taylor.triton.blocks import (
    head_offset,
    load_rows,
    pull_back,
    row_factors,
    settle,
    store_rows,
)

__all__ = ["accumulate", "gradients", "moments", "unfold", "values"]


@triton.jit
def _pair(t, TILES: tl.constexpr):
    """The t-th pair (m, n), m <= n, counted row by row."""
    m = 0
    for r in tl.static_range(1, TILES):
        m += tl.where(t >= r * TILES - r * (r - 1) // 2, 1, 0)
    return m, m + t - (m * TILES - m * (m - 1) // 2)


@triton.jit
def _outer(x, y):
    """(rows, W), (rows, 16) -> (rows, 16 W)."""
    return tl.reshape(x[:, :, None] * y[:, None, :], (x.shape[0], 16 * x.shape[1]))


@triton.jit
def _turned_outer(x, y):
    """(rows, 16), (rows, 16) -> (256, rows): the features as rows, 4 i' + i of x as (i, i').

    In that order a thread needs four neighbours of x, which it reads from shared memory at once.
    """
    rows: tl.constexpr = x.shape[0]
    x = tl.permute(tl.reshape(x, (rows, 4, 4)), (2, 1, 0))
    return tl.reshape(x[:, :, None, :] * tl.trans(y)[None, None, :, :], (256, rows))


@triton.jit
def _columns(
    base, keep, first, width, stride_n, stride_d,
    COUNT: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """COUNT columns of some rows."""
    columns = first + tl.arange(0, COUNT)
    return load_rows(base, keep, columns, width, stride_n, stride_d, EVEN).to(DTYPE)


@triton.jit
def _add_pair(
    acc, t, w, base, keep, D, stride_n, stride_d,
    TILES: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + (x (x) x)^T w for the t-th tile pair."""
    m, n = _pair(t, TILES)
    x_m = _columns(base, keep, m * 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
    x_n = _columns(base, keep, n * 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
    return settle(tl.dot(_turned_outer(x_m, x_n), w, acc, input_precision=PRECISION))


@triton.jit
def _store_pair(state_ptr, t, E, acc, value, TILES: tl.constexpr, EP: tl.constexpr):
    """Write the state of a tile pair, features back in order; off-diagonal pairs count twice."""
    m, n = _pair(t, TILES)
    wide, row = tl.arange(0, EP), tl.arange(0, 256)
    feature = ((row // 16) % 4 * 4 + row // 64) * 16 + row % 16
    acc *= tl.where(m == n, value, 2 * value)
    place = state_ptr + t * 256 * E + feature[:, None] * E + wide[None, :]
    tl.store(place, acc.to(state_ptr.dtype.element_ty), mask=(wide < E)[None, :])


@triton.jit
def accumulate(
    x_ptr, w_ptr, mask_ptr, alpha_ptr, state_ptr, heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, value,
    TILES: tl.constexpr, PAIRS: tl.constexpr, GROUP: tl.constexpr,
    EP: tl.constexpr, BLOCK: tl.constexpr, NORMALIZE: tl.constexpr,
    MASKED: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S = sum (x (x) x) w^T for GROUP tile pairs: keys and values, or queries and dy.

    Where rows are normalised their alpha, as `moments` left them, enter through w.
    """
    t, split, bh = tl.program_id(0) * GROUP, tl.program_id(1), tl.program_id(2)
    wide, local = tl.arange(0, EP), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    alpha_ptr += bh.to(tl.int64) * tokens
    acc0 = tl.zeros([256, EP], tl.float32)
    acc1 = tl.zeros([256, EP], tl.float32)
    acc2 = tl.zeros([256, EP], tl.float32)
    for start in range(first, last, BLOCK):
        keep = start + local < last
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=keep, other=0) != 0
        w = load_rows(w_base, keep, wide, E, wn, wd, EVEN)
        if NORMALIZE:
            if EVEN:
                alpha = tl.load(alpha_ptr + start + local)
            else:
                alpha = tl.load(alpha_ptr + start + local, mask=keep, other=0.0)
            w = w.to(tl.float32) * (alpha * alpha)[:, None]
        w = w.to(DTYPE)
        acc0 = _add_pair(acc0, t, w, x_base, keep, D, xn, xd, TILES, EVEN, DTYPE, PRECISION)
        if GROUP > 1:
            acc1 = _add_pair(acc1, t + 1, w, x_base, keep, D, xn, xd, TILES, EVEN, DTYPE, PRECISION)
        if GROUP > 2:
            acc2 = _add_pair(acc2, t + 2, w, x_base, keep, D, xn, xd, TILES, EVEN, DTYPE, PRECISION)
        x_base += BLOCK * xn
        w_base += BLOCK * wn
    state = state_ptr + (split * tl.num_programs(2) + bh).to(tl.int64) * PAIRS * 256 * E
    _store_pair(state, t, E, acc0, value, TILES, EP)
    if GROUP > 1:
        _store_pair(state, t + 1, E, acc1, value, TILES, EP)
    if GROUP > 2:
        _store_pair(state, t + 2, E, acc2, value, TILES, EP)


@triton.jit
def moments(
    x_ptr, w_ptr, r_ptr, mask_ptr, temperature_ptr, out_ptr, alpha_ptr,
    heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, scale, quadratic, linear, constant,
    DP: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr, NORMALIZE: tl.constexpr,
    TEMPERED: tl.constexpr, WEIGHTED: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The smaller sums L, G, p, r over keys and values, or queries and dy with weights r = dz.

    Where rows are normalised, each one's alpha is kept for `accumulate`.
    """
    split, bh = tl.program_id(0), tl.program_id(1)
    cols, wide, local = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    r_ptr += bh.to(tl.int64) * tokens
    alpha_ptr += bh.to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    mixed = tl.zeros([DP, EP], tl.float32)
    gram = tl.zeros([DP, DP], tl.float32)
    sum_x = tl.zeros([BLOCK, DP], tl.float32)
    sum_w = tl.zeros([BLOCK, EP], tl.float32)
    for start in range(first, last, BLOCK):
        keep = start + local < last
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=keep, other=0) != 0
        x = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(tl.float32)
        alpha = row_factors(x, factor, NORMALIZE)
        if NORMALIZE:
            tl.store(alpha_ptr + start + local, alpha, mask=start + local < last)
        x *= alpha[:, None]
        w = load_rows(w_base, keep, wide, E, wn, wd, EVEN)
        weighted = x
        if WEIGHTED:
            r = tl.load(r_ptr + start + local, mask=start + local < last, other=0.0)
            weighted = x * r[:, None]
        x_t = tl.trans(x.to(DTYPE))
        mixed = settle(tl.dot(x_t, w.to(DTYPE), mixed, input_precision=PRECISION))
        gram = settle(tl.dot(x_t, weighted.to(DTYPE), gram, input_precision=PRECISION))
        sum_x += weighted
        sum_w += w.to(tl.float32)
        x_base += BLOCK * xn
        w_base += BLOCK * wn
    slot = (split * tl.num_programs(1) + bh).to(tl.int64)
    place = out_ptr + slot * (DP * EP + DP * DP + DP + EP)
    tl.store(place + cols[:, None] * EP + wide[None, :], mixed * linear)
    place += DP * EP
    tl.store(place + cols[:, None] * DP + cols[None, :], gram * quadratic)
    place += DP * DP
    tl.store(place + cols, tl.sum(sum_x, axis=0) * linear)
    tl.store(place + DP + wide, tl.sum(sum_w, axis=0) * constant)


@triton.jit
def _load_state(
    state_ptr, first, width,
    COUNT: tl.constexpr, WP: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """COUNT features of the state: (COUNT, width)."""
    columns, features = tl.arange(0, WP), first + tl.arange(0, COUNT)
    place = state_ptr + features[:, None] * width + columns[None, :]
    if EVEN:
        return tl.load(place).to(DTYPE)
    return tl.load(place, mask=(columns < width)[None, :], other=0.0).to(DTYPE)


@triton.jit
def _held_values(
    acc, s0, s1, s2, base, keep, D, stride_n, stride_d,
    PAIRS: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + (x (x) x) S where one or three tile pairs of the state are at hand."""
    x0 = _columns(base, keep, 0, D, stride_n, stride_d, 16, EVEN, DTYPE)
    acc = settle(tl.dot(_outer(x0, x0), s0, acc, input_precision=PRECISION))
    if PAIRS > 1:
        x1 = _columns(base, keep, 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
        acc = settle(tl.dot(_outer(x0, x1), s1, acc, input_precision=PRECISION))
        acc = settle(tl.dot(_outer(x1, x1), s2, acc, input_precision=PRECISION))
    return acc


@triton.jit
def values(
    x_ptr, mask_ptr, temperature_ptr, count_ptr, state_ptr, moments_ptr, out_ptr, total_ptr,
    heads, tokens, D, E, per_program,
    xb, xh, xn, xd, scale, c, floor,
    TILES: tl.constexpr, PAIRS: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    ROWS: tl.constexpr, PART: tl.constexpr, HOLD: tl.constexpr, NORMALIZE: tl.constexpr,
    TEMPERED: tl.constexpr, DIVIDE: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr,
    EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(x (x) x) S + x L + r for some blocks of rows; over z, which is kept, where DIVIDE.

    Where HOLD, the state of a head is loaded once for all blocks of a program; otherwise it goes by
    in steps of PART x 16 features.
    """
    bh = tl.program_id(1)
    first = tl.program_id(0) * per_program
    last = tl.minimum(first + per_program, tokens)
    cols, wide, local = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, ROWS)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    share = 1.0  # of the keys that are attended to
    if COUNTED:
        share = tl.load(count_ptr + bh // heads)
    state = state_ptr + bh.to(tl.int64) * PAIRS * 256 * E
    mixed_at = moments_ptr + bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP)
    gram_at = mixed_at + DP * EP
    if HOLD:
        s0 = _load_state(state, 0, E, 256, EP, EVEN, DTYPE)
        s1 = _load_state(state, min(1, PAIRS - 1) * 256, E, 256, EP, EVEN, DTYPE)
        s2 = _load_state(state, min(2, PAIRS - 1) * 256, E, 256, EP, EVEN, DTYPE)
    row = bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        exists = start + local < last
        keep = exists
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=exists, other=0) != 0
        acc = tl.zeros([ROWS, EP], tl.float32)
        if HOLD:
            acc = _held_values(
                acc, s0, s1, s2, x_base, keep, D, xn, xd, PAIRS, EVEN, DTYPE, PRECISION
            )
        else:
            for step in range(PAIRS * (16 // PART)):
                m, n = _pair(step // (16 // PART), TILES)
                part = m * 16 + step % (16 // PART) * PART
                x_m = _columns(x_base, keep, part, D, xn, xd, PART, EVEN, DTYPE)
                x_n = _columns(x_base, keep, n * 16, D, xn, xd, 16, EVEN, DTYPE)
                s = _load_state(state, step * PART * 16, E, PART * 16, EP, EVEN, DTYPE)
                acc = settle(tl.dot(_outer(x_m, x_n), s, acc, input_precision=PRECISION))
        x = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(tl.float32)
        alpha = row_factors(x, factor, NORMALIZE)
        acc *= (alpha * alpha)[:, None]
        x *= alpha[:, None]
        x_low = x.to(DTYPE)
        mixed = tl.load(mixed_at + cols[:, None] * EP + wide[None, :]).to(DTYPE)
        constant = tl.load(gram_at + DP * DP + DP + wide)
        acc = tl.dot(x_low, mixed, acc, input_precision=PRECISION) + constant[None, :]
        if DIVIDE:
            gram = tl.load(gram_at + cols[:, None] * DP + cols[None, :]).to(DTYPE)
            sums = tl.load(gram_at + DP * DP + cols)
            along = tl.dot(x_low, gram, input_precision=PRECISION) + sums[None, :]
            z = tl.maximum(tl.sum(along * x, axis=1) + c * share, floor * share)
            z = tl.where(z > 0, z, 1.0)
            acc *= (1.0 / z)[:, None]
            tl.store(total_ptr + row + local, z, mask=exists)
        if MASKED:
            acc *= tl.where(keep, 1.0, 0.0)[:, None]
        store_rows(out_ptr + row * E, exists, wide, E, E, acc)
        x_base += ROWS * xn
        row += ROWS


@triton.jit
def _held_gradients(
    acc, s0, s1, s2, s3, x_base, y_base, keep, D, E, xn, xd, yn, yd,
    TILES: tl.constexpr, WIDE_TILES: tl.constexpr,
    EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + (x (x) y) S' where up to two by two tile pairs of the state are at hand."""
    x0 = _columns(x_base, keep, 0, D, xn, xd, 16, EVEN, DTYPE)
    y0 = _columns(y_base, keep, 0, E, yn, yd, 16, EVEN, DTYPE)
    acc = settle(tl.dot(_outer(x0, y0), s0, acc, input_precision=PRECISION))
    if WIDE_TILES > 1:
        y1 = _columns(y_base, keep, 16, E, yn, yd, 16, EVEN, DTYPE)
        acc = settle(tl.dot(_outer(x0, y1), s1, acc, input_precision=PRECISION))
    if TILES > 1:
        x1 = _columns(x_base, keep, 16, D, xn, xd, 16, EVEN, DTYPE)
        second = s2 if WIDE_TILES > 1 else s1
        acc = settle(tl.dot(_outer(x1, y0), second, acc, input_precision=PRECISION))
        if WIDE_TILES > 1:
            acc = settle(tl.dot(_outer(x1, y1), s3, acc, input_precision=PRECISION))
    return acc


@triton.jit
def gradients(
    x_ptr, y_ptr, r_ptr, mask_ptr, temperature_ptr, state_ptr, moments_ptr, out_ptr, dt_ptr,
    heads, tokens, D, E, per_program,
    xb, xh, xn, xd, yb, yh, yn, yd, scale,
    TILES: tl.constexpr, WIDE_TILES: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    ROWS: tl.constexpr, PART: tl.constexpr, HOLD: tl.constexpr, NORMALIZE: tl.constexpr,
    TEMPERED: tl.constexpr, WEIGHTED: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(x (x) y) S' + y L^T + r (2 x G + p) for some blocks of rows, pulled back through alpha."""
    bh = tl.program_id(1)
    first = tl.program_id(0) * per_program
    last = tl.minimum(first + per_program, tokens)
    cols, wide, local = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, ROWS)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    y_base = y_ptr + head_offset(bh, heads, yb, yh) + first.to(tl.int64) * yn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    state = state_ptr + bh.to(tl.int64) * TILES * WIDE_TILES * 256 * DP
    mixed_at = moments_ptr + bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP)
    gram_at = mixed_at + DP * EP
    if HOLD:
        s0 = _load_state(state, 0, DP, 256, DP, True, DTYPE)
        s1 = _load_state(state, min(1, TILES * WIDE_TILES - 1) * 256, DP, 256, DP, True, DTYPE)
        s2 = _load_state(state, min(2, TILES * WIDE_TILES - 1) * 256, DP, 256, DP, True, DTYPE)
        s3 = _load_state(state, min(3, TILES * WIDE_TILES - 1) * 256, DP, 256, DP, True, DTYPE)
    row = bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        exists = start + local < last
        keep = exists
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=exists, other=0) != 0
        acc = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            acc = _held_gradients(
                acc, s0, s1, s2, s3, x_base, y_base, keep, D, E, xn, xd, yn, yd,
                TILES, WIDE_TILES, EVEN, DTYPE, PRECISION,
            )  # fmt: skip
        else:
            for step in range(TILES * WIDE_TILES * (16 // PART)):
                t = step // (16 // PART)
                part = t // WIDE_TILES * 16 + step % (16 // PART) * PART
                x_j = _columns(x_base, keep, part, D, xn, xd, PART, EVEN, DTYPE)
                y_e = _columns(y_base, keep, t % WIDE_TILES * 16, E, yn, yd, 16, EVEN, DTYPE)
                s = _load_state(state, step * PART * 16, DP, PART * 16, DP, True, DTYPE)
                acc = settle(tl.dot(_outer(x_j, y_e), s, acc, input_precision=PRECISION))
        raw = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(tl.float32)
        alpha = row_factors(raw, factor, NORMALIZE)[:, None]
        y = load_rows(y_base, keep, wide, E, yn, yd, EVEN).to(DTYPE)
        mixed = tl.trans(tl.load(mixed_at + cols[:, None] * EP + wide[None, :]).to(DTYPE))
        acc = tl.dot(y, mixed, acc * alpha, input_precision=PRECISION)
        gram = tl.load(gram_at + cols[:, None] * DP + cols[None, :]).to(DTYPE)
        along = tl.dot((raw * alpha).to(DTYPE), gram, input_precision=PRECISION)
        along = 2 * along + tl.load(gram_at + DP * DP + cols)[None, :]
        if WEIGHTED:
            along *= tl.load(r_ptr + row + local, mask=exists, other=0.0)[:, None]
        grad, dt = pull_back(acc + along, raw, factor, NORMALIZE)
        if MASKED:
            grad *= tl.where(keep, 1.0, 0.0)[:, None]
        store_rows(out_ptr + row * D, exists, cols, D, D, grad)
        if TEMPERED:
            tl.store(dt_ptr + row + local, dt * scale, mask=exists)
        x_base += ROWS * xn
        y_base += ROWS * yn
        row += ROWS


@triton.jit
def unfold(
    state_ptr,
    out_ptr,
    E,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE_TILES: tl.constexpr,
    DP: tl.constexpr,
):
    """S' from S: rows (j, e) of a tile pair, columns i; twice the diagonal pairs."""
    t, bh = tl.program_id(0), tl.program_id(1)
    row, col = tl.arange(0, 256)[:, None], tl.arange(0, DP)[None, :]
    j_tile, j, e = t // WIDE_TILES, row // 16, (t % WIDE_TILES) * 16 + row % 16
    i_tile, i = col // 16, col % 16
    low, high = tl.minimum(i_tile, j_tile), tl.maximum(i_tile, j_tile)
    first, second = tl.where(j_tile <= i_tile, j, i), tl.where(j_tile <= i_tile, i, j)
    pair = low * TILES - low * (low - 1) // 2 + high - low
    source = state_ptr + bh.to(tl.int64) * PAIRS * 256 * E
    inside = (e < E) & (i_tile < TILES)
    s = tl.load(source + (pair * 256 + first * 16 + second) * E + e, mask=inside, other=0.0)
    s = s.to(tl.float32) * tl.where(i_tile == j_tile, 2.0, 1.0)
    place = out_ptr + (bh.to(tl.int64) * TILES * WIDE_TILES + t) * 256 * DP
    tl.store(place + row * DP + col, s.to(out_ptr.dtype.element_ty))
