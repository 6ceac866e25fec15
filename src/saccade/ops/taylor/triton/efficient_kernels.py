"""The efficient algorithm: features of a tile pair are formed in registers and fed to one product.

A row x is cut into tiles of 16. The outer product of tiles (m, n) is 256 features; by symmetry only
m <= n is needed, off-diagonal pairs counted twice. With sums over keys divided by N:

    S = sum (k (x) k) v^T                                         (accumulate, accumulate_turned)
    L = sum k v^T,   G = sum k k^T,   p = sum k,   r = sum v                    (moment_kernels.py)
    o = (a (x (x) x) S + b x L + c r) / z,   z = a x G x + b x.p + c m                   (values)

and backwards, with dS, dL, dG, dp, dr accumulated in the same way from x, dy and dz,

    dx = 2 a (x (x) dy) S' + b dy L^T + dz (2 a x G + b p)                               (gradients)
    dv = a (k (x) k) dS + b k dL + c dr                                                  (values)
    dk = 2 a (k (x) v) dS' + b v dL^T + 2 a k dG + b dp                                  (gradients)

S' is S with its second feature axis last: contracting x (x) dy with it needs no reduction over
registers. Coefficients a, b, c are in the sums when they are stored.

Outer products are taken of rows as they lie in memory; alpha^2 (alpha in x (x) dy) multiplies what
comes out of a product, the other operand of one, or one factor of the features, never all of them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
# mypy: disable-error-code="var-annotated"

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.taylor.triton.blocks import (
    add_product,
    head_offset,
    kept_rows,
    load_rows,
    load_share,
    load_table,
    multiples,
    output_factor,
    packed,
    product,
    pull_back,
    row_factors,
    rows_times,
    store_rows,
    table_offset,
)
from saccade.ops.taylor.triton.scores import times

__all__ = [
    "accumulate",
    "feature_of_row",
    "gradients",
    "tile_pair",
    "turned_outer",
    "unfold",
    "values",
]


@triton.jit
def tile_pair(t, TILES: tl.constexpr):
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
def turned_outer(x, y, weights):
    """(rows, 16), (rows, 16) -> (256, rows): the features as rows, times weights where given.

    Feature (i, j) is in the row (i % 4, i // 4, j % 2, j // 2). In that order the numbers that a
    thread needs of x, and of y, are neighbors, and both come from shared memory as they lie there.
    """
    rows: tl.constexpr = x.shape[0]
    x = packed(tl.permute(tl.reshape(x, (rows, 4, 4)), (2, 1, 0)))
    y = packed(tl.permute(tl.reshape(y, (rows, 8, 2)), (2, 1, 0)))
    if weights is not None:
        y = times(y, weights[None, None, :])
    return tl.reshape(x[:, :, None, None, :] * y[None, None, :, :, :], (256, rows))


@triton.jit
def feature_of_row():
    """Which feature 16 i + j each row of `turned_outer` is."""
    row = tl.arange(0, 256)
    return (row // 16 % 4 * 4 + row // 64) * 16 + row % 8 * 2 + row // 8 % 2


@triton.jit
def _columns(
    base, keep, first, width, stride_n, stride_d,
    COUNT: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """COUNT columns of some rows."""
    columns = first + tl.arange(0, COUNT)
    return load_rows(base, keep, columns, width, stride_n, stride_d, EVEN).to(DTYPE)


@triton.jit
def _symmetric(
    base, keep, step, D, stride_n, stride_d,
    TILES: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """PART x 16 features of some rows: PART columns of tile m by all of tile n."""
    m, n = tile_pair(step // (16 // PART), TILES)
    first = m * 16 + step % (16 // PART) * PART
    x_m = _columns(base, keep, first, D, stride_n, stride_d, PART, EVEN, DTYPE)
    x_n = _columns(base, keep, n * 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
    return _outer(x_m, x_n)


@triton.jit
def _mixed(
    x_base, y_base, keep, step, D, E, xn, xd, yn, yd,
    WIDE_TILES: tl.constexpr, PART: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """PART x 16 features x (x) y of some rows."""
    t = step // (16 // PART)
    first = t // WIDE_TILES * 16 + step % (16 // PART) * PART
    x_j = _columns(x_base, keep, first, D, xn, xd, PART, EVEN, DTYPE)
    y_e = _columns(y_base, keep, t % WIDE_TILES * 16, E, yn, yd, 16, EVEN, DTYPE)
    return _outer(x_j, y_e)


@triton.jit(do_not_specialize=["before", "count"])
def accumulate(
    x_ptr, w_ptr, mask_ptr, squares_ptr, state_ptr, heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, value, before, count,
    TILES: tl.constexpr, PAIRS: tl.constexpr,
    EP: tl.constexpr, BLOCK: tl.constexpr, NORMALIZE: tl.constexpr,
    MASKED: tl.constexpr, EVEN: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S = sum (x (x) x) w^T for one tile pair: keys and values, or queries and dy.

    Of the pairs of all heads these are `count` after those `before`, once for each split of rows.
    Where rows are normalized their alpha^2, as `moments` left them, enter through x.
    """
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), GRAIN)
    program = tl.program_id(0)
    split, pair = program // count, before + program % count
    bh = pair // PAIRS
    m, n = tile_pair(pair % PAIRS, TILES)
    wide, local = tl.arange(0, EP), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    squares_ptr += table_offset(bh, tokens)
    end = last - BLOCK  # where the last block begins, if all are whole
    following = 0.0
    if NORMALIZE and EVEN:  # a step ahead, since nothing else hides the time that it takes
        following = load_table(squares_ptr, first, BLOCK)
    acc = tl.zeros([256, EP], tl.float32)
    for start in range(first, last, BLOCK):
        keep = start + local < last
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=keep, other=0) != 0
        w = load_rows(w_base, keep, wide, E, wn, wd, EVEN).to(DTYPE)
        if NORMALIZE:
            if EVEN:
                squares = following
                following = load_table(squares_ptr, tl.minimum(start + BLOCK, end), BLOCK)
            else:
                squares = tl.where(keep, load_table(squares_ptr, start, BLOCK), 0.0)
        x_m = _columns(x_base, keep, m * 16, D, xn, xd, 16, EVEN, DTYPE)
        x_n = _columns(x_base, keep, n * 16, D, xn, xd, 16, EVEN, DTYPE)
        acc = materialize(
            product(turned_outer(x_m, x_n, squares if NORMALIZE else None), w, acc, PRECISION)
        )
        x_base += BLOCK * xn
        w_base += BLOCK * wn
    acc *= tl.where(m == n, value, 2 * value)  # off-diagonal pairs count twice
    state = state_ptr + program.to(tl.int64) * 256 * E
    place = state + feature_of_row()[:, None] * E + wide[None, :]
    tl.store(place, acc.to(state_ptr.dtype.element_ty), mask=(wide < E)[None, :])


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
def _load_moments(place, DP: tl.constexpr, EP: tl.constexpr, DTYPE: tl.constexpr):
    """L (D, E) and G (D, D)."""
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    mixed = tl.load(place + cols[:, None] * EP + wide[None, :]).to(DTYPE)
    gram = tl.load(place + DP * EP + cols[:, None] * DP + cols[None, :]).to(DTYPE)
    return mixed, gram


