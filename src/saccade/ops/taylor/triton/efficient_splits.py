"""How sums over rows are split among programs, and how the parts are added.

Rows are split among several programs where one for each head (and tile pair) would leave the device
idle; partial sums are added in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.tiles import ceil_div, multiprocessors
from saccade.ops.taylor.triton.configs import Blocks
from saccade.ops.taylor.triton.shapes import KEPT_CALLS, CallShape, Problem

__all__ = [
    "MIN_STEPS",
    "Constants",
    "Division",
    "Gradients",
    "Numbers",
    "add_launch",
    "add_parts",
    "add_up",
    "divide_tiles",
    "equal_splits",
    "programs_at_once",
    "split_rows",
]


@triton.jit
def add_parts(
    p_parts,
    p_head,
    p_tail,
    parts,
    head,
    size,
    BLOCK: tl.constexpr,
):
    """Partial sums (parts, size) added up in order: the first `head` of them, and the others."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(parts):
        total += tl.load(p_parts + places, mask=places < size, other=0.0)
        p_parts += size
    in_head = places < head
    tl.store(p_head + places, total.to(p_head.dtype.element_ty), mask=in_head)
    in_tail = (places >= head) & (places < size)
    tl.store(p_tail + places - head, total.to(p_tail.dtype.element_ty), mask=in_tail)


_PART_BLOCK = 1024
MIN_STEPS = 8  # of a loop over the rows of a split
_FEW_SPLITS = 4  # so many are tried even if they do not all run at once

Numbers = tuple[Any, ...]
Constants = dict[str, Any]

Gradients = tuple[Tensor, Tensor]
"""dy (B, H, N, E) and dz (B H, N): with them sums go over queries, else over keys and values."""


def split_rows(call: CallShape, tokens: int, size: Blocks, programs: int) -> tuple[int, int]:
    """(splits, tokens in each): as many as fit on the device at once, none of them short.

    One more program would wait for a second wave while most of the device is idle.
    """
    return equal_splits(tokens, size, max(1, programs_at_once(call, size) // max(1, programs)))


def programs_at_once(call: CallShape, size: Blocks) -> int:
    """How many programs with such blocks run at once."""
    return size.resident * multiprocessors(call.device)


def equal_splits(tokens: int, size: Blocks, wanted: int) -> tuple[int, int]:
    """(splits, tokens in each): not more than wanted, none of them short."""
    wanted = min(wanted, ceil_div(tokens, MIN_STEPS * size.block))
    per_split = size.block * max(1, ceil_div(ceil_div(tokens, max(1, wanted)), size.block))
    return max(1, ceil_div(tokens, per_split)), per_split


class Division(NamedTuple):
    """How tiles are shared out.

    Attributes:
        unsplit: How many have a program each.
        rest: How many more have their rows split among programs.
        splits: Among how many.
        waves: How many times the programs fill the device; programs of split rows take a
            fraction of a wave.
    """

    unsplit: int
    rest: int
    splits: int
    waves: float


@functools.lru_cache(maxsize=KEPT_CALLS)
def divide_tiles(tiles: int, at_once: int, most_splits: int, most_parts: int) -> Division:
    """How to divide tiles among programs, `at_once` of which run at a time, in the fewest waves.

    What is left after full waves would leave most of the device idle, so it is split. Not only
    into as many as run at once: 160 tiles in 264 places take two thirds of a wave, split in three.

    Args:
        tiles: All of them.
        at_once: How many programs run at once.
        most_splits: Into how many the rows can be split.
        most_parts: For how many tiles of partial sums there is memory.
    """
    unsplit = tiles // at_once * at_once
    rest = tiles - unsplit
    if rest == 0:
        return Division(tiles, 0, 1, tiles / at_once)
    most = max(1, min(most_splits, max(_FEW_SPLITS, at_once // rest), most_parts // rest))
    last, splits = min((ceil_div(rest * n, at_once) / n, n) for n in range(1, most + 1))
    if splits == 1:
        return Division(tiles, 0, 1, unsplit / at_once + last)
    return Division(unsplit, rest, splits, unsplit / at_once + last)


@functools.lru_cache(maxsize=KEPT_CALLS)
def add_launch(parts: int, head: int, size: int) -> Launch:
    """The launch of `add_parts`."""
    grid = (ceil_div(size, _PART_BLOCK),)
    return Launch(add_parts, grid, (parts, head, size), {"BLOCK": _PART_BLOCK})


def add_up(p: Problem, parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of float32 parts over the first axis."""
    if len(parts) == 1:
        return parts[0]
    total = p.new(*parts.shape[1:], dtype=dtype)
    add_launch(len(parts), total.numel(), total.numel())(parts, total, total)
    return total
