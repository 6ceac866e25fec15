"""Taylor attention of q, k and v that lie together, (B, N, 3, H, D), where heads are short.

Gradients are written the same way: else a pass puts them together that takes as long as a third of
the attention.
"""

import functools

import torch
from torch import Tensor

from saccade.ops.launches import Launch, on_device
from saccade.ops.packed_rows import output_shape, packed_launch, register_packed_flops
from saccade.ops.registration import operator
from saccade.ops.taylor.triton.packed_kernels import packed_taylor_backward, packed_taylor_forward
from saccade.ops.taylor.triton.problem import KEPT_FORMS

__all__ = ["fused_packed", "is_short"]

MAX_TOKENS = 64
WIDEST = 64
"""Heads that a program takes whole; with more tokens q, k and v are faster apart."""


def is_short(tokens: int, dim: int) -> bool:
    """Whether heads of so many tokens and columns are taken so, in bfloat16."""
    return tokens <= MAX_TOKENS and dim <= WIDEST


@functools.lru_cache(maxsize=KEPT_FORMS)
def _launch(
    kernel: object,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    numbers: tuple[float, float, float, float],
    normalized: bool,
    normalize_output: bool,
) -> Launch:
    _, tokens, _, _, dim = shape
    _, a, b, c = numbers
    floor = max(0.0, c - b * b / (4 * a))  # the smallest weight there is
    lift = (tokens / dim) ** 0.5 if normalize_output else 1.0
    return packed_launch(kernel, shape, dtype, *numbers, floor, lift, NORMALIZE=normalized)


@operator("taylor_packed")
def _forward(
    qkv: Tensor,
    temperature: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalize_output: bool,
) -> Tensor:
    qkv = qkv.contiguous()
    out = qkv.new_empty(output_shape(qkv))
    if out.numel():
        kind = (scale, a, b, c), temperature is not None, normalize_output
        with on_device(qkv):
            launch = _launch(packed_taylor_forward, tuple(qkv.shape), qkv.dtype, *kind)
            launch(qkv, temperature, out)
    return out


@_forward.register_fake
def _(qkv, *_rest):  # type: ignore[no-untyped-def]
    return qkv.new_empty(output_shape(qkv))


@operator("taylor_packed_backward")
def _backward(
    grad: Tensor,
    qkv: Tensor,
    temperature: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalize_output: bool,
) -> tuple[Tensor, Tensor]:
    grad, qkv = grad.contiguous(), qkv.contiguous()
    dqkv, normalized = torch.empty_like(qkv), temperature is not None
    batch, heads = qkv.shape[0], qkv.shape[3] if normalized else 0
    dt = (torch.empty if qkv.numel() else torch.zeros)(batch, heads, device=qkv.device)
    if dqkv.numel():
        kind = (scale, a, b, c), normalized, normalize_output
        with on_device(qkv):
            launch = _launch(packed_taylor_backward, tuple(qkv.shape), qkv.dtype, *kind)
            launch(qkv, temperature, grad, dqkv, dt if normalized else None)
    return dqkv, dt.sum(dim=0)


@_backward.register_fake
def _(_grad, qkv, temperature, *_rest):  # type: ignore[no-untyped-def]
    dqkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    heads = 0 if temperature is None else qkv.shape[3]
    return dqkv, qkv.new_empty(heads, dtype=torch.float32)


def _setup_context(ctx, inputs, _output):  # type: ignore[no-untyped-def]
    qkv, temperature, *ctx.numbers = inputs
    ctx.save_for_backward(qkv, temperature)


def _autograd(ctx, grad):  # type: ignore[no-untyped-def]
    dqkv, dt = _backward.within_backward((grad, *ctx.saved_tensors, *ctx.numbers))
    return dqkv, None if dt.numel() == 0 else dt, *[None] * 5


_forward.register_autograd(_autograd, setup_context=_setup_context)


register_packed_flops(torch.ops.saccade.taylor_packed, torch.ops.saccade.taylor_packed_backward)


def fused_packed(
    qkv: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    temperature: Tensor | None,
    normalize_output: bool,
) -> Tensor:
    """Taylor attention (B, N, H, D); with a temperature (H,) q and k are normalized."""
    if temperature is not None:
        temperature = temperature.float()
    out: Tensor = _forward(qkv, temperature, scale, *coefficients, normalize_output)
    return out
