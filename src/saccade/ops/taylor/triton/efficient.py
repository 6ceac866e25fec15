"""The efficient algorithm: grids, buffers and launches of its kernels."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from saccade.ops.launches import Launch, compiled_at_once
from saccade.ops.taylor.triton.efficient_kernels import gradients, unfold, values
from saccade.ops.taylor.triton.problem import (
    KEPT_FORMS,
    Form,
    Grads,
    Problem,
    ceil_div,
    multiprocessors,
    operands_of,
    tile_pairs,
)
from saccade.ops.taylor.triton.rows import quotient_gradients, temperature_gradient
from saccade.ops.taylor.triton.sums import has_lengths, rounds, row_sums

__all__ = [
    "keeps_state",
    "run_backward_in_parts",
    "run_efficient",
    "run_efficient_backward",
    "run_in_parts",
]

# More does not fit beside what the products themselves take, on the smallest devices.
_HELD_BYTES = {torch.bfloat16: 64 << 10, torch.float32: 32 << 10}

_STATE_SHARE = 0.24
"""Bytes that states may have beside each byte of output where they are not kept."""

_ROUNDS_OF_LAUNCHES = 0.25
"""What the launches of a part cost beside it, in rounds of programs."""

_ROWS_AT_WORK = 64
"""Rows that keep a multiprocessor busy; more would take too many short samples at once."""

FREE_BYTES = 16 << 20
"""Bytes that they may have in any case."""


def _is_small(f: Form, pairs: int, columns: int) -> bool:
    """Whether a program can hold the state of so many tile pairs beside all else."""
    return pairs * 256 * columns * f.operands.itemsize <= _HELD_BYTES[f.operands]


def _rows_per_program(f: Form, tokens: int, rows: int, hold: bool) -> int:
    """Several blocks where the state is held, yet enough programs to fill the device."""
    if not hold:
        return rows
    programs = ceil_div(tokens, rows) * f.batch_heads
    return rows * max(1, min(8, programs // (4 * multiprocessors(f.device))))


@functools.lru_cache(maxsize=KEPT_FORMS)
def _values_launch(f: Form, of_queries: bool) -> Launch:
    tokens, stride, _ = f.rows(of_queries=of_queries)
    size = f.blocks("values")
    hold = f.pairs <= 3 and f.width <= 32 and _is_small(f, f.pairs, f.padded_width)
    per_program = _rows_per_program(f, tokens, size.rows, hold)
    numbers = (
        f.heads, tokens, f.dim, f.width, per_program, *stride,
        f.scale if of_queries else 1.0, f.c, f.floor, f.lift,
    )  # fmt: skip
    constants = {
        "TILES": f.tiles,
        "PAIRS": f.pairs,
        "ROWS": size.rows,
        "PART": size.block,
        "PIECE": size.piece,
        "HOLD": hold,
        "TEMPERED": of_queries and f.normalized,
        "DIVIDE": of_queries,
        "SHARED": of_queries and f.masked,
        "LIFT": of_queries and f.normalize_output,
        "EVEN": f.is_even(tokens, size.rows),
        **f.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(values, (ceil_div(tokens, per_program), f.batch_heads), numbers, constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _unfold_launch(f: Form) -> Launch:
    wide_tiles = ceil_div(f.width, 16)
    constants = {"TILES": f.tiles, "PAIRS": f.pairs, "WIDE_TILES": wide_tiles, "DP": f.padded_dim}
    return Launch(unfold, (f.tiles * wide_tiles, f.batch_heads), (f.width,), constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _gradients_launch(f: Form, of_queries: bool) -> Launch:
    tokens, x_stride, y_stride = f.rows(of_queries=of_queries)
    size = f.blocks("gradients")
    wide_tiles = ceil_div(f.width, 16)
    small = _is_small(f, f.tiles * wide_tiles, f.padded_dim)
    hold = small and max(f.tiles, wide_tiles) <= 2
    per_program = _rows_per_program(f, tokens, size.rows, hold)
    numbers = (
        f.heads, tokens, f.dim, f.width, per_program, *x_stride, *y_stride,
        f.scale if of_queries else 1.0,
    )  # fmt: skip
    constants = {
        "TILES": f.tiles,
        "WIDE_TILES": wide_tiles,
        "ROWS": size.rows,
        "PART": size.block,
        "PIECE": size.piece,
        "HOLD": hold,
        "TEMPERED": of_queries and f.normalized,
        "WEIGHTED": of_queries,
        "EVEN": f.is_even(tokens, size.rows),
        **f.flags(masked=not of_queries),
        **size.options(),
    }
    return Launch(gradients, (ceil_div(tokens, per_program), f.batch_heads), numbers, constants)


def _gradient(
    p: Problem, x: Tensor, y: Tensor, r: Tensor | None, state: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of queries (with r = dz) or keys x, and each row's share of the temperature's.

    Where the temperature has none, any tensor stands for the shares.
    """
    f, of_queries = p.form, r is not None
    unfold_state, launch = _unfold_launch(f), _gradients_launch(f, of_queries)
    turned = p.new(f.batch_heads, unfold_state.grid[0] * 256, f.padded_dim, dtype=f.operands)
    unfold_state(state, turned)
    out = p.new(*x.shape)
    dt = p.numbers(f.batch_heads, f.queries) if of_queries and f.normalized else out
    launch(x, y, x if r is None else r, p.key_mask, p.temperature, turned, sums, out, dt)
    return out, dt


