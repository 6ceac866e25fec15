"""The smaller sums of the efficient algorithm in one pass over the rows: L, G, p and r.

    L = sum x w^T,   G = sum r x x^T,   p = sum r x,   r = sum w

over keys and values with r = 1, or queries and dy with r = dz.

Where D and E are at most 16, `narrow_sums` takes all sums of the algorithm in one pass.

The state S takes a product of 256 features, as in `accumulate`. The smaller sums are one more of

    (x, 1)^T (w, r x),   which is   L = sum x w^T,   G = sum r x x^T,   r = sum w,   p = sum r x

so rows and values are read once, and the rows' lengths never leave the program.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops.taylor.triton import configs
from saccade.ops.taylor.triton.configs import Blocks
from saccade.ops.taylor.triton.efficient_splits import (
    Constants,
    Gradients,
    Numbers,
    add_launch,
    add_up,
    split_rows,
)
from saccade.ops.taylor.triton.library import (
    NORM_EPS,
    feature_of_row,
    load_rows,
    multiples,
    product,
    row_factors,
    swizzled_outer,
    table_offset,
    table_place,
)
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape, Problem

__all__ = ["is_narrow", "moments", "narrow_sums", "row_moments", "sum_moments", "sum_narrow"]


@triton.jit
def store_swizzled(place, x, BLOCK: tl.constexpr):
    """Write BLOCK rows of some shape, one after the other, as swizzled rows."""
    size: tl.constexpr = x.shape[0] * x.shape[1]
    x = tl.permute(tl.reshape(x, (BLOCK // 32, 4, 4, 2, size // BLOCK)), (0, 4, 2, 1, 3))
    at = tl.arange(0, size // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(place + at, tl.reshape(x, (size // 32, 32)).to(place.dtype.element_ty))


@triton.jit
def _folded(
    base, m_rows, D, stride_n, stride_d, FOLD: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr
):
    """Rows of FOLD tokens side by side: (tokens / FOLD, FOLD x DP)."""
    rows, o_d = tl.arange(0, m_rows.shape[0]), tl.arange(0, FOLD * DP)
    pointers = base + (rows[:, None] * FOLD + o_d[None, :] // DP) * stride_n
    pointers += (o_d % DP)[None, :] * stride_d
    if EVEN:
        return tl.load(pointers)
    m_exists = tl.reshape(
        tl.broadcast_to(m_rows[:, :, None], (m_rows.shape[0], FOLD, DP)),
        (m_rows.shape[0], FOLD * DP),
    )
    return tl.load(pointers, mask=m_exists & (o_d % DP < D)[None, :], other=0.0)


@triton.jit
def _by_token(x, factors):
    """Multiply every token of folded rows by its factor."""
    rows: tl.constexpr = x.shape[0]
    fold: tl.constexpr = factors.shape[1]
    x3 = tl.reshape(x, (rows, fold, x.shape[1] // fold)) * factors[:, :, None]
    return tl.reshape(x3, (rows, x.shape[1]))


@triton.jit
def _unfold_product(folded, FOLD: tl.constexpr):
    """The sum over tokens from a product of folded rows: its diagonal blocks, added."""
    if FOLD == 1:
        return folded
    height: tl.constexpr = folded.shape[0] // FOLD
    width: tl.constexpr = folded.shape[1] // FOLD
    blocks = tl.reshape(folded, (FOLD, height, FOLD, width))
    one, other = tl.arange(0, FOLD)[:, None, None, None], tl.arange(0, FOLD)[None, None, :, None]
    return tl.sum(tl.sum(tl.where(one == other, blocks, 0.0), axis=2), axis=0)


@triton.jit
def _add_rows(sums, x, HEIGHT: tl.constexpr, PRECISION: tl.constexpr):
    """Sums of columns, the same in HEIGHT rows; still one for each row of x where HEIGHT is 0."""
    if HEIGHT:
        ones = tl.full([HEIGHT, x.shape[0]], 1.0, x.dtype)
        sums = materialize(product(ones, x, sums, PRECISION))
    else:
        sums += x.to(tl.float32)
    return sums


@triton.jit
def _unfold_sums(sums, FOLD: tl.constexpr, HEIGHT: tl.constexpr):
    """Column sums of folded rows, as `_add_rows` leaves them, as sums over tokens."""
    width: tl.constexpr = sums.shape[1] // FOLD
    if HEIGHT:
        sums = tl.where(tl.arange(0, HEIGHT)[:, None] == 0, sums, 0.0)
    return tl.sum(tl.reshape(tl.sum(sums, axis=0), (FOLD, width)), axis=0)


@triton.jit
def _store_folded(
    place,
    sums,
    coefficients,
    DP: tl.constexpr,
    EP: tl.constexpr,
    FOLD: tl.constexpr,
    HEIGHT: tl.constexpr,
):
    """Write L, G, p and r from sums over folded rows."""
    mixed, gram, sum_x, sum_w = sums
    quadratic, linear, constant = coefficients
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    total = _unfold_product(mixed, FOLD)
    tl.store(place + o_d[:, None] * EP + o_e[None, :], total * linear)
    place += DP * EP
    total = _unfold_product(gram, FOLD)
    tl.store(place + o_d[:, None] * DP + o_d[None, :], total * quadratic)
    place += DP * DP
    tl.store(place + o_d, _unfold_sums(sum_x, FOLD, HEIGHT) * linear)
    tl.store(place + DP + o_e, _unfold_sums(sum_w, FOLD, HEIGHT) * constant)


@triton.jit
def moments(
    p_x,
    p_w,
    p_r,
    p_mask,
    p_temperature,
    p_out,
    p_extra_out,
    sizes,
    x_strides,
    w_strides,
    coefficients,
    FLAGS: tl.constexpr,
    BLOCK: tl.constexpr,
    FOLD: tl.constexpr,
    HEIGHT: tl.constexpr,
    TEMPERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SWIZZLED: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The smaller sums L, G, p, r over keys and values, or queries and dy with weights r = dz.

    Narrow tokens are folded, FOLD side by side, so that products are wide enough for the matrix
    unit; blocks off the diagonal are thrown away. Sums of rows are products with HEIGHT rows of
    ones, or added up number by number where HEIGHT is 0. If rows are normalized, `p_extra_out` gets
    alpha^2 of each for `accumulate`; where SWIZZLED, alpha x for `accumulate_swizzled`.
    """
    DP: tl.constexpr = FLAGS.DP
    EP: tl.constexpr = FLAGS.EP
    heads, tokens, D, E, per_split = sizes
    xb, xh, xn, xd = x_strides
    wb, wh, wn, wd = w_strides
    scale, quadratic, linear, constant = coefficients
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), FLAGS.ALIGNMENT)
    split, i_bh = tl.program_id(0), tl.program_id(1)
    rows: tl.constexpr = BLOCK // FOLD
    o_n = tl.arange(0, rows)[:, None] * FOLD + tl.arange(0, FOLD)[None, :]
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    p_x_rows = p_x + head_offset(i_bh, heads, xb, xh) + first.to(tl.int64) * xn
    p_w_rows = p_w + head_offset(i_bh, heads, wb, wh) + first.to(tl.int64) * wn
    p_mask += (i_bh // heads).to(tl.int64) * tokens
    p_r += i_bh.to(tl.int64) * tokens
    if SWIZZLED:
        p_extra_out += (i_bh.to(tl.int64) * tokens + first) * DP
    else:
        p_extra_out += table_offset(i_bh, tokens)
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    mixed = tl.zeros([FOLD * DP, FOLD * EP], tl.float32)
    gram = tl.zeros([FOLD * DP, FOLD * DP], tl.float32)
    sum_x = tl.zeros([HEIGHT or rows, FOLD * DP], tl.float32)
    sum_w = tl.zeros([HEIGHT or rows, FOLD * EP], tl.float32)
    for start in range(first, last, BLOCK):
        m_rows = start + o_n < last
        if FLAGS.MASKED:
            m_rows = tl.load(p_mask + start + o_n, mask=m_rows, other=0) != 0
        x = _folded(p_x_rows, m_rows, D, xn, xd, FOLD, DP, EVEN)
        w = _folded(p_w_rows, m_rows, E, wn, wd, FOLD, EP, EVEN).to(FLAGS.DTYPE)
        if FLAGS.NORMALIZE:
            x = x.to(tl.float32)
            squares = tl.sum(tl.reshape(x * x, (rows, FOLD, DP)), axis=2)
            alpha = factor / tl.maximum(tl.sqrt(squares), NORM_EPS)
            if not SWIZZLED:
                square = (alpha * alpha).to(p_extra_out.dtype.element_ty)
                tl.store(p_extra_out + table_place(start + o_n), square, mask=start + o_n < last)
            x = _by_token(x, alpha)
        x = x.to(FLAGS.DTYPE)
        if SWIZZLED:
            store_swizzled(p_extra_out, x, BLOCK)
            p_extra_out += BLOCK * DP
        weighted = x
        if WEIGHTED:
            r = tl.load(p_r + start + o_n, mask=start + o_n < last, other=0.0)
            weighted = _by_token(x.to(tl.float32), r).to(FLAGS.DTYPE)
        gram = materialize(product(tl.trans(x), weighted, gram, FLAGS.PRECISION))
        sum_x = _add_rows(sum_x, weighted, HEIGHT, FLAGS.PRECISION)
        sum_w = _add_rows(sum_w, w, HEIGHT, FLAGS.PRECISION)
        mixed = materialize(product(tl.trans(x), w, mixed, FLAGS.PRECISION))
        p_x_rows += BLOCK * xn
        p_w_rows += BLOCK * wn
    once = 1.0 if FLAGS.NORMALIZE else factor  # the factor of a row that is not in alpha
    slot = (split * tl.num_programs(1) + i_bh).to(tl.int64)
    place = p_out + slot * (DP * EP + DP * DP + DP + EP)
    coefficients = (quadratic * once * once, linear * once, constant)
    _store_folded(place, (mixed, gram, sum_x, sum_w), coefficients, DP, EP, FOLD, HEIGHT)


@triton.jit
def _with_ones(x):
    """(rows, 16) -> (rows, 64), the height that a product takes: (x_i, 0, 1, 0) for each i."""
    pair = tl.join(x, tl.full(x.shape, 1.0, x.dtype))
    return tl.reshape(tl.join(pair, tl.zeros(pair.shape, x.dtype)), (x.shape[0], 64))


@triton.jit
def _store_moments(place, sums, quadratic, linear, constant):
    """L, G, p and r from (64, 32): rows as in `_with_ones`, columns (w_e, r x_e) for each e."""
    row, col = tl.arange(0, 64)[:, None], tl.arange(0, 32)[None, :]
    i, kind, e, of_x = row // 4, row % 4, col // 2, col % 2
    # The matrices L and G, then the rows p and r.
    at = tl.where(kind == 0, of_x * 256 + i * 16, 512 + (1 - of_x) * 16) + e
    of_matrix, of_row = (
        tl.where(of_x == 0, linear, quadratic),
        tl.where(of_x == 0, constant, linear),
    )
    m_exists = (kind == 0) | ((kind == 2) & (i == 0))
    tl.store(place + at, sums * tl.where(kind == 0, of_matrix, of_row), mask=m_exists)


@triton.jit
def narrow_sums(
    p_x,
    p_w,
    p_r,
    p_mask,
    p_temperature,
    p_state,
    p_moments,
    sizes,
    x_strides,
    w_strides,
    coefficients,
    part,
    FLAGS: tl.constexpr,
    BLOCK: tl.constexpr,
    TEMPERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    EVEN: tl.constexpr,
):
    """S, L, G, p and r over keys and values, or queries and dy with weights r = dz.

    From one split to the next, both outputs advance by `part` numbers.
    """
    heads, tokens, D, E, per_split = sizes
    xb, xh, xn, xd = x_strides
    wb, wh, wn, wd = w_strides
    scale, quadratic, linear, constant = coefficients
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), FLAGS.ALIGNMENT)
    split, i_bh = tl.program_id(0), tl.program_id(1)
    o_d, o_n = tl.arange(0, 16), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    p_x_rows = p_x + head_offset(i_bh, heads, xb, xh) + first.to(tl.int64) * xn
    p_w_rows = p_w + head_offset(i_bh, heads, wb, wh) + first.to(tl.int64) * wn
    p_mask += (i_bh // heads).to(tl.int64) * tokens
    p_r += i_bh.to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    state = tl.zeros([256, 16], tl.float32)
    sums = tl.zeros([64, 32], tl.float32)
    for start in range(first, last, BLOCK):
        m_rows = start + o_n < last
        if FLAGS.MASKED:
            m_rows = tl.load(p_mask + start + o_n, mask=m_rows, other=0) != 0
        x = load_rows(p_x_rows, m_rows, o_d, D, xn, xd, EVEN)  # (BLOCK, 16)
        w = load_rows(p_w_rows, m_rows, o_d, E, wn, wd, EVEN)  # (BLOCK, 16)
        raw, by_length, weighted = x.to(FLAGS.DTYPE), w, x
        if FLAGS.NORMALIZE:
            alpha = row_factors(x, factor, True)[:, None]
            by_length = w.to(tl.float32) * (alpha * alpha)
            x = x.to(tl.float32) * alpha
            weighted = x
        if WEIGHTED:
            r = tl.load(p_r + start + o_n, mask=start + o_n < last, other=0.0)
            weighted = x.to(tl.float32) * r[:, None]
        state = materialize(
            product(
                swizzled_outer(raw, raw, None), by_length.to(FLAGS.DTYPE), state, FLAGS.PRECISION
            )
        )
        both = tl.reshape(tl.join(w.to(FLAGS.DTYPE), weighted.to(FLAGS.DTYPE)), (BLOCK, 32))
        sums = materialize(
            product(tl.trans(_with_ones(x.to(FLAGS.DTYPE))), both, sums, FLAGS.PRECISION)
        )
        p_x_rows += BLOCK * xn
        p_w_rows += BLOCK * wn
    once = 1.0 if FLAGS.NORMALIZE else factor  # the factor of a row that is not in alpha
    square = quadratic * once * once
    slot, skipped = i_bh.to(tl.int64), split.to(tl.int64) * part
    place = p_state + skipped + slot * 256 * E
    place = place + feature_of_row()[:, None] * E + o_d[None, :]
    tl.store(place, (state * square).to(p_state.dtype.element_ty), mask=(o_d < E)[None, :])
    _store_moments(p_moments + skipped + slot * 544, sums, square, linear * once, constant)


def is_narrow(call: CallShape) -> bool:
    """Whether all sums are taken in one pass."""
    return max(call.dim, call.width) <= configs.ONE_PASS_WIDTH


def _loop(call: CallShape, size: Blocks, of_queries: bool) -> tuple[int, Numbers, Constants]:
    """Into how many parts the rows are split, and what a loop over one of them takes."""
    tokens, x_stride, w_stride = call.rows(of_queries=of_queries)
    parts, per_split = split_rows(call, tokens, size, call.batch_heads)
    over = 1 / max(1, call.keys)
    numbers = (
        (call.heads, tokens, call.dim, call.width, per_split),
        x_stride,
        w_stride,
        (call.scale if of_queries else 1.0, call.a * over, call.b * over, call.c * over),
    )
    constants = {
        "BLOCK": size.block,
        "TEMPERED": of_queries and call.normalized,
        "WEIGHTED": of_queries,
        "EVEN": call.is_even(tokens, size.block),
        "FLAGS": call.flags(masked=not of_queries),
        **size.options(),
    }
    return parts, numbers, constants


@functools.lru_cache(maxsize=KEPT_CALLS)
def _narrow_launch(call: CallShape, of_queries: bool) -> Launch:
    size = call.blocks("narrow_sums")
    parts, numbers, constants = _loop(call, size, of_queries)
    part = call.batch_heads * (256 * call.width + call.moments_size)
    return Launch(narrow_sums, (parts, call.batch_heads), (*numbers, part), constants)


def sum_narrow(p: Problem, gradients: Gradients | None) -> tuple[Tensor, Tensor]:
    """The state and the smaller sums by `narrow_sums`."""
    call = p.call
    x, w, r = (p.k, p.v, p.k) if gradients is None else (p.q, *gradients)
    launch = _narrow_launch(call, gradients is not None)
    parts, part = launch.grid[0], launch.numbers[-1]
    state = p.new(call.batch_heads, 256, call.width, dtype=call.operands)
    moments = p.numbers(call.batch_heads, call.moments_size)
    if parts == 1:
        launch(x, w, r, p.key_mask, p.temperature, state, moments)
    else:
        buffer, head = p.numbers(parts * part), state.numel()
        launch(x, w, r, p.key_mask, p.temperature, buffer, buffer[head:])
        add_launch(parts, head, part)(buffer, state, moments)
    return state, moments


@functools.lru_cache(maxsize=KEPT_CALLS)
def _moments_launch(call: CallShape, of_queries: bool, swizzled: bool) -> Launch:
    size = call.blocks("moments")
    parts, numbers, constants = _loop(call, size, of_queries)
    # Wide values beside narrow keys, folded, are more than registers hold.
    height = size.rows if call.padded_width <= 2 * call.padded_dim else 0
    fold = min(height // call.padded_dim, size.block // 16)  # a product takes 16 rows or more
    constants |= {"FOLD": max(1, fold), "HEIGHT": height, "SWIZZLED": swizzled}
    return Launch(moments, (parts, call.batch_heads), numbers, constants)


def row_moments(p: Problem, gradients: Gradients | None = None) -> tuple[Tensor, Tensor]:
    """The smaller sums, and a table of alpha^2 of every row that is normalized."""
    x = p.k if gradients is None else p.q
    squares = p.table(x.shape[2]) if p.call.normalized else x
    return sum_moments(p, gradients, squares, swizzled=False), squares


def sum_moments(
    p: Problem, gradients: Gradients | None, extra_out: Tensor, *, swizzled: bool
) -> Tensor:
    """The smaller sums; what the state needs of the rows is written to `extra_out`."""
    call = p.call
    x, w, r = (p.k, p.v, p.k) if gradients is None else (p.q, *gradients)
    launch = _moments_launch(call, gradients is not None, swizzled)
    sums = p.numbers(launch.grid[0], call.batch_heads, call.moments_size)
    launch(x, w, r, p.key_mask, p.temperature, sums, extra_out)
    return add_up(p, sums, torch.float32)
