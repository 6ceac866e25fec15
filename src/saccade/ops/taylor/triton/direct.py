"""The direct algorithm: grids, buffers and launches of its kernels."""

import functools

import torch
from torch import Tensor

from saccade.ops.launches import Launch
from saccade.ops.taylor.triton.direct_kernels import direct_forward, direct_keys, direct_queries
from saccade.ops.taylor.triton.problem import KEPT_FORMS, Form, Problem, ceil_div
from saccade.ops.taylor.triton.rows import quotient_gradients, row_lengths, temperature_gradient
from saccade.ops.taylor.triton.sums import row_moments

__all__ = ["Grads", "run_direct", "run_direct_backward"]

Grads = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _launch(f: Form, kernel: object, name: str, *numbers: float, over: int, rows: int) -> Launch:
    """A program for each block of `rows`, in each a loop `over` tokens."""
    size = f.blocks(name)
    sizes = (f.heads, f.queries, f.keys, f.dim, f.width, *f.q_stride, *f.k_stride, *f.v_stride)
    constants = {
        "ROWS": size.rows,
        "BLOCK": size.block,
        "EVEN": f.is_even(over, size.block),
        **f.flags(masked=True),
        **size.options(),
    }
    grid = (ceil_div(rows, size.rows), f.batch_heads)
    return Launch(kernel, grid, (*sizes, f.scale, f.a, f.b, *numbers), constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _forward_launch(f: Form) -> Launch:
    numbers = (f.c, f.floor, f.lift)
    launch = _launch(f, direct_forward, "direct_forward", *numbers, over=f.keys, rows=f.queries)
    piece = f.blocks("direct_forward").piece
    launch.constants |= {"PIECE": piece, "LIFT": f.normalise_output}
    return launch


@functools.lru_cache(maxsize=KEPT_FORMS)
def _queries_launch(f: Form) -> Launch:
    return _launch(f, direct_queries, "direct_queries", over=f.keys, rows=f.queries)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _keys_launch(f: Form) -> Launch:
    return _launch(f, direct_keys, "direct_keys", f.c, over=f.queries, rows=f.keys)


def run_direct(p: Problem) -> tuple[Tensor, Tensor]:
    """Output (B, H, N, E) and row sums over N, (B H, N)."""
    f = p.form
    out = p.new(f.batch, f.heads, f.queries, f.width)
    total = p.numbers(f.batch_heads, f.queries)
    sums, alpha = row_moments(p, mixed=False)
    _forward_launch(f)(
        p.q, p.k, p.v, p.key_mask, p.temperature, alpha, p.shares(), sums, out, total
    )
    return out, total


def run_direct_backward(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature."""
    f = p.form
    dy, dz = quotient_gradients(p, grad, out, total)
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    dt = p.numbers(f.batch_heads, f.queries)
    alpha = row_lengths(p, of_queries=False)
    _queries_launch(f)(p.q, p.k, p.v, p.key_mask, p.temperature, alpha, dy, dz, dq, dt)
    alpha = row_lengths(p, of_queries=True)
    sum_dy = dy.sum(dim=2, dtype=torch.float32)
    _keys_launch(f)(p.q, p.k, p.v, p.key_mask, alpha, dy, dz, sum_dy, dk, dv)
    return dq, dk, dv, temperature_gradient(p, dt)
