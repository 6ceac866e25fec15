"""The efficient algorithm: features of a tile pair are formed in registers and fed to one product.

A row x is cut into tiles of 16. The outer product of tiles (m, n) is 256 features; by symmetry only
m <= n is needed, off-diagonal pairs counted twice. With sums over keys divided by N:

    S = sum (k (x) k) v^T                                         (accumulate, accumulate_swizzled)
    L = sum k v^T,   G = sum k k^T,   p = sum k,   r = sum v                             (moments)
    o = (a (x (x) x) S + b x L + c r) / z,   z = a x G x + b x.p + c m                   (values)

and backwards, with dS, dL, dG, dp, dr accumulated in the same way from x, dy and dz,

    dx = 2 a (x (x) dy) S' + b dy L^T + dz (2 a x G + b p)                               (gradients)
    dv = a (k (x) k) dS + b k dL + c dr                                                  (values)
    dk = 2 a (k (x) v) dS' + b v dL^T + 2 a k dG + b dp                                  (gradients)

S' is S with its second feature axis last: contracting x (x) dy with it needs no reduction over
registers. Coefficients a, b, c are in the sums when they are stored.

Outer products are taken of rows as they lie in memory; alpha^2 (alpha in x (x) dy) multiplies what
comes out of a product, the other operand of one, or one factor of the features, never all of them.

The kernels lie beside their launches: `efficient_state`, `efficient_moments`, `efficient_values`
and `efficient_gradients`.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from saccade.ops._triton.launch import compiled_at_once
from saccade.ops._triton.tiles import ceil_div, multiprocessors
from saccade.ops.taylor.triton.efficient_gradients import run_gradient
from saccade.ops.taylor.triton.efficient_state import has_lengths, row_sums, waves
from saccade.ops.taylor.triton.efficient_values import values_launch
from saccade.ops.taylor.triton.rows import quotient_gradients, temperature_gradient
from saccade.ops.taylor.triton.shapes import (
    FREE_BYTES,
    KEPT_CALLS,
    CallShape,
    Grads,
    Problem,
    operands_of,
    tile_pairs,
)

__all__ = [
    "keeps_state",
    "run_backward_in_parts",
    "run_efficient",
    "run_efficient_backward",
    "run_in_parts",
]

_STATE_SHARE = 0.24
"""Bytes that states may have beside each byte of output where they are not kept."""

_WAVES_PER_LAUNCH = 0.25
"""Cost of the launches of a part, in waves of programs."""

_ROWS_AT_WORK = 64
"""Rows that keep a multiprocessor busy; more would take too many short samples at once."""


def _attend(p: Problem, out: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor]:
    """Write the output, and row sums if `total` is given; the state and smaller sums."""
    state, sums = row_sums(p, scratch=out)
    launch = values_launch(p.call, True)
    launch(p.q, p.key_mask, p.temperature, p.key_fractions(), state, sums, out, total)
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
    call = p.call
    out = p.new(call.batch, call.heads, call.queries, call.width)
    total = p.numbers(call.batch_heads, call.queries)
    return out, total, *_attend(p, out, total)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _samples_at_once(call: CallShape) -> int:
    """So many that their states are small beside the output, yet programs fill the device.

    Of those, as many as take all samples in the fewest waves.
    """
    state = call.heads * (
        call.pairs * 256 * call.width * call.operands.itemsize + 4 * call.moments_size
    )
    lengths = call.heads * call.keys * call.operands.itemsize
    allowed = max(FREE_BYTES, _STATE_SHARE * call.batch_heads * call.head_bytes)
    programs = call.heads * ceil_div(call.queries, _ROWS_AT_WORK)
    least = min(call.batch, ceil_div(multiprocessors(call.device), programs))
    most = min(call.batch, int(allowed / state))

    def fits(samples: int) -> bool:
        return not has_lengths(call, samples) or samples * (state + lengths) <= allowed

    def waves_in_all(samples: int) -> float:
        parts, rest = divmod(call.batch, samples)
        last = _WAVES_PER_LAUNCH + waves(call, rest) if rest else 0
        return parts * (_WAVES_PER_LAUNCH + waves(call, samples)) + last

    fewest_parts_first = filter(fits, range(most, least, -1))
    return min([*fewest_parts_first, least], key=waves_in_all)


def _parts(call: CallShape) -> Iterator[tuple[slice, slice]]:
    """Some samples at a time, and their heads."""
    samples = _samples_at_once(call)
    for first in range(0, call.batch, samples):
        last = min(first + samples, call.batch)
        yield slice(first, last), slice(first * call.heads, last * call.heads)


@compiled_at_once
def run_in_parts(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where asked for, row sums; the states of each part are forgotten."""
    call = p.call
    out = p.new(call.batch, call.heads, call.queries, call.width)
    total = p.numbers(call.batch_heads, call.queries) if keep else None
    if _samples_at_once(call) >= call.batch:  # slices of everything take longer than a short launch
        _attend(p, out, total)
        return out, total
    for some, heads in _parts(call):
        _attend(p.of_samples(some), out[some], None if total is None else total[heads])
    return out, total


@compiled_at_once
def run_efficient_backward(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor, state: Tensor, sums: Tensor
) -> Grads:
    """Gradients of q, k, v and the temperature."""
    dy, dz = quotient_gradients(p, grad, out, total)
    dq, dt = run_gradient(p, p.q, dy, dz, state, sums)
    state, sums = row_sums(p, (dy, dz))
    del dy, dz  # as much memory as what follows takes
    dv = p.new(*p.v.shape)
    values_launch(p.call, False)(p.k, p.key_mask, p.temperature, p.q, state, sums, dv, None)
    dk, _ = run_gradient(p, p.k, p.v, None, state, sums)
    return dq, dk, dv, temperature_gradient(p, dt)


def run_backward_in_parts(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature; the states of each part are formed anew."""
    dq, dk, dv = found_all = [p.new(*x.shape) for x in (p.q, p.k, p.v)]
    partials = []
    for some, heads in _parts(p.call):
        part = p.of_samples(some)
        state, sums = row_sums(part)
        *found, partial = run_efficient_backward(
            part, grad[some], out[some], total[heads], state, sums
        )
        for x, gradient in zip(found_all, found, strict=True):
            x[some] = gradient
        if partial is not None:
            partials.append(partial)
    return dq, dk, dv, torch.stack(partials).sum(dim=0) if partials else None
