"""Launches of the fused kernels: grids, buffers, and nothing about gradients of gradients."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops.taylor.triton.blocks import INTERPRETED, add_parts, lengths, row_gradients
from saccade.ops.taylor.triton.direct_kernels import (
    direct_forward,
    direct_keys,
    direct_queries,
)
from saccade.ops.taylor.triton.efficient_kernels import (
    accumulate,
    gradients,
    moments,
    unfold,
    values,
)
from saccade.ops.taylor.triton.problem import Problem, power_of_two
from saccade.ops.taylor.triton.settings import Blocks, blocks_for

__all__ = [
    "INTERPRETED",
    "Grads",
    "run_direct",
    "run_direct_backward",
    "run_efficient",
    "run_efficient_backward",
]

Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]

# The interpreter, which runs the kernels on a CPU for tests, has no products of bfloat16.
_TRITON_DTYPE = {
    torch.bfloat16: tl.float32 if INTERPRETED else tl.bfloat16,
    torch.float32: tl.float32,
}
_ROW_BLOCK = 128
_PART_BLOCK = 1024


def _flags(p: Problem) -> dict[str, Any]:
    return {
        "DP": power_of_two(p.dim),
        "EP": power_of_two(p.width),
        "NORMALIZE": p.temperature is not None,
        "MASKED": p.key_mask is not None,
        "DTYPE": _TRITON_DTYPE[p.operands],
        "PRECISION": p.dot_precision,
    }


def _row_gradients(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    dy = p.new(p.batch_heads, p.queries, p.width, dtype=p.operands)
    dz = p.new(p.batch_heads, p.queries, dtype=torch.float32)
    row_gradients[(triton.cdiv(p.queries, _ROW_BLOCK), p.batch_heads)](
        grad, out, total, p.shares(), dy, dz, p.queries, p.heads, *grad.stride(), p.width, p.lift,
        EP=power_of_two(p.width), ROWS=_ROW_BLOCK,
        MASKED=p.key_mask is not None, LIFT=p.normalise_output,
    )  # fmt: skip
    return dy, dz


def _lengths(p: Problem, x: Tensor, *, tempered: bool) -> Tensor:
    """alpha of every row of x, (B H, tokens); any tensor where rows are not normalised."""
    if p.temperature is None:
        return x
    out = p.new(p.batch_heads, x.shape[2], dtype=torch.float32)
    lengths[(triton.cdiv(x.shape[2], _ROW_BLOCK), p.batch_heads)](
        x, p.temperature_argument, out, p.heads, x.shape[2], p.dim, *x.stride(),
        p.scale if tempered else 1.0,
        DP=power_of_two(p.dim), ROWS=_ROW_BLOCK, TEMPERED=tempered,
    )  # fmt: skip
    return out


def _is_even(p: Problem, tokens: int, block: int) -> bool:
    """Whether a loop over blocks of tokens meets neither an end nor a mask nor padding."""
    exact = p.dim == power_of_two(p.dim) and p.width == power_of_two(p.width)
    return exact and p.key_mask is None and tokens % block == 0


def run_direct(p: Problem) -> tuple[Tensor, Tensor]:
    """Output (B, H, N, E) and row sums over N, (B H, N)."""
    out = p.new(*p.q.shape[:3], p.width)
    total = p.new(p.batch_heads, p.queries, dtype=torch.float32)
    sums, alpha = _moments(p, _Rows(p.k, p.v), mixed=False)
    size = blocks_for("direct_forward", max(p.dim, p.width), p.operands)
    direct_forward[(triton.cdiv(p.queries, size.rows), p.batch_heads)](
        p.q, p.k, p.v, p.mask_argument, p.temperature_argument,
        alpha, p.shares(), sums, out, total, p.heads, p.queries, p.keys, p.dim, p.width,
        *p.q.stride(), *p.k.stride(), *p.v.stride(),
        p.scale, p.a, p.b, p.c, p.floor, p.lift,
        ROWS=size.rows, BLOCK=size.block, **size.options(),
        LIFT=p.normalise_output,
        EVEN=_is_even(p, p.keys, size.block), **_flags(p),
    )  # fmt: skip
    return out, total


def run_direct_backward(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature."""
    dy, dz = _row_gradients(p, grad, out, total)
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    dt = p.new(p.batch_heads, p.queries, dtype=torch.float32)
    strides = (*p.q.stride(), *p.k.stride(), *p.v.stride())
    sizes = (p.heads, p.queries, p.keys, p.dim, p.width, *strides, p.scale, p.a, p.b)
    size = blocks_for("direct_queries", max(p.dim, p.width), p.operands)
    direct_queries[(triton.cdiv(p.queries, size.rows), p.batch_heads)](
        p.q, p.k, p.v, p.mask_argument, p.temperature_argument,
        _lengths(p, p.k, tempered=False), dy, dz, dq, dt, *sizes,
        ROWS=size.rows, BLOCK=size.block, **size.options(),
        EVEN=_is_even(p, p.keys, size.block), **_flags(p),
    )  # fmt: skip
    size = blocks_for("direct_keys", max(p.dim, p.width), p.operands)
    direct_keys[(triton.cdiv(p.keys, size.rows), p.batch_heads)](
        p.q, p.k, p.v, p.mask_argument, _lengths(p, p.q, tempered=True), dy, dz,
        dy.sum(dim=1, dtype=torch.float32), dk, dv, *sizes, p.c,
        ROWS=size.rows, BLOCK=size.block, **size.options(),
        EVEN=_is_even(p, p.queries, size.block), **_flags(p),
    )  # fmt: skip
    return dq, dk, dv, _temperature_gradient(p, dt)


