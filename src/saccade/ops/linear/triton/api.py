"""The fused attention as an operator of torch: autograd, fake tensors, FLOPs."""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops._triton.launch import on_device
from saccade.ops.linear.triton.heads import run_head_backward, run_head_forward, takes_whole_heads
from saccade.ops.linear.triton.shapes import Call, HeadState, QueryRows, parts_of, state_dtype
from saccade.ops.linear.triton.state import run_state
from saccade.ops.linear.triton.tokens import run_key_gradient, run_mix, run_query_gradient
from saccade.ops.registration import operator

__all__ = ["fused"]


def _num_features(q: Tensor, projection: Tensor | None) -> int:
    return q.shape[-1] if projection is None else projection.shape[0]


def _call(
    q: Tensor, v: Tensor, projection: Tensor | None, feature_map: str, scale: float, precision: str
) -> Call:
    return Call(
        feature_map,
        parts_of(projection, q.dtype),
        dtype=v.dtype,
        num_features=_num_features(q, projection),
        dim=q.shape[-1],
        width=v.shape[-1],
        scale=scale,
        precision=precision,
    )


def _token_major(x: Tensor, like: Tensor) -> Tensor:
    """A new tensor of the tokens of x and the width and dtype of another.

    (B, H, N, E) as a view of (B, N, H, E): what the output projection reads, without a copy.
    """
    batch, heads, length = x.shape[:3]
    return like.new_empty(batch, length, heads, like.shape[-1]).transpose(1, 2)


def _as_bytes(key_mask: Tensor | None) -> Tensor | None:
    return None if key_mask is None else key_mask.contiguous().view(torch.uint8)


@operator("linear_fused")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor | None,
    key_mask: Tensor | None,
    feature_map: str,
    scale: float,
    constant: float,
    eps: float,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    call = _call(q, v, projection, feature_map, scale, precision)
    out = _token_major(q, v)
    with on_device(q):
        if takes_whole_heads(call, q):
            return out, *run_head_forward(
                call, q, k, v, _as_bytes(key_mask), out, constant=constant, eps=eps
            )
        summed = run_state(call, k, v, constant=constant, eps=eps, key_mask=_as_bytes(key_mask))
        total, query_top = run_mix(call, q, summed, out)
    return out, summed.state, summed.weight, summed.top, total, query_top


@_forward.register_fake
def _(q, k, v, projection, key_mask, feature_map, scale, constant, eps, precision):  # type: ignore[no-untyped-def]
    favor, heads, m = feature_map == "favor_softmax", q.shape[:2], _num_features(q, projection)

    def new(*shape: int) -> Tensor:
        empty: Tensor = q.new_empty(shape, dtype=torch.float32)
        return empty

    return (
        _token_major(q, v),
        new(*heads, m, v.shape[-1]).to(state_dtype(v.dtype)),
        new(*heads, m),
        new(*heads) if favor else new(0),
        new(*q.shape[:3]),
        new(*q.shape[:3]) if favor else new(0),
    )


@operator("linear_fused_backward")
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor | None,
    key_mask: Tensor | None,
    out: Tensor,
    state: Tensor,
    weight: Tensor,
    key_top: Tensor,
    total: Tensor,
    query_top: Tensor,
    feature_map: str,
    scale: float,
    constant: float,
    eps: float,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    call = _call(q, v, projection, feature_map, scale, precision)
    gradients = dq, dk, dv = _token_major(q, q), _token_major(k, k), _token_major(v, v)
    if takes_whole_heads(call, q, backward=True):
        kept = (state, weight, key_top, total, query_top)
        with on_device(q):
            run_head_backward(
                call, q, k, v, _as_bytes(key_mask), kept, grad, out, gradients,
                constant=constant, eps=eps,
            )  # fmt: skip
        return gradients
    scaled = torch.empty(out.shape, dtype=state_dtype(v.dtype), device=v.device)
    rows = QueryRows(total, query_top, scaled, torch.empty_like(total))
    with on_device(q):
        run_query_gradient(call, q, HeadState(state, weight, weight, key_top), rows, grad, out, dq)
        summed = run_state(call, q, scaled, constant=constant, eps=eps, queries=rows)
        run_key_gradient(call, k, v, _as_bytes(key_mask), summed, key_top, dk, dv)
    return gradients


@_backward.register_fake
def _(grad, q, k, v, *_args):  # type: ignore[no-untyped-def]
    return tuple(_token_major(x, x) for x in (q, k, v))


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, projection, key_mask, *ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, projection, key_mask, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # else their gradients are written out as zeros


def _autograd(ctx, grad, *_grads):  # type: ignore[no-untyped-def]
    dq, dk, dv = _backward.within_backward((grad, *ctx.saved_tensors, *ctx.numbers))
    return dq, dk, dv, None, None, None, None, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)


def _products(q, k, v, projection) -> int:  # type: ignore[no-untyped-def]
    """FLOPs of the features, the state and its product with the queries."""
    features, dim = (q[3], 0) if projection is None else projection
    attention = (q[2] + k[2]) * (dim + v[3]) + q[2]
    return int(2 * q[0] * q[1] * features * attention)


@register_flop_formula(torch.ops.saccade.linear_fused)
def _flops(q, k, v, projection, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return _products(q, k, v, projection)


@register_flop_formula(torch.ops.saccade.linear_fused_backward)
def _flops_backward(_grad, q, k, v, projection, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * _products(q, k, v, projection)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    projection: Tensor | None,
    *,
    feature_map: str,
    scale: float,
    constant: float,
    eps: float,
    key_mask: Tensor | None,
    precision: str,
) -> Tensor:
    """The output (B, H, N, E); arguments are checked by the functions that call this.

    Weights are (g(q) + constant).(g(k) + constant) + eps, without the 1/M of normalized features.
    """
    out: Tensor = _forward(
        q, k, v, projection, key_mask, feature_map, scale, constant, eps, precision
    )[0]
    return out
