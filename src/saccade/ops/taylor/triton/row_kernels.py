"""Kernels that go over rows once: sums of values, coefficients of keys, gradients of quotients."""

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
    row_factors,
    store_coefficients,
    store_rows,
    table_offset,
    table_place,
)

__all__ = ["key_sums", "prepare_keys", "quotient", "row_gradients", "weighted_row_gradients"]


@triton.jit
def key_sums(
    k_ptr, v_ptr, mask_ptr, curves_ptr, slopes_ptr, sums_ptr, heads, keys, D, E,
    kb, kh, kn, kd, vb, vh, vn, vd, a, b,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """The sum of v over a block of keys; where these are normalized, their coefficients."""
    D, E, kb, kh, kn, vb, vh, vn = multiples((D, E, kb, kh, kn, vb, vh, vn), GRAIN)
    block, bh = tl.program_id(0), tl.program_id(1)
    first = block * ROWS
    keep = kept_rows(first, keys, mask_ptr + (bh // heads).to(tl.int64) * keys, ROWS, MASKED)
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    v_base = v_ptr + head_offset(bh, heads, vb, vh) + first.to(tl.int64) * vn
    v = load_rows(v_base, keep, wide, E, vn, vd, False).to(tl.float32)
    slot = bh.to(tl.int64) * tl.num_programs(0) + block
    tl.store(sums_ptr + slot * E + wide, tl.sum(v, axis=0), mask=wide < E)
    if NORMALIZE:
        k_base = k_ptr + head_offset(bh, heads, kb, kh) + first.to(tl.int64) * kn
        alpha = row_factors(load_rows(k_base, keep, cols, D, kn, kd, False), 1.0, True)
        place = table_offset(bh, keys) + table_place(first + tl.arange(0, ROWS))
        store_coefficients(curves_ptr, slopes_ptr, place, tl.where(keep, alpha, 0.0), a, b)


@triton.jit(do_not_specialize=["heads"])
def prepare_keys(
    k_ptr, v_ptr, unit_ptr, sums_ptr, heads, keys, per_split, kb, kh, kn, vb, vh, vn,
    DIM: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """The sum of v over some keys of a head; k / |k| where keys are normalized.

    D = E, all columns lie side by side, strides are multiples of 8 and splits of ROWS.
    """
    kb, kh, kn, vb, vh, vn = multiples((kb, kh, kn, vb, vh, vn), 8)
    split, bh = tl.program_id(0), tl.program_id(1)
    first = (split * per_split).to(tl.int64)
    rows, cols = tl.arange(0, ROWS)[:, None], tl.arange(0, DIM)[None, :]
    k_at = k_ptr + head_offset(bh, heads, kb, kh) + first * kn + rows * kn + cols
    v_at = v_ptr + head_offset(bh, heads, vb, vh) + first * vn + rows * vn + cols
    unit_at = unit_ptr + (bh.to(tl.int64) * keys + first) * DIM + rows * DIM + cols
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for _ in tl.range(0, per_split, ROWS, num_stages=STAGES):
        if NORMALIZE:
            k = tl.load(k_at).to(tl.float32)
            sums += tl.load(v_at)
            k *= row_factors(k, 1.0, True)[:, None]
            tl.store(unit_at, k.to(unit_ptr.dtype.element_ty))
        else:
            sums += tl.load(v_at)
        k_at += ROWS * kn
        v_at += ROWS * vn
        unit_at += ROWS * DIM
    slot = bh.to(tl.int64) * tl.num_programs(0) + split
    tl.store(sums_ptr + slot * DIM + tl.arange(0, DIM), tl.sum(sums, axis=0))


@triton.jit
def quotient(
    grad_ptr, out_ptr, total_ptr, share_ptr, first, bh, keep, queries, heads,
    grad_b, grad_h, grad_n, grad_d, E, lift,
    EP: tl.constexpr, MASKED: tl.constexpr, LIFT: tl.constexpr,
):  # fmt: skip
    """dy and dz of the rows from `first` on."""
    cols, row = tl.arange(0, EP), bh.to(tl.int64) * queries + first
    grad_base = grad_ptr + head_offset(bh, heads, grad_b, grad_h) + first.to(tl.int64) * grad_n
    g = load_rows(grad_base, keep, cols, E, grad_n, grad_d, False).to(tl.float32)
    o = load_rows(out_ptr + row * E, keep, cols, E, E, 1, False).to(tl.float32)
    total = tl.load(total_ptr + row + tl.arange(0, keep.shape[0]), mask=keep, other=1.0)
    factor = output_factor(load_share(share_ptr, bh // heads, MASKED), lift, LIFT)
    inverse = 1.0 / total
    return g * (inverse * factor)[:, None], -tl.sum(g * o, axis=1) * inverse


@triton.jit
def row_gradients(
    grad_ptr, out_ptr, total_ptr, share_ptr, dy_ptr, dz_ptr, queries, heads,
    grad_b, grad_h, grad_n, grad_d, E, lift,
    EP: tl.constexpr, ROWS: tl.constexpr, MASKED: tl.constexpr, LIFT: tl.constexpr,
    GRAIN: tl.constexpr,
):  # fmt: skip
    """From g and o = f y / z: the gradients f g / z and -(g.o) / z of y and z."""
    E, grad_b, grad_h, grad_n = multiples((E, grad_b, grad_h, grad_n), GRAIN)
    first, bh = tl.program_id(0) * ROWS, tl.program_id(1)
    keep = first + tl.arange(0, ROWS) < queries
    dy, dz = quotient(
        grad_ptr, out_ptr, total_ptr, share_ptr, first, bh, keep, queries, heads,
        grad_b, grad_h, grad_n, grad_d, E, lift, EP, MASKED, LIFT,
    )  # fmt: skip
    row = bh.to(tl.int64) * queries + first
    store_rows(dy_ptr + row * E, keep, tl.arange(0, EP), E, E, dy)
    tl.store(dz_ptr + row + tl.arange(0, ROWS), dz, mask=keep)


@triton.jit
def weighted_row_gradients(
    grad_ptr, out_ptr, total_ptr, share_ptr, q_ptr, temperature_ptr,
    dy_ptr, dz_ptr, curves_ptr, shifts_ptr, sums_ptr, queries, heads, D, E,
    grad_b, grad_h, grad_n, grad_d, qb, qh, qn, qd, lift, scale, a,
    DP: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, LIFT: tl.constexpr, GRAIN: tl.constexpr,
):  # fmt: skip
    """As `row_gradients`, for the direct kernels, with the sum of dy over the block of rows.

    Where queries are normalized, dy and dz are divided by the length of their query, and the
    coefficient of s^2 is kept for each.
    """
    D, E, grad_b, grad_h, grad_n, qb, qh, qn = multiples(
        (D, E, grad_b, grad_h, grad_n, qb, qh, qn), GRAIN
    )
    block, bh = tl.program_id(0), tl.program_id(1)
    first = block * ROWS
    local = tl.arange(0, ROWS)
    keep = first + local < queries
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    if NORMALIZE:  # read before anything is waited for
        q_base = q_ptr + head_offset(bh, heads, qb, qh) + first.to(tl.int64) * qn
        q = load_rows(q_base, keep, cols, D, qn, qd, False)
    dy, dz = quotient(
        grad_ptr, out_ptr, total_ptr, share_ptr, first, bh, keep, queries, heads,
        grad_b, grad_h, grad_n, grad_d, E, lift, EP, MASKED, LIFT,
    )  # fmt: skip
    row = bh.to(tl.int64) * queries + first
    slot = bh.to(tl.int64) * tl.num_programs(0) + block
    tl.store(sums_ptr + slot * E + wide, tl.sum(dy, axis=0), mask=wide < E)
    place = table_offset(bh, queries) + table_place(first + local)
    if NORMALIZE:
        inverse = row_factors(q, 1.0, True)
        dy, dz = dy * inverse[:, None], dz * inverse
        curve = a * scale * tl.load(temperature_ptr + bh % heads) * inverse
        tl.store(curves_ptr + place, curve.to(curves_ptr.dtype.element_ty))
    store_rows(dy_ptr + row * E, keep, wide, E, E, dy)
    tl.store(dz_ptr + row + local, dz, mask=keep)
    tl.store(shifts_ptr + place, dz.to(shifts_ptr.dtype.element_ty))