def _temperature_gradient(p: Problem, dt: Tensor) -> Tensor | None:
    if p.temperature is None:
        return None
    return dt.view(*p.q.shape[:3]).sum(dim=(0, 2))


def _tiles(p: Problem) -> dict[str, int]:
    tiles = triton.cdiv(p.dim, 16)
    return {"TILES": tiles, "PAIRS": tiles * (tiles + 1) // 2}


def _rows_per_program(p: Problem, tokens: int, rows: int, hold: bool) -> int:
    """Several blocks where the state is held, yet enough programs to fill the device."""
    if not hold:
        return rows
    programs: int = triton.cdiv(tokens, rows) * p.batch_heads
    return rows * max(1, min(8, programs // (4 * _multiprocessors(p.q.device))))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 132  # the interpreter plays an H200
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _splits(p: Problem, tokens: int, size: Blocks, programs: int) -> tuple[int, int]:
    """(splits, tokens in each): as many as fit on the device at once, none of them short.

    One more would wait for a second round while most of the device is idle.
    """
    room = size.resident * _multiprocessors(p.q.device)
    wanted = max(1, min(room // max(1, programs), triton.cdiv(tokens, 8 * size.block)))
    per_split = size.block * max(1, triton.cdiv(triton.cdiv(tokens, wanted), size.block))
    return max(1, triton.cdiv(tokens, per_split)), per_split


def _add(p: Problem, parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of float32 parts over the first axis."""
    if len(parts) == 1:
        return parts[0]
    total = p.new(*parts.shape[1:], dtype=dtype)
    add_parts[(triton.cdiv(total.numel(), _PART_BLOCK),)](
        parts, total, len(parts), total.numel(), BLOCK=_PART_BLOCK
    )
    return total


@dataclass(frozen=True)
class _Rows:
    """Rows x and w to sum over: keys and values, or queries and dy with weights r = dz."""

    x: Tensor
    w: Tensor
    r: Tensor | None = None

    @property
    def are_keys(self) -> bool:
        return self.r is None

    @property
    def tokens(self) -> int:
        return self.x.shape[2]


def _moments(p: Problem, rows: _Rows, *, mixed: bool = True) -> tuple[Tensor, Tensor]:
    """The smaller sums over rows, L among them or not; alpha of every row that is normalised."""
    x, w, normalised = rows.x, rows.w, p.temperature is not None
    alpha = p.new(p.batch_heads, rows.tokens, dtype=torch.float32) if normalised else x
    size = blocks_for("moments", max(p.dim, p.width), p.operands)
    parts, per_split = _splits(p, rows.tokens, size, p.batch_heads)
    sums = p.new(parts, p.batch_heads, _moments_size(p), dtype=torch.float32)
    over = 1 / max(1, p.keys)
    flags = _flags(p)
    flags["MASKED"] &= rows.are_keys
    moments[(parts, p.batch_heads)](
        x, w, x if rows.r is None else rows.r, p.mask_argument, p.temperature_argument, sums, alpha,
        p.heads, rows.tokens, p.dim, p.width, per_split, *x.stride(), *w.stride(),
        1.0 if rows.are_keys else p.scale, p.a * over, p.b * over, p.c * over,
        BLOCK=size.block, **size.options(),
        FOLD=max(1, 64 // flags["DP"]), MIXED=mixed,
        TEMPERED=not rows.are_keys and normalised, WEIGHTED=rows.r is not None,
        EVEN=_is_even(p, rows.tokens, per_split), **flags,
    )  # fmt: skip
    return _add(p, sums, torch.float32), alpha


def _state(p: Problem, rows: _Rows, alpha: Tensor) -> Tensor:
    """The state (B H, pairs * 256, E).

    Rows are split among several programs where one for each tile pair and head would leave the
    device idle; partial sums are added in a fixed order.
    """
    x, w, tiles = rows.x, rows.w, _tiles(p)
    size = blocks_for("accumulate", max(p.dim, p.width), p.operands)
    splits, per_split = _splits(p, rows.tokens, size, p.batch_heads * tiles["PAIRS"])
    dtype = p.operands if splits == 1 else torch.float32
    state = p.new(splits, p.batch_heads, tiles["PAIRS"] * 256, p.width, dtype=dtype)
    flags = _flags(p)
    flags["MASKED"] &= rows.are_keys
    del flags["DP"]
    unnormalised = p.scale * p.scale if p.temperature is None and not rows.are_keys else 1.0
    accumulate[(tiles["PAIRS"], splits, p.batch_heads)](
        x, w, p.mask_argument, alpha, state, p.heads, rows.tokens, p.dim, p.width, per_split,
        *x.stride(), *w.stride(), p.a / max(1, p.keys) * unnormalised,
        BLOCK=size.block, **size.options(),
        EVEN=_is_even(p, rows.tokens, per_split), **flags, **tiles,
    )  # fmt: skip
    return _add(p, state, p.operands)


def _moments_size(p: Problem) -> int:
    dim, width = power_of_two(p.dim), power_of_two(p.width)
    return dim * (width + dim + 1) + width


def run_efficient(p: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output (B, H, N, E), row sums over N (B H, N), the state and the smaller sums."""
    rows = _Rows(p.k, p.v)
    sums, alpha = _moments(p, rows)
    state = _state(p, rows, alpha)
    out = p.new(*p.q.shape[:3], p.width)
    total = p.new(p.batch_heads, p.queries, dtype=torch.float32)
    _values(p, p.q, state, sums, out, total)
    return out, total, state, sums


def _values(
    p: Problem, x: Tensor, state: Tensor, sums: Tensor, out: Tensor, total: Tensor | None
) -> None:
    """Numerator of every row of x; over its row sum, which is kept, where `total` is given."""
    queries = total is not None
    flags = _flags(p)
    flags["MASKED"] = not queries and p.key_mask is not None
    size = blocks_for("values", max(p.dim, p.width), p.operands)
    tiles, tokens = _tiles(p), x.shape[2]
    hold = tiles["PAIRS"] <= 3 and p.width <= 32
    per_program = _rows_per_program(p, tokens, size.rows, hold)
    values[(triton.cdiv(tokens, per_program), p.batch_heads)](
        x, p.mask_argument, p.temperature_argument, p.shares(), state, sums, out,
        sums if total is None else total,
        p.heads, tokens, p.dim, p.width, per_program, *x.stride(),
        p.scale if queries else 1.0, p.c, p.floor, p.lift,
        ROWS=size.rows, PART=size.block, **size.options(), HOLD=hold,
        TEMPERED=queries and p.temperature is not None, DIVIDE=queries,
        SHARED=p.key_mask is not None, LIFT=p.normalise_output,
        EVEN=_is_even(p, tokens, size.rows), **flags, **tiles,
    )  # fmt: skip


def _gradients(
    p: Problem, x: Tensor, y: Tensor, r: Tensor | None, state: Tensor, sums: Tensor, out: Tensor
) -> Tensor:
    """Gradient of the rows of x; returns each row's share of the temperature's."""
    queries = r is not None
    flags, tiles = _flags(p), _tiles(p)
    flags["MASKED"] = not queries and p.key_mask is not None
    wide_tiles = triton.cdiv(p.width, 16)
    pairs = tiles.pop("PAIRS")
    grid = (tiles["TILES"] * wide_tiles, p.batch_heads)
    turned = p.new(p.batch_heads, grid[0] * 256, flags["DP"], dtype=p.operands)
    unfold[grid](
        state, turned, p.width, PAIRS=pairs, WIDE_TILES=wide_tiles, DP=flags["DP"], **tiles
    )
    tokens = x.shape[2]
    dt = p.new(p.batch_heads, tokens, dtype=torch.float32)
    size = blocks_for("gradients", max(p.dim, p.width), p.operands)
    hold = max(tiles["TILES"], wide_tiles) <= 2
    per_program = _rows_per_program(p, tokens, size.rows, hold)
    gradients[(triton.cdiv(tokens, per_program), p.batch_heads)](
        x, y, x if r is None else r, p.mask_argument, p.temperature_argument, turned, sums,
        out, dt, p.heads, tokens, p.dim, p.width, per_program, *x.stride(), *y.stride(),
        p.scale if queries else 1.0,
        ROWS=size.rows, PART=size.block, **size.options(),
        WIDE_TILES=wide_tiles,
        TEMPERED=queries and p.temperature is not None, WEIGHTED=queries, HOLD=hold,
        EVEN=_is_even(p, tokens, size.rows), **flags, **tiles,
    )  # fmt: skip
    return dt


def run_efficient_backward(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor, state: Tensor, sums: Tensor
) -> Grads:
    """Gradients of q, k, v and the temperature."""
    dy, dz = _row_gradients(p, grad, out, total)
    dy = dy.view(*p.q.shape[:3], p.width)
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    dt = _gradients(p, p.q, dy, dz, state, sums, dq)
    rows = _Rows(p.q, dy, dz)
    sums, alpha = _moments(p, rows)
    state = _state(p, rows, alpha)
    _values(p, p.k, state, sums, dv, None)
    _gradients(p, p.k, p.v, None, state, sums, dk)
    return dq, dk, dv, _temperature_gradient(p, dt)
