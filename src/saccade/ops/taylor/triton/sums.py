"""Sums over keys and values, or over queries and dy: grids, buffers and launches.

Rows are split among several programs where one for each head (and tile pair) would leave the device
idle; partial sums are added in a fixed order.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saccade.ops.launches import Launch
from saccade.ops.taylor.triton import settings
from saccade.ops.taylor.triton.blocks import add_parts
from saccade.ops.taylor.triton.efficient_kernels import accumulate
from saccade.ops.taylor.triton.moment_kernels import moments
from saccade.ops.taylor.triton.narrow_kernels import narrow_sums
from saccade.ops.taylor.triton.problem import KEPT_FORMS, Form, Problem, ceil_div, multiprocessors
from saccade.ops.taylor.triton.settings import Blocks
from saccade.ops.taylor.triton.turned_kernels import accumulate_turned

__all__ = [
    "Gradients",
    "has_lengths",
    "rounds",
    "row_moments",
    "row_state",
    "row_sums",
    "turned_shares",
]

_PART_BLOCK = 1024
_MIN_STEPS = 8  # of a loop over the rows of a split
_FEW_SPLITS = 4  # so many are tried even if they do not all run at once
_SCRATCH_BYTES = 16 << 20  # for sums of split rows, where no output has room for them

Numbers = tuple[int | float, ...]
Constants = dict[str, Any]

Gradients = tuple[Tensor, Tensor]
"""dy (B, H, N, E) and dz (B H, N): with them sums go over queries, else over keys and values."""


def _splits(f: Form, tokens: int, size: Blocks, programs: int) -> tuple[int, int]:
    """(splits, tokens in each): as many as fit on the device at once, none of them short.

    One more would wait for a second round while most of the device is idle.
    """
    return _equal_splits(tokens, size, max(1, _at_once(f, size) // max(1, programs)))


def _at_once(f: Form, size: Blocks) -> int:
    """How many programs with such blocks run at once."""
    return size.resident * multiprocessors(f.device)


def _equal_splits(tokens: int, size: Blocks, wanted: int) -> tuple[int, int]:
    """(splits, tokens in each): not more than wanted, none of them short."""
    wanted = min(wanted, ceil_div(tokens, _MIN_STEPS * size.block))
    per_split = size.block * max(1, ceil_div(ceil_div(tokens, max(1, wanted)), size.block))
    return max(1, ceil_div(tokens, per_split)), per_split


class _Shares(NamedTuple):
    """How tiles are shared out.

    Attributes:
        whole: How many have a program each.
        rest: How many more have their rows split among programs.
        splits: Among how many.
        rounds: How often programs fill the device; one of split rows is a part of a round.
    """

    whole: int
    rest: int
    splits: int
    rounds: float


@functools.lru_cache(maxsize=KEPT_FORMS)
def _shares(tiles: int, at_once: int, most_splits: int, most_parts: int) -> _Shares:
    """How to share out tiles, for so many programs at once, in the fewest rounds.

    What is left after full rounds would leave most of the device idle, so it is split. Not only
    into as many as run at once: 160 tiles in 264 places take two thirds of a round, split in three.

    Args:
        tiles: All of them.
        at_once: How many programs run at once.
        most_splits: Into how many the rows can be split.
        most_parts: For how many tiles of partial sums there is room.
    """
    whole = tiles // at_once * at_once
    rest = tiles - whole
    if rest == 0:
        return _Shares(tiles, 0, 1, tiles / at_once)
    most = max(1, min(most_splits, max(_FEW_SPLITS, at_once // rest), most_parts // rest))
    last, splits = min((ceil_div(rest * n, at_once) / n, n) for n in range(1, most + 1))
    if splits == 1:
        return _Shares(tiles, 0, 1, whole / at_once + last)
    return _Shares(whole, rest, splits, whole / at_once + last)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _add_launch(parts: int, head: int, size: int) -> Launch:
    grid = (ceil_div(size, _PART_BLOCK),)
    return Launch(add_parts, grid, (parts, head, size), {"BLOCK": _PART_BLOCK})


def _add(p: Problem, parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of float32 parts over the first axis."""
    if len(parts) == 1:
        return parts[0]
    total = p.new(*parts.shape[1:], dtype=dtype)
    _add_launch(len(parts), total.numel(), total.numel())(parts, total, total)
    return total


def _is_narrow(f: Form) -> bool:
    """Whether all sums are taken in one pass."""
    return max(f.dim, f.width) <= settings.ONE_PASS_WIDTH


