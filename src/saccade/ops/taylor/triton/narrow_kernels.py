"""All sums of the efficient algorithm in one pass over the rows, where D and E are at most 16.

The state S takes a product of 256 features, as in `accumulate`. The smaller sums are one more of

    (x, 1)^T (w, r x),   which is   L = sum x w^T,   G = sum r x x^T,   r = sum w,   p = sum r x

so rows and values are read once, and the rows' lengths never leave the program.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.taylor.triton.blocks import (
    head_offset,
    load_rows,
    multiples,
    product,
    row_factors,
)
from saccade.ops.taylor.triton.efficient_kernels import feature_of_row, turned_outer

__all__ = ["narrow_sums"]


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
    exists = (kind == 0) | ((kind == 2) & (i == 0))
    tl.store(place + at, sums * tl.where(kind == 0, of_matrix, of_row), mask=exists)


@triton.jit
def narrow_sums(
    x_ptr, w_ptr, r_ptr, mask_ptr, temperature_ptr, state_ptr, moments_ptr,
    heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, scale, quadratic, linear, constant, part,
    BLOCK: tl.constexpr, NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr, WEIGHTED: tl.constexpr,
    MASKED: tl.constexpr, EVEN: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """S, L, G, p and r over keys and values, or queries and dy with weights r = dz.

    From one split to the next, both outputs advance by `part` numbers.
    """
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), GRAIN)
    split, bh = tl.program_id(0), tl.program_id(1)
    cols, local = tl.arange(0, 16), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    r_ptr += bh.to(tl.int64) * tokens
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    state = tl.zeros([256, 16], tl.float32)
    sums = tl.zeros([64, 32], tl.float32)
    for start in range(first, last, BLOCK):
        keep = start + local < last
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=keep, other=0) != 0
        x = load_rows(x_base, keep, cols, D, xn, xd, EVEN)
        w = load_rows(w_base, keep, cols, E, wn, wd, EVEN)
        raw, by_length, weighted = x.to(DTYPE), w, x
        if NORMALIZE:
            alpha = row_factors(x, factor, True)[:, None]
            by_length = w.to(tl.float32) * (alpha * alpha)
            x = x.to(tl.float32) * alpha
            weighted = x
        if WEIGHTED:
            r = tl.load(r_ptr + start + local, mask=start + local < last, other=0.0)
            weighted = x.to(tl.float32) * r[:, None]
        state = materialize(
            product(turned_outer(raw, raw, None), by_length.to(DTYPE), state, PRECISION)
        )
        both = tl.reshape(tl.join(w.to(DTYPE), weighted.to(DTYPE)), (BLOCK, 32))
        sums = materialize(product(tl.trans(_with_ones(x.to(DTYPE))), both, sums, PRECISION))
        x_base += BLOCK * xn
        w_base += BLOCK * wn
    once = 1.0 if NORMALIZE else factor  # the factor of a row that is not in alpha
    square = quadratic * once * once
    slot, skipped = bh.to(tl.int64), split.to(tl.int64) * part
    place = state_ptr + skipped + slot * 256 * E
    place = place + feature_of_row()[:, None] * E + cols[None, :]
    tl.store(place, (state * square).to(state_ptr.dtype.element_ty), mask=(cols < E)[None, :])
    _store_moments(moments_ptr + skipped + slot * 544, sums, square, linear * once, constant)
