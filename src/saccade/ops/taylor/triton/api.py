"""The fused kernels as torch operators: autograd, fake tensors, compile, FLOPs."""

from collections.abc import Callable
from itertools import repeat
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from saccade.ops._triton.launch import on_device
from saccade.ops.registration import operator
from saccade.ops.taylor.triton.direct import run_direct, run_direct_backward
from saccade.ops.taylor.triton.direct_single_block import (
    is_single_block,
    run_single_block,
    run_single_block_backward,
)
from saccade.ops.taylor.triton.efficient import (
    keeps_state,
    run_backward_in_parts,
    run_efficient,
    run_efficient_backward,
    run_in_parts,
)
from saccade.ops.taylor.triton.shapes import (
    CallShape,
    Grads,
    Problem,
    moments_size,
    operands_of,
    tile_pairs,
    within_reach,
)

__all__ = ["columns_of_values", "fused"]

DirectForward = Callable[..., tuple[Tensor, Tensor | None]]
DirectBackward = Callable[..., Grads]

MAX_HEADS = 65535
"""Heads of samples that one launch takes: programs along the second axis of a grid."""


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    temperature: Tensor | None,
    numbers: tuple[float, float, float, float],
    normalize_output: bool,
) -> Problem:
    exact = q.dtype != torch.float32 or not torch.backends.cuda.matmul.allow_tf32
    precision = "ieee" if exact else "tf32"
    q, k, v = map(within_reach, (q, k, v))
    return Problem.of(q, k, v, key_mask, temperature, *numbers, normalize_output, precision)


def _state_shapes(q: Tensor, v: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    heads, dim, width = q.shape[0] * q.shape[1], q.shape[3], v.shape[3]
    return (heads, tile_pairs(dim) * 256, width), (heads, moments_size(dim, width))


@operator("taylor_fused")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    temperature: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalize_output: bool,
    efficient: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0:
        out, *kept = _fake_forward(  # type: ignore[no-untyped-call]
            q, k, v, key_mask, temperature, scale, a, b, c, normalize_output, efficient, keep
        )
        return out.zero_(), *kept
    problem = _problem(q, k, v, key_mask, temperature, (scale, a, b, c), normalize_output)
    with on_device(q):
        if efficient and keep and keeps_state(q, v):
            return run_efficient(problem)
        run = run_in_parts if efficient else _direct_passes(problem.call)[0]
        out, total = run(problem, keep=keep)
    return out, _nothing(q) if total is None else total, _nothing(q), _nothing(q)


def _direct_passes(call: CallShape) -> tuple[DirectForward, DirectBackward]:
    """Forward and backward by the direct algorithm."""
    if is_single_block(call):
        return run_single_block, run_single_block_backward
    return run_direct, run_direct_backward


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


@_forward.register_fake
def _fake_forward(q, k, v, key_mask, temperature, scale, a, b, c, _output_scale, efficient, keep):  # type: ignore[no-untyped-def]
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    if not keep:
        return out, _nothing(q), _nothing(q), _nothing(q)
    total = q.new_empty(q.shape[0] * q.shape[1], q.shape[2], dtype=torch.float32)
    if not efficient or not keeps_state(q, v):
        return out, total, _nothing(q), _nothing(q)
    state, moments = _state_shapes(q, v)
    kept = q.new_empty(state, dtype=operands_of(q.dtype))
    return out, total, kept, q.new_empty(moments, dtype=torch.float32)


@operator("taylor_fused_backward")
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    temperature: Tensor | None,
    out: Tensor,
    total: Tensor,
    state: Tensor,
    moments: Tensor,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalize_output: bool,
    efficient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0:
        dt = total.new_zeros(0 if temperature is None else q.shape[1])
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape), dt
    problem = _problem(q, k, v, key_mask, temperature, (scale, a, b, c), normalize_output)
    grad = within_reach(grad)
    with on_device(q):
        if not efficient:
            results = _direct_passes(problem.call)[1](problem, grad, out, total)
        elif state.numel():
            results = run_efficient_backward(problem, grad, out, total, state, moments)
        else:
            results = run_backward_in_parts(problem, grad, out, total)
    dq, dk, dv, temperature_grad = results
    return dq, dk, dv, total.new_empty(0) if temperature_grad is None else temperature_grad


