"""Sums over keys and values, or over queries and dy: grids, buffers and launches.

Rows are split among several programs where one for each head (and tile pair) would leave the device
idle; partial sums are added in a fixed order.
"""

import functools
from typing import Any

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

__all__ = ["Gradients", "rounds", "row_moments", "row_state", "row_sums"]

_PART_BLOCK = 1024

Numbers = tuple[int | float, ...]
Constants = dict[str, Any]

Gradients = tuple[Tensor, Tensor]
"""dy (B, H, N, E) and dz (B H, N): with them sums go over queries, else over keys and values."""


def _splits(f: Form, tokens: int, size: Blocks, programs: int) -> tuple[int, int]:
    """(splits, tokens in each): as many as fit on the device at once, none of them short.

    One more would wait for a second round while most of the device is idle.
    """
    room = size.resident * multiprocessors(f.device)
    wanted = max(1, min(room // max(1, programs), ceil_div(tokens, 8 * size.block)))
    per_split = size.block * max(1, ceil_div(ceil_div(tokens, wanted), size.block))
    return max(1, ceil_div(tokens, per_split)), per_split


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


def rounds(f: Form, samples: int) -> int:
    """How often programs fill the device to sum the states of so many samples."""
    size = f.blocks("narrow_sums" if _is_narrow(f) else "accumulate")
    return ceil_div(samples * f.heads * f.pairs, size.resident * multiprocessors(f.device))


def row_sums(p: Problem, gradients: Gradients | None = None) -> tuple[Tensor, Tensor]:
    """The state (B H, pairs * 256, E) and the smaller sums."""
    if _is_narrow(p.form):
        return _narrow_sums(p, gradients)
    moments, squares = row_moments(p, gradients)
    return row_state(p, squares, gradients), moments


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
        "TEMPERED": of_queries and f.normalised,
        "WEIGHTED": of_queries,
        "EVEN": f.is_even(tokens, per_split),
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
def _moments_launch(f: Form, of_queries: bool) -> Launch:
    size = f.blocks("moments")
    parts, numbers, constants = _loop(f, size, of_queries)
    # Wide values beside narrow keys, folded, are more than registers hold.
    height = size.rows if f.padded_width <= 2 * f.padded_dim else 0
    fold = min(height // f.padded_dim, size.block // 16)  # a product takes 16 rows or more
    constants |= {"FOLD": max(1, fold), "HEIGHT": height}
    return Launch(moments, (parts, f.batch_heads), numbers, constants)


def row_moments(p: Problem, gradients: Gradients | None = None) -> tuple[Tensor, Tensor]:
    """The smaller sums, and a table of alpha^2 of every row that is normalised."""
    f, of_queries = p.form, gradients is not None
    x, w, r = (p.k, p.v, p.k) if gradients is None else (p.q, *gradients)
    launch = _moments_launch(f, of_queries)
    squares = p.table(x.shape[2]) if f.normalised else x
    sums = p.numbers(launch.grid[0], f.batch_heads, f.moments_size)
    launch(x, w, r, p.key_mask, p.temperature, sums, squares)
    return _add(p, sums, torch.float32), squares


@functools.lru_cache(maxsize=KEPT_FORMS)
def _state_launch(f: Form, of_queries: bool) -> Launch:
    tokens, x_stride, w_stride = f.rows(of_queries=of_queries)
    size = f.blocks("accumulate")
    splits, per_split = _splits(f, tokens, size, f.batch_heads * f.pairs)
    unnormalised = f.scale * f.scale if of_queries and not f.normalised else 1.0
    numbers = (
        f.heads, tokens, f.dim, f.width, per_split, *x_stride, *w_stride,
        f.a / max(1, f.keys) * unnormalised,
    )  # fmt: skip
    constants = {
        "TILES": f.tiles,
        "PAIRS": f.pairs,
        "BLOCK": size.block,
        "EVEN": f.is_even(tokens, per_split),
        **f.flags(masked=not of_queries),
        **size.options(),
    }
    del constants["DP"]
    return Launch(accumulate, (f.pairs, splits, f.batch_heads), numbers, constants)


def row_state(p: Problem, squares: Tensor, gradients: Gradients | None = None) -> Tensor:
    """The state (B H, pairs * 256, E)."""
    f = p.form
    x, w = (p.k, p.v) if gradients is None else (p.q, gradients[0])
    launch = _state_launch(f, gradients is not None)
    splits = launch.grid[1]
    dtype = f.operands if splits == 1 else torch.float32
    state = p.new(splits, f.batch_heads, f.pairs * 256, f.width, dtype=dtype)
    launch(x, w, p.key_mask, squares, state)
    return _add(p, state, f.operands)
