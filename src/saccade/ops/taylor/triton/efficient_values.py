"""The output of the efficient algorithm from its sums: o, and backwards dv."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
# mypy: disable-error-code="var-annotated"

import functools

import torch
import triton
import triton.language as tl

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops._triton.tiles import ceil_div, multiprocessors
from saccade.ops.taylor.triton.library import (
    add_product,
    kept_rows,
    load_columns,
    load_key_fraction,
    load_moments,
    load_rows,
    load_state,
    multiples,
    outer_features,
    output_factor,
    product,
    row_factors,
    rows_times,
    store_rows,
    tile_pair,
)
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape

__all__ = ["is_small", "rows_per_program", "values", "values_launch"]


@triton.jit
def _symmetric(
    base,
    m_rows,
    step,
    D,
    stride_n,
    stride_d,
    TILES: tl.constexpr,
    PART: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """PART x 16 features of some rows: PART columns of tile m by all of tile n."""
    m, n = tile_pair(step // (16 // PART), TILES)
    first = m * 16 + step % (16 // PART) * PART
    x_m = load_columns(base, m_rows, first, D, stride_n, stride_d, PART, EVEN, DTYPE)
    x_n = load_columns(base, m_rows, n * 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
    return outer_features(x_m, x_n)


@triton.jit
def _quadratic(
    base,
    m_rows,
    state,
    held,
    D,
    E,
    stride_n,
    stride_d,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    EP: tl.constexpr,
    PART: tl.constexpr,
    HOLD: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """(x (x) x) S of rows as they lie in memory, PART x 16 features a step."""
    PARTS: tl.constexpr = 16 // PART
    acc = tl.zeros([m_rows.shape[0], EP], tl.float32)
    if HOLD:
        for step in tl.static_range(PAIRS * PARTS):
            phi = _symmetric(base, m_rows, step, D, stride_n, stride_d, TILES, PART, EVEN, DTYPE)
            acc = materialize(add_product(acc, phi, held[step], PRECISION))
    else:
        across = EP if EVEN else E  # a stride that is known costs nothing
        m = tl.program_id(0) * 0  # a tensor, since the loop carries it
        n, part = m, m
        for step in range(PAIRS * PARTS):
            first = m * 16 + part * PART
            x_m = load_columns(base, m_rows, first, D, stride_n, stride_d, PART, EVEN, DTYPE)
            x_n = load_columns(base, m_rows, n * 16, D, stride_n, stride_d, 16, EVEN, DTYPE)
            s = load_state(state, step * PART * 16, across, PART * 16, EP, EVEN, DTYPE)
            acc = materialize(add_product(acc, outer_features(x_m, x_n), s, PRECISION))
            # Counted on, as `tile_pair` counts, without branches: they keep a loop from a pipeline.
            part = (part + 1) % PARTS
            n += (part == 0).to(tl.int32)
            m += (n == TILES).to(tl.int32)
            n = tl.where(n == TILES, m, n)
    return acc


@triton.jit
def _denominators(
    x,
    base,
    m_rows,
    alpha,
    gram_at,
    held,
    D,
    stride_n,
    stride_d,
    CHUNK: tl.constexpr,
    HOLD: tl.constexpr,
    EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """alpha^2 x G x + alpha x.p of every row, some columns of G at a time.

    Products of float32 would not find registers for whole columns.
    """
    DP: tl.constexpr = x.shape[1]
    ROWS: tl.constexpr = DP if x.dtype == tl.bfloat16 else CHUNK
    COLUMNS: tl.constexpr = 32 if DP > 32 else DP
    columns = tl.arange(0, COLUMNS)
    z = tl.zeros([x.shape[0]], tl.float32)
    for first in tl.static_range(0, DP, COLUMNS):
        along = tl.zeros([x.shape[0], COLUMNS], tl.float32)
        if HOLD:
            along = product(x, held[-1], along, PRECISION)
        else:
            along = rows_times(
                x, base, m_rows, None, D, stride_n, stride_d, gram_at + first, DP, 1, along,
                ROWS, EVEN, PRECISION,
            )  # fmt: skip
        along = along * alpha[:, None] + tl.load(gram_at + DP * DP + first + columns)[None, :]
        part = x
        if COLUMNS < DP:
            part = load_rows(base, m_rows, first + columns, D, stride_n, stride_d, EVEN)
        z += tl.sum(along * part.to(tl.float32), axis=1)
    return z * alpha


@triton.jit
def _values_of_block(
    p_x_rows,
    m_rows,
    m_exists,
    state,
    held,
    mixed_at,
    p_out,
    p_total,
    row,
    D,
    E,
    xn,
    xd,
    coefficients,
    FLAGS: tl.constexpr,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
    HOLD: tl.constexpr,
    DIVIDE: tl.constexpr,
    SCALE_OUTPUT: tl.constexpr,
    EVEN: tl.constexpr,
):
    """`values` of one block of rows, the first of which is `row` of all heads' rows.

    Rows enter all products as they lie in memory; alpha multiplies what comes out. Denominators
    come first: beside a wide accumulator they would not find registers.
    """
    factor, key_fraction, c, min_weight, output_scale = coefficients
    o_d, o_e, o_n = tl.arange(0, FLAGS.DP), tl.arange(0, FLAGS.EP), tl.arange(0, m_rows.shape[0])
    gram_at = mixed_at + FLAGS.DP * FLAGS.EP
    x = load_rows(p_x_rows, m_rows, o_d, D, xn, xd, EVEN).to(FLAGS.DTYPE)  # (ROWS, DP)
    alpha = row_factors(x, factor, FLAGS.NORMALIZE)
    row_weight = 1.0
    if DIVIDE:
        z = _denominators(
            x, p_x_rows, m_rows, alpha, gram_at, held, D, xn, xd, CHUNK, HOLD, EVEN, FLAGS.PRECISION
        )
        z = tl.maximum(z + c * key_fraction, min_weight * key_fraction)
        z = tl.where(z > 0, z, 1.0)
        if p_total is not None:
            tl.store(p_total + row + o_n, z, mask=m_exists)
        row_weight = (output_factor(key_fraction, output_scale, SCALE_OUTPUT) / z)[:, None]
    acc = _quadratic(
        p_x_rows, m_rows, state, held, D, E, xn, xd,
        TILES, PAIRS, FLAGS.EP, PART, HOLD, EVEN, FLAGS.DTYPE, FLAGS.PRECISION,
    )  # fmt: skip
    acc *= alpha[:, None]
    if HOLD:
        acc = product(x, held[-2], acc, FLAGS.PRECISION)
    else:
        acc = rows_times(
            x,
            p_x_rows,
            m_rows,
            None,
            D,
            xn,
            xd,
            mixed_at,
            FLAGS.EP,
            1,
            acc,
            CHUNK,
            EVEN,
            FLAGS.PRECISION,
        )
    acc = (
        acc * alpha[:, None] + tl.load(gram_at + FLAGS.DP * FLAGS.DP + FLAGS.DP + o_e)[None, :]
    ) * row_weight
    if FLAGS.MASKED:
        acc = tl.where(m_rows[:, None], acc, 0.0)
    store_rows(p_out + row * E, m_exists, o_e, E, E, acc)


@triton.jit
def values(
    p_x,
    p_mask,
    p_temperature,
    p_key_fraction,
    p_state,
    p_moments,
    p_out,
    p_total,
    sizes,
    x_strides,
    coefficients,
    FLAGS: tl.constexpr,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
    CHUNK: tl.constexpr,
    HOLD: tl.constexpr,
    TEMPERED: tl.constexpr,
    DIVIDE: tl.constexpr,
    SHARED: tl.constexpr,
    SCALE_OUTPUT: tl.constexpr,
    EVEN: tl.constexpr,
):
    """(x (x) x) S + x L + r for a block of rows; over z where DIVIDE.

    The state goes by in steps of PART x 16 features; where HOLD, it is loaded once for all blocks
    of a program.
    """
    heads, tokens, D, E, per_program = sizes
    xb, xh, xn, xd = x_strides
    scale, c, min_weight, output_scale = coefficients
    D, E, xb, xh, xn = multiples((D, E, xb, xh, xn), FLAGS.ALIGNMENT)
    i_bh = tl.program_id(1)
    first = tl.program_id(0) * per_program
    last = tl.minimum(first + per_program, tokens)
    p_x_rows = p_x + head_offset(i_bh, heads, xb, xh) + first.to(tl.int64) * xn
    p_mask += (i_bh // heads).to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    key_fraction = load_key_fraction(p_key_fraction, i_bh // heads, SHARED)
    state = p_state + i_bh.to(tl.int64) * PAIRS * 256 * E
    mixed_at = p_moments + i_bh.to(tl.int64) * (
        FLAGS.DP * FLAGS.EP + FLAGS.DP * FLAGS.DP + FLAGS.DP + FLAGS.EP
    )
    row = i_bh.to(tl.int64) * tokens + first
    held = ()
    if HOLD:
        for step in tl.static_range(PAIRS * (16 // PART)):
            held += (
                load_state(state, step * PART * 16, E, PART * 16, FLAGS.EP, EVEN, FLAGS.DTYPE),
            )
        held += load_moments(mixed_at, FLAGS.DP, FLAGS.EP, FLAGS.DTYPE)
        for start in range(first, last, ROWS):
            m_exists = start + tl.arange(0, ROWS) < last
            m_rows = kept_rows(start, last, p_mask, ROWS, FLAGS.MASKED)
            _values_of_block(
                p_x_rows, m_rows, m_exists, state, held, mixed_at, p_out, p_total, row, D, E, xn,
                xd, (factor, key_fraction, c, min_weight, output_scale), FLAGS, TILES, PAIRS, PART,
                CHUNK, HOLD, DIVIDE, SCALE_OUTPUT, EVEN,
            )  # fmt: skip
            p_x_rows += ROWS * xn
            row += ROWS
    else:  # no loop: what it carries would not find registers
        m_exists = first + tl.arange(0, ROWS) < last
        m_rows = kept_rows(first, last, p_mask, ROWS, FLAGS.MASKED)
        _values_of_block(
            p_x_rows, m_rows, m_exists, state, held, mixed_at, p_out, p_total, row, D, E, xn, xd,
            (factor, key_fraction, c, min_weight, output_scale), FLAGS, TILES, PAIRS, PART, CHUNK,
            HOLD, DIVIDE, SCALE_OUTPUT, EVEN,
        )  # fmt: skip


# More does not fit beside what the products themselves take, on the smallest devices.
_HELD_BYTES = {torch.bfloat16: 64 << 10, torch.float32: 32 << 10}


def is_small(call: CallShape, pairs: int, columns: int) -> bool:
    """Whether a program can hold the state of so many tile pairs beside all else."""
    return pairs * 256 * columns * call.operands.itemsize <= _HELD_BYTES[call.operands]


def rows_per_program(call: CallShape, tokens: int, rows: int, hold: bool) -> int:
    """Several blocks where the state is held, yet enough programs to fill the device."""
    if not hold:
        return rows
    programs = ceil_div(tokens, rows) * call.batch_heads
    return rows * max(1, min(8, programs // (4 * multiprocessors(call.device))))


@functools.lru_cache(maxsize=KEPT_CALLS)
def values_launch(call: CallShape, of_queries: bool) -> Launch:
    """The launch of `values` over queries, or backwards over keys."""
    tokens, stride, _ = call.rows(of_queries=of_queries)
    size = call.blocks("values")
    hold = call.pairs <= 3 and call.width <= 32 and is_small(call, call.pairs, call.padded_width)
    per_program = rows_per_program(call, tokens, size.rows, hold)
    numbers = (
        (call.heads, tokens, call.dim, call.width, per_program),
        stride,
        (call.scale if of_queries else 1.0, call.c, call.min_weight, call.output_scale),
    )
    constants = {
        "TILES": call.tiles,
        "PAIRS": call.pairs,
        "ROWS": size.rows,
        "PART": size.block,
        "CHUNK": size.chunk,
        "HOLD": hold,
        "TEMPERED": of_queries and call.normalized,
        "DIVIDE": of_queries,
        "SHARED": of_queries and call.masked,
        "SCALE_OUTPUT": of_queries and call.normalize_output,
        "EVEN": call.is_even(tokens, size.rows),
        "FLAGS": call.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(values, (ceil_div(tokens, per_program), call.batch_heads), numbers, constants)
