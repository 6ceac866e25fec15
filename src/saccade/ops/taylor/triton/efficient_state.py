"""The state of the efficient algorithm: S = sum (x (x) x) w^T, a tile pair a program.

Keys may be turned: what a thread of a product wants of them then lies together. A product leaves
a thread with tokens 2 t, 2 t + 1 of every eight, of each feature. Of each 32, turned rows keep side
by side, column by column, those that one thread wants; alpha is in them. `moments` writes them on
its way, so that they cost no pass of their own, and features are formed of them as they come out of
memory.

    turned rows    [head][tokens / 32][D][32 tokens]

Gain of turned keys over others (docs/log.md), forward at 16,384 tokens: 5 and 13 % at D = 32 (plain
and TaylorShift), none and 7 % at D = 64, 14 % at D = 128.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"
# mypy: disable-error-code="var-annotated"

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.library import head_offset, materialize
from saccade.ops._triton.tiles import ceil_div
from saccade.ops.taylor.triton.efficient_moments import (
    is_narrow,
    row_moments,
    sum_moments,
    sum_narrow,
)
from saccade.ops.taylor.triton.efficient_splits import (
    MIN_STEPS,
    Gradients,
    Shares,
    add_launch,
    equal_splits,
    programs_at_once,
    share_out,
)
from saccade.ops.taylor.triton.library import (
    feature_of_row,
    load_columns,
    load_rows,
    load_table,
    multiples,
    product,
    table_offset,
    tile_pair,
    turned_outer,
)
from saccade.ops.taylor.triton.shapes import KEPT_FORMS, Form, Problem

__all__ = ["accumulate", "accumulate_turned", "has_lengths", "rounds", "row_sums"]


@triton.jit(do_not_specialize=["before", "count"])
def accumulate(
    p_x,
    p_w,
    p_mask,
    p_squares,
    p_state,
    sizes,
    x_strides,
    w_strides,
    value,
    before,
    count,
    FLAGS: tl.constexpr,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """S = sum (x (x) x) w^T for one tile pair: keys and values, or queries and dy.

    Of the pairs of all heads these are `count` after those `before`, once for each split of rows.
    Where rows are normalized their alpha^2, as `moments` left them, enter through x.
    """
    EP: tl.constexpr = FLAGS.EP
    NORMALIZE: tl.constexpr = FLAGS.NORMALIZE
    MASKED: tl.constexpr = FLAGS.MASKED
    GRAIN: tl.constexpr = FLAGS.GRAIN
    DTYPE: tl.constexpr = FLAGS.DTYPE
    PRECISION: tl.constexpr = FLAGS.PRECISION
    heads, tokens, D, E, per_split = sizes
    xb, xh, xn, xd = x_strides
    wb, wh, wn, wd = w_strides
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), GRAIN)
    program = tl.program_id(0)
    split, pair = program // count, before + program % count
    i_bh = pair // PAIRS
    m, n = tile_pair(pair % PAIRS, TILES)
    o_e, o_n = tl.arange(0, EP), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    p_x_rows = p_x + head_offset(i_bh, heads, xb, xh) + first.to(tl.int64) * xn
    p_w_rows = p_w + head_offset(i_bh, heads, wb, wh) + first.to(tl.int64) * wn
    p_mask += (i_bh // heads).to(tl.int64) * tokens
    p_squares += table_offset(i_bh, tokens)
    end = last - BLOCK  # where the last block begins, if all are whole
    following = 0.0
    if NORMALIZE and EVEN:  # a step ahead, since nothing else hides the time that it takes
        following = load_table(p_squares, first, BLOCK)
    acc = tl.zeros([256, EP], tl.float32)
    for start in range(first, last, BLOCK):
        m_rows = start + o_n < last
        if MASKED:
            m_rows = tl.load(p_mask + start + o_n, mask=m_rows, other=0) != 0
        w = load_rows(p_w_rows, m_rows, o_e, E, wn, wd, EVEN).to(DTYPE)  # (BLOCK, EP)
        if NORMALIZE:
            if EVEN:
                squares = following
                following = load_table(p_squares, tl.minimum(start + BLOCK, end), BLOCK)
            else:
                squares = tl.where(m_rows, load_table(p_squares, start, BLOCK), 0.0)
        x_m = load_columns(p_x_rows, m_rows, m * 16, D, xn, xd, 16, EVEN, DTYPE)
        x_n = load_columns(p_x_rows, m_rows, n * 16, D, xn, xd, 16, EVEN, DTYPE)
        acc = materialize(
            product(turned_outer(x_m, x_n, squares if NORMALIZE else None), w, acc, PRECISION)
        )
        p_x_rows += BLOCK * xn
        p_w_rows += BLOCK * wn
    acc *= tl.where(m == n, value, 2 * value)  # off-diagonal pairs count twice
    state = p_state + program.to(tl.int64) * 256 * E
    place = state + feature_of_row()[:, None] * E + o_e[None, :]
    tl.store(place, acc.to(p_state.dtype.element_ty), mask=(o_e < E)[None, :])


@triton.jit
def _load_tile(place, D: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """(16, BLOCK): a tile of turned rows."""
    blocks, inner = tl.arange(0, BLOCK // 32), tl.arange(0, 512)
    x = tl.load(place + blocks[:, None] * (32 * D) + inner[None, :]).to(DTYPE)
    x = tl.permute(tl.reshape(x, (BLOCK // 32, 16, 4, 4, 2)), (1, 0, 3, 2, 4))
    return tl.reshape(x, (16, BLOCK))


@triton.jit(do_not_specialize=["before", "count"])
def accumulate_turned(
    p_x,
    p_w,
    p_state,
    heads,
    tokens,
    per_split,
    w_strides,
    value,
    before,
    count,
    TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """S = sum (x (x) x) w^T for one tile pair, as `accumulate`, where all blocks are whole."""
    wb, wh, wn, wd = w_strides
    program = tl.program_id(0)
    split, pair = program // count, before + program % count
    i_bh = pair // PAIRS
    m, n = tile_pair(pair % PAIRS, TILES)
    o_e, o_n = tl.arange(0, E), tl.arange(0, BLOCK)
    first = split * per_split
    last = tl.minimum(first + per_split, tokens)
    p_x_rows = p_x + (i_bh.to(tl.int64) * tokens + first) * D
    p_w_rows = p_w + head_offset(i_bh, heads, wb, wh) + first.to(tl.int64) * wn
    acc = tl.zeros([256, E], tl.float32)
    for _ in range(first, last, BLOCK):
        w = tl.load(p_w_rows + o_n[:, None] * wn + o_e[None, :] * wd).to(DTYPE)
        x_m = _load_tile(p_x_rows + m * 512, D, BLOCK, DTYPE)
        x_n = _load_tile(p_x_rows + n * 512, D, BLOCK, DTYPE)
        phi = tl.reshape(x_m[:, None, :] * x_n[None, :, :], (256, BLOCK))
        acc = materialize(product(phi, w, acc, PRECISION))
        p_x_rows += BLOCK * D
        p_w_rows += BLOCK * wn
    acc *= tl.where(m == n, value, 2 * value)  # off-diagonal pairs count twice
    place = p_state + program.to(tl.int64) * 256 * E
    place += tl.arange(0, 256)[:, None] * E + o_e[None, :]
    tl.store(place, acc.to(p_state.dtype.element_ty))


_SCRATCH_BYTES = 16 << 20  # for sums of split rows, where no output has room for them


def rounds(f: Form, samples: int) -> float:
    """How often programs fill the device to sum the states of so many samples."""
    if is_narrow(f):
        return ceil_div(samples * f.heads, programs_at_once(f, f.blocks("narrow_sums")))
    heads = samples * f.heads
    return _state_shares(f, heads, f.keys, heads * f.head_bytes).rounds


def has_lengths(f: Form, samples: int) -> bool:
    """Whether lengths of keys are written to memory where so many samples go at a time."""
    if not f.normalized or is_narrow(f):
        return False
    heads = samples * f.heads
    return _turned_shares(f, heads, heads * f.head_bytes) is None


def _state_shares(f: Form, batch_heads: int, tokens: int, room: int) -> Shares:
    """The shares of tiles of the states of so many heads, with so many bytes for sums of parts."""
    size = f.blocks("accumulate")
    splits = ceil_div(tokens, MIN_STEPS * size.block)
    parts = max(room, _SCRATCH_BYTES) // (4 * 256 * f.width)
    return share_out(batch_heads * f.pairs, programs_at_once(f, size), splits, parts)


def row_sums(
    p: Problem, gradients: Gradients | None = None, room: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The state (B H, pairs * 256, E) and the smaller sums.

    Args:
        p: The problem.
        gradients: With them sums go over queries.
        room: A tensor that is not written yet, for sums of some of the rows, or for turned keys.
    """
    if is_narrow(p.form):
        return sum_narrow(p, gradients)
    shares = turned_shares(p.form, room.nbytes) if room is not None and gradients is None else None
    if room is not None and shares is not None:
        return _turned_sums(p, room, shares)
    moments, squares = row_moments(p, gradients)
    return row_state(p, squares, gradients, room), moments


