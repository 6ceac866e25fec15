"""Taylor attention in linear time (TaylorShift, arXiv:2403.02920), with symmetric features.

With phi and W of `features.py` and u = (v, 1):

    S = sum_j phi(k_j) u_j^T,   (y_i, z_i) = phi(scale q_i)^T W S,   o_i = y_i / z_i

and backwards, with d(y_i, z_i) = (g_i, -g_i.o_i) / z_i,

    dphi(q_i) = W S d(y_i, z_i),            dS = sum_i phi(scale q_i) d(y_i, z_i)^T
    dphi(k_j) = W dS u_j,                   du_j = (W dS)^T phi(k_j)

Cost: 4 N F (E+1) FLOPs a head forward, F = D(D+1)/2 + D + 1; memory N (D + E) + F (E + 1).
Tokens are taken in chunks: neither pass forms the features of all tokens.

# DEVIATION: the paper divides v by N and scales q and k by D^(1/4) to keep float16 in range. All
# sums here are float32 (or float64), which holds them without.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.arguments import compute_dtype, in_full_precision
from saccade.ops.registration import operator
from saccade.ops.taylor.chunks import chunk_sizes, chunk_slices, feature_major
from saccade.ops.taylor.denominators import denominator_floor, numerator_gradient, safe_denominator
from saccade.ops.taylor.features import (
    feature_weights,
    features,
    features_pullback,
    num_features,
)

__all__ = ["efficient"]


def _values(v: Tensor, samples: slice, tokens: slice, key_mask: Tensor | None) -> Tensor:
    """u = (v, 1) of a chunk: (G, E+1, n), zero for masked keys."""
    chunk = feature_major(v, samples, tokens, compute_dtype(v.dtype), key_mask)
    u = chunk.new_ones(chunk.shape[0], chunk.shape[1] + 1, chunk.shape[2])
    u[:, :-1] = chunk
    if key_mask is not None:
        u[:, -1] = key_mask[samples, None, tokens].expand(-1, v.shape[1], -1).flatten(0, 1)
    return u


def _token_major(x: Tensor, heads: int) -> Tensor:
    """Back from (samples * H, E, n) to (samples, H, n, E)."""
    return x.view(-1, heads, *x.shape[1:]).mT


def _sizes(q: Tensor, tokens: int) -> tuple[int, int]:
    per_token = q.shape[1] * num_features(q.shape[-1]) * compute_dtype(q.dtype).itemsize
    return chunk_sizes(q.shape[0], tokens, max(1, per_token), q.device)


@operator("taylor_efficient")
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
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, queries, dim), keys, width = q.shape, k.shape[2], v.shape[-1]
    dtype = compute_dtype(q.dtype)
    out = q.new_empty(batch, heads, queries, width)
    total = q.new_empty(batch, heads, queries, dtype=dtype)
    state = q.new_zeros(batch, heads, num_features(dim), width + 1, dtype=dtype)
    weights = feature_weights(dim, a, b, c, state)
    group, length = _sizes(q, max(queries, keys))
    buffer = state.new_empty(group * heads, num_features(dim), length)
    for samples in chunk_slices(batch, group):
        s = state[samples].flatten(0, 1)  # (G, F, E+1), a view
        for tokens in chunk_slices(keys, length):
            phi = features(feature_major(k, samples, tokens, dtype, key_mask), buffer)
            s.baddbmm_(phi, _values(v, samples, tokens, key_mask).mT)
        s *= weights
        mask = None if key_mask is None else key_mask[samples]
        floor = denominator_floor(mask, keys, a, b, c)
        for tokens in chunk_slices(queries, length):
            phi = features(feature_major(q, samples, tokens, dtype) * scale, buffer)
            y = _token_major(s.mT @ phi, heads)  # (samples, H, n, E+1)
            z = safe_denominator(y[..., -1], floor)
            total[samples, :, tokens] = z
            out[samples, :, tokens] = y[..., :-1] / z.unsqueeze(-1)
    return out, total, state


@_forward.register_fake
def _(q, k, v, key_mask, scale, a, b, c):  # type: ignore[no-untyped-def]
    dtype = compute_dtype(q.dtype)
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    state_shape = (*q.shape[:2], num_features(q.shape[-1]), v.shape[-1] + 1)
    return out, q.new_empty(q.shape[:3], dtype=dtype), q.new_empty(state_shape, dtype=dtype)


@operator("taylor_efficient_backward")
@in_full_precision
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    total: Tensor,
    state: Tensor,
    scale: float,
    a: float,
    b: float,
    c: float,
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    dtype = compute_dtype(q.dtype)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    weights = feature_weights(dim, a, b, c, state)
    group, length = _sizes(q, max(queries, keys))
    buffer = state.new_empty(group * heads, num_features(dim), length)
    for samples in chunk_slices(batch, group):
        s = state[samples].flatten(0, 1)  # (G, F, E+1), W already in it
        ds = torch.zeros_like(s)
        for tokens in chunk_slices(queries, length):
            x = feature_major(q, samples, tokens, dtype) * scale
            dy = torch.cat(
                numerator_gradient(
                    grad[samples, :, tokens].to(dtype),
                    out[samples, :, tokens].to(dtype),
                    total[samples, :, tokens],
                ),
                dim=-1,
            ).flatten(0, 1)  # (G, n, E+1)
            ds.baddbmm_(features(x, buffer), dy)
            dx = features_pullback(x, s @ dy.mT) * scale
            dq[samples, :, tokens] = _token_major(dx, heads)
        ds *= weights
        for tokens in chunk_slices(keys, length):
            x = feature_major(k, samples, tokens, dtype, key_mask)
            u = _values(v, samples, tokens, key_mask)
            dx = features_pullback(x, ds @ u)
            du = _token_major(ds[..., :-1].mT @ features(x, buffer), heads)
            if key_mask is not None:
                du = du * key_mask[samples, None, tokens, None]
            dk[samples, :, tokens] = _token_major(dx, heads)
            dv[samples, :, tokens] = du
    return dq, dk, dv


@_backward.register_fake
def _(grad, q, k, v, key_mask, out, total, state, scale, a, b, c):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, key_mask, *ctx.numbers = inputs
    out, total, state = output
    ctx.save_for_backward(q, k, v, key_mask, out, total, state)
    ctx.mark_non_differentiable(total, state)


def _autograd(ctx, grad, _grad_total, _grad_state):  # type: ignore[no-untyped-def]
    dq, dk, dv = _backward(grad, *ctx.saved_tensors, *ctx.numbers)
    return dq, dk, dv, None, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)


@register_flop_formula(torch.ops.saccade.taylor_efficient)
def _flops(q, k, v, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return int(2 * q[0] * q[1] * (q[2] + k[2]) * num_features(q[3]) * (v[3] + 1))


@register_flop_formula(torch.ops.saccade.taylor_efficient_backward)
def _flops_backward(_grad, q, k, v, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return int(4 * q[0] * q[1] * (q[2] + k[2]) * num_features(q[3]) * (v[3] + 1))


def efficient(
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
