"""The gradients of queries and of keys by the efficient algorithm."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
# mypy: disable-error-code="var-annotated"

import functools

import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops._triton.tiles import ceil_div
from saccade.ops.taylor.triton.efficient_values import is_small, rows_per_program
from saccade.ops.taylor.triton.library import (
    add_product,
    load_columns,
    load_moments,
    load_rows,
    load_state,
    multiples,
    outer_features,
    product,
    pull_back,
    row_factors,
    rows_times,
    store_rows,
)
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape, Problem

__all__ = ["gradients", "run_gradient", "unfold"]


@triton.jit
def _mixed(
    rows,
    m_rows,
    step,
    columns,
    strides,
    VALUE_TILES: tl.constexpr,
    PART: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """PART x 16 features x (x) y of some rows."""
    p_x_rows, p_y_rows = rows
    D, E = columns
    xn, xd, yn, yd = strides
    t = step // (16 // PART)
    first = t // VALUE_TILES * 16 + step % (16 // PART) * PART
    x_j = load_columns(p_x_rows, m_rows, first, D, xn, xd, PART, EVEN, DTYPE)
    y_e = load_columns(p_y_rows, m_rows, t % VALUE_TILES * 16, E, yn, yd, 16, EVEN, DTYPE)
    return outer_features(x_j, y_e)


@triton.jit
def _load_step(state, step, DP: tl.constexpr, PART: tl.constexpr, DTYPE: tl.constexpr):
    """The rows of S' that belong to the features of a step."""
    return load_state(state, step * PART * 16, DP, PART * 16, DP, True, DTYPE)


@triton.jit
def _state_product(
    acc,
    rows,
    m_rows,
    columns,
    strides,
    state,
    held,
    FLAGS: tl.constexpr,
    STEPS: tl.constexpr,
    VALUE_TILES: tl.constexpr,
    PART: tl.constexpr,
    HOLD: tl.constexpr,
    EVEN: tl.constexpr,
):
    """acc + (x (x) y) S' for one block of rows; S' is in registers where HOLD."""
    if HOLD:
        for step in tl.static_range(STEPS):
            phi = _mixed(rows, m_rows, step, columns, strides, VALUE_TILES, PART, EVEN, FLAGS.DTYPE)
            acc = materialize(add_product(acc, phi, held[step], FLAGS.PRECISION))
    else:
        for step in range(STEPS):
            phi = _mixed(rows, m_rows, step, columns, strides, VALUE_TILES, PART, EVEN, FLAGS.DTYPE)
            s = _load_step(state, step, FLAGS.DP, PART, FLAGS.DTYPE)
            acc = materialize(add_product(acc, phi, s, FLAGS.PRECISION))
    return acc


