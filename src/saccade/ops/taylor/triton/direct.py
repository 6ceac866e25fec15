"""The direct algorithm, flash-style: scores never leave registers, no exponential, no maximum.

With s = x.k, x = alpha q, w' = b s + a s^2 and all sums over keys divided by N:

    o = (sum w' v + c sum v) / z,    z = sum w' + c m
    ds = (dy.v + dz) (b + 2 a s),    dv = sum w' dy + c sum dy,    dx = sum ds k,   dk = sum ds x

Rows that a program holds are normalized as they are loaded; those that go by enter the products as
they are, and their lengths cost nothing in the loop: those of keys are in the coefficients of s and
s^2 (`key_sums`, backwards `direct_keys`), those of queries in that of s^2, in dy and in dz
(`weighted_row_gradients`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools

import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch, compiled_at_once, is_dry_run
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops._triton.tiles import ceil_div
from saccade.ops.taylor.triton.direct_hopper import (
    Backward,
    backward_launches,
    is_aligned,
    run_forward,
)
from saccade.ops.taylor.triton.library import (
    add_row_sums,
    kept_rows,
    load_key_fraction,
    load_rows,
    load_table,
    multiples,
    multiply,
    output_factor,
    product,
    pull_back,
    pull_back_weighted,
    rounded,
    rounded_sum,
    row_factors,
    scale_add,
    store_coefficients,
    store_rows,
    table_offset,
    table_place,
)
from saccade.ops.taylor.triton.rows import (
    coefficient_tables,
    sum_keys,
    temperature_gradient,
    weighted_gradients,
)
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape, Grads, Problem

__all__ = ["run_direct", "run_direct_backward"]


@triton.jit
def direct_forward(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_rows_a,
    p_rows_b,
    p_key_fraction,
    p_sum_v,
    p_out,
    p_total,
    sizes,
    q_strides,
    k_strides,
    v_strides,
    coefficients,
    FLAGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE_OUTPUT: tl.constexpr,
    EVEN: tl.constexpr,
):
    """o and, where they are to be kept, z of a block of queries."""
    EP: tl.constexpr = FLAGS.EP
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    scale, inv_keys, a, b, c, min_weight, output_scale = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), FLAGS.ALIGNMENT
    )
    first, i_bh = tl.program_id(0) * ROWS, tl.program_id(1)
    m_rows = first + tl.arange(0, ROWS) < queries
    o_d, o_e = tl.arange(0, FLAGS.DP), tl.arange(0, EP)
    factor = scale
    if FLAGS.NORMALIZE:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    p_q_rows = p_q + head_offset(i_bh, heads, qb, qh) + first.to(tl.int64) * qn
    x = load_rows(p_q_rows, m_rows, o_d, D, qn, qd, False).to(tl.float32)  # (ROWS, DP)
    x = (x * row_factors(x, factor, FLAGS.NORMALIZE)[:, None]).to(FLAGS.DTYPE)
    p_k_rows = p_k + head_offset(i_bh, heads, kb, kh)
    p_v_rows = p_v + head_offset(i_bh, heads, vb, vh)
    p_mask += (i_bh // heads).to(tl.int64) * keys
    p_rows_a += table_offset(i_bh, keys)
    p_rows_b += table_offset(i_bh, keys)
    acc = tl.zeros([ROWS, EP], tl.float32)
    sums = tl.zeros([ROWS, 8], tl.float32)
    for start in range(0, keys, BLOCK):
        m_block = kept_rows(start, keys, p_mask, BLOCK, FLAGS.MASKED)
        k = load_rows(p_k_rows, m_block, o_d, D, kn, kd, EVEN).to(FLAGS.DTYPE)  # (BLOCK, DP)
        v = load_rows(p_v_rows, m_block, o_e, E, vn, vd, EVEN).to(FLAGS.DTYPE)  # (BLOCK, EP)
        s = rounded(product(x, tl.trans(k), None, FLAGS.PRECISION), FLAGS.DTYPE)
        row_a, row_b = a, b
        if FLAGS.NORMALIZE:
            row_a = load_table(p_rows_a, start, BLOCK)[None, :]  # (1, BLOCK)
            row_b = load_table(p_rows_b, start, BLOCK)[None, :]  # (1, BLOCK)
        w = multiply(s, scale_add(s, row_a, row_b))
        sums = add_row_sums(sums, w)
        acc = product(w, v, acc, FLAGS.PRECISION)
        if FLAGS.DP < 128 or FLAGS.MASKED:  # not needed by the widest without a mask
            acc = materialize(acc)
        p_k_rows += BLOCK * kn
        p_v_rows += BLOCK * vn
    key_fraction = load_key_fraction(p_key_fraction, i_bh // heads, FLAGS.MASKED)
    z = tl.maximum(tl.sum(sums, axis=1) * inv_keys + c * key_fraction, min_weight * key_fraction)
    z = tl.where(z > 0, z, 1.0)
    constant = tl.load(p_sum_v + i_bh.to(tl.int64) * E + o_e, mask=o_e < E, other=0.0)
    acc = (acc + c * constant[None, :]) * (
        output_factor(key_fraction, output_scale, SCALE_OUTPUT) * inv_keys / z
    )[:, None]
    row = i_bh.to(tl.int64) * queries + first
    store_rows(p_out + row * E, m_rows, o_e, E, E, acc)
    if p_total is not None:
        tl.store(p_total + row + tl.arange(0, ROWS), z, mask=m_rows)


@triton.jit
def direct_queries(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_rows_a,
    p_rows_b,
    p_dy,
    p_dz,
    p_dq,
    p_dt,
    sizes,
    q_strides,
    k_strides,
    v_strides,
    coefficients,
    FLAGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The gradient of a block of queries, and their part of the temperature's."""
    DP: tl.constexpr = FLAGS.DP
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    scale, inv_keys, a, b = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), FLAGS.ALIGNMENT
    )
    block, i_bh = tl.program_id(0), tl.program_id(1)
    first = block * ROWS
    m_rows = first + tl.arange(0, ROWS) < queries
    o_d, o_e = tl.arange(0, DP), tl.arange(0, FLAGS.EP)
    factor = scale
    if FLAGS.NORMALIZE:
        factor = scale * tl.load(p_temperature + i_bh % heads)
    p_q_rows = p_q + head_offset(i_bh, heads, qb, qh) + first.to(tl.int64) * qn
    x = load_rows(p_q_rows, m_rows, o_d, D, qn, qd, False).to(tl.float32)  # (ROWS, DP)
    x = (x * row_factors(x, 2 * factor, FLAGS.NORMALIZE)[:, None]).to(FLAGS.DTYPE)  # for 2 a s
    row = i_bh.to(tl.int64) * queries + first
    dy = load_rows(p_dy + row * E, m_rows, o_e, E, E, 1, False).to(FLAGS.DTYPE)  # (ROWS, EP)
    dz = tl.load(p_dz + row + tl.arange(0, ROWS), mask=m_rows, other=0.0)
    p_k_rows = p_k + head_offset(i_bh, heads, kb, kh)
    p_v_rows = p_v + head_offset(i_bh, heads, vb, vh)
    p_mask += (i_bh // heads).to(tl.int64) * keys
    p_rows_a += table_offset(i_bh, keys)
    p_rows_b += table_offset(i_bh, keys)
    dx = tl.zeros([ROWS, DP], tl.float32)
    for start in range(0, keys, BLOCK):
        m_block = kept_rows(start, keys, p_mask, BLOCK, FLAGS.MASKED)
        k = load_rows(p_k_rows, m_block, o_d, D, kn, kd, EVEN).to(FLAGS.DTYPE)  # (BLOCK, DP)
        v = load_rows(p_v_rows, m_block, o_e, E, vn, vd, EVEN).to(FLAGS.DTYPE)  # (BLOCK, EP)
        s = rounded(product(x, tl.trans(k), None, FLAGS.PRECISION), FLAGS.DTYPE)
        ds = rounded_sum(product(dy, tl.trans(v), None, FLAGS.PRECISION), dz[:, None], FLAGS.DTYPE)
        row_a, row_b = a, b
        if FLAGS.NORMALIZE:
            row_a = load_table(p_rows_a, start, BLOCK)[None, :]  # (1, BLOCK)
            row_b = load_table(p_rows_b, start, BLOCK)[None, :]  # (1, BLOCK)
        ds = multiply(ds, scale_add(s, row_a, row_b))
        dx = materialize(product(ds, k, dx, FLAGS.PRECISION))
        p_k_rows += BLOCK * kn
        p_v_rows += BLOCK * vn
    raw = load_rows(p_q_rows, m_rows, o_d, D, qn, qd, False)  # again, for its registers' sake
    dq, dt = pull_back_weighted(dx * inv_keys, raw, factor, FLAGS.NORMALIZE)
    store_rows(p_dq + row * D, m_rows, o_d, D, D, dq)
    if FLAGS.NORMALIZE:
        partial = tl.sum(tl.where(m_rows, dt, 0.0), axis=0) * scale
        tl.store(p_dt + i_bh.to(tl.int64) * tl.num_programs(0) + block, partial)


@triton.jit
def direct_keys(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_rows_a,
    p_shifts,
    p_dy,
    p_sum_dy,
    p_dk,
    p_dv,
    p_keys_a,
    p_keys_b,
    sizes,
    q_strides,
    k_strides,
    v_strides,
    coefficients,
    FLAGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The gradients of a block of keys and values.

    Where keys are normalized, their coefficients are kept for `direct_queries`.
    """
    DP: tl.constexpr = FLAGS.DP
    EP: tl.constexpr = FLAGS.EP
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    scale, inv_keys, a, b, c = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), FLAGS.ALIGNMENT
    )
    first, i_bh = tl.program_id(0) * ROWS, tl.program_id(1)
    m_exists = first + tl.arange(0, ROWS) < keys
    p_mask += (i_bh // heads).to(tl.int64) * keys
    m_rows = kept_rows(first, keys, p_mask, ROWS, FLAGS.MASKED)
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    p_k_rows = p_k + head_offset(i_bh, heads, kb, kh) + first.to(tl.int64) * kn
    p_v_rows = p_v + head_offset(i_bh, heads, vb, vh) + first.to(tl.int64) * vn
    k = load_rows(p_k_rows, m_rows, o_d, D, kn, kd, False).to(tl.float32)  # (ROWS, DP)
    v = load_rows(p_v_rows, m_rows, o_e, E, vn, vd, False).to(FLAGS.DTYPE)  # (ROWS, EP)
    # The keys' own factor, or the scale, is in k; that of queries in rows_a, dy and dz.
    alpha = row_factors(k, 1.0 if FLAGS.NORMALIZE else scale, FLAGS.NORMALIZE)
    k = (k * alpha[:, None]).to(FLAGS.DTYPE)
    if FLAGS.NORMALIZE:
        place = table_offset(i_bh, keys) + table_place(first + tl.arange(0, ROWS))
        store_coefficients(p_keys_a, p_keys_b, place, tl.where(m_rows, alpha, 0.0), a, b)
    p_q_rows = p_q + head_offset(i_bh, heads, qb, qh)
    row = i_bh.to(tl.int64) * queries
    p_dy_rows = p_dy + row * E
    p_rows_a += table_offset(i_bh, queries)
    p_shifts += table_offset(i_bh, queries)
    dk = tl.zeros([ROWS, DP], tl.float32)
    dv = tl.zeros([ROWS, EP], tl.float32)
    for start in range(0, queries, BLOCK):
        m_block = start + tl.arange(0, BLOCK) < queries
        x = load_rows(p_q_rows, m_block, o_d, D, qn, qd, EVEN).to(FLAGS.DTYPE)  # (BLOCK, DP)
        dy = load_rows(p_dy_rows, m_block, o_e, E, E, 1, EVEN).to(FLAGS.DTYPE)  # (BLOCK, EP)
        dz = load_table(p_shifts, start, BLOCK)[None, :]  # (1, BLOCK)
        row_a = a
        if FLAGS.NORMALIZE:
            row_a = load_table(p_rows_a, start, BLOCK)[None, :]  # (1, BLOCK)
        s = rounded(product(k, tl.trans(x), None, FLAGS.PRECISION), FLAGS.DTYPE)  # (keys, queries)
        ds = rounded(product(v, tl.trans(dy), None, FLAGS.PRECISION), FLAGS.DTYPE)
        ds = scale_add(ds, 1.0, dz)
        dv = materialize(product(multiply(s, scale_add(s, row_a, b)), dy, dv, FLAGS.PRECISION))
        ds = multiply(ds, scale_add(s, multiply(row_a, 2), b))
        dk = materialize(product(ds, x, dk, FLAGS.PRECISION))
        p_q_rows += BLOCK * qn
        p_dy_rows += BLOCK * E
    # Where keys are not normalized, the scale enters dk as their factor.
    factor, key_factor = 1.0, scale
    if FLAGS.NORMALIZE:
        factor, key_factor = scale * tl.load(p_temperature + i_bh % heads), 1.0
    sum_dy = tl.load(p_sum_dy + i_bh.to(tl.int64) * E + o_e, mask=o_e < E, other=0.0)
    dv = (factor * dv + c * sum_dy[None, :]) * inv_keys
    raw = load_rows(p_k_rows, m_rows, o_d, D, kn, kd, False)  # again, for its registers' sake
    dk, _ = pull_back(dk * (factor * inv_keys), raw, key_factor, FLAGS.NORMALIZE)
    row_out = i_bh.to(tl.int64) * keys + first
    store_rows(p_dk + row_out * D, m_exists, o_d, D, D, tl.where(m_rows[:, None], dk, 0.0))
    store_rows(p_dv + row_out * E, m_exists, o_e, E, E, tl.where(m_rows[:, None], dv, 0.0))


def _launch(
    call: CallShape, kernel: object, name: str, *numbers: float, loop_tokens: int, rows: int
) -> Launch:
    """A program for each block of `rows`, in each a loop over `loop_tokens`."""
    size = call.blocks(name)
    sizes = (call.heads, call.queries, call.keys, call.dim, call.width)
    constants = {
        "ROWS": size.rows,
        "BLOCK": size.block,
        "EVEN": call.is_even(loop_tokens, size.block),
        "FLAGS": call.flags(masked=True),
        **size.options(),
    }
    grid = (ceil_div(rows, size.rows), call.batch_heads)
    coefficients = (call.scale, 1 / max(1, call.keys), call.a, call.b, *numbers)
    strides = (call.q_stride, call.k_stride, call.v_stride)
    return Launch(kernel, grid, (sizes, *strides, coefficients), constants)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _forward_launch(call: CallShape) -> Launch:
    numbers = (call.c, call.min_weight, call.output_scale)
    launch = _launch(
        call, direct_forward, "direct_forward", *numbers, loop_tokens=call.keys, rows=call.queries
    )
    launch.constants |= {"SCALE_OUTPUT": call.normalize_output}
    return launch


@functools.lru_cache(maxsize=KEPT_CALLS)
def _queries_launch(call: CallShape) -> Launch:
    return _launch(call, direct_queries, "direct_queries", loop_tokens=call.keys, rows=call.queries)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _keys_launch(call: CallShape) -> Launch:
    return _launch(
        call, direct_keys, "direct_keys", call.c, loop_tokens=call.queries, rows=call.keys
    )


@compiled_at_once
def run_direct(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where a backward pass is to follow, row sums over N (B H, N)."""
    done = run_forward(p, keep=keep)
    if done is not None:
        out, total = done
        return out, total if keep else None
    out = p.new(*p.q.shape[:3], p.call.width)
    return out, _run_anywhere(p, out, keep=keep)


def _run_anywhere(p: Problem, out: Tensor, *, keep: bool) -> Tensor | None:
    """Write the output by the kernel that every device and every call has; row sums if kept."""
    total = p.numbers(p.call.batch_heads, p.call.queries) if keep else None
    keys = sum_keys(p)
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature, keys.rows_a, keys.rows_b)
    _forward_launch(p.call)(*inputs, p.key_fractions(), keys.sum_v, out, total)
    return total


@compiled_at_once
def run_direct_backward(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature."""
    launches = backward_launches(p.call, dry_run=is_dry_run())
    if launches is not None and is_aligned(p):
        return _run_five_products(p, grad, out, total, launches)
    return _run_backward_anywhere(p, grad, out, total)


def _run_five_products(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor, launches: Backward
) -> Grads:
    """Gradients by Hopper's own kernels: those of queries are added up as keys' programs go."""
    call = p.call
    rows = weighted_gradients(p, grad, out, total)
    sums = p.numbers(call.batch_heads, call.queries, call.dim).zero_()
    dk, dv = (p.new(*x.shape) for x in (p.k, p.v))
    inputs = (p.q, p.k, p.v, p.temperature, rows.rows_a, rows.shifts, rows.dy, rows.sum_dy)
    launches.keys(*inputs, sums, dk, dv)
    del rows, inputs  # dq reuses the memory of dy
    dq, dt = p.new(*p.q.shape), p.numbers(call.batch_heads, launches.queries.grid[0])
    launches.queries(sums, p.q, p.temperature, dq, dt)
    return dq, dk, dv, temperature_gradient(p, dt)


def _run_backward_anywhere(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients by the kernels that every device and every call has.

    Queries and keys have a kernel each: seven products for each pair of blocks, where five would do
    if keys' programs added to the gradients of queries as they come. In Triton, which waits for
    every product, those additions cost more than the two products save at D >= 64, and their order,
    with it the last bits, changes every time.
    """
    call = p.call
    rows = weighted_gradients(p, grad, out, total)
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    tables, queries = coefficient_tables(p), _queries_launch(call)
    dt = p.numbers(call.batch_heads, queries.grid[0])
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature)
    _keys_launch(call)(*inputs, rows.rows_a, rows.shifts, rows.dy, rows.sum_dy, dk, dv, *tables)
    queries(*inputs, *tables, rows.dy, rows.dz, dq, dt)
    return dq, dk, dv, temperature_gradient(p, dt)
