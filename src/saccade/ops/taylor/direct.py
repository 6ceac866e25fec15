"""Taylor attention in quadratic time: no exponential, no running maximum, no N x N tensor.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = c + b s_ij + a s_ij^2,   s_ij = scale q_i.k_j

Queries are taken in chunks, and the backward pass forms the weights again instead of keeping them:

    dw_ij = (g_i.v_j - g_i.o_i) / z_i,   ds_ij = dw_ij (b + 2 a s_ij),   z_i = sum_j w_ij

Inside, s is q.k and the scale is in a and b.

Cost: 4 N^2 D FLOPs a head forward; memory linear in N. Layout (B, H, N, D), D != E allowed.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.arguments import compute_dtype, in_full_precision
from saccade.ops.registration import operator
from saccade.ops.taylor.chunks import pieces, sizes
from saccade.ops.taylor.denominators import denominator_floor, numerator_gradient, safe_denominator

__all__ = ["direct"]


def _scores(q: Tensor, k: Tensor, samples: slice, tokens: slice) -> Tensor:
    """q.k; the scale is in the coefficients."""
    return q[samples, :, tokens].to(k.dtype) @ k.mT


def _straight(s: Tensor, slope: float, start: float) -> Tensor:
    """start + slope s in one operation."""
    return torch.add(torch.full((), start, dtype=s.dtype, device=s.device), s, alpha=slope)


def _weights(s: Tensor, key_mask: Tensor | None, a: float, b: float, c: float) -> Tensor:
    """c + b s + a s^2 in two operations.

    Every operation on a CPU is a parallel region of its own. Where other processes use the cores,
    threads wait at the end of each for one that was preempted.
    """
    w = _straight(s, a, b)
    torch.addcmul(torch.full((), c, dtype=s.dtype, device=s.device), s, w, out=w)
    return w if key_mask is None else w.mul_(key_mask[:, None, None, :])


def _keys(x: Tensor, samples: slice, key_mask: Tensor | None) -> Tensor:
    piece = x[samples].to(compute_dtype(x.dtype))
    return piece if key_mask is None else piece.masked_fill(~key_mask[:, None, :, None], 0)


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
    dtype = compute_dtype(q.dtype)
    curve, slope = a * scale * scale, b * scale
    out = q.new_empty(batch, heads, queries, width)
    total = q.new_empty(batch, heads, queries, dtype=dtype)
    per_token = max(1, heads * keys * dtype.itemsize)
    group, length = sizes(batch, queries, per_token, q.device)
    for samples in pieces(batch, group):
        mask = None if key_mask is None else key_mask[samples]
        k_piece, v_piece = _keys(k, samples, mask), _keys(v, samples, mask)
        floor = denominator_floor(mask, keys, a, b, c)
        for tokens in pieces(queries, length):
            w = _weights(_scores(q, k_piece, samples, tokens), mask, curve, slope, c)
            z = safe_denominator(w.sum(dim=-1), floor)
            total[samples, :, tokens] = z
            out[samples, :, tokens] = (w @ v_piece) / z.unsqueeze(-1)
    return out, total


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
    dtype = compute_dtype(q.dtype)
    a, b = a * scale * scale, b * scale
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    per_token = max(1, heads * keys * dtype.itemsize)
    group, length = sizes(batch, queries, per_token, q.device)
    for samples in pieces(batch, group):
        mask = None if key_mask is None else key_mask[samples]
        k_piece, v_piece = _keys(k, samples, mask), _keys(v, samples, mask)
        dk_piece, dv_piece = torch.zeros_like(k_piece), torch.zeros_like(v_piece)
        for tokens in pieces(queries, length):
            s = _scores(q, k_piece, samples, tokens)
            dy, dz = numerator_gradient(
                grad[samples, :, tokens].to(dtype),
                out[samples, :, tokens].to(dtype),
                total[samples, :, tokens],
            )
            dv_piece += _weights(s, mask, a, b, c).mT @ dy
            ds = (dy @ v_piece.mT).add_(dz).mul_(_straight(s, 2 * a, b))
            if mask is not None:
                ds.mul_(mask[:, None, None, :])
            dq[samples, :, tokens] = ds @ k_piece
            dk_piece += ds.mT @ q[samples, :, tokens].to(dtype)
        dk[samples], dv[samples] = dk_piece, dv_piece
    return dq, dk, dv


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