@triton.jit
def gradients(
    p_x,
    p_y,
    p_r,
    p_mask,
    p_temperature,
    p_state,
    p_moments,
    p_out,
    p_dt,
    sizes,
    x_strides,
    y_strides,
    scale,
    FLAGS: tl.constexpr,
    TILES: tl.constexpr,
    VALUE_TILES: tl.constexpr,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
    HOLD: tl.constexpr,
    TEMPERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    EVEN: tl.constexpr,
):
    """(x (x) y) S' + y L^T + r (2 x G + p) for some blocks of rows, pulled back through alpha."""
    DP: tl.constexpr = FLAGS.DP
    heads, tokens, D, E, per_program = sizes
    xb, xh, xn, xd = x_strides
    yb, yh, yn, yd = y_strides
    STEPS: tl.constexpr = TILES * VALUE_TILES * (16 // PART)
    D, E, xb, xh, xn, yb, yh, yn = multiples((D, E, xb, xh, xn, yb, yh, yn), FLAGS.ALIGNMENT)
    i_bh = tl.program_id(1)
    first = tl.program_id(0) * per_program
    last = tl.minimum(first + per_program, tokens)
    o_d, o_e, o_n = tl.arange(0, DP), tl.arange(0, FLAGS.EP), tl.arange(0, ROWS)
    p_x_rows = p_x + head_offset(i_bh, heads, xb, xh) + first.to(tl.int64) * xn
    p_y_rows = p_y + head_offset(i_bh, heads, yb, yh) + first.to(tl.int64) * yn
    p_mask += (i_bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    state = p_state + i_bh.to(tl.int64) * TILES * VALUE_TILES * 256 * DP
    mixed_at = p_moments + i_bh.to(tl.int64) * (DP * FLAGS.EP + DP * DP + DP + FLAGS.EP)
    gram_at = mixed_at + DP * FLAGS.EP
    sums_at = gram_at + DP * DP
    held = ()
    if HOLD:
        for step in tl.static_range(STEPS):
            held += (_load_step(state, step, DP, PART, FLAGS.DTYPE),)
        held += load_moments(mixed_at, DP, FLAGS.EP, FLAGS.DTYPE)
    row = i_bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        m_exists = start + o_n < last
        m_rows = m_exists
        if FLAGS.MASKED:
            m_rows = tl.load(p_mask + start + o_n, mask=m_exists, other=0) != 0
        acc = tl.zeros([ROWS, DP], tl.float32)
        acc = _state_product(
            acc, (p_x_rows, p_y_rows), m_rows, (D, E), (xn, xd, yn, yd), state, held,
            FLAGS, STEPS, VALUE_TILES, PART, HOLD, EVEN,
        )  # fmt: skip
        raw = load_rows(p_x_rows, m_rows, o_d, D, xn, xd, EVEN).to(tl.float32)  # (ROWS, DP)
        alpha = row_factors(raw, factor, FLAGS.NORMALIZE)
        x = (raw * alpha[:, None]).to(FLAGS.DTYPE)
        y = load_rows(p_y_rows, m_rows, o_e, E, yn, yd, EVEN).to(FLAGS.DTYPE)  # (ROWS, EP)
        acc *= alpha[:, None]
        along = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            acc = product(y, tl.trans(held[STEPS]), acc, FLAGS.PRECISION)
            along = product(x, held[STEPS + 1], along, FLAGS.PRECISION)
        else:
            acc = rows_times(
                y, p_y_rows, m_rows, None, E, yn, yd, mixed_at, 1, FLAGS.EP, acc,
                CHUNK, EVEN, FLAGS.PRECISION,
            )  # fmt: skip
            along = rows_times(
                x, p_x_rows, m_rows, alpha, D, xn, xd, gram_at, DP, 1, along,
                CHUNK, EVEN, FLAGS.PRECISION,
            )  # fmt: skip
        along = 2 * along + tl.load(sums_at + o_d)[None, :]
        if WEIGHTED:
            along *= tl.load(p_r + row + o_n, mask=m_exists, other=0.0)[:, None]
        grad, dt = pull_back(acc + along, raw, factor, FLAGS.NORMALIZE)
        if FLAGS.MASKED:
            grad *= tl.where(m_rows, 1.0, 0.0)[:, None]
        store_rows(p_out + row * D, m_exists, o_d, D, D, grad)
        if TEMPERED:
            tl.store(p_dt + row + o_n, dt * scale, mask=m_exists)
        p_x_rows += ROWS * xn
        p_y_rows += ROWS * yn
        row += ROWS


@triton.jit
def unfold(
    p_state,
    p_out,
    E,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    VALUE_TILES: tl.constexpr,
    DP: tl.constexpr,
):
    """S' from S: rows (j, e) of a tile pair, columns i; twice the diagonal pairs."""
    t, i_bh = tl.program_id(0), tl.program_id(1)
    row, col = tl.arange(0, 256)[:, None], tl.arange(0, DP)[None, :]
    j_tile, j, e = t // VALUE_TILES, row // 16, (t % VALUE_TILES) * 16 + row % 16
    i_tile, i = col // 16, col % 16
    low, high = tl.minimum(i_tile, j_tile), tl.maximum(i_tile, j_tile)
    first, second = tl.where(j_tile <= i_tile, j, i), tl.where(j_tile <= i_tile, i, j)
    pair = low * TILES - low * (low - 1) // 2 + high - low
    source = p_state + i_bh.to(tl.int64) * PAIRS * 256 * E
    m_block = (e < E) & (i_tile < TILES)
    s = tl.load(source + (pair * 256 + first * 16 + second) * E + e, mask=m_block, other=0.0)
    s = s.to(tl.float32) * tl.where(i_tile == j_tile, 2.0, 1.0)
    place = p_out + (i_bh.to(tl.int64) * TILES * VALUE_TILES + t) * 256 * DP
    tl.store(place + row * DP + col, s.to(p_out.dtype.element_ty))


@functools.lru_cache(maxsize=KEPT_CALLS)
def _unfold_launch(call: CallShape) -> Launch:
    value_tiles = ceil_div(call.width, 16)
    constants = {
        "TILES": call.tiles,
        "PAIRS": call.pairs,
        "VALUE_TILES": value_tiles,
        "DP": call.padded_dim,
    }
    return Launch(unfold, (call.tiles * value_tiles, call.batch_heads), (call.width,), constants)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _gradients_launch(call: CallShape, of_queries: bool) -> Launch:
    tokens, x_stride, y_stride = call.rows(of_queries=of_queries)
    size = call.blocks("gradients")
    value_tiles = ceil_div(call.width, 16)
    small = is_small(call, call.tiles * value_tiles, call.padded_dim)
    hold = small and max(call.tiles, value_tiles) <= 2
    per_program = rows_per_program(call, tokens, size.rows, hold)
    numbers = (
        (call.heads, tokens, call.dim, call.width, per_program),
        x_stride,
        y_stride,
        call.scale if of_queries else 1.0,
    )
    constants = {
        "TILES": call.tiles,
        "VALUE_TILES": value_tiles,
        "ROWS": size.rows,
        "PART": size.block,
        "CHUNK": size.chunk,
        "HOLD": hold,
        "TEMPERED": of_queries and call.normalized,
        "WEIGHTED": of_queries,
        "EVEN": call.is_even(tokens, size.rows),
        "FLAGS": call.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(gradients, (ceil_div(tokens, per_program), call.batch_heads), numbers, constants)


def run_gradient(
    p: Problem, x: Tensor, y: Tensor, r: Tensor | None, state: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of queries (with r = dz) or keys x, and each row's part of the temperature's.

    Without a temperature gradient the second result is any tensor.
    """
    call, of_queries = p.call, r is not None
    unfold_state, launch = _unfold_launch(call), _gradients_launch(call, of_queries)
    state_transposed = p.new(
        call.batch_heads, unfold_state.grid[0] * 256, call.padded_dim, dtype=call.operands
    )
    unfold_state(state, state_transposed)
    out = p.new(*x.shape)
    dt = p.numbers(call.batch_heads, call.queries) if of_queries and call.normalized else out
    launch(x, y, x if r is None else r, p.key_mask, p.temperature, state_transposed, sums, out, dt)
    return out, dt