@triton.jit
def _quadratic(
    base, keep, state, held, D, E, stride_n, stride_d,
    TILES: tl.constexpr, PAIRS: tl.constexpr, EP: tl.constexpr, PART: tl.constexpr,
    HOLD: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(x (x) x) S of rows as they lie in memory, PART x 16 features a step."""
    PARTS: tl.constexpr = 16 // PART
    acc = tl.zeros([keep.shape[0], EP], tl.float32)
    if HOLD:
        for step in tl.static_range(PAIRS * PARTS):
            phi = _symmetric(base, keep, step, D, stride_n, stride_d, TILES, PART, EVEN, DTYPE)
            acc = materialize(add_product(acc, phi, held[step], PRECISION))
    else:
        across = EP if EVEN else E  # a stride that is known costs nothing
        m = tl.program_id(0) * 0  # a tensor, since the loop carries it
        n, part = m, m
        for step in range(PAIRS * PARTS):
            first = m * 16 + part * PART
            x_m = _columns(base, keep, first, D, stride_n, stride_d, PART, EVEN, DTYPE)
            x_n = _columns(base, keep, n * 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
            s = _load_state(state, step * PART * 16, across, PART * 16, EP, EVEN, DTYPE)
            acc = materialize(add_product(acc, _outer(x_m, x_n), s, PRECISION))
            # Counted on, as `tile_pair` counts, without branches: they keep a loop from a pipeline.
            part = (part + 1) % PARTS
            n += (part == 0).to(tl.int32)
            m += (n == TILES).to(tl.int32)
            n = tl.where(n == TILES, m, n)
    return acc


@triton.jit
def _denominators(
    x, base, keep, alpha, gram_at, held, D, stride_n, stride_d,
    PIECE: tl.constexpr, HOLD: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """alpha^2 x G x + alpha x.p of every row, some columns of G at a time.

    Products of float32 would not find registers for whole columns.
    """
    DP: tl.constexpr = x.shape[1]
    ROWS: tl.constexpr = DP if x.dtype == tl.bfloat16 else PIECE
    COLUMNS: tl.constexpr = 32 if DP > 32 else DP
    columns = tl.arange(0, COLUMNS)
    z = tl.zeros([x.shape[0]], tl.float32)
    for first in tl.static_range(0, DP, COLUMNS):
        along = tl.zeros([x.shape[0], COLUMNS], tl.float32)
        if HOLD:
            along = product(x, held[-1], along, PRECISION)
        else:
            along = rows_times(
                x, base, keep, None, D, stride_n, stride_d, gram_at + first, DP, 1, along,
                ROWS, EVEN, PRECISION,
            )  # fmt: skip
        along = along * alpha[:, None] + tl.load(gram_at + DP * DP + first + columns)[None, :]
        part = x
        if COLUMNS < DP:
            part = load_rows(base, keep, first + columns, D, stride_n, stride_d, EVEN)
        z += tl.sum(along * part.to(tl.float32), axis=1)
    return z * alpha


@triton.jit
def _values_of_block(
    x_base, keep, exists, state, held, mixed_at, out_ptr, total_ptr, row, D, E, xn, xd,
    factor, share, c, floor, lift,
    TILES: tl.constexpr, PAIRS: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    PART: tl.constexpr, PIECE: tl.constexpr, HOLD: tl.constexpr,
    NORMALIZE: tl.constexpr, DIVIDE: tl.constexpr, MASKED: tl.constexpr, LIFT: tl.constexpr,
    EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`values` of one block of rows, the first of which is `row` of all heads' rows.

    Rows enter all products as they lie in memory; alpha multiplies what comes out. Denominators
    come first: beside a wide accumulator they would not find registers.
    """
    cols, wide, local = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, keep.shape[0])
    gram_at = mixed_at + DP * EP
    x = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(DTYPE)
    alpha = row_factors(x, factor, NORMALIZE)
    over = 1.0
    if DIVIDE:
        z = _denominators(
            x, x_base, keep, alpha, gram_at, held, D, xn, xd, PIECE, HOLD, EVEN, PRECISION
        )
        z = tl.maximum(z + c * share, floor * share)
        z = tl.where(z > 0, z, 1.0)
        if total_ptr is not None:
            tl.store(total_ptr + row + local, z, mask=exists)
        over = (output_factor(share, lift, LIFT) / z)[:, None]
    acc = _quadratic(
        x_base, keep, state, held, D, E, xn, xd,
        TILES, PAIRS, EP, PART, HOLD, EVEN, DTYPE, PRECISION,
    )  # fmt: skip
    acc *= alpha[:, None]
    if HOLD:
        acc = product(x, held[-2], acc, PRECISION)
    else:
        acc = rows_times(
            x, x_base, keep, None, D, xn, xd, mixed_at, EP, 1, acc, PIECE, EVEN, PRECISION
        )
    acc = (acc * alpha[:, None] + tl.load(gram_at + DP * DP + DP + wide)[None, :]) * over
    if MASKED:
        acc = tl.where(keep[:, None], acc, 0.0)
    store_rows(out_ptr + row * E, exists, wide, E, E, acc)


