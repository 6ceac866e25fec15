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
from saccade.ops.taylor.triton.shapes import KEPT_FORMS, Form, Problem

__all__ = ["gradients", "run_gradient", "unfold"]


@triton.jit
def _mixed(
    p_x_rows,
    p_y_rows,
    m_rows,
    step,
    D,
    E,
    xn,
    xd,
    yn,
    yd,
    WIDE_TILES: tl.constexpr,
    PART: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """PART x 16 features x (x) y of some rows."""
    t = step // (16 // PART)
    first = t // WIDE_TILES * 16 + step % (16 // PART) * PART
    x_j = load_columns(p_x_rows, m_rows, first, D, xn, xd, PART, EVEN, DTYPE)
    y_e = load_columns(p_y_rows, m_rows, t % WIDE_TILES * 16, E, yn, yd, 16, EVEN, DTYPE)
    return outer_features(x_j, y_e)


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
    WIDE_TILES: tl.constexpr,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
    PIECE: tl.constexpr,
    HOLD: tl.constexpr,
    TEMPERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    EVEN: tl.constexpr,
):
    """(x (x) y) S' + y L^T + r (2 x G + p) for some blocks of rows, pulled back through alpha."""
    DP: tl.constexpr = FLAGS.DP
    EP: tl.constexpr = FLAGS.EP
    NORMALIZE: tl.constexpr = FLAGS.NORMALIZE
    MASKED: tl.constexpr = FLAGS.MASKED
    GRAIN: tl.constexpr = FLAGS.GRAIN
    DTYPE: tl.constexpr = FLAGS.DTYPE
    PRECISION: tl.constexpr = FLAGS.PRECISION
    heads, tokens, D, E, per_program = sizes
    xb, xh, xn, xd = x_strides
    yb, yh, yn, yd = y_strides
    STEPS: tl.constexpr = TILES * WIDE_TILES * (16 // PART)
    D, E, xb, xh, xn, yb, yh, yn = multiples((D, E, xb, xh, xn, yb, yh, yn), GRAIN)
    i_bh = tl.program_id(1)
    first = tl.program_id(0) * per_program
    last = tl.minimum(first + per_program, tokens)
    o_d, o_e, o_n = tl.arange(0, DP), tl.arange(0, EP), tl.arange(0, ROWS)
    p_x_rows = p_x + head_offset(i_bh, heads, xb, xh) + first.to(tl.int64) * xn
    p_y_rows = p_y + head_offset(i_bh, heads, yb, yh) + first.to(tl.int64) * yn
    p_mask += (i_bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    state = p_state + i_bh.to(tl.int64) * TILES * WIDE_TILES * 256 * DP
    mixed_at = p_moments + i_bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP)
    gram_at = mixed_at + DP * EP
    sums_at = gram_at + DP * DP
    held = ()
    if HOLD:
        for step in tl.static_range(STEPS):
            held += (load_state(state, step * PART * 16, DP, PART * 16, DP, True, DTYPE),)
        held += load_moments(mixed_at, DP, EP, DTYPE)
    row = i_bh.to(tl.int64) * tokens + first
    for start in range(first, last, ROWS):
        m_exists = start + o_n < last
        m_rows = m_exists
        if MASKED:
            m_rows = tl.load(p_mask + start + o_n, mask=m_exists, other=0) != 0
        acc = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            for step in tl.static_range(STEPS):
                phi = _mixed(
                    p_x_rows,
                    p_y_rows,
                    m_rows,
                    step,
                    D,
                    E,
                    xn,
                    xd,
                    yn,
                    yd,
                    WIDE_TILES,
                    PART,
                    EVEN,
                    DTYPE,
                )
                acc = materialize(add_product(acc, phi, held[step], PRECISION))
        else:
            for step in range(STEPS):
                phi = _mixed(
                    p_x_rows,
                    p_y_rows,
                    m_rows,
                    step,
                    D,
                    E,
                    xn,
                    xd,
                    yn,
                    yd,
                    WIDE_TILES,
                    PART,
                    EVEN,
                    DTYPE,
                )
                s = load_state(state, step * PART * 16, DP, PART * 16, DP, True, DTYPE)
                acc = materialize(add_product(acc, phi, s, PRECISION))
        raw = load_rows(p_x_rows, m_rows, o_d, D, xn, xd, EVEN).to(tl.float32)  # (ROWS, DP)
        alpha = row_factors(raw, factor, NORMALIZE)
        x = (raw * alpha[:, None]).to(DTYPE)
        y = load_rows(p_y_rows, m_rows, o_e, E, yn, yd, EVEN).to(DTYPE)  # (ROWS, EP)
        acc *= alpha[:, None]
        along = tl.zeros([ROWS, DP], tl.float32)
        if HOLD:
            acc = product(y, tl.trans(held[STEPS]), acc, PRECISION)
            along = product(x, held[STEPS + 1], along, PRECISION)
        else:
            acc = rows_times(
                y, p_y_rows, m_rows, None, E, yn, yd, mixed_at, 1, EP, acc, PIECE, EVEN, PRECISION
            )
            along = rows_times(
                x, p_x_rows, m_rows, alpha, D, xn, xd, gram_at, DP, 1, along, PIECE, EVEN, PRECISION
            )
        along = 2 * along + tl.load(sums_at + o_d)[None, :]
        if WEIGHTED:
            along *= tl.load(p_r + row + o_n, mask=m_exists, other=0.0)[:, None]
        grad, dt = pull_back(acc + along, raw, factor, NORMALIZE)
        if MASKED:
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
    WIDE_TILES: tl.constexpr,
    DP: tl.constexpr,
):
    """S' from S: rows (j, e) of a tile pair, columns i; twice the diagonal pairs."""
    t, i_bh = tl.program_id(0), tl.program_id(1)
    row, col = tl.arange(0, 256)[:, None], tl.arange(0, DP)[None, :]
    j_tile, j, e = t // WIDE_TILES, row // 16, (t % WIDE_TILES) * 16 + row % 16
    i_tile, i = col // 16, col % 16
    low, high = tl.minimum(i_tile, j_tile), tl.maximum(i_tile, j_tile)
    first, second = tl.where(j_tile <= i_tile, j, i), tl.where(j_tile <= i_tile, i, j)
    pair = low * TILES - low * (low - 1) // 2 + high - low
    source = p_state + i_bh.to(tl.int64) * PAIRS * 256 * E
    m_block = (e < E) & (i_tile < TILES)
    s = tl.load(source + (pair * 256 + first * 16 + second) * E + e, mask=m_block, other=0.0)
    s = s.to(tl.float32) * tl.where(i_tile == j_tile, 2.0, 1.0)
    place = p_out + (i_bh.to(tl.int64) * TILES * WIDE_TILES + t) * 256 * DP
    tl.store(place + row * DP + col, s.to(p_out.dtype.element_ty))


