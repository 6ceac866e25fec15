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

__all__ = ["is_short", "is_whole", "run_whole", "run_whole_backward"]

Numbers = tuple[float, ...]

MOST_TOKENS = 64
MOST_UNIT_TOKENS = 128
"""Normalised, without a mask: the others take too many registers, or gain nothing."""
WIDEST = 32
REGISTERS = 128
"""A thread of Hopper's has at most as many for 64 tokens: another program finds room beside."""


def is_whole(f: Form) -> bool:
    """Whether the products of a head fit the registers of a program."""
    tokens, width = max(f.queries, f.keys), max(f.dim, f.width)
    return f.operands == torch.bfloat16 and is_short(
        tokens, width, normalised=f.normalised, masked=f.masked
    )


def is_short(tokens: int, width: int, *, normalised: bool, masked: bool = False) -> bool:
    """Whether heads of so many tokens and columns are taken whole, in bfloat16."""
    most = MOST_UNIT_TOKENS if normalised and not masked else MOST_TOKENS
    return tokens <= most and width <= WIDEST


def _launch(f: Form, kernel: object, out: Strides, *others: Strides, last: Numbers) -> Launch:
    """A program for each head; strides of out and `others` are those that follow q, k and v's."""
    rows, block = power_of_two(f.queries), power_of_two(f.keys)
    is_long = max(rows, block) > MOST_TOKENS
    inputs = (f.q_stride, f.k_stride, f.v_stride)
    strides = (n for stride in (*inputs, out[:3], *others) for n in stride)
    constants: dict[str, Any] = {
        "ROWS": rows,
        "BLOCK": block,
        "LIFT": f.normalise_output,
        **f.flags(masked=True),
        "GRAIN": grain_of(f.dim, f.width, *inputs, out, *others),
        "num_warps": 8 if is_long else 4,
    }
    if f.capability == (9, 0) and not is_long:
        constants["maxnreg"] = REGISTERS
    sizes = (f.heads, f.queries, f.keys, f.dim, f.width)
    coefficients = (f.scale, 1 / f.keys, f.a, f.b, f.c, *last)
    return Launch(kernel, (f.batch_heads,), (*sizes, *strides, *coefficients), constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _forward_launch(f: Form, out: Strides) -> Launch:
    return _launch(f, whole_forward, out, last=(f.floor, f.lift))


@functools.lru_cache(maxsize=KEPT_FORMS)
def _backward_launch(f: Form, out: Strides, grad: Strides, *grads: Strides) -> Launch:
    written = (stride[:3] for stride in grads)
    return _launch(f, whole_backward, out, grad, *written, last=(f.lift,))


def run_whole(p: Problem, *, keep: bool, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where a backward pass is to follow, row sums over N (B H, N).

    Args:
        p: The problem.
        keep: Whether a backward pass is to follow.
        out: Where to write the output, its columns side by side.
    """
    f = p.form
    out = p.new(f.batch, f.heads, f.queries, f.width) if out is None else out
    total = p.numbers(f.batch_heads, f.queries) if keep else None
    launch = _forward_launch(f, out.stride())
    launch(p.q, p.k, p.v, p.key_mask, p.temperature, p.shares(), out, total)
    return out, total


def run_whole_backward(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor, into: tuple[Tensor, ...] | None = None
) -> Grads:
    """Gradients of q, k, v, written `into` tensors where given, and of the temperature."""
    f = p.form
    dq, dk, dv = into or (p.new(*x.shape) for x in (p.q, p.k, p.v))
    dt = p.numbers(f.batch_heads, 1)
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature, p.shares(), grad, out, total)
    strides = (x.stride() for x in (out, grad, dq, dk, dv))
    _backward_launch(f, *strides)(*inputs, dq, dk, dv, dt)
    return dq, dk, dv, temperature_gradient(p, dt)