@functools.lru_cache(maxsize=KEPT_FORMS)
def _state_launch(f: Form, of_queries: bool, first: int, tiles: int, splits: int) -> Launch:
    tokens, x_stride, w_stride = f.rows(of_queries=of_queries)
    size = f.blocks("accumulate")
    splits, per_split = equal_splits(tokens, size, splits)
    unnormalized = f.scale * f.scale if of_queries and not f.normalized else 1.0
    numbers = (
        (f.heads, tokens, f.dim, f.width, per_split),
        x_stride,
        w_stride,
        f.a / max(1, f.keys) * unnormalized,
        first,
        tiles,
    )
    constants = {
        "TILES": f.tiles,
        "PAIRS": f.pairs,
        "BLOCK": size.block,
        "EVEN": f.is_even(tokens, size.block),
        "FLAGS": f.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(accumulate, (splits * tiles,), numbers, constants)


def row_state(
    p: Problem, squares: Tensor, gradients: Gradients | None = None, room: Tensor | None = None
) -> Tensor:
    """The state (B H, pairs * 256, E)."""
    f, of_queries = p.form, gradients is not None
    x, w = (p.k, p.v) if gradients is None else (p.q, gradients[0])
    shares = _state_shares(f, f.batch_heads, x.shape[2], 0 if room is None else room.nbytes)
    launch_of = functools.partial(_state_launch, f, of_queries)
    return _sum_tiles(p, shares, launch_of, (x, w, p.key_mask, squares), room)


def _sum_tiles(
    p: Problem,
    shares: Shares,
    launch_of: Callable[[int, int, int], Launch],
    tensors: tuple[Tensor, ...],
    room: Tensor | None,
) -> Tensor:
    """The state, from launches of tiles: of the first, of how many and in how many splits."""
    f = p.form
    state = p.new(f.batch_heads, f.pairs * 256, f.width, dtype=f.operands)
    if shares.whole:
        launch_of(0, shares.whole, 1)(*tensors, state)
    if shares.rest:
        launch = launch_of(shares.whole, shares.rest, shares.splits)
        size = shares.rest * 256 * f.width
        splits = launch.grid[0] // shares.rest
        parts = _scratch(p, room, splits * size)
        launch(*tensors, parts)
        rest = state.view(-1)[shares.whole * 256 * f.width :]
        add_launch(splits, size, size)(parts, rest, rest)
    return state


def _scratch(p: Problem, room: Tensor | None, count: int) -> Tensor:
    """So many float32 numbers, in the memory of `room` if they fit there."""
    if room is None or room.nbytes < 4 * count or room.nbytes % 4 or room.data_ptr() % 16:
        return p.numbers(count)
    return room.view(-1).view(torch.float32)[:count]


@functools.lru_cache(maxsize=KEPT_FORMS)
def turned_shares(f: Form, room: int) -> Shares | None:
    """The shares of tiles where keys are turned, in so many bytes; None where they are not.

    Sums of split rows lie in the same bytes, where no keys are or those are that nobody reads any
    more. Where they do not fit, rows are not split, or keys stay as they are: what is done sooner.
    """
    return _turned_shares(f, f.batch_heads, room)


def _turned_shares(f: Form, batch_heads: int, room: int) -> Shares | None:
    """The same for another number of heads."""
    size = f.blocks("accumulate")
    even = all(f.is_even(f.keys, blocks.block) for blocks in (size, f.blocks("moments")))
    keys = batch_heads * _key_bytes(f)
    if is_narrow(f) or size.turned is None or not even or room < keys:
        return None
    untouched = _state_shares(f, batch_heads, f.keys, room)
    tiles, at_once = batch_heads * f.pairs, programs_at_once(f, size)
    free = _free_bytes(f, keys, room, tiles // at_once * at_once)
    splits = ceil_div(f.keys, MIN_STEPS * size.block)
    most_parts = (free.stop - free.start) // (4 * 256 * f.width)
    shares = share_out(tiles, at_once, splits, most_parts)
    return shares if shares.rounds * size.turned <= untouched.rounds else None


def _key_bytes(f: Form) -> int:
    """Bytes of the keys of a head."""
    return f.keys * f.dim * f.dtype.itemsize


def _free_bytes(f: Form, keys: int, room: int, done: int) -> slice:
    """The larger of what lies behind all turned keys and what the tiles done leave of them.

    Tiles are taken in the order of their heads.

    Args:
        f: The form.
        keys: Bytes of all turned keys.
        room: Bytes in all.
        done: Tiles that are done.
    """
    behind = slice(keys, room)
    before = slice(0, done // f.pairs * _key_bytes(f))
    return max(before, behind, key=lambda part: part.stop - part.start)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _turned_launch(f: Form, first: int, tiles: int, splits: int) -> Launch:
    size = f.blocks("accumulate")
    splits, per_split = equal_splits(f.keys, size, splits)
    value = f.a / max(1, f.keys)
    numbers = (f.heads, f.keys, per_split, f.v_stride, value, first, tiles)
    flags = f.flags(masked=False)
    constants = {
        "TILES": f.tiles,
        "PAIRS": f.pairs,
        "D": f.dim,
        "E": f.width,
        "BLOCK": size.block,
        "DTYPE": flags.DTYPE,
        "PRECISION": flags.PRECISION,
        **size.options(),
    }
    return Launch(accumulate_turned, (splits * tiles,), numbers, constants)


def _turned_sums(p: Problem, room: Tensor, shares: Shares) -> tuple[Tensor, Tensor]:
    """The state and the smaller sums, with turned keys in the memory of `room`."""
    f = p.form
    flat = room.view(-1)
    moments = sum_moments(p, None, flat, turned=True)
    free = _free_bytes(f, f.batch_heads * _key_bytes(f), room.nbytes, shares.whole)
    part = flat[free.start // room.itemsize : free.stop // room.itemsize]
    launch_of = functools.partial(_turned_launch, f)
    return _sum_tiles(p, shares, launch_of, (flat, p.v), part), moments
