"""Taylor attention in quadratic time: no exponential, no running maximum, no N x N tensor.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = c + b s_ij + a s_ij^2,   s_ij = scale q_i.k_j

The weight is a square and a constant:

    w_ij = t_ij^2 + w0,   t_ij = sqrt(a) s_ij + b / (2 sqrt(a)),   w0 = c - b^2 / (4 a) >= 0

so that one pass over t in place makes the weights, and w0 enters the sums over keys as w0 sum_j v_j
and w0 N. Queries are taken in chunks, and the backward pass forms t again instead of keeping it:

    dw_ij = (g_i.v_j - g_i.o_i) / z_i,   ds_ij = 2 sqrt(a) t_ij dw_ij,   z_i = sum_j w_ij

Cost: 4 N^2 D FLOPs per head forward; memory linear in N. Layout (B, H, N, D), D != E allowed.
"""

from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.arguments import compute_dtype, in_full_precision
from saccade.ops.registration import operator
from saccade.ops.taylor.chunks import chunk_sizes, chunk_slices
from saccade.ops.taylor.denominators import numerator_gradient, safe_denominator

__all__ = ["direct"]

_THREAD_BYTES = 3 << 20
"""Bytes of weights in a chunk for each thread of a CPU: few enough for the cache, and so many that
waking the threads, once for each operation on a chunk, costs little (docs/log.md)."""


class _Square(NamedTuple):
    """The weight as a square and a constant: (factor q.k + shift)^2 + min_weight."""

    factor: float
    shift: float
    min_weight: float


def _square(scale: float, a: float, b: float, c: float) -> _Square:
    return _Square(sqrt(a) * scale, b / (2 * sqrt(a)), max(0.0, c - b * b / (4 * a)))


def _roots(
    q: Tensor, k: Tensor, key_mask: Tensor | None, square: _Square, buffer: Tensor
) -> Tensor:
    """t of a chunk, zero for masked keys: (G, n, D), (G, S, D) -> (G, n, S), written to `buffer`.

    Every operation on a CPU is a parallel region of its own. Where other processes use the cores,
    threads wait at the end of each for one that was preempted. So there are few operations.
    """
    t = buffer[: q.shape[0], : q.shape[1]].fill_(square.shift)
    t.baddbmm_(q, k.mT, alpha=square.factor)
    return t if key_mask is None else t.mul_(key_mask.unsqueeze(1))


def _heads(x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """(B, H, N, D) as (B * H, N, D) in the dtype of sums, zero where masked."""
    x = x.to(compute_dtype(x.dtype))
    if key_mask is not None:
        x = x.masked_fill(~key_mask[:, None, :, None], 0)
    return x.flatten(0, 1)


def _mask_of_heads(key_mask: Tensor | None, heads: int) -> Tensor | None:
    """(B, S) as (B * H, S)."""
    return None if key_mask is None else key_mask.repeat_interleave(heads, dim=0)


def _constant_sum(
    mask: Tensor | None, keys: int, min_weight: float, dtype: torch.dtype
) -> float | Tensor:
    """The constant's sum over the keys that are attended to: a number, or (G, 1)."""
    return (
        min_weight * keys
        if mask is None
        else min_weight * mask.sum(dim=-1, keepdim=True, dtype=dtype)
    )


def _buffer(q: Tensor, keys: int) -> tuple[Tensor, int, int]:
    """Memory for the t of a chunk (G, n, S), and its numbers of heads and of queries."""
    (batch, heads, queries, _), dtype = q.shape, compute_dtype(q.dtype)
    per_token = max(1, keys * dtype.itemsize)
    cpu_bytes = _THREAD_BYTES * torch.get_num_threads()
    group, length = chunk_sizes(batch * heads, queries, per_token, q.device, cpu_bytes=cpu_bytes)
    return q.new_empty(group, length, keys, dtype=dtype), group, length


@operator("taylor_direct")
@in_full_precision
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
) -> tuple[Tensor, Tensor]:
    (batch, heads, queries, _), keys, width = q.shape, k.shape[2], v.shape[-1]
    dtype, square = compute_dtype(q.dtype), _square(scale, a, b, c)
    out = q.new_empty(batch * heads, queries, width)
    total = q.new_empty(batch * heads, queries, dtype=dtype)
    rows, k_rows, v_rows = _heads(q), _heads(k, key_mask), _heads(v, key_mask)
    mask = _mask_of_heads(key_mask, heads)
    constant = v_rows.sum(dim=1, keepdim=True) * square.min_weight  # (B * H, 1, E)
    buffer, group, length = _buffer(q, keys)
    for some in chunk_slices(batch * heads, group):
        own = None if mask is None else mask[some]
        smallest = _constant_sum(own, keys, square.min_weight, dtype)
        for tokens in chunk_slices(queries, length):
            t = _roots(rows[some, tokens], k_rows[some], own, square, buffer)
            w = t.mul_(t)
            z = safe_denominator(w.sum(dim=-1).add_(smallest), smallest)
            y = torch.baddbmm(constant[some], w, v_rows[some])  # (G, n, E)
            total[some, tokens] = z
            out[some, tokens] = y.div_(z.unsqueeze(-1))
    return out.view(batch, heads, queries, width), total.view(batch, heads, queries)


