"""The direct algorithm, flash-style: scores never leave registers, no exponential, no maximum.

With s = x.k, x = alpha q, w' = b s + a s^2 and all sums over keys divided by N:

    o = (sum w' v + c sum v) / z,    z = sum w' + c m = a x G x + b x.p + c m
    ds = (dy.v + dz) (b + 2 a s),    dv = sum w' dy + c sum dy,    dx = sum ds k,   dk = sum ds x

G = sum k k^T and p = sum k: the row sums z take no part in the loop. Normalised rows enter the
products as they are; their lengths multiply the scores.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.products import settle
from saccade.ops.taylor.triton.blocks import (
    head_offset,
    load_numbers,
    load_rows,
    load_share,
    output_factor,
    product,
    pull_back,
    row_factors,
    rows_times,
    store_rows,
)

__all__ = ["direct_forward", "direct_keys", "direct_queries"]


@triton.jit
def _kept(first, limit, mask_ptr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Which of the rows from `first` on exist and are attended to."""
    rows = first + tl.arange(0, BLOCK)
    if MASKED:
        return tl.load(mask_ptr + rows, mask=rows < limit, other=0) != 0
    return rows < limit


@triton.jit
def direct_forward(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, lengths_ptr, share_ptr, moments_ptr,
    out_ptr, total_ptr, heads, queries, keys, D, E,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, scale, a, b, c, floor, lift,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PIECE: tl.constexpr, NORMALIZE: tl.constexpr, LIFT: tl.constexpr, MASKED: tl.constexpr,
    EVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o and z of a block of queries."""
    first, bh = tl.program_id(0) * ROWS, tl.program_id(1)
    keep = first + tl.arange(0, ROWS) < queries
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    factor = scale
    if NORMALIZE:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    q_base = q_ptr + head_offset(bh, heads, qb, qh) + first.to(tl.int64) * qn
    x = load_rows(q_base, keep, cols, D, qn, qd, False).to(tl.float32)
    alpha = row_factors(x, factor, NORMALIZE)
    x = (x * alpha[:, None]).to(DTYPE)
    k_base, v_base = k_ptr + head_offset(bh, heads, kb, kh), v_ptr + head_offset(bh, heads, vb, vh)
    mask_ptr += (bh // heads).to(tl.int64) * keys
    lengths_ptr += bh.to(tl.int64) * keys
    share = load_share(share_ptr, bh // heads, MASKED)
    gram_at = moments_ptr + bh.to(tl.int64) * (DP * EP + DP * DP + DP + EP) + DP * EP
    along = tl.zeros([ROWS, DP], tl.float32)
    along = rows_times(
        x, q_base, keep, alpha, D, qn, qd, gram_at, DP, 1, along, PIECE, False, PRECISION
    )
    along += tl.load(gram_at + DP * DP + cols)[None, :]
    z = tl.maximum(tl.sum(along * x.to(tl.float32), axis=1) + c * share, floor * share)
    z = tl.where(z > 0, z, 1.0)
    acc = tl.zeros([ROWS, EP], tl.float32)
    for start in range(0, keys, BLOCK):
        inside = _kept(start, keys, mask_ptr, BLOCK, MASKED)
        k = load_rows(k_base, inside, cols, D, kn, kd, EVEN).to(DTYPE)
        v = load_rows(v_base, inside, wide, E, vn, vd, EVEN).to(DTYPE)
        s = product(x, tl.trans(k), None, PRECISION)
        if NORMALIZE:
            s *= load_numbers(lengths_ptr + start, inside, EVEN)[None, :]
        w = s * (a * s + b)
        acc = product(w.to(DTYPE), v, acc, PRECISION)
        if DP < 128:  # the widest product stays whole without, and overlaps the next step
            acc = settle(acc)
        k_base += BLOCK * kn
        v_base += BLOCK * vn
    constant = tl.load(gram_at + DP * DP + DP + wide)
    acc = (acc * (1.0 / keys) + constant[None, :]) * (output_factor(share, lift, LIFT) / z)[:, None]
    row = bh.to(tl.int64) * queries + first
    store_rows(out_ptr + row * E, keep, wide, E, E, acc)
    tl.store(total_ptr + row + tl.arange(0, ROWS), z, mask=keep)


@triton.jit
def direct_queries(
    q_ptr, k_ptr, v_ptr, mask_ptr, temperature_ptr, lengths_ptr, dy_ptr, dz_ptr, dq_ptr, dt_ptr,
    heads, queries, keys, D, E,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, scale, a, b,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, and of the temperature."""
    first, bh = tl.program_id(0) * ROWS, tl.program_id(1)
    keep = first + tl.arange(0, ROWS) < queries
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    factor = scale
    if NORMALIZE:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    q_base = q_ptr + head_offset(bh, heads, qb, qh) + first.to(tl.int64) * qn
    raw = load_rows(q_base, keep, cols, D, qn, qd, False).to(tl.float32)
    x = (raw * row_factors(raw, factor, NORMALIZE)[:, None]).to(DTYPE)
    row = bh.to(tl.int64) * queries + first
    dy = load_rows(dy_ptr + row * E, keep, wide, E, E, 1, False).to(DTYPE)
    dz = tl.load(dz_ptr + row + tl.arange(0, ROWS), mask=keep, other=0.0)
    k_base, v_base = k_ptr + head_offset(bh, heads, kb, kh), v_ptr + head_offset(bh, heads, vb, vh)
    mask_ptr += (bh // heads).to(tl.int64) * keys
    lengths_ptr += bh.to(tl.int64) * keys
    dx = tl.zeros([ROWS, DP], tl.float32)
    for start in range(0, keys, BLOCK):
        inside = _kept(start, keys, mask_ptr, BLOCK, MASKED)
        k = load_rows(k_base, inside, cols, D, kn, kd, EVEN).to(DTYPE)
        v = load_rows(v_base, inside, wide, E, vn, vd, EVEN).to(DTYPE)
        s = product(x, tl.trans(k), None, PRECISION)
        ds = product(dy, tl.trans(v), None, PRECISION) + dz[:, None]
        if NORMALIZE:
            alpha = load_numbers(lengths_ptr + start, inside, EVEN)
            ds *= (2 * a * alpha)[None, :] * s + b
            ds *= alpha[None, :]
        else:
            ds *= 2 * a * s + b
        dx = settle(product(ds.to(DTYPE), k, dx, PRECISION))
        k_base += BLOCK * kn
        v_base += BLOCK * vn
    dq, dt = pull_back(dx / keys, raw, factor, NORMALIZE)
    store_rows(dq_ptr + row * D, keep, cols, D, D, dq)
    if NORMALIZE:
        tl.store(dt_ptr + row + tl.arange(0, ROWS), dt * scale, mask=keep)


@triton.jit
def direct_keys(
    q_ptr, k_ptr, v_ptr, mask_ptr, lengths_ptr, dy_ptr, dz_ptr, sum_dy_ptr, dk_ptr, dv_ptr,
    heads, queries, keys, D, E,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, scale, a, b, c,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values."""
    first, bh = tl.program_id(0) * ROWS, tl.program_id(1)
    exists = first + tl.arange(0, ROWS) < keys
    keep = _kept(first, keys, mask_ptr + (bh // heads).to(tl.int64) * keys, ROWS, MASKED)
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    k_base = k_ptr + head_offset(bh, heads, kb, kh) + first.to(tl.int64) * kn
    v_base = v_ptr + head_offset(bh, heads, vb, vh) + first.to(tl.int64) * vn
    raw = load_rows(k_base, keep, cols, D, kn, kd, False).to(tl.float32)
    v = load_rows(v_base, keep, wide, E, vn, vd, False).to(DTYPE)
    # Scores are k.q alpha_q: the keys' own factor (and the scale) is in k.
    k = (raw * row_factors(raw, 1.0 if NORMALIZE else scale, NORMALIZE)[:, None]).to(DTYPE)
    q_base = q_ptr + head_offset(bh, heads, qb, qh)
    dy_base = dy_ptr + bh.to(tl.int64) * queries * E
    dz_ptr += bh.to(tl.int64) * queries
    lengths_ptr += bh.to(tl.int64) * queries
    dk = tl.zeros([ROWS, DP], tl.float32)
    dv = tl.zeros([ROWS, EP], tl.float32)
    for start in range(0, queries, BLOCK):
        inside = start + tl.arange(0, BLOCK) < queries
        x = load_rows(q_base, inside, cols, D, qn, qd, EVEN).to(DTYPE)
        dy = load_rows(dy_base, inside, wide, E, E, 1, EVEN).to(DTYPE)
        dz = load_numbers(dz_ptr + start, inside, EVEN)
        s = product(k, tl.trans(x), None, PRECISION)  # (keys, queries)
        ds = product(v, tl.trans(dy), None, PRECISION) + dz[None, :]
        if NORMALIZE:
            alpha = load_numbers(lengths_ptr + start, inside, EVEN)
            s *= alpha[None, :]
            ds *= alpha[None, :]
        w = (s * (a * s + b)).to(DTYPE)
        dv = settle(product(w, dy, dv, PRECISION))
        ds *= 2 * a * s + b
        dk = settle(product(ds.to(DTYPE), x, dk, PRECISION))
        q_base += BLOCK * qn
        dy_base += BLOCK * E
    sum_dy = tl.load(sum_dy_ptr + bh.to(tl.int64) * E + wide, mask=wide < E, other=0.0)
    dv = (dv + c * sum_dy[None, :]) / keys
    dk, _ = pull_back(dk / keys, raw, 1.0 if NORMALIZE else scale, NORMALIZE)
    kept = tl.where(keep, 1.0, 0.0)[:, None]
    row_out = bh.to(tl.int64) * keys + first
    store_rows(dk_ptr + row_out * D, exists, cols, D, D, dk * kept)
    store_rows(dv_ptr + row_out * E, exists, wide, E, E, dv * kept)
