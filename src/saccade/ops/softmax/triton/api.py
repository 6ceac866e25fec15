"""The fused kernels as torch operators: autograd, fake tensors, compile, FLOPs."""

import torch
from torch import Tensor

from saccade.ops._triton.launch import on_device
from saccade.ops._triton.packed import output_shape, register_packed_flops
from saccade.ops.registration import operator
from saccade.ops.softmax.triton.packed import (
    packed_attention_launch,
    packed_backward,
    packed_forward,
)

__all__ = ["fused"]


@operator("softmax_packed")
def _forward(qkv: Tensor, scale: float) -> Tensor:
    qkv = qkv.contiguous()
    out = qkv.new_empty(output_shape(qkv))
    if out.numel():
        with on_device(qkv):
            packed_attention_launch(packed_forward, tuple(qkv.shape), qkv.dtype, scale)(qkv, out)
    return out


@_forward.register_fake
def _(qkv, _scale):  # type: ignore[no-untyped-def]
    return qkv.new_empty(output_shape(qkv))


@operator("softmax_packed_backward")
def _backward(grad: Tensor, qkv: Tensor, scale: float) -> Tensor:
    grad, qkv = grad.contiguous(), qkv.contiguous()
    dqkv = torch.empty_like(qkv)
    if dqkv.numel():
        with on_device(qkv):
            packed_attention_launch(packed_backward, tuple(qkv.shape), qkv.dtype, scale)(
                qkv, grad, dqkv
            )
    return dqkv


@_backward.register_fake
def _(_grad, qkv, _scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _setup_context(ctx, inputs, _output):  # type: ignore[no-untyped-def]
    qkv, ctx.scale = inputs
    ctx.save_for_backward(qkv)


def _autograd(ctx, grad):  # type: ignore[no-untyped-def]
    return _backward.within_backward((grad, *ctx.saved_tensors, ctx.scale)), None


_forward.register_autograd(_autograd, setup_context=_setup_context)


register_packed_flops(torch.ops.saccade.softmax_packed, torch.ops.saccade.softmax_packed_backward)


def fused(qkv: Tensor, *, scale: float) -> Tensor:
    """Softmax attention (B, N, H, D) of what lies together (B, N, 3, H, D)."""
    out: Tensor = _forward(qkv, scale)
    return out
