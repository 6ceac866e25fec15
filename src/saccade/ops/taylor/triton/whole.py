"""The direct algorithm where one program takes a head: which calls, grids and buffers."""

import functools
from typing import Any

import torch
from torch import Tensor

from saccade.ops.launches import Launch
from saccade.ops.taylor.triton.problem import (
    KEPT_FORMS,
    Form,
    Grads,
    Problem,
    Strides,
    grain_of,
    power_of_two,
)
from saccade.ops.taylor.triton.rows import temperature_gradient
from saccade.ops.taylor.triton.whole_kernels import whole_backward, whole_forward

__all__ = ["is_whole", "run_whole", "run_whole_backward"]

MAX_TOKENS = 64
MAX_UNIT_TOKENS = 128
"""Normalized, without a mask: the others take too many registers, or gain nothing."""
WIDEST = 32
REGISTERS = 128
"""A thread of Hopper's has at most as many for 64 tokens: another program finds room beside."""


def is_whole(f: Form) -> bool:
    """Whether the products of a head fit the registers of a program."""
    most = MAX_UNIT_TOKENS if f.normalized and not f.masked else MAX_TOKENS
    return (
        f.operands == torch.bfloat16
        and max(f.queries, f.keys) <= most
        and max(f.dim, f.width) <= WIDEST
    )


def _launch(f: Form, kernel: object, *numbers: float, grad_stride: Strides = ()) -> Launch:
    rows, block = power_of_two(f.queries), power_of_two(f.keys)
    is_long = max(rows, block) > MAX_TOKENS
    sizes = (f.heads, f.queries, f.keys, f.dim, f.width, *f.q_stride, *f.k_stride, *f.v_stride)
    constants: dict[str, Any] = {
        "ROWS": rows,
        "BLOCK": block,
        "LIFT": f.normalize_output,
        **f.flags(masked=True),
        "GRAIN": grain_of(f.dim, f.width, f.q_stride, f.k_stride, f.v_stride, grad_stride),
        "num_warps": 8 if is_long else 4,
    }
    if f.capability == (9, 0) and not is_long:
        constants["maxnreg"] = REGISTERS
    coefficients = (f.scale, 1 / f.keys, f.a, f.b, f.c, *numbers)
    return Launch(kernel, (f.batch_heads,), (*sizes, *grad_stride, *coefficients), constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _forward_launch(f: Form) -> Launch:
    return _launch(f, whole_forward, f.floor, f.lift)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _backward_launch(f: Form, grad_stride: Strides) -> Launch:
    return _launch(f, whole_backward, f.lift, grad_stride=grad_stride)


def run_whole(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where a backward pass is to follow, row sums over N (B H, N)."""
    f = p.form
    out = p.new(f.batch, f.heads, f.queries, f.width)
    total = p.numbers(f.batch_heads, f.queries) if keep else None
    _forward_launch(f)(p.q, p.k, p.v, p.key_mask, p.temperature, p.shares(), out, total)
    return out, total


def run_whole_backward(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature."""
    f = p.form
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    dt = p.numbers(f.batch_heads, 1)
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature, p.shares(), grad, out, total)
    _backward_launch(f, grad.stride())(*inputs, dq, dk, dv, dt)
    return dq, dk, dv, temperature_gradient(p, dt)
