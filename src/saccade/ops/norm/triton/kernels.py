"""Layer norm of a sum, rows whole in registers.

    s = x + keep branch,   z = (s - mean s) rstd,   y = z weight + bias
    g = dy weight,   dx = ds + rstd (g - mean g - z mean(g z)),   dbranch = keep dx

Forward and backward read and write each tensor once. Going backward a program walks over many rows
and adds up its share of dweight and dbias; another kernel adds the shares, in one order always.

A tile is (CP / PIECE, ROWS, PIECE): a row is cut into pieces of which each lane of a warp reads 16
bytes of the stream. So laid out, Triton gives warps different rows before it gives them pieces of
the same, and sums along a row stay within a warp. Narrower dtypes are read in the same places.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

__all__ = ["add_shares", "norm_backward", "norm_forward"]


@triton.jit
def _columns(CP: tl.constexpr, PIECE: tl.constexpr, LANE: tl.constexpr):
    """Which column is where in a tile, (CP / PIECE, 1, PIECE), LANE of them a thread's."""
    within = tl.max_contiguous(tl.arange(0, PIECE), LANE)
    return (tl.arange(0, CP // PIECE) * PIECE)[:, None, None] + within[None, None, :]


@triton.jit
def _load(pointers, exist, EVEN: tl.constexpr):
    """Numbers in float32, zero where there are none; EVEN where there are all."""
    if EVEN:
        return tl.load(pointers).to(tl.float32)
    return tl.load(pointers, mask=exist, other=0.0).to(tl.float32)


@triton.jit
def _load_channels(pointer, cols, C, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """The number of each column, for each row anew: spread later it would move between threads."""
    shape: tl.constexpr = (cols.shape[0], ROWS, cols.shape[2])
    return _load(pointer + tl.broadcast_to(cols, shape), cols < C, EVEN)


@triton.jit
def _store(pointers, value, exist, EVEN: tl.constexpr):
    value = value.to(pointers.dtype.element_ty)
    if EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=exist)


@triton.jit
def _row_means(tile, C):
    """(ROWS,)."""
    return tl.sum(tl.sum(tile, axis=0), axis=1) / C


@triton.jit
def norm_forward(
    x_ptr, branch_ptr, keep_ptr, weight_ptr, bias_ptr, s_ptr, y_ptr, statistics_ptr,
    rows, tokens, C, eps,
    ROWS: tl.constexpr, CP: tl.constexpr, PIECE: tl.constexpr, LANE: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Of ROWS rows the sum (where there is a branch), its norm, mean and 1/deviation."""
    first, cols = tl.program_id(0) * ROWS, _columns(CP, PIECE, LANE)
    row, real = first + tl.arange(0, ROWS), cols < C
    exist = (row < rows)[None, :, None] & real
    at = first.to(tl.int64) * C
    tile = tl.arange(0, ROWS)[None, :, None] * C + cols
    s = _load(x_ptr + at + tile, exist, EVEN)
    if branch_ptr is not None:
        branch = _load(branch_ptr + at + tile, exist, EVEN)
        if keep_ptr is not None:
            branch *= _load(keep_ptr + row // tokens, row < rows, EVEN)[None, :, None]
        # What is normalised is the sum as it goes on, rounded.
        rounded = (s + branch).to(s_ptr.dtype.element_ty)
        _store(s_ptr + at + tile, rounded, exist, EVEN)
        s = rounded.to(tl.float32)
    mean = _row_means(s, C)
    centred = s - mean[None, :, None]
    if not EVEN:
        centred = tl.where(real, centred, 0.0)
    rstd = tl.rsqrt(_row_means(centred * centred, C) + eps)
    _store(statistics_ptr + row, mean, row < rows, EVEN)
    _store(statistics_ptr + rows + row, rstd, row < rows, EVEN)
    weight = _load_channels(weight_ptr, cols, C, ROWS, EVEN)
    bias = _load_channels(bias_ptr, cols, C, ROWS, EVEN)
    _store(y_ptr + at + tile, centred * rstd[None, :, None] * weight + bias, exist, EVEN)


@triton.jit
def norm_backward(
    dy_ptr, ds_ptr, s_ptr, statistics_ptr, weight_ptr, keep_ptr, dx_ptr, dbranch_ptr, shares_ptr,
    rows, tokens, C, span,
    ROWS: tl.constexpr, CP: tl.constexpr, PIECE: tl.constexpr, LANE: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """The gradients of the rows of a span, and their share of those of weight and bias."""
    first, cols = tl.program_id(0) * span, _columns(CP, PIECE, LANE)
    real = cols < C
    tile = tl.arange(0, ROWS)[None, :, None] * C + cols
    weight = _load_channels(weight_ptr, cols, C, ROWS, EVEN)
    dweight = tl.zeros((CP // PIECE, ROWS, PIECE), tl.float32)
    dbias = tl.zeros((CP // PIECE, ROWS, PIECE), tl.float32)
    for step in range(0, min(span, rows - first), ROWS):
        row = first + step + tl.arange(0, ROWS)
        exist = (row < rows)[None, :, None] & real
        at = first.to(tl.int64) * C + step * C
        dy = _load(dy_ptr + at + tile, exist, EVEN)
        s = _load(s_ptr + at + tile, exist, EVEN)
        if ds_ptr is not None:
            ds = _load(ds_ptr + at + tile, exist, EVEN)
        mean = _load(statistics_ptr + row, row < rows, EVEN)[None, :, None]
        rstd = _load(statistics_ptr + rows + row, row < rows, EVEN)[None, :, None]
        z, g = (s - mean) * rstd, dy * weight
        dbias += dy
        dweight += dy * z
        level, along = _row_means(g, C)[None, :, None], _row_means(g * z, C)[None, :, None]
        dx = rstd * (g - level - z * along)
        if ds_ptr is not None:
            dx += ds
        _store(dx_ptr + at + tile, dx, exist, EVEN)
        if dbranch_ptr is not None:
            if keep_ptr is not None:
                dx *= _load(keep_ptr + row // tokens, row < rows, EVEN)[None, :, None]
            _store(dbranch_ptr + at + tile, dx, exist, EVEN)
    share = shares_ptr + tl.program_id(0) * C + cols
    _store(share, tl.sum(dweight, axis=1)[:, None, :], real, EVEN)
    _store(share + tl.num_programs(0) * C, tl.sum(dbias, axis=1)[:, None, :], real, EVEN)


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