@_forward.register_fake
def _(q, k, v, key_mask, scale, a, b, c):  # type: ignore[no-untyped-def]
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    return out, q.new_empty(q.shape[:3], dtype=compute_dtype(q.dtype))


@operator("taylor_direct_backward")
@in_full_precision
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    total: Tensor,
    scale: float,
    a: float,
    b: float,
    c: float,
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, queries, _), keys = q.shape, k.shape[2]
    square = _square(scale, a, b, c)
    twice = 2 * square.factor
    rows, k_rows, v_rows = _heads(q), _heads(k, key_mask), _heads(v, key_mask)
    dy, dz = numerator_gradient(_heads(grad), _heads(out), total.flatten(0, 1))
    dq, dk, dv = torch.empty_like(rows), torch.zeros_like(k_rows), torch.zeros_like(v_rows)
    mask = _mask_of_heads(key_mask, heads)
    buffer, group, length = _buffer(q, keys)
    for some in chunk_slices(batch * heads, group):
        own = None if mask is None else mask[some]
        for tokens in chunk_slices(queries, length):
            t = _roots(rows[some, tokens], k_rows[some], own, square, buffer)
            dv[some].baddbmm_((t * t).mT, dy[some, tokens])
            ds = torch.baddbmm(dz[some, tokens], dy[some, tokens], v_rows[some].mT).mul_(t)
            dq[some, tokens] = (ds @ k_rows[some]).mul_(twice)  # ds is over 2 sqrt(a) scale
            dk[some].baddbmm_(ds.mT, rows[some, tokens], alpha=twice)
    dv += square.min_weight * dy.sum(dim=1, keepdim=True)
    if mask is not None:
        dv *= mask.unsqueeze(-1)
    return tuple(
        grad_x.view(x.shape).to(x.dtype) for grad_x, x in zip((dq, dk, dv), (q, k, v), strict=True)
    )  # type: ignore[return-value]


@_backward.register_fake
def _(grad, q, k, v, key_mask, out, total, scale, a, b, c):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, key_mask, *ctx.numbers = inputs
    out, total = output
    ctx.save_for_backward(q, k, v, key_mask, out, total)
    ctx.mark_non_differentiable(total)


def _autograd(ctx, grad, _grad_total):  # type: ignore[no-untyped-def]
    dq, dk, dv = _backward(grad, *ctx.saved_tensors, *ctx.numbers)
    return dq, dk, dv, None, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)


@register_flop_formula(torch.ops.saccade.taylor_direct)
def _flops(q, k, v, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return int(2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]))


@register_flop_formula(torch.ops.saccade.taylor_direct_backward)
def _flops_backward(_grad, q, k, v, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return int(2 * q[0] * q[1] * q[2] * k[2] * (3 * q[3] + 2 * v[3]))


def direct(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    key_mask: Tensor | None,
) -> Tensor:
    """The output (B, H, N, E); arguments are checked by `taylor_attention`."""
    out: Tensor = _forward(q, k, v, key_mask, scale, *coefficients)[0]
    return out
