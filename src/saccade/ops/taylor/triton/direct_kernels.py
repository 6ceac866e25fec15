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

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.taylor.triton.blocks import (
    head_offset,
    kept_rows,
    load_rows,
    load_share,
    load_table,
    multiples,
    output_factor,
    product,
    pull_back,
    pull_back_weighted,
    row_factors,
    store_coefficients,
    store_rows,
    table_offset,
    table_place,
)
from saccade.ops.taylor.triton.scores import add_row_sums, line, rounded, rounded_sum, times

__all__ = ["direct_forward", "direct_keys", "direct_queries"]


@triton.jit
def direct_forward(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, curves_ptr, slopes_ptr, share_ptr, sum_v_ptr,
    out_ptr, total_ptr, heads, queries, keys, D, E,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, scale, over, a, b, c, floor, lift,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, LIFT: tl.constexpr, MASKED: tl.constexpr,
    EVEN: tl.constexpr, GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and, where they are to be kept, z of a block of queries."""
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), GRAIN
    )
    first, bh = tl.program_id(0) * ROWS, tl.program_id(1)
    keep = first + tl.arange(0, ROWS) < queries
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    factor = scale
    if NORMALIZE:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    q_base = q_ptr + head_offset(bh, heads, qb, qh) + first.to(tl.int64) * qn
    x = load_rows(q_base, keep, cols, D, qn, qd, False).to(tl.float32)
    x = (x * row_factors(x, factor, NORMALIZE)[:, None]).to(DTYPE)
    k_base, v_base = k_ptr + head_offset(bh, heads, kb, kh), v_ptr + head_offset(bh, heads, vb, vh)
    mask_ptr += (bh // heads).to(tl.int64) * keys
    curves_ptr += table_offset(bh, keys)
    slopes_ptr += table_offset(bh, keys)
    acc = tl.zeros([ROWS, EP], tl.float32)
    sums = tl.zeros([ROWS, 8], tl.float32)
    for start in range(0, keys, BLOCK):
        inside = kept_rows(start, keys, mask_ptr, BLOCK, MASKED)
        k = load_rows(k_base, inside, cols, D, kn, kd, EVEN).to(DTYPE)
        v = load_rows(v_base, inside, wide, E, vn, vd, EVEN).to(DTYPE)
        s = rounded(product(x, tl.trans(k), None, PRECISION), DTYPE)
        curve, slope = a, b
        if NORMALIZE:
            curve = load_table(curves_ptr, start, BLOCK)[None, :]
            slope = load_table(slopes_ptr, start, BLOCK)[None, :]
        w = times(s, line(s, curve, slope))
        sums = add_row_sums(sums, w)
        acc = product(w, v, acc, PRECISION)
        if DP < 128 or MASKED:  # the widest stays whole without, unmasked, and overlaps the next
            acc = materialize(acc)
        k_base += BLOCK * kn
        v_base += BLOCK * vn
    share = load_share(share_ptr, bh // heads, MASKED)
    z = tl.maximum(tl.sum(sums, axis=1) * over + c * share, floor * share)
    z = tl.where(z > 0, z, 1.0)
    constant = tl.load(sum_v_ptr + bh.to(tl.int64) * E + wide, mask=wide < E, other=0.0)
    acc = (acc + c * constant[None, :]) * (output_factor(share, lift, LIFT) * over / z)[:, None]
    row = bh.to(tl.int64) * queries + first
    store_rows(out_ptr + row * E, keep, wide, E, E, acc)
    if total_ptr is not None:
        tl.store(total_ptr + row + tl.arange(0, ROWS), z, mask=keep)


@triton.jit
def direct_queries(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, curves_ptr, slopes_ptr, dy_ptr, dz_ptr,
    dq_ptr, dt_ptr, heads, queries, keys, D, E,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, scale, over, a, b,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, and their share of the temperature's."""
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), GRAIN
    )
    block, bh = tl.program_id(0), tl.program_id(1)
    first = block * ROWS
    keep = first + tl.arange(0, ROWS) < queries
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    factor = scale
    if NORMALIZE:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    q_base = q_ptr + head_offset(bh, heads, qb, qh) + first.to(tl.int64) * qn
    x = load_rows(q_base, keep, cols, D, qn, qd, False).to(tl.float32)
    x = (x * row_factors(x, 2 * factor, NORMALIZE)[:, None]).to(DTYPE)  # for 2 a s
    row = bh.to(tl.int64) * queries + first
    dy = load_rows(dy_ptr + row * E, keep, wide, E, E, 1, False).to(DTYPE)
    dz = tl.load(dz_ptr + row + tl.arange(0, ROWS), mask=keep, other=0.0)
    k_base, v_base = k_ptr + head_offset(bh, heads, kb, kh), v_ptr + head_offset(bh, heads, vb, vh)
    mask_ptr += (bh // heads).to(tl.int64) * keys
    curves_ptr += table_offset(bh, keys)
    slopes_ptr += table_offset(bh, keys)
    dx = tl.zeros([ROWS, DP], tl.float32)
    for start in range(0, keys, BLOCK):
        inside = kept_rows(start, keys, mask_ptr, BLOCK, MASKED)
        k = load_rows(k_base, inside, cols, D, kn, kd, EVEN).to(DTYPE)
        v = load_rows(v_base, inside, wide, E, vn, vd, EVEN).to(DTYPE)
        s = rounded(product(x, tl.trans(k), None, PRECISION), DTYPE)
        ds = rounded_sum(product(dy, tl.trans(v), None, PRECISION), dz[:, None], DTYPE)
        curve, slope = a, b
        if NORMALIZE:
            curve = load_table(curves_ptr, start, BLOCK)[None, :]
            slope = load_table(slopes_ptr, start, BLOCK)[None, :]
        ds = times(ds, line(s, curve, slope))
        dx = materialize(product(ds, k, dx, PRECISION))
        k_base += BLOCK * kn
        v_base += BLOCK * vn
    raw = load_rows(q_base, keep, cols, D, qn, qd, False)  # again, for its registers' sake
    dq, dt = pull_back_weighted(dx * over, raw, factor, NORMALIZE)
    store_rows(dq_ptr + row * D, keep, cols, D, D, dq)
    if NORMALIZE:
        share = tl.sum(tl.where(keep, dt, 0.0), axis=0) * scale
        tl.store(dt_ptr + bh.to(tl.int64) * tl.num_programs(0) + block, share)


@triton.jit
def direct_keys(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, curves_ptr, shifts_ptr, dy_ptr, sum_dy_ptr,
    dk_ptr, dv_ptr, key_curves_ptr, key_slopes_ptr, heads, queries, keys, D, E,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, scale, over, a, b, c,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values.

    Where keys are normalized, their coefficients are kept for `direct_queries`.
    """
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), GRAIN
    )
    first, bh = tl.program_id(0) * ROWS, tl.program_id(1)
    exists = first + tl.arange(0, ROWS) < keys
    keep = kept_rows(first, keys, mask_ptr + (bh // heads).to(tl.int64) * keys, ROWS, MASKED)
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    k_base = k_ptr + head_offset(bh, heads, kb, kh) + first.to(tl.int64) * kn
    v_base = v_ptr + head_offset(bh, heads, vb, vh) + first.to(tl.int64) * vn
    k = load_rows(k_base, keep, cols, D, kn, kd, False).to(tl.float32)
    v = load_rows(v_base, keep, wide, E, vn, vd, False).to(DTYPE)
    # The keys' own factor, or the scale, is in k; that of queries in the curves, dy and dz.
    alpha = row_factors(k, 1.0 if NORMALIZE else scale, NORMALIZE)
    k = (k * alpha[:, None]).to(DTYPE)
    if NORMALIZE:
        place = table_offset(bh, keys) + table_place(first + tl.arange(0, ROWS))
        store_coefficients(key_curves_ptr, key_slopes_ptr, place, tl.where(keep, alpha, 0.0), a, b)
    q_base = q_ptr + head_offset(bh, heads, qb, qh)
    row = bh.to(tl.int64) * queries
    dy_base = dy_ptr + row * E
    curves_ptr += table_offset(bh, queries)
    shifts_ptr += table_offset(bh, queries)
    dk = tl.zeros([ROWS, DP], tl.float32)
    dv = tl.zeros([ROWS, EP], tl.float32)
    for start in range(0, queries, BLOCK):
        inside = start + tl.arange(0, BLOCK) < queries
        x = load_rows(q_base, inside, cols, D, qn, qd, EVEN).to(DTYPE)
        dy = load_rows(dy_base, inside, wide, E, E, 1, EVEN).to(DTYPE)
        dz = load_table(shifts_ptr, start, BLOCK)[None, :]
        curve = a
        if NORMALIZE:
            curve = load_table(curves_ptr, start, BLOCK)[None, :]
        s = rounded(product(k, tl.trans(x), None, PRECISION), DTYPE)  # (keys, queries)
        ds = line(rounded(product(v, tl.trans(dy), None, PRECISION), DTYPE), 1.0, dz)
        dv = materialize(product(times(s, line(s, curve, b)), dy, dv, PRECISION))
        ds = times(ds, line(s, times(curve, 2), b))
        dk = materialize(product(ds, x, dk, PRECISION))
        q_base += BLOCK * qn
        dy_base += BLOCK * E
    factor = 1.0
    if NORMALIZE:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    sum_dy = tl.load(sum_dy_ptr + bh.to(tl.int64) * E + wide, mask=wide < E, other=0.0)
    dv = (factor * dv + c * sum_dy[None, :]) * over
    raw = load_rows(k_base, keep, cols, D, kn, kd, False)  # again, for its registers' sake
    dk, _ = pull_back(dk * (factor * over), raw, 1.0 if NORMALIZE else scale, NORMALIZE)
    row_out = bh.to(tl.int64) * keys + first
    store_rows(dk_ptr + row_out * D, exists, cols, D, D, tl.where(keep[:, None], dk, 0.0))
    store_rows(dv_ptr + row_out * E, exists, wide, E, E, tl.where(keep[:, None], dv, 0.0))
