"""Layer norm of a sum, rows whole in registers.

    s = x + keep branch,   z = (s - mean s) rstd,   y = z weight + bias
    g = dy weight,   dx = ds + rstd (g - mean g - z mean(g z)),   dbranch = keep dx

Forward and backward read and write each tensor once. Going backward a program walks over many rows
and adds up its share of dweight and dbias; another kernel adds the shares, in one order always.
Up to 512 columns wide a program is one warp: sums along a row stay within it, and those over rows
within a thread, whatever layout a version of Triton chooses.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

__all__ = ["add_shares", "norm_backward", "norm_forward"]


@triton.jit
def _columns(CP: tl.constexpr):
    """The columns, four of them a thread's: 16 bytes of a float32 stream, 8 of a branch beside it.

    Reading each by 16 bytes would have threads trade numbers.
    """
    return tl.max_contiguous(tl.arange(0, CP), 4)


@triton.jit
def _load(pointers, exist, EVEN: tl.constexpr):
    """Numbers in float32, zero where there are none; EVEN where there are all."""
    if EVEN:
        return tl.load(pointers).to(tl.float32)
    return tl.load(pointers, mask=exist, other=0.0).to(tl.float32)


@triton.jit
def _store(pointers, value, exist, EVEN: tl.constexpr):
    value = value.to(pointers.dtype.element_ty)
    if EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=exist)


@triton.jit
def norm_forward(
    x_ptr, branch_ptr, keep_ptr, weight_ptr, bias_ptr, s_ptr, y_ptr, statistics_ptr,
    rows, tokens, C, eps,
    ROWS: tl.constexpr, CP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Of ROWS rows the sum (where there is a branch), its norm, mean and 1/deviation."""
    first, cols = tl.program_id(0) * ROWS, _columns(CP)
    row, real = first + tl.arange(0, ROWS), cols < C
    exist = (row < rows)[:, None] & real[None, :]
    tile = first.to(tl.int64) * C + (tl.arange(0, ROWS)[:, None] * C + cols[None, :])
    s = _load(x_ptr + tile, exist, EVEN)
    if branch_ptr is not None:
        branch = _load(branch_ptr + tile, exist, EVEN)
        if keep_ptr is not None:
            branch *= _load(keep_ptr + row // tokens, row < rows, EVEN)[:, None]
        # What is normalized is the sum as it goes on, rounded.
        rounded = (s + branch).to(s_ptr.dtype.element_ty)
        _store(s_ptr + tile, rounded, exist, EVEN)
        s = rounded.to(tl.float32)
    mean = tl.sum(s, axis=1) / C
    centered = s - mean[:, None]
    if not EVEN:
        centered = tl.where(real[None, :], centered, 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, axis=1) / C + eps)
    _store(statistics_ptr + row, mean, row < rows, EVEN)
    _store(statistics_ptr + rows + row, rstd, row < rows, EVEN)
    weight = _load(weight_ptr + cols, real, EVEN)[None, :]
    bias = _load(bias_ptr + cols, real, EVEN)[None, :]
    _store(y_ptr + tile, centered * rstd[:, None] * weight + bias, exist, EVEN)


@triton.jit
def norm_backward(
    dy_ptr, ds_ptr, s_ptr, statistics_ptr, weight_ptr, keep_ptr, dx_ptr, dbranch_ptr, shares_ptr,
    rows, tokens, C, span,
    ROWS: tl.constexpr, CP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradients of the rows of a span, and their share of those of weight and bias."""
    first, cols = tl.program_id(0) * span, _columns(CP)
    real = cols < C
    weight = _load(weight_ptr + cols, real, EVEN)[None, :]
    dweight, dbias = tl.zeros((CP,), tl.float32), tl.zeros((CP,), tl.float32)
    for step in range(0, min(span, rows - first), ROWS):
        row = first + step + tl.arange(0, ROWS)
        exist = (row < rows)[:, None] & real[None, :]
        start = (first + step).to(tl.int64) * C
        tile = start + (tl.arange(0, ROWS)[:, None] * C + cols[None, :])
        dy = _load(dy_ptr + tile, exist, EVEN)
        s = _load(s_ptr + tile, exist, EVEN)
        if ds_ptr is not None:
            ds = _load(ds_ptr + tile, exist, EVEN)
        mean = _load(statistics_ptr + row, row < rows, EVEN)[:, None]
        rstd = _load(statistics_ptr + rows + row, row < rows, EVEN)[:, None]
        z, g = (s - mean) * rstd, dy * weight
        dbias += tl.sum(dy, axis=0)
        dweight += tl.sum(dy * z, axis=0)
        level, along = tl.sum(g, axis=1) / C, tl.sum(g * z, axis=1) / C
        dx = rstd * (g - level[:, None] - z * along[:, None])
        if ds_ptr is not None:
            dx += ds
        _store(dx_ptr + tile, dx, exist, EVEN)
        if dbranch_ptr is not None:
            if keep_ptr is not None:
                dx *= _load(keep_ptr + row // tokens, row < rows, EVEN)[:, None]
            _store(dbranch_ptr + tile, dx, exist, EVEN)
    share = shares_ptr + tl.program_id(0) * C + cols
    _store(share, dweight, real, EVEN)
    _store(share + tl.num_programs(0) * C, dbias, real, EVEN)


@triton.jit
def add_shares(
    shares_ptr, dweight_ptr, dbias_ptr, programs, C,
    PROGRAMS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of dweight or dbias, from (2, programs, C)."""
    share = tl.arange(0, PROGRAMS)[:, None]
    cols = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    which, real = tl.program_id(1), cols < C
    pointers = shares_ptr + (which * programs + share) * C + cols[None, :]
    total = tl.sum(tl.load(pointers, mask=(share < programs) & real[None, :], other=0.0), axis=0)
    if which == 0:
        _store(dweight_ptr + cols, total, real, False)
    else:
        _store(dbias_ptr + cols, total, real, False)
