"""Layer norm of a sum; a row fits into the registers of a program.

    s = x + keep branch,   z = (s - mean s) rstd,   y = z weight + bias
    g = dy weight,   dx = ds + rstd (g - mean g - z mean(g z)),   dbranch = keep dx

Forward and backward read and write each tensor once. Going backward a program walks over many rows
and adds up its part of dweight and dbias; another kernel adds these parts, always in one order.
Up to 512 columns wide a program is one warp: sums along a row stay within it, and those over rows
within a thread, whatever layout a version of Triton chooses.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools

import triton
import triton.language as tl

from saccade.ops._triton.launch import Launch
from saccade.ops.norm.triton.configs import SUMMED_COLUMNS, Tile, tile_for, walk_for

__all__ = [
    "add_partials",
    "backward_launch",
    "forward_launch",
    "norm_backward",
    "norm_forward",
    "sum_launch",
]


@triton.jit
def _columns(CP: tl.constexpr):
    """The columns, four of them a thread's: 16 bytes of a float32 stream, 8 of a branch beside it.

    Reading each by 16 bytes would have threads trade numbers.
    """
    return tl.max_contiguous(tl.arange(0, CP), 4)


@triton.jit
def _load(pointers, m_exist, EVEN: tl.constexpr):
    """Numbers in float32, zero where there are none; EVEN where there are all."""
    if EVEN:
        return tl.load(pointers).to(tl.float32)
    return tl.load(pointers, mask=m_exist, other=0.0).to(tl.float32)


@triton.jit
def _store(pointers, value, m_exist, EVEN: tl.constexpr):
    value = value.to(pointers.dtype.element_ty)
    if EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=m_exist)


@triton.jit
def norm_forward(
    p_x,
    p_branch,
    p_keep,
    p_weight,
    p_bias,
    p_s,
    p_y,
    p_statistics,
    rows,
    tokens,
    C,
    eps,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Of ROWS rows the sum (where there is a branch), its norm, mean and 1/deviation."""
    first, o_c = tl.program_id(0) * ROWS, _columns(CP)
    row, m_c = first + tl.arange(0, ROWS), o_c < C
    m_exist = (row < rows)[:, None] & m_c[None, :]
    tile = first.to(tl.int64) * C + (tl.arange(0, ROWS)[:, None] * C + o_c[None, :])
    s = _load(p_x + tile, m_exist, EVEN)
    if p_branch is not None:
        branch = _load(p_branch + tile, m_exist, EVEN)
        if p_keep is not None:
            branch *= _load(p_keep + row // tokens, row < rows, EVEN)[:, None]
        # What is normalized is the sum as it goes on, rounded.
        rounded = (s + branch).to(p_s.dtype.element_ty)
        _store(p_s + tile, rounded, m_exist, EVEN)
        s = rounded.to(tl.float32)
    mean = tl.sum(s, axis=1) / C
    centered = s - mean[:, None]
    if not EVEN:
        centered = tl.where(m_c[None, :], centered, 0.0)
    rstd = tl.rsqrt(tl.sum(centered * centered, axis=1) / C + eps)
    _store(p_statistics + row, mean, row < rows, EVEN)
    _store(p_statistics + rows + row, rstd, row < rows, EVEN)
    weight = _load(p_weight + o_c, m_c, EVEN)[None, :]
    bias = _load(p_bias + o_c, m_c, EVEN)[None, :]
    _store(p_y + tile, centered * rstd[:, None] * weight + bias, m_exist, EVEN)


@triton.jit
def norm_backward(
    p_dy,
    p_ds,
    p_s,
    p_statistics,
    p_weight,
    p_keep,
    p_dx,
    p_dbranch,
    p_partials,
    rows,
    tokens,
    C,
    span,
    ROWS: tl.constexpr,
    CP: tl.constexpr,
    EVEN: tl.constexpr,
):
    """The gradients of the rows of a span, and their part of those of weight and bias."""
    first, o_c = tl.program_id(0) * span, _columns(CP)
    m_c = o_c < C
    weight = _load(p_weight + o_c, m_c, EVEN)[None, :]
    dweight, dbias = tl.zeros((CP,), tl.float32), tl.zeros((CP,), tl.float32)
    for step in range(0, min(span, rows - first), ROWS):
        row = first + step + tl.arange(0, ROWS)
        m_exist = (row < rows)[:, None] & m_c[None, :]
        start = (first + step).to(tl.int64) * C
        tile = start + (tl.arange(0, ROWS)[:, None] * C + o_c[None, :])
        dy = _load(p_dy + tile, m_exist, EVEN)
        s = _load(p_s + tile, m_exist, EVEN)
        if p_ds is not None:
            ds = _load(p_ds + tile, m_exist, EVEN)
        mean = _load(p_statistics + row, row < rows, EVEN)[:, None]
        rstd = _load(p_statistics + rows + row, row < rows, EVEN)[:, None]
        z, g = (s - mean) * rstd, dy * weight
        dbias += tl.sum(dy, axis=0)
        dweight += tl.sum(dy * z, axis=0)
        level, along = tl.sum(g, axis=1) / C, tl.sum(g * z, axis=1) / C
        dx = rstd * (g - level[:, None] - z * along[:, None])
        if p_ds is not None:
            dx += ds
        _store(p_dx + tile, dx, m_exist, EVEN)
        if p_dbranch is not None:
            if p_keep is not None:
                dx *= _load(p_keep + row // tokens, row < rows, EVEN)[:, None]
            _store(p_dbranch + tile, dx, m_exist, EVEN)
    partial = p_partials + tl.program_id(0) * C + o_c
    _store(partial, dweight, m_c, EVEN)
    _store(partial + tl.num_programs(0) * C, dbias, m_c, EVEN)


@triton.jit
def add_partials(
    p_partials,
    p_dweight,
    p_dbias,
    programs,
    C,
    PROGRAMS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some columns of dweight or dbias, from (2, programs, C)."""
    partial = tl.arange(0, PROGRAMS)[:, None]
    o_c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    which, m_c = tl.program_id(1), o_c < C
    pointers = p_partials + (which * programs + partial) * C + o_c[None, :]
    total = tl.sum(tl.load(pointers, mask=(partial < programs) & m_c[None, :], other=0.0), axis=0)
    if which == 0:
        _store(p_dweight + o_c, total, m_c, False)
    else:
        _store(p_dbias + o_c, total, m_c, False)


_KEPT_SHAPES = 512


def _constants(rows: int, width: int, tile: Tile) -> dict[str, object]:
    even = tile.columns == width and rows % tile.rows == 0
    return {"ROWS": tile.rows, "CP": tile.columns, "EVEN": even, "num_warps": tile.warps}


@functools.lru_cache(maxsize=_KEPT_SHAPES)
def forward_launch(shape: tuple[int, ...], eps: float) -> Launch:
    """The launch of `norm_forward` for rows (B, N, C)."""
    batch, tokens, width = shape
    rows, tile = batch * tokens, tile_for(width)
    numbers, constants = (rows, tokens, width, eps), _constants(rows, width, tile)
    return Launch(norm_forward, (-(-rows // tile.rows),), numbers, constants)


@functools.lru_cache(maxsize=_KEPT_SHAPES)
def backward_launch(shape: tuple[int, ...]) -> Launch:
    """The launch of `norm_backward` for rows (B, N, C)."""
    batch, tokens, width = shape
    rows, tile = batch * tokens, tile_for(width)
    programs, span = walk_for(rows, tile)
    numbers, constants = (rows, tokens, width, span), _constants(rows, width, tile)
    return Launch(norm_backward, (programs,), numbers, constants)


@functools.lru_cache(maxsize=_KEPT_SHAPES)
def sum_launch(programs: int, width: int) -> Launch:
    """The launch of `add_partials` for so many programs."""
    padded = 1 << (programs - 1).bit_length()
    constants = {"PROGRAMS": padded, "COLUMNS": SUMMED_COLUMNS, "num_warps": 4}
    return Launch(add_partials, (-(-width // SUMMED_COLUMNS), 2), (programs, width), constants)
