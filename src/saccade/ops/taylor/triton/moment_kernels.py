"""The smaller sums of the efficient algorithm in one pass over the rows: L, G, p and r.

    L = sum x w^T,   G = sum r x x^T,   p = sum r x,   r = sum w

over keys and values with r = 1, or queries and dy with r = dz.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.dot_products import materialize
from saccade.ops.taylor.triton.blocks import (
    NORM_EPS,
    head_offset,
    multiples,
    product,
    table_offset,
    table_place,
)
from saccade.ops.taylor.triton.turned_kernels import store_turned

__all__ = ["moments"]


@triton.jit
def _folded(
    base, keep, D, stride_n, stride_d, FOLD: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr
):
    """Rows of FOLD tokens side by side: (tokens / FOLD, FOLD x DP)."""
    rows, cols = tl.arange(0, keep.shape[0]), tl.arange(0, FOLD * DP)
    pointers = base + (rows[:, None] * FOLD + cols[None, :] // DP) * stride_n
    pointers += (cols % DP)[None, :] * stride_d
    if EVEN:
        return tl.load(pointers)
    exists = tl.reshape(
        tl.broadcast_to(keep[:, :, None], (keep.shape[0], FOLD, DP)), (keep.shape[0], FOLD * DP)
    )
    return tl.load(pointers, mask=exists & (cols % DP < D)[None, :], other=0.0)


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
def moments(
    x_ptr, w_ptr, r_ptr, mask_ptr, temperature_ptr, out_ptr, aside_ptr,
    heads, tokens, D, E, per_split,
    xb, xh, xn, xd, wb, wh, wn, wd, scale, quadratic, linear, constant,
    DP: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr, FOLD: tl.constexpr,
    HEIGHT: tl.constexpr, NORMALIZE: tl.constexpr, TEMPERED: tl.constexpr, WEIGHTED: tl.constexpr,
    MASKED: tl.constexpr, TURNED: tl.constexpr, EVEN: tl.constexpr,
    GRAIN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The smaller sums L, G, p, r over keys and values, or queries and dy with weights r = dz.

    Narrow tokens are folded, FOLD side by side, so that products are wide enough for the matrix
    unit; blocks off the diagonal are thrown away. Sums of rows are products with HEIGHT rows of
    ones, or added up number by number where HEIGHT is 0. Aside are left, where rows are normalized,
    each one's alpha^2 for `accumulate`; where TURNED, alpha x for `accumulate_turned`.
    """
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), GRAIN)
    split, bh = tl.program_id(0), tl.program_id(1)
    rows: tl.constexpr = BLOCK // FOLD
    local = tl.arange(0, rows)[:, None] * FOLD + tl.arange(0, FOLD)[None, :]
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    x_base = x_ptr + head_offset(bh, heads, xb, xh) + first.to(tl.int64) * xn
    w_base = w_ptr + head_offset(bh, heads, wb, wh) + first.to(tl.int64) * wn
    mask_ptr += (bh // heads).to(tl.int64) * tokens
    r_ptr += bh.to(tl.int64) * tokens
    if TURNED:
        aside_ptr += (bh.to(tl.int64) * tokens + first) * DP
    else:
        aside_ptr += table_offset(bh, tokens)
    factor = scale
    if TEMPERED:
        factor = scale * tl.load(temperature_ptr + bh % heads)
    mixed = tl.zeros([FOLD * DP, FOLD * EP], tl.float32)
    gram = tl.zeros([FOLD * DP, FOLD * DP], tl.float32)
    sum_x = tl.zeros([HEIGHT or rows, FOLD * DP], tl.float32)
    sum_w = tl.zeros([HEIGHT or rows, FOLD * EP], tl.float32)
    for start in range(first, last, BLOCK):
        keep = start + local < last
        if MASKED:
            keep = tl.load(mask_ptr + start + local, mask=keep, other=0) != 0
        x = _folded(x_base, keep, D, xn, xd, FOLD, DP, EVEN)
        w = _folded(w_base, keep, E, wn, wd, FOLD, EP, EVEN).to(DTYPE)
        if NORMALIZE:
            x = x.to(tl.float32)
            squares = tl.sum(tl.reshape(x * x, (rows, FOLD, DP)), axis=2)
            alpha = factor / tl.maximum(tl.sqrt(squares), NORM_EPS)
            if not TURNED:
                square = (alpha * alpha).to(aside_ptr.dtype.element_ty)
                tl.store(aside_ptr + table_place(start + local), square, mask=start + local < last)
            x = _by_token(x, alpha)
        x = x.to(DTYPE)
        if TURNED:
            store_turned(aside_ptr, x, BLOCK)
            aside_ptr += BLOCK * DP
        weighted = x
        if WEIGHTED:
            r = tl.load(r_ptr + start + local, mask=start + local < last, other=0.0)
            weighted = _by_token(x.to(tl.float32), r).to(DTYPE)
        gram = materialize(product(tl.trans(x), weighted, gram, PRECISION))
        sum_x = _add_rows(sum_x, weighted, HEIGHT, PRECISION)
        sum_w = _add_rows(sum_w, w, HEIGHT, PRECISION)
        mixed = materialize(product(tl.trans(x), w, mixed, PRECISION))
        x_base += BLOCK * xn
        w_base += BLOCK * wn
    once = 1.0 if NORMALIZE else factor  # the factor of a row that is not in alpha
    cols, wide = tl.arange(0, DP), tl.arange(0, EP)
    slot = (split * tl.num_programs(1) + bh).to(tl.int64)
    place = out_ptr + slot * (DP * EP + DP * DP + DP + EP)
    total = _unfold_product(mixed, FOLD)
    tl.store(place + cols[:, None] * EP + wide[None, :], total * (linear * once))
    place += DP * EP
    total = _unfold_product(gram, FOLD)
    tl.store(place + cols[:, None] * DP + cols[None, :], total * (quadratic * once * once))
    place += DP * DP
    tl.store(place + cols, _unfold_sums(sum_x, FOLD, HEIGHT) * (linear * once))
    tl.store(place + DP + wide, _unfold_sums(sum_w, FOLD, HEIGHT) * constant)
