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
    """(rows, 16), (rows, 16) -> (rows, 256)."""
    return tl.reshape(x[:, :, None] * y[:, None, :], (x.shape[0], 256))


@triton.jit
def _tile(base, keep, index, width, stride_n, stride_d, EVEN: tl.constexpr, DTYPE: tl.constexpr):
    """The index-th 16 columns of some rows."""
    columns = index * 16 + tl.arange(0, 16)
    return load_rows(base, keep, columns, width, stride_n, stride_d, EVEN).to(DTYPE)


@triton.jit
def _symmetric(
    base, keep, t, D, stride_n, stride_d,
    TILES: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """The features of some rows for the t-th tile pair: (rows, 256)."""
    m, n = _pair(t, TILES)
    x_m = _tile(base, keep, m, D, stride_n, stride_d, EVEN, DTYPE)
    x_n = _tile(base, keep, n, D, stride_n, stride_d, EVEN, DTYPE)
    return _outer(x_m, x_n)


@triton.jit
def _store_pair(state_ptr, t, E, acc, value, TILES: tl.constexpr, EP: tl.constexpr):
    """Write the state of a tile pair; off-diagonal pairs count twice."""
    m, n = _pair(t, TILES)
    wide, features = tl.arange(0, EP), tl.arange(0, 256)
    acc *= tl.where(m == n, value, 2 * value)
    place = state_ptr + t * 256 * E
    store_rows(place, features < 256, wide, E, E, acc)


@triton.jit
def accumulate(
    x_ptr, w_ptr, mask_ptr, temperature_ptr, state_ptr, heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, scale, quadratic,
    TILES: tl.constexpr, PAIRS: tl.constexpr, GROUP: tl.constexpr, DP: tl.constexpr,
    EP: tl.constexpr, BLOCK: tl.constexpr, NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr,
    MASKED: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S = sum (x (x) x) w^T for GROUP tile pairs: keys and values, or queries and dy."""
    t, split, bh = tl.program_id(0) * GROUP, tl.program_id(1), tl.program_id(2)
    cols, wide, local = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    acc0 = tl.zeros([256, EP], tl.float32)
    acc1 = tl.zeros([256, EP], tl.float32)
    acc2 = tl.zeros([256, EP], tl.float32)
    for start in range(first, last, BLOCK):
        keep = start + local < last
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=keep, other=0) != 0
        w = load_rows(w_base, keep, wide, E, wn, wd, EVEN)
        if NORMALIZE:
            x = load_rows(x_base, keep, cols, D, xn, xd, EVEN)
            alpha = row_factors(x, factor, NORMALIZE)
            w = w.to(tl.float32) * (alpha * alpha)[:, None]
        w = w.to(DTYPE)
        phi = _symmetric(x_base, keep, t, D, xn, xd, TILES, EVEN, DTYPE)
        acc0 = tl.dot(tl.trans(phi), w, acc0, input_precision=PRECISION)
        if GROUP > 1:
            phi = _symmetric(x_base, keep, t + 1, D, xn, xd, TILES, EVEN, DTYPE)
            acc1 = tl.dot(tl.trans(phi), w, acc1, input_precision=PRECISION)
        if GROUP > 2:
            phi = _symmetric(x_base, keep, t + 2, D, xn, xd, TILES, EVEN, DTYPE)
            acc2 = tl.dot(tl.trans(phi), w, acc2, input_precision=PRECISION)
        x_base += BLOCK * xn
        w_base += BLOCK * wn
    value = quadratic
    if not NORMALIZE:
        value = quadratic * factor * factor
    state = state_ptr + (split * tl.num_programs(2) + bh).to(tl.int64) * PAIRS * 256 * E
    _store_pair(state, t, E, acc0, value, TILES, EP)
    if GROUP > 1:
        _store_pair(state, t + 1, E, acc1, value, TILES, EP)
    if GROUP > 2:
        _store_pair(state, t + 2, E, acc2, value, TILES, EP)


@triton.jit
def moments(
    x_ptr, w_ptr, r_ptr, mask_ptr, temperature_ptr, out_ptr, heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, scale, quadratic, linear, constant,
    DP: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr, NORMALIZE: tl.constexpr,
    TEMPERED: tl.constexpr, WEIGHTED: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The smaller sums L, G, p, r over keys and values, or queries and dy with weights r = dz."""
    split, bh = tl.program_id(0), tl.program_id(1)
    cols, wide, local = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    r_ptr += bh.to(tl.int64) * tokens
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
        x *= row_factors(x, factor, NORMALIZE)[:, None]
        w = load_rows(w_base, keep, wide, E, wn, wd, EVEN)
        weighted = x
        if WEIGHTED:
            r = tl.load(r_ptr + start + local, mask=start + local < last, other=0.0)
            weighted = x * r[:, None]
        x_t = tl.trans(x.to(DTYPE))
        mixed = tl.dot(x_t, w.to(DTYPE), mixed, input_precision=PRECISION)
        gram = tl.dot(x_t, weighted.to(DTYPE), gram, input_precision=PRECISION)
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
def _load_state(state_ptr, t, width, WP: tl.constexpr, DTYPE: tl.constexpr):
    """The state of one tile pair: (256, width)."""
    columns, features = tl.arange(0, WP), tl.arange(0, 256)
    place = state_ptr + (t * 256 + features)[:, None] * width + columns[None, :]
    return tl.load(place, mask=(columns < width)[None, :], other=0.0).to(DTYPE)


@triton.jit
def values(
    x_ptr, mask_ptr, temperature_ptr, count_ptr, state_ptr, moments_ptr, out_ptr, total_ptr,
    heads, tokens, D, E, per_program,
    xb, xh, xn, xd, scale, c, floor,
    TILES: tl.constexpr, PAIRS: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    ROWS: tl.constexpr, HOLD: tl.constexpr, NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr,
    DIVIDE: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(x (x) x) S + x L + r for some blocks of rows; over z, which is kept, where DIVIDE.

    Where HOLD, the state of a head is loaded once for all blocks of a program.
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
    state = state_ptr + bh.to(tl.int64) * PAIRS * 256 * E
    place = moments_ptr + bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP)
    mixed = tl.load(place + cols[:, None] * EP + wide[None, :]).to(DTYPE)
    place += DP * EP
    gram = tl.load(place + cols[:, None] * DP + cols[None, :]).to(DTYPE)
    sums = tl.load(place + DP * DP + cols)
    constant = tl.load(place + DP * DP + DP + wide)
    count = tl.load(count_ptr + bh // heads)
    if HOLD:
        s0 = _load_state(state, 0, E, EP, DTYPE)
        s1 = _load_state(state, min(1, PAIRS - 1), E, EP, DTYPE)
        s2 = _load_state(state, min(2, PAIRS - 1), E, EP, DTYPE)
    row = bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        exists = start + local < last
        keep = exists
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=exists, other=0) != 0
        acc = tl.zeros([ROWS, EP], tl.float32)
        if HOLD:
            phi = _symmetric(x_base, keep, 0, D, xn, xd, TILES, EVEN, DTYPE)
            acc = tl.dot(phi, s0, acc, input_precision=PRECISION)
            if PAIRS > 1:
                phi = _symmetric(x_base, keep, 1, D, xn, xd, TILES, EVEN, DTYPE)
                acc = tl.dot(phi, s1, acc, input_precision=PRECISION)
                phi = _symmetric(x_base, keep, 2, D, xn, xd, TILES, EVEN, DTYPE)
                acc = tl.dot(phi, s2, acc, input_precision=PRECISION)
        else:
            for t in range(PAIRS):
                phi = _symmetric(x_base, keep, t, D, xn, xd, TILES, EVEN, DTYPE)
                s = _load_state(state, t, E, EP, DTYPE)
                acc = tl.dot(phi, s, acc, input_precision=PRECISION)
        x = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(tl.float32)
        alpha = row_factors(x, factor, NORMALIZE)
        acc *= (alpha * alpha)[:, None]
        x *= alpha[:, None]
        x_low = x.to(DTYPE)
        acc = tl.dot(x_low, mixed, acc, input_precision=PRECISION) + constant[None, :]
        if DIVIDE:
            along = tl.dot(x_low, gram, input_precision=PRECISION) + sums[None, :]
            z = tl.maximum(tl.sum(along * x, axis=1) + c * count, floor * count)
            z = tl.where(z > 0, z, 1.0)
            acc = acc / z[:, None]
            tl.store(total_ptr + row + local, z, mask=exists)
        acc *= tl.where(keep, 1.0, 0.0)[:, None]
        store_rows(out_ptr + row * E, exists, wide, E, E, acc)
        x_base += ROWS * xn
        row += ROWS


@triton.jit
def gradients(
    x_ptr, y_ptr, r_ptr, mask_ptr, temperature_ptr, state_ptr, moments_ptr, out_ptr, dt_ptr,
    heads, tokens, D, E, per_program,
    xb, xh, xn, xd, yb, yh, yn, yd, scale,
    TILES: tl.constexpr, WIDE_TILES: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    ROWS: tl.constexpr, HOLD: tl.constexpr, NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr,
    WEIGHTED: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
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
    place = moments_ptr + bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP)
    mixed = tl.trans(tl.load(place + cols[:, None] * EP + wide[None, :]).to(DTYPE))
    place += DP * EP
    gram = tl.load(place + cols[:, None] * DP + cols[None, :]).to(DTYPE)
    sums = tl.load(place + DP * DP + cols)
    if HOLD:
        s0 = _load_state(state, 0, DP, DP, DTYPE)
        s1 = _load_state(state, min(1, TILES * WIDE_TILES - 1), DP, DP, DTYPE)
        s2 = _load_state(state, min(2, TILES * WIDE_TILES - 1), DP, DP, DTYPE)
        s3 = _load_state(state, min(3, TILES * WIDE_TILES - 1), DP, DP, DTYPE)
    row = bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        exists = start + local < last
        keep = exists
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=exists, other=0) != 0
        acc = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            x0 = _tile(x_base, keep, 0, D, xn, xd, EVEN, DTYPE)
            y0 = _tile(y_base, keep, 0, E, yn, yd, EVEN, DTYPE)
            acc = tl.dot(_outer(x0, y0), s0, acc, input_precision=PRECISION)
            if WIDE_TILES > 1:
                y1 = _tile(y_base, keep, 1, E, yn, yd, EVEN, DTYPE)
                acc = tl.dot(_outer(x0, y1), s1, acc, input_precision=PRECISION)
            if TILES > 1:
                x1 = _tile(x_base, keep, 1, D, xn, xd, EVEN, DTYPE)
                second = s2 if WIDE_TILES > 1 else s1
                acc = tl.dot(_outer(x1, y0), second, acc, input_precision=PRECISION)
                if WIDE_TILES > 1:
                    acc = tl.dot(_outer(x1, y1), s3, acc, input_precision=PRECISION)
        else:
            for t in range(TILES * WIDE_TILES):
                x_j = _tile(x_base, keep, t // WIDE_TILES, D, xn, xd, EVEN, DTYPE)
                y_e = _tile(y_base, keep, t % WIDE_TILES, E, yn, yd, EVEN, DTYPE)
                s = _load_state(state, t, DP, DP, DTYPE)
                acc = tl.dot(_outer(x_j, y_e), s, acc, input_precision=PRECISION)
        raw = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(tl.float32)
        alpha = row_factors(raw, factor, NORMALIZE)[:, None]
        y = load_rows(y_base, keep, wide, E, yn, yd, EVEN).to(DTYPE)
        acc = tl.dot(y, mixed, acc * alpha, input_precision=PRECISION)
        along = tl.dot((raw * alpha).to(DTYPE), gram, input_precision=PRECISION)
        along = 2 * along + sums[None, :]
        if WEIGHTED:
            along *= tl.load(r_ptr + row + local, mask=exists, other=0.0)[:, None]
        grad, dt = pull_back(acc + along, raw, factor, NORMALIZE)
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