def _attend(p: Problem, out: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor]:
    """Write the output, and row sums where there is room for them; the state and smaller sums."""
    state, sums = row_sums(p, room=out)
    launch = _values_launch(p.form, True)
    launch(p.q, p.key_mask, p.temperature, p.shares(), state, sums, out, total)
    return state, sums


def keeps_state(q: Tensor, v: Tensor) -> bool:
    """Whether states are kept for a backward pass: not where they have more bytes than the output.

    There the direct algorithm is faster, and takes less memory than either way.
    """
    numbers = q.shape[0] * q.shape[1] * v.shape[3]
    state = numbers * tile_pairs(q.shape[3]) * 256 * operands_of(q.dtype).itemsize
    return bool(state <= FREE_BYTES or state <= numbers * q.shape[2] * q.element_size())


@compiled_at_once
def run_efficient(p: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output (B, H, N, E), row sums over N (B H, N), the state and the smaller sums."""
    f = p.form
    out = p.new(f.batch, f.heads, f.queries, f.width)
    total = p.numbers(f.batch_heads, f.queries)
    return out, total, *_attend(p, out, total)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _samples_at_once(f: Form) -> int:
    """So many that their states are small beside the output, yet programs fill the device.

    Of those, as many as take all samples in the fewest rounds.
    """
    state = f.heads * (f.pairs * 256 * f.width * f.operands.itemsize + 4 * f.moments_size)
    lengths = f.heads * f.keys * f.operands.itemsize
    allowed = max(FREE_BYTES, _STATE_SHARE * f.batch_heads * f.head_bytes)
    programs = f.heads * ceil_div(f.queries, _ROWS_AT_WORK)
    least = min(f.batch, ceil_div(multiprocessors(f.device), programs))
    most = min(f.batch, int(allowed / state))

    def fits(samples: int) -> bool:
        return not has_lengths(f, samples) or samples * (state + lengths) <= allowed

    def rounds_in_all(samples: int) -> float:
        parts, rest = divmod(f.batch, samples)
        last = _ROUNDS_OF_LAUNCHES + rounds(f, rest) if rest else 0
        return parts * (_ROUNDS_OF_LAUNCHES + rounds(f, samples)) + last

    fewest_parts_first = filter(fits, range(most, least, -1))
    return min([*fewest_parts_first, least], key=rounds_in_all)


def _parts(f: Form) -> Iterator[tuple[slice, slice]]:
    """Some samples at a time, and their heads."""
    samples = _samples_at_once(f)
    for first in range(0, f.batch, samples):
        last = min(first + samples, f.batch)
        yield slice(first, last), slice(first * f.heads, last * f.heads)


@compiled_at_once
def run_in_parts(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where asked for, row sums; the states of each part are forgotten."""
    f = p.form
    out = p.new(f.batch, f.heads, f.queries, f.width)
    total = p.numbers(f.batch_heads, f.queries) if keep else None
    if _samples_at_once(f) >= f.batch:  # slices of everything take longer than a short launch
        _attend(p, out, total)
        return out, total
    for some, heads in _parts(f):
        _attend(p.of_samples(some), out[some], None if total is None else total[heads])
    return out, total


@compiled_at_once
def run_efficient_backward(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor, state: Tensor, sums: Tensor
) -> Grads:
    """Gradients of q, k, v and the temperature."""
    dy, dz = quotient_gradients(p, grad, out, total)
    dq, dt = _gradient(p, p.q, dy, dz, state, sums)
    state, sums = row_sums(p, (dy, dz))
    del dy, dz  # as much memory as what follows takes
    dv = p.new(*p.v.shape)
    _values_launch(p.form, False)(p.k, p.key_mask, p.temperature, p.q, state, sums, dv, None)
    dk, _ = _gradient(p, p.k, p.v, None, state, sums)
    return dq, dk, dv, temperature_gradient(p, dt)


def run_backward_in_parts(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature; the states of each part are formed anew."""
    dq, dk, dv = whole = [p.new(*x.shape) for x in (p.q, p.k, p.v)]
    shares = []
    for some, heads in _parts(p.form):
        part = p.of_samples(some)
        state, sums = row_sums(part)
        *found, share = run_efficient_backward(
            part, grad[some], out[some], total[heads], state, sums
        )
        for x, piece in zip(whole, found, strict=True):
            x[some] = piece
        if share is not None:
            shares.append(share)
    return dq, dk, dv, torch.stack(shares).sum(dim=0) if shares else None