@triton.jit
def values(
    x_ptr, mask_ptr, temperature_ptr, share_ptr, state_ptr, moments_ptr, out_ptr, total_ptr,
    heads, tokens, D, E, per_program,
    xb, xh, xn, xd, scale, c, floor, lift,
    TILES: tl.constexpr, PAIRS: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    ROWS: tl.constexpr, PART: tl.constexpr, PIECE: tl.constexpr, HOLD: tl.constexpr,
    NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr, DIVIDE: tl.constexpr, MASKED: tl.constexpr,
    SHARED: tl.constexpr, LIFT: tl.constexpr, EVEN: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(x (x) x) S + x L + r for a block of rows; over z where DIVIDE.

    The state goes by in steps of PART x 16 features; where HOLD, it is loaded once for all blocks
    of a program.
    """
    D, E, xb, xh, xn = multiples((D, E, xb, xh, xn), GRAIN)
    bh = tl.program_id(1)
    first = tl.program_id(0) * per_program
    last = tl.minimum(first + per_program, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    share = load_share(share_ptr, bh // heads, SHARED)
    state = state_ptr + bh.to(tl.int64) * PAIRS * 256 * E
    mixed_at = moments_ptr + bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP)
    row = bh.to(tl.int64) * tokens + first
    held = ()
    if HOLD:
        for step in tl.static_range(PAIRS * (16 // PART)):
            held += (_load_state(state, step * PART * 16, E, PART * 16, EP, EVEN, DTYPE),)
        held += _load_moments(mixed_at, DP, EP, DTYPE)
        for start in range(first, last, ROWS):
            exists = start + tl.arange(0, ROWS) < last
            keep = kept_rows(start, last, mask_ptr, ROWS, MASKED)
            _values_of_block(
                x_base, keep, exists, state, held, mixed_at, out_ptr, total_ptr, row, D, E, xn, xd,
                factor, share, c, floor, lift, TILES, PAIRS, DP, EP, PART, PIECE, HOLD,
                NORMALIZE, DIVIDE, MASKED, LIFT, EVEN, DTYPE, PRECISION,
            )  # fmt: skip
            x_base += ROWS * xn
            row += ROWS
    else:  # no loop: what it carries would not find registers
        exists = first + tl.arange(0, ROWS) < last
        keep = kept_rows(first, last, mask_ptr, ROWS, MASKED)
        _values_of_block(
            x_base, keep, exists, state, held, mixed_at, out_ptr, total_ptr, row, D, E, xn, xd,
            factor, share, c, floor, lift, TILES, PAIRS, DP, EP, PART, PIECE, HOLD,
            NORMALIZE, DIVIDE, MASKED, LIFT, EVEN, DTYPE, PRECISION,
        )  # fmt: skip


@triton.jit
def gradients(
    x_ptr, y_ptr, r_ptr, mask_ptr, temperature_ptr, state_ptr, moments_ptr, out_ptr, dt_ptr,
    heads, tokens, D, E, per_program,
    xb, xh, xn, xd, yb, yh, yn, yd, scale,
    TILES: tl.constexpr, WIDE_TILES: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    ROWS: tl.constexpr, PART: tl.constexpr, PIECE: tl.constexpr, HOLD: tl.constexpr,
    NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr, WEIGHTED: tl.constexpr, MASKED: tl.constexpr,
    EVEN: tl.constexpr, GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(x (x) y) S' + y L^T + r (2 x G + p) for some blocks of rows, pulled back through alpha."""
    STEPS: tl.constexpr = TILES * WIDE_TILES * (16 // PART)
    D, E, xb, xh, xn, yb, yh, yn = multiples((D, E, xb, xh, xn, yb, yh, yn), GRAIN)
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
    sums_at = gram_at + DP * DP
    held = ()
    if HOLD:
        for step in tl.static_range(STEPS):
            held += (_load_state(state, step * PART * 16, DP, PART * 16, DP, True, DTYPE),)
        held += _load_moments(mixed_at, DP, EP, DTYPE)
    row = bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        exists = start + local < last
        keep = exists
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=exists, other=0) != 0
        acc = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            for step in tl.static_range(STEPS):
                phi = _mixed(
                    x_base, y_base, keep, step, D, E, xn, xd, yn, yd, WIDE_TILES, PART, EVEN, DTYPE
                )
                acc = materialize(add_product(acc, phi, held[step], PRECISION))
        else:
            for step in range(STEPS):
                phi = _mixed(
                    x_base, y_base, keep, step, D, E, xn, xd, yn, yd, WIDE_TILES, PART, EVEN, DTYPE
                )
                s = _load_state(state, step * PART * 16, DP, PART * 16, DP, True, DTYPE)
                acc = materialize(add_product(acc, phi, s, PRECISION))
        raw = load_rows(x_base, keep, cols, D, xn, xd, EVEN).to(tl.float32)
        alpha = row_factors(raw, factor, NORMALIZE)
        x = (raw * alpha[:, None]).to(DTYPE)
        y = load_rows(y_base, keep, wide, E, yn, yd, EVEN).to(DTYPE)
        acc *= alpha[:, None]
        along = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            acc = product(y, tl.trans(held[STEPS]), acc, PRECISION)
            along = product(x, held[STEPS + 1], along, PRECISION)
        else:
            acc = rows_times(
                y, y_base, keep, None, E, yn, yd, mixed_at, 1, EP, acc, PIECE, EVEN, PRECISION
            )
            along = rows_times(
                x, x_base, keep, alpha, D, xn, xd, gram_at, DP, 1, along, PIECE, EVEN, PRECISION
            )
        along = 2 * along + tl.load(sums_at + cols)[None, :]
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