@_backward.register_fake
def _(grad, q, k, v, key_mask, temperature, out, total, *rest):  # type: ignore[no-untyped-def]
    dt = total.new_empty(0 if temperature is None else q.shape[1])
    return (*(x.new_empty(x.shape) for x in (q, k, v)), dt)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, scale, a, b, c, normalize_output, efficient, _keep = inputs
    ctx.numbers = (scale, a, b, c, normalize_output, efficient)
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # else their gradients are written out as zeros


def _autograd(ctx, grad, *_unused):  # type: ignore[no-untyped-def]
    dq, dk, dv, dt = _backward.within_backward((grad, *ctx.saved_tensors, *ctx.numbers))
    return dq, dk, dv, None, None if dt.numel() == 0 else dt, *[None] * 7


_forward.register_autograd(
    _autograd, setup_context=_setup_context, inputs=lambda inputs: (*inputs[:-1], True)
)


@register_flop_formula(torch.ops.saccade.taylor_fused)
def _flops(q, k, v, *args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return _attention_flops(q, k, v, args[-2])


@register_flop_formula(torch.ops.saccade.taylor_fused_backward)
def _flops_backward(_grad, q, k, v, *args, **_kwargs) -> int:  # type: ignore[no-untyped-def]
    return 2 * _attention_flops(q, k, v, args[-1]) + (
        0 if args[-1] else 2 * q[0] * q[1] * q[2] * k[2] * q[3]
    )


def _attention_flops(q, k, v, efficient) -> int:  # type: ignore[no-untyped-def]
    if efficient:
        features = q[3] * (q[3] + 1) // 2 + q[3] + 1
        return int(2 * q[0] * q[1] * (q[2] + k[2]) * features * (v[3] + 1))
    return int(2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]))


def columns_of_values(dim: int, width: int, dtype: torch.dtype, *, efficient: bool) -> int:
    """How many columns of values the kernels take: E, or more, the added ones zero.

    ptxas 12.8, which Triton 3.6 brings, miscompiles the efficient forward kernel `values` for
    bfloat16 with E <= 16 and D from 33 to 64: addresses of matrix products come out of registers
    that hold something else, so the output is wrong or the kernel reads outside of its shared
    memory. Wider keys are padded as well, since what triggers the fault is not known exactly.
    """
    unsafe = efficient and dtype == torch.bfloat16 and width <= 16 and dim > 32
    return 32 if unsafe else width


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    key_mask: Tensor | None,
    temperature: Tensor | None,
    algorithm: Literal["direct", "efficient"],
    normalize_output: bool,
) -> Tensor:
    """Taylor attention by the fused kernels; with a temperature (H,) q and k are normalized."""
    if temperature is not None:
        temperature = temperature.float()
    efficient, width = algorithm == "efficient", v.shape[3]
    columns = columns_of_values(q.shape[3], width, q.dtype, efficient=efficient)
    if columns > width:
        v = F.pad(v, (0, columns - width))
    options = (scale, *coefficients, normalize_output, efficient, False)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        out: Tensor = _forward(q, k, v, mask, temperature, *options)[0]
        return out if columns == width else out[..., :width]

    samples = MAX_HEADS // max(1, q.shape[1])
    if q.shape[0] <= samples:
        return attend(q, k, v, key_mask)
    parts = (torch.split(x, samples) for x in (q, k, v))
    masks = repeat(None) if key_mask is None else torch.split(key_mask, samples)
    return torch.cat([attend(*part) for part in zip(*parts, masks, strict=False)])
