"""The state of the efficient algorithm: S = sum (x (x) x) w^T, a tile pair a program.

Keys may be swizzled: what one thread of a product reads is then contiguous. A product leaves
a thread with tokens 2 t, 2 t + 1 of every eight, of each feature. Of each 32 tokens, swizzled rows
store those of one thread side by side, column by column; alpha is in them. `moments` writes them on
its way, so that they cost no pass of their own, and features are formed of them as they come out of
memory.

    swizzled rows  [head][tokens / 32][D][32 tokens]

Gain of swizzled keys over others (docs/log.md), forward at 16,384 tokens: 5 and 13 %
at D = 32 (plain and TaylorShift), none and 7 % at D = 64, 14 % at D = 128.
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
    Division,
    Gradients,
    add_launch,
    divide_tiles,
    equal_splits,
    programs_at_once,
)
from saccade.ops.taylor.triton.library import (
    feature_of_row,
    load_columns,
    load_rows,
    load_table,
    multiples,
    product,
    swizzled_outer,
    table_offset,
    tile_pair,
)
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape, Problem

__all__ = ["accumulate", "accumulate_swizzled", "has_lengths", "row_sums", "waves"]


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
    heads, tokens, D, E, per_split = sizes
    xb, xh, xn, xd = x_strides
    wb, wh, wn, wd = w_strides
    D, E, xb, xh, xn, wb, wh, wn = multiples((D, E, xb, xh, xn, wb, wh, wn), FLAGS.ALIGNMENT)
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
    end = last - BLOCK  # where the last block begins, if all are full
    following = 0.0
    if FLAGS.NORMALIZE and EVEN:  # a step ahead, since nothing else hides the time that it takes
        following = load_table(p_squares, first, BLOCK)
    acc = tl.zeros([256, EP], tl.float32)
    for start in range(first, last, BLOCK):
        m_rows = start + o_n < last
        if FLAGS.MASKED:
            m_rows = tl.load(p_mask + start + o_n, mask=m_rows, other=0) != 0
        w = load_rows(p_w_rows, m_rows, o_e, E, wn, wd, EVEN).to(FLAGS.DTYPE)  # (BLOCK, EP)
        if FLAGS.NORMALIZE:
            if EVEN:
                squares = following
                following = load_table(p_squares, tl.minimum(start + BLOCK, end), BLOCK)
            else:
                squares = tl.where(m_rows, load_table(p_squares, start, BLOCK), 0.0)
        x_m = load_columns(p_x_rows, m_rows, m * 16, D, xn, xd, 16, EVEN, FLAGS.DTYPE)
        x_n = load_columns(p_x_rows, m_rows, n * 16, D, xn, xd, 16, EVEN, FLAGS.DTYPE)
        acc = materialize(
            product(
                swizzled_outer(x_m, x_n, squares if FLAGS.NORMALIZE else None),
                w,
                acc,
                FLAGS.PRECISION,
            )
        )
        p_x_rows += BLOCK * xn
        p_w_rows += BLOCK * wn
    acc *= tl.where(m == n, value, 2 * value)  # off-diagonal pairs count twice
    state = p_state + program.to(tl.int64) * 256 * E
    place = state + feature_of_row()[:, None] * E + o_e[None, :]
    tl.store(place, acc.to(p_state.dtype.element_ty), mask=(o_e < E)[None, :])


@triton.jit
def _load_tile(place, D: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """(16, BLOCK): a tile of swizzled rows."""
    blocks, inner = tl.arange(0, BLOCK // 32), tl.arange(0, 512)
    x = tl.load(place + blocks[:, None] * (32 * D) + inner[None, :]).to(DTYPE)
    x = tl.permute(tl.reshape(x, (BLOCK // 32, 16, 4, 4, 2)), (1, 0, 3, 2, 4))
    return tl.reshape(x, (16, BLOCK))


@triton.jit(do_not_specialize=["before", "count"])
def accumulate_swizzled(
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
    """S = sum (x (x) x) w^T for one tile pair, as `accumulate`, where all blocks are full."""
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


_SCRATCH_BYTES = 16 << 20  # for sums of split rows that do not fit into an output


def waves(call: CallShape, samples: int) -> float:
    """How often programs fill the device to sum the states of so many samples."""
    if is_narrow(call):
        return ceil_div(samples * call.heads, programs_at_once(call, call.blocks("narrow_sums")))
    heads = samples * call.heads
    return _state_division(call, heads, call.keys, heads * call.head_bytes).waves


def has_lengths(call: CallShape, samples: int) -> bool:
    """Whether lengths of keys are written to memory where so many samples go at a time."""
    if not call.normalized or is_narrow(call):
        return False
    heads = samples * call.heads
    return _swizzled_division(call, heads, heads * call.head_bytes) is None


def _state_division(call: CallShape, batch_heads: int, tokens: int, scratch: int) -> Division:
    """How tiles of so many heads are divided; `scratch`: bytes for partial sums."""
    size = call.blocks("accumulate")
    splits = ceil_div(tokens, MIN_STEPS * size.block)
    parts = max(scratch, _SCRATCH_BYTES) // (4 * 256 * call.width)
    return divide_tiles(batch_heads * call.pairs, programs_at_once(call, size), splits, parts)


def row_sums(
    p: Problem, gradients: Gradients | None = None, scratch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The state (B H, pairs * 256, E) and the smaller sums.

    Args:
        p: The problem.
        gradients: With them sums go over queries.
        scratch: A tensor that is not written yet, for partial sums or for swizzled keys.
    """
    if is_narrow(p.call):
        return sum_narrow(p, gradients)
    division = (
        swizzled_division(p.call, scratch.nbytes)
        if scratch is not None and gradients is None
        else None
    )
    if scratch is not None and division is not None:
        return _swizzled_sums(p, scratch, division)
    moments, squares = row_moments(p, gradients)
    return row_state(p, squares, gradients, scratch), moments


