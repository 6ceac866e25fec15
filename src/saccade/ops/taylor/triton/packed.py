"""Taylor attention of q, k and v that lie together, (B, N, 3, H, D), where heads are short.

Gradients are written the same way: else a pass puts them together that takes as long as a third of
the attention.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops.launches import on_device
from saccade.ops.registration import operator
from saccade.ops.taylor.triton.problem import Problem
from saccade.ops.taylor.triton.whole import run_whole, run_whole_backward

__all__ = ["fused_packed"]

Numbers = tuple[float, float, float, float]


def _problem(
    qkv: Tensor, temperature: Tensor | None, numbers: Numbers, normalise_output: bool
) -> Problem:
    q, k, v = _views(qkv)
    return Problem.of(q, k, v, None, temperature, *numbers, normalise_output, "ieee")


def _views(qkv: Tensor) -> tuple[Tensor, ...]:
    """q, k and v, each (B, H, N, D)."""
    return qkv.permute(2, 0, 3, 1, 4).unbind()


@operator("taylor_packed")
def _forward(
    qkv: Tensor,
    temperature: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalise_output: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    out, total = _fake_forward(qkv, temperature, scale, a, b, c, normalise_output, keep)  # type: ignore[no-untyped-call]
    if out.numel() == 0:
        return out, total
    problem = _problem(qkv.contiguous(), temperature, (scale, a, b, c), normalise_output)
    with on_device(qkv):
        _, kept = run_whole(problem, keep=keep, out=out.transpose(1, 2))
    return out, total if kept is None else kept


@_forward.register_fake
def _fake_forward(qkv, _temperature, _scale, _a, _b, _c, _lift, keep):  # type: ignore[no-untyped-def]
    batch, tokens, _, heads, width = qkv.shape
    rows = (batch * heads, tokens) if keep else (0,)
    return qkv.new_empty(batch, tokens, heads, width), qkv.new_empty(rows, dtype=torch.float32)


@operator("taylor_packed_backward")
def _backward(
    grad: Tensor,
    qkv: Tensor,
    temperature: Tensor | None,
    out: Tensor,
    total: Tensor,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalise_output: bool,
) -> tuple[Tensor, Tensor]:
    qkv = qkv.contiguous()
    dqkv = torch.empty_like(qkv)
    if dqkv.numel() == 0:
        return dqkv, total.new_zeros(0 if temperature is None else qkv.shape[3])
    problem = _problem(qkv, temperature, (scale, a, b, c), normalise_output)
    grad, out, into = grad.transpose(1, 2), out.transpose(1, 2), _views(dqkv)
    with on_device(qkv):
        *_, dt = run_whole_backward(problem, grad, out, total, into)
    return dqkv, total.new_empty(0) if dt is None else dt


@_backward.register_fake
def _(_grad, qkv, temperature, _out, total, *_rest):  # type: ignore[no-untyped-def]
    dqkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    return dqkv, total.new_empty(0 if temperature is None else qkv.shape[3])


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    qkv, temperature, *ctx.numbers, _keep = inputs
    ctx.save_for_backward(qkv, temperature, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _autograd(ctx, grad, _unused):  # type: ignore[no-untyped-def]
    dqkv, dt = _backward.within_backward((grad, *ctx.saved_tensors, *ctx.numbers))
    return dqkv, None if dt.numel() == 0 else dt, *[None] * 6


_forward.register_autograd(
    _autograd, setup_context=_setup_context, inputs=lambda inputs: (*inputs[:-1], True)
)


@register_flop_formula(torch.ops.saccade.taylor_packed)
def _flops(qkv, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    batch, tokens, _, heads, dim = qkv
    return int(4 * batch * heads * tokens**2 * dim)


@register_flop_formula(torch.ops.saccade.taylor_packed_backward)
def _flops_backward(_grad, qkv, *_args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(qkv) * 5 // 2


def fused_packed(
    qkv: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    temperature: Tensor | None,
    normalise_output: bool,
) -> Tensor:
    """Taylor attention (B, N, H, D); with a temperature (H,) q and k are normalised."""
    if temperature is not None:
        temperature = temperature.float()
    out: Tensor = _forward(qkv, temperature, scale, *coefficients, normalise_output, False)[0]
    return out