@functools.lru_cache(maxsize=KEPT_FORMS)
def _unfold_launch(f: Form) -> Launch:
    wide_tiles = ceil_div(f.width, 16)
    constants = {"TILES": f.tiles, "PAIRS": f.pairs, "WIDE_TILES": wide_tiles, "DP": f.padded_dim}
    return Launch(unfold, (f.tiles * wide_tiles, f.batch_heads), (f.width,), constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _gradients_launch(f: Form, of_queries: bool) -> Launch:
    tokens, x_stride, y_stride = f.rows(of_queries=of_queries)
    size = f.blocks("gradients")
    wide_tiles = ceil_div(f.width, 16)
    small = is_small(f, f.tiles * wide_tiles, f.padded_dim)
    hold = small and max(f.tiles, wide_tiles) <= 2
    per_program = rows_per_program(f, tokens, size.rows, hold)
    numbers = (
        (f.heads, tokens, f.dim, f.width, per_program),
        x_stride,
        y_stride,
        f.scale if of_queries else 1.0,
    )
    constants = {
        "TILES": f.tiles,
        "WIDE_TILES": wide_tiles,
        "ROWS": size.rows,
        "PART": size.block,
        "PIECE": size.piece,
        "HOLD": hold,
        "TEMPERED": of_queries and f.normalized,
        "WEIGHTED": of_queries,
        "EVEN": f.is_even(tokens, size.rows),
        "FLAGS": f.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(gradients, (ceil_div(tokens, per_program), f.batch_heads), numbers, constants)


def run_gradient(
    p: Problem, x: Tensor, y: Tensor, r: Tensor | None, state: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of queries (with r = dz) or keys x, and each row's share of the temperature's.

    Where the temperature has none, any tensor stands for the shares.
    """
    f, of_queries = p.form, r is not None
    unfold_state, launch = _unfold_launch(f), _gradients_launch(f, of_queries)
    turned = p.new(f.batch_heads, unfold_state.grid[0] * 256, f.padded_dim, dtype=f.operands)
    unfold_state(state, turned)
    out = p.new(*x.shape)
    dt = p.numbers(f.batch_heads, f.queries) if of_queries and f.normalized else out
    launch(x, y, x if r is None else r, p.key_mask, p.temperature, turned, sums, out, dt)
    return out, dt