@functools.lru_cache(maxsize=KEPT_CALLS)
def _state_launch(call: CallShape, of_queries: bool, first: int, tiles: int, splits: int) -> Launch:
    tokens, x_stride, w_stride = call.rows(of_queries=of_queries)
    size = call.blocks("accumulate")
    splits, per_split = equal_splits(tokens, size, splits)
    unnormalized = call.scale * call.scale if of_queries and not call.normalized else 1.0
    numbers = (
        (call.heads, tokens, call.dim, call.width, per_split),
        x_stride,
        w_stride,
        call.a / max(1, call.keys) * unnormalized,
        first,
        tiles,
    )
    constants = {
        "TILES": call.tiles,
        "PAIRS": call.pairs,
        "BLOCK": size.block,
        "EVEN": call.is_even(tokens, size.block),
        "FLAGS": call.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(accumulate, (splits * tiles,), numbers, constants)


def row_state(
    p: Problem, squares: Tensor, gradients: Gradients | None = None, scratch: Tensor | None = None
) -> Tensor:
    """The state (B H, pairs * 256, E)."""
    call, of_queries = p.call, gradients is not None
    x, w = (p.k, p.v) if gradients is None else (p.q, gradients[0])
    division = _state_division(
        call, call.batch_heads, x.shape[2], 0 if scratch is None else scratch.nbytes
    )
    launch_of = functools.partial(_state_launch, call, of_queries)
    return _sum_tiles(p, division, launch_of, (x, w, p.key_mask, squares), scratch)


def _sum_tiles(
    p: Problem,
    division: Division,
    launch_of: Callable[[int, int, int], Launch],
    tensors: tuple[Tensor, ...],
    scratch: Tensor | None,
) -> Tensor:
    """The state, from launches of tiles: of the first, of how many and in how many splits."""
    call = p.call
    state = p.new(call.batch_heads, call.pairs * 256, call.width, dtype=call.operands)
    if division.unsplit:
        launch_of(0, division.unsplit, 1)(*tensors, state)
    if division.rest:
        launch = launch_of(division.unsplit, division.rest, division.splits)
        size = division.rest * 256 * call.width
        splits = launch.grid[0] // division.rest
        parts = _scratch_numbers(p, scratch, splits * size)
        launch(*tensors, parts)
        rest = state.view(-1)[division.unsplit * 256 * call.width :]
        add_launch(splits, size, size)(parts, rest, rest)
    return state


def _scratch_numbers(p: Problem, scratch: Tensor | None, count: int) -> Tensor:
    """So many float32 numbers, in the memory of `scratch` if they fit there."""
    if (
        scratch is None
        or scratch.nbytes < 4 * count
        or scratch.nbytes % 4
        or scratch.data_ptr() % 16
    ):
        return p.numbers(count)
    return scratch.view(-1).view(torch.float32)[:count]


@functools.lru_cache(maxsize=KEPT_CALLS)
def swizzled_division(call: CallShape, scratch: int) -> Division | None:
    """How tiles are divided if keys are swizzled into `scratch` bytes; None if they are not.

    Sums of split rows lie in the same bytes, where no keys are or those are that nobody reads any
    more. Where they do not fit, rows are not split, or keys stay as they are: what is done sooner.
    """
    return _swizzled_division(call, call.batch_heads, scratch)


def _swizzled_division(call: CallShape, batch_heads: int, scratch: int) -> Division | None:
    """The same for another number of heads."""
    size = call.blocks("accumulate")
    even = all(call.is_even(call.keys, blocks.block) for blocks in (size, call.blocks("moments")))
    keys = batch_heads * _key_bytes(call)
    if is_narrow(call) or size.swizzled is None or not even or scratch < keys:
        return None
    untouched = _state_division(call, batch_heads, call.keys, scratch)
    tiles, at_once = batch_heads * call.pairs, programs_at_once(call, size)
    free = _free_bytes(call, keys, scratch, tiles // at_once * at_once)
    splits = ceil_div(call.keys, MIN_STEPS * size.block)
    most_parts = (free.stop - free.start) // (4 * 256 * call.width)
    division = divide_tiles(tiles, at_once, splits, most_parts)
    return division if division.waves * size.swizzled <= untouched.waves else None


def _key_bytes(call: CallShape) -> int:
    """Bytes of the keys of a head."""
    return call.keys * call.dim * call.dtype.itemsize


def _free_bytes(call: CallShape, keys: int, scratch: int, done: int) -> slice:
    """The larger of what lies behind all swizzled keys and what the tiles done leave of them.

    Tiles are taken in the order of their heads.

    Args:
        call: The shape of the call.
        keys: Bytes of all swizzled keys.
        scratch: Bytes in all.
        done: Tiles that are done.
    """
    behind = slice(keys, scratch)
    before = slice(0, done // call.pairs * _key_bytes(call))
    return max(before, behind, key=lambda part: part.stop - part.start)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _swizzled_launch(call: CallShape, first: int, tiles: int, splits: int) -> Launch:
    size = call.blocks("accumulate")
    splits, per_split = equal_splits(call.keys, size, splits)
    value = call.a / max(1, call.keys)
    numbers = (call.heads, call.keys, per_split, call.v_stride, value, first, tiles)
    flags = call.flags(masked=False)
    constants = {
        "TILES": call.tiles,
        "PAIRS": call.pairs,
        "D": call.dim,
        "E": call.width,
        "BLOCK": size.block,
        "DTYPE": flags.DTYPE,
        "PRECISION": flags.PRECISION,
        **size.options(),
    }
    return Launch(accumulate_swizzled, (splits * tiles,), numbers, constants)


def _swizzled_sums(p: Problem, scratch: Tensor, division: Division) -> tuple[Tensor, Tensor]:
    """The state and the smaller sums, with swizzled keys in the memory of `scratch`."""
    call = p.call
    flat = scratch.view(-1)
    moments = sum_moments(p, None, flat, swizzled=True)
    free = _free_bytes(call, call.batch_heads * _key_bytes(call), scratch.nbytes, division.unsplit)
    part = flat[free.start // scratch.itemsize : free.stop // scratch.itemsize]
    launch_of = functools.partial(_swizzled_launch, call)
    return _sum_tiles(p, division, launch_of, (flat, p.v), part), moments
