"""The direct algorithm where all queries and all keys of a head fit one program.

x, w', z, dy, dz and ds are as in `direct_kernels`. One program reads a head once and writes it
once: rows are normalized as they are loaded, keys too, sums of values and all five products of the
backward pass come from what is in registers already. A pass each over values, queries, keys and
gradients takes three times as long at 64 tokens.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.taylor.triton.blocks import (
    head_offset,
    kept_rows,
    load_rows,
    load_share,
    multiples,
    output_factor,
    product,
    pull_back,
    row_factors,
    store_rows,
)
from saccade.ops.taylor.triton.row_kernels import quotient
from saccade.ops.taylor.triton.scores import add_row_sums, line, rounded, rounded_sum, times

__all__ = ["whole_backward", "whole_forward"]


@triton.jit
def _scaled(raw, factor, NORMALIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Rows as they enter products."""
    raw = raw.to(tl.float32)
    return (raw * row_factors(raw, factor, NORMALIZE)[:, None]).to(DTYPE)


@triton.jit
def _head_factor(temperature_ptr, bh, heads, scale, NORMALIZE: tl.constexpr):
    """What queries are multiplied by."""
    if NORMALIZE:
        return scale * tl.load(temperature_ptr + bh % heads)
    return scale


@triton.jit
def whole_forward(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, share_ptr, out_ptr, total_ptr,
    heads, queries, keys, D, E, qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
    scale, over, a, b, c, floor, lift,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, LIFT: tl.constexpr, MASKED: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and, where they are to be kept, z of a head."""
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), GRAIN
    )
    bh, rows = tl.program_id(0), tl.arange(0, ROWS)
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    keep = rows < queries
    inside = kept_rows(0, keys, mask_ptr + (bh // heads).to(tl.int64) * keys, BLOCK, MASKED)
    q = load_rows(q_ptr + head_offset(bh, heads, qb, qh), keep, cols, D, qn, qd, False)
    k = load_rows(k_ptr + head_offset(bh, heads, kb, kh), inside, cols, D, kn, kd, False)
    v = load_rows(v_ptr + head_offset(bh, heads, vb, vh), inside, wide, E, vn, vd, False)
    factor = _head_factor(temperature_ptr, bh, heads, scale, NORMALIZE)
    x, unit = _scaled(q, factor, NORMALIZE, DTYPE), _scaled(k, 1.0, NORMALIZE, DTYPE)
    s = rounded(product(x, tl.trans(unit), None, PRECISION), DTYPE)
    w = times(s, line(s, a, b))
    sums = tl.sum(add_row_sums(tl.zeros([ROWS, 8], tl.float32), w), axis=1)
    y = product(w, v.to(DTYPE), None, PRECISION) + c * tl.sum(v.to(tl.float32), axis=0)[None, :]
    share = load_share(share_ptr, bh // heads, MASKED)
    z = tl.maximum(sums * over + c * share, floor * share)
    z = tl.where(z > 0, z, 1.0)
    row = bh.to(tl.int64) * queries
    out = y * (output_factor(share, lift, LIFT) * over / z)[:, None]
    store_rows(out_ptr + row * E, keep, wide, E, E, out)
    if total_ptr is not None:
        tl.store(total_ptr + row + rows, z, mask=keep)


@triton.jit
def whole_backward(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, share_ptr, grad_ptr, out_ptr, total_ptr,
    dq_ptr, dk_ptr, dv_ptr, dt_ptr,
    heads, queries, keys, D, E, qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
    grad_b, grad_h, grad_n, grad_d, scale, over, a, b, c, lift,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, LIFT: tl.constexpr, MASKED: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a head, and its share of the temperature's."""
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn, grad_b, grad_h, grad_n = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn, grad_b, grad_h, grad_n), GRAIN
    )
    bh, rows = tl.program_id(0), tl.arange(0, ROWS)
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    keep, exists = rows < queries, tl.arange(0, BLOCK) < keys
    inside = kept_rows(0, keys, mask_ptr + (bh // heads).to(tl.int64) * keys, BLOCK, MASKED)
    q = load_rows(q_ptr + head_offset(bh, heads, qb, qh), keep, cols, D, qn, qd, False)
    k = load_rows(k_ptr + head_offset(bh, heads, kb, kh), inside, cols, D, kn, kd, False)
    v = load_rows(v_ptr + head_offset(bh, heads, vb, vh), inside, wide, E, vn, vd, False)
    dy, dz = quotient(
        grad_ptr, out_ptr, total_ptr, share_ptr, tl.zeros([], tl.int32), bh, keep, queries, heads,
        grad_b, grad_h, grad_n, grad_d, E, lift, EP, MASKED, LIFT,
    )  # fmt: skip
    sum_dy = c * tl.sum(dy, axis=0)
    dy = dy.to(DTYPE)
    factor = _head_factor(temperature_ptr, bh, heads, scale, NORMALIZE)
    x, unit = _scaled(q, factor, NORMALIZE, DTYPE), _scaled(k, 1.0, NORMALIZE, DTYPE)
    s = rounded(product(x, tl.trans(unit), None, PRECISION), DTYPE)
    ds = rounded_sum(product(dy, tl.trans(v.to(DTYPE)), None, PRECISION), dz[:, None], DTYPE)
    w, ds = times(s, line(s, a, b)), times(ds, line(s, 2 * a, b))
    row, row_out = bh.to(tl.int64) * queries, bh.to(tl.int64) * keys
    dv = (product(tl.trans(w), dy, None, PRECISION) + sum_dy[None, :]) * over
    store_rows(dv_ptr + row_out * E, exists, wide, E, E, tl.where(inside[:, None], dv, 0.0))
    dk = product(tl.trans(ds), x, None, PRECISION) * over
    dk, _ = pull_back(dk, k, 1.0, NORMALIZE)
    store_rows(dk_ptr + row_out * D, exists, cols, D, D, tl.where(inside[:, None], dk, 0.0))
    dq, along = pull_back(product(ds, unit, None, PRECISION) * over, q, factor, NORMALIZE)
    store_rows(dq_ptr + row * D, keep, cols, D, D, dq)
    if NORMALIZE:
        tl.store(dt_ptr + bh, tl.sum(along, axis=0) * scale)
