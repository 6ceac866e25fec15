"""The fused kernels as torch operators: autograd, fake tensors, compile.

With a branch the operator makes the sum, and the gradient that comes to the sum is added in the
kernel. Without one the sum is x, which an operator may not return: its gradients meet in autograd.
"""

import torch
from torch import Tensor

from saccade.ops._triton.launch import on_device
from saccade.ops.norm.triton.layer_norm import (
    backward_launch,
    forward_launch,
    sum_launch,
)
from saccade.ops.registration import operator

__all__ = ["fused"]


@operator("add_norm")
def _add_norm(
    x: Tensor,
    branch: Tensor,
    keep: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, its norm, and the mean and 1/deviation of each token (2, B, N)."""
    s, (y, statistics) = _new(x, x.dtype), _new_outputs(x, dtype)
    _run_forward((x, branch, keep, weight, bias), (s, y, statistics), eps)
    return s, y, statistics


@_add_norm.register_fake
def _(x, _branch, _keep, _weight, _bias, _eps, dtype):  # type: ignore[no-untyped-def]
    return _new(x, x.dtype), *_new_outputs(x, dtype)


@operator("layer_norm")
def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The norm of x, and the mean and 1/deviation of each token (2, B, N)."""
    y, statistics = _new_outputs(x, dtype)
    _run_forward((x, None, None, weight, bias), (None, y, statistics), eps)
    return y, statistics


@_layer_norm.register_fake
def _(x, _weight, _bias, _eps, dtype):  # type: ignore[no-untyped-def]
    return _new_outputs(x, dtype)


def _new(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _new_outputs(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _new(x, dtype), x.new_empty((2, *x.shape[:2]), dtype=torch.float32)


def _run_forward(
    inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...], eps: float
) -> None:
    x = inputs[0]
    assert x is not None
    if x.numel():
        with on_device(x):
            forward_launch(tuple(x.shape), eps)(*map(_contiguous, inputs), *outputs)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


@operator("add_norm_backward")
def _backward(
    dy: Tensor,
    ds: Tensor | None,
    s: Tensor,
    statistics: Tensor,
    weight: Tensor,
    bias: Tensor,
    keep: Tensor | None,
    dtype: torch.dtype | None,
) -> list[Tensor]:
    """The gradients of x, weight and bias, and with a dtype that of the branch in it."""
    dx, dweight, dbias, *dbranch = _new_gradients(s, weight, bias, dtype)
    if not s.numel():
        return [dx, dweight.zero_(), dbias.zero_(), *dbranch]
    launch = backward_launch(tuple(s.shape))
    (programs,), width = launch.grid, s.shape[2]
    partials = s.new_empty((2, programs, width), dtype=torch.float32)
    inputs = map(_contiguous, (dy, ds, s, statistics, weight, keep))
    with on_device(s):
        launch(*inputs, dx, dbranch[0] if dbranch else None, partials)
        sum_launch(programs, width)(partials, dweight, dbias)
    return [dx, dweight, dbias, *dbranch]


@_backward.register_fake
def _(_dy, _ds, s, _statistics, weight, bias, _keep, dtype):  # type: ignore[no-untyped-def]
    return _new_gradients(s, weight, bias, dtype)


def _new_gradients(
    s: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype | None
) -> list[Tensor]:
    like = [_new(s, s.dtype), _new(weight, weight.dtype), _new(bias, bias.dtype)]
    return like if dtype is None else [*like, _new(s, dtype)]


def _setup_add_norm(ctx, inputs, outputs):  # type: ignore[no-untyped-def]
    x, branch, keep, weight, bias, *_ = inputs
    s, _, statistics = outputs
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)
    ctx.branch_dtype = None if keep is None and branch.dtype == x.dtype else branch.dtype
    ctx.save_for_backward(s, statistics, weight, bias, keep)


def _pull_back_add_norm(ctx, ds, dy, _):  # type: ignore[no-untyped-def]
    s, *_ = ctx.saved_tensors
    dy = torch.zeros_like(s) if dy is None else dy
    found = _backward.within_backward((dy, ds, *ctx.saved_tensors, ctx.branch_dtype))
    dx, dweight, dbias, *rest = found
    dbranch = rest[0] if rest else dx
    return dx, dbranch, None, dweight, dbias, None, None


_add_norm.register_autograd(_pull_back_add_norm, setup_context=_setup_add_norm)


def _setup_layer_norm(ctx, inputs, outputs):  # type: ignore[no-untyped-def]
    x, weight, bias, *_ = inputs
    ctx.mark_non_differentiable(outputs[1])
    ctx.save_for_backward(x, outputs[1], weight, bias)


def _pull_back_layer_norm(ctx, dy, _):  # type: ignore[no-untyped-def]
    return *_backward.within_backward((dy, None, *ctx.saved_tensors, None, None)), None, None


_layer_norm.register_autograd(_pull_back_layer_norm, setup_context=_setup_layer_norm)


def fused(
    x: Tensor,
    branch: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The sum, x itself without a branch, and its norm in a dtype."""
    if branch is None:
        y, _ = _layer_norm(x, weight, bias, eps, dtype)
        return x, y
    s, y, _ = _add_norm(x, branch, keep, weight, bias, eps, dtype)
    return s, y