def rounds(f: Form, samples: int) -> float:
    """How often programs fill the device to sum the states of so many samples."""
    if _is_narrow(f):
        return ceil_div(samples * f.heads, _at_once(f, f.blocks("narrow_sums")))
    heads = samples * f.heads
    return _state_shares(f, heads, f.keys, heads * f.head_bytes).rounds


def has_lengths(f: Form, samples: int) -> bool:
    """Whether lengths of keys are written to memory where so many samples go at a time."""
    if not f.normalized or _is_narrow(f):
        return False
    heads = samples * f.heads
    return _turned_shares(f, heads, heads * f.head_bytes) is None


def _state_shares(f: Form, batch_heads: int, tokens: int, room: int) -> _Shares:
    """The shares of tiles of the states of so many heads, with so many bytes for sums of parts."""
    size = f.blocks("accumulate")
    splits = ceil_div(tokens, _MIN_STEPS * size.block)
    parts = max(room, _SCRATCH_BYTES) // (4 * 256 * f.width)
    return _shares(batch_heads * f.pairs, _at_once(f, size), splits, parts)


def row_sums(
    p: Problem, gradients: Gradients | None = None, room: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The state (B H, pairs * 256, E) and the smaller sums.

    Args:
        p: The problem.
        gradients: With them sums go over queries.
        room: A tensor that is not written yet, for sums of some of the rows, or for turned keys.
    """
    if _is_narrow(p.form):
        return _narrow_sums(p, gradients)
    shares = turned_shares(p.form, room.nbytes) if room is not None and gradients is None else None
    if room is not None and shares is not None:
        return _turned_sums(p, room, shares)
    moments, squares = row_moments(p, gradients)
    return row_state(p, squares, gradients, room), moments


def _loop(f: Form, size: Blocks, of_queries: bool) -> tuple[int, Numbers, Constants]:
    """Into how many parts the rows are split, and what a loop over one of them takes."""
    tokens, x_stride, w_stride = f.rows(of_queries=of_queries)
    parts, per_split = _splits(f, tokens, size, f.batch_heads)
    over = 1 / max(1, f.keys)
    numbers = (
        f.heads, tokens, f.dim, f.width, per_split, *x_stride, *w_stride,
        f.scale if of_queries else 1.0, f.a * over, f.b * over, f.c * over,
    )  # fmt: skip
    constants = {
        "BLOCK": size.block,
        "TEMPERED": of_queries and f.normalized,
        "WEIGHTED": of_queries,
        "EVEN": f.is_even(tokens, size.block),
        **f.flags(masked=not of_queries),
        **size.options(),
    }
    return parts, numbers, constants


@functools.lru_cache(maxsize=KEPT_FORMS)
def _narrow_launch(f: Form, of_queries: bool) -> Launch:
    size = f.blocks("narrow_sums")
    parts, numbers, constants = _loop(f, size, of_queries)
    part = f.batch_heads * (256 * f.width + f.moments_size)
    del constants["DP"], constants["EP"]
    return Launch(narrow_sums, (parts, f.batch_heads), (*numbers, part), constants)


def _narrow_sums(p: Problem, gradients: Gradients | None) -> tuple[Tensor, Tensor]:
    f = p.form
    x, w, r = (p.k, p.v, p.k) if gradients is None else (p.q, *gradients)
    launch = _narrow_launch(f, gradients is not None)
    parts, part = launch.grid[0], launch.numbers[-1]
    state = p.new(f.batch_heads, 256, f.width, dtype=f.operands)
    moments = p.numbers(f.batch_heads, f.moments_size)
    if parts == 1:
        launch(x, w, r, p.key_mask, p.temperature, state, moments)
    else:
        buffer, head = p.numbers(parts * part), state.numel()
        launch(x, w, r, p.key_mask, p.temperature, buffer, buffer[head:])
        _add_launch(parts, head, part)(buffer, state, moments)
    return state, moments


@functools.lru_cache(maxsize=KEPT_FORMS)
def _moments_launch(f: Form, of_queries: bool, turned: bool) -> Launch:
    size = f.blocks("moments")
    parts, numbers, constants = _loop(f, size, of_queries)
    # Wide values beside narrow keys, folded, are more than registers hold.
    height = size.rows if f.padded_width <= 2 * f.padded_dim else 0
    fold = min(height // f.padded_dim, size.block // 16)  # a product takes 16 rows or more
    constants |= {"FOLD": max(1, fold), "HEIGHT": height, "TURNED": turned}
    return Launch(moments, (parts, f.batch_heads), numbers, constants)


def row_moments(p: Problem, gradients: Gradients | None = None) -> tuple[Tensor, Tensor]:
    """The smaller sums, and a table of alpha^2 of every row that is normalized."""
    x = p.k if gradients is None else p.q
    squares = p.table(x.shape[2]) if p.form.normalized else x
    return _moments(p, gradients, squares, turned=False), squares


def _moments(p: Problem, gradients: Gradients | None, aside: Tensor, *, turned: bool) -> Tensor:
    """The smaller sums; what is left aside for the state is written to `aside`."""
    f = p.form
    x, w, r = (p.k, p.v, p.k) if gradients is None else (p.q, *gradients)
    launch = _moments_launch(f, gradients is not None, turned)
    sums = p.numbers(launch.grid[0], f.batch_heads, f.moments_size)
    launch(x, w, r, p.key_mask, p.temperature, sums, aside)
    return _add(p, sums, torch.float32)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _state_launch(f: Form, of_queries: bool, first: int, tiles: int, splits: int) -> Launch:
    tokens, x_stride, w_stride = f.rows(of_queries=of_queries)
    size = f.blocks("accumulate")
    splits, per_split = _equal_splits(tokens, size, splits)
    unnormalized = f.scale * f.scale if of_queries and not f.normalized else 1.0
    numbers = (
        f.heads, tokens, f.dim, f.width, per_split, *x_stride, *w_stride,
        f.a / max(1, f.keys) * unnormalized, first, tiles,
    )  # fmt: skip
    constants = {
        "TILES": f.tiles,
        "PAIRS": f.pairs,
        "BLOCK": size.block,
        "EVEN": f.is_even(tokens, size.block),
        **f.flags(masked=not of_queries),
        **size.options(),
    }
    del constants["DP"]
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
    shares: _Shares,
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
        _add_launch(splits, size, size)(parts, rest, rest)
    return state


def _scratch(p: Problem, room: Tensor | None, count: int) -> Tensor:
    """So many float32 numbers, in the memory of `room` if they fit there."""
    if room is None or room.nbytes < 4 * count or room.nbytes % 4 or room.data_ptr() % 16:
        return p.numbers(count)
    return room.view(-1).view(torch.float32)[:count]


@functools.lru_cache(maxsize=KEPT_FORMS)
def turned_shares(f: Form, room: int) -> _Shares | None:
    """The shares of tiles where keys are turned, in so many bytes; None where they are not.

    Sums of split rows lie in the same bytes, where no keys are or those are that nobody reads any
    more. Where they do not fit, rows are not split, or keys stay as they are: what is done sooner.
    """
    return _turned_shares(f, f.batch_heads, room)


def _turned_shares(f: Form, batch_heads: int, room: int) -> _Shares | None:
    """The same for another number of heads."""
    size = f.blocks("accumulate")
    even = all(f.is_even(f.keys, blocks.block) for blocks in (size, f.blocks("moments")))
    keys = batch_heads * _key_bytes(f)
    if _is_narrow(f) or size.turned is None or not even or room < keys:
        return None
    untouched = _state_shares(f, batch_heads, f.keys, room)
    tiles, at_once = batch_heads * f.pairs, _at_once(f, size)
    free = _free_bytes(f, keys, room, tiles // at_once * at_once)
    splits = ceil_div(f.keys, _MIN_STEPS * size.block)
    most_parts = (free.stop - free.start) // (4 * 256 * f.width)
    shares = _shares(tiles, at_once, splits, most_parts)
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
    splits, per_split = _equal_splits(f.keys, size, splits)
    value = f.a / max(1, f.keys)
    numbers = (f.heads, f.keys, per_split, *f.v_stride, value, first, tiles)
    flags = f.flags(masked=False)
    constants = {
        "TILES": f.tiles,
        "PAIRS": f.pairs,
        "D": f.dim,
        "E": f.width,
        "BLOCK": size.block,
        "DTYPE": flags["DTYPE"],
        "PRECISION": flags["PRECISION"],
        **size.options(),
    }
    return Launch(accumulate_turned, (splits * tiles,), numbers, constants)


def _turned_sums(p: Problem, room: Tensor, shares: _Shares) -> tuple[Tensor, Tensor]:
    """The state and the smaller sums, with turned keys in the memory of `room`."""
    f = p.form
    flat = room.view(-1)
    moments = _moments(p, None, flat, turned=True)
    free = _free_bytes(f, f.batch_heads * _key_bytes(f), room.nbytes, shares.whole)
    part = flat[free.start // room.itemsize : free.stop // room.itemsize]
    launch_of = functools.partial(_turned_launch, f)
    return _sum_tiles(p, shares, launch_of, (flat, p.v), part), moments
