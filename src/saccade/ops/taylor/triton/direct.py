"""The direct algorithm: grids, buffers and launches of its kernels."""

import functools

from torch import Tensor

from saccade.ops.launches import Launch, compiled_at_once, is_dry_run
from saccade.ops.taylor.triton.direct_kernels import direct_forward, direct_keys, direct_queries
from saccade.ops.taylor.triton.hopper import is_aligned
from saccade.ops.taylor.triton.hopper_backward import Backward, backward_launches
from saccade.ops.taylor.triton.hopper_forward import run_forward
from saccade.ops.taylor.triton.problem import KEPT_FORMS, Form, Grads, Problem, ceil_div
from saccade.ops.taylor.triton.rows import (
    coefficient_tables,
    sum_keys,
    temperature_gradient,
    weighted_gradients,
)

__all__ = ["run_direct", "run_direct_backward"]


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
    coefficients = (f.scale, 1 / max(1, f.keys), f.a, f.b, *numbers)
    return Launch(kernel, grid, (*sizes, *coefficients), constants)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _forward_launch(f: Form) -> Launch:
    numbers = (f.c, f.floor, f.lift)
    launch = _launch(f, direct_forward, "direct_forward", *numbers, over=f.keys, rows=f.queries)
    launch.constants |= {"LIFT": f.normalize_output}
    return launch


@functools.lru_cache(maxsize=KEPT_FORMS)
def _queries_launch(f: Form) -> Launch:
    return _launch(f, direct_queries, "direct_queries", over=f.keys, rows=f.queries)


@functools.lru_cache(maxsize=KEPT_FORMS)
def _keys_launch(f: Form) -> Launch:
    return _launch(f, direct_keys, "direct_keys", f.c, over=f.queries, rows=f.keys)


@compiled_at_once
def run_direct(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where a backward pass is to follow, row sums over N (B H, N)."""
    done = run_forward(p, keep=keep)
    if done is not None:
        out, total = done
        return out, total if keep else None
    out = p.new(*p.q.shape[:3], p.form.width)
    return out, _run_anywhere(p, out, keep=keep)


def _run_anywhere(p: Problem, out: Tensor, *, keep: bool) -> Tensor | None:
    """Write the output by the kernel that every device and every call has; row sums if kept."""
    total = p.numbers(p.form.batch_heads, p.form.queries) if keep else None
    keys = sum_keys(p)
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature, keys.curves, keys.slopes)
    _forward_launch(p.form)(*inputs, p.shares(), keys.sum_v, out, total)
    return total


@compiled_at_once
def run_direct_backward(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature."""
    launches = backward_launches(p.form, dry_run=is_dry_run())
    if launches is not None and is_aligned(p):
        return _run_five_products(p, grad, out, total, launches)
    return _run_backward_anywhere(p, grad, out, total)


def _run_five_products(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor, launches: Backward
) -> Grads:
    """Gradients by Hopper's own kernels: those of queries are added up as keys' programs go."""
    f = p.form
    rows = weighted_gradients(p, grad, out, total)
    sums = p.numbers(f.batch_heads, f.queries, f.dim).zero_()
    dk, dv = (p.new(*x.shape) for x in (p.k, p.v))
    inputs = (p.q, p.k, p.v, p.temperature, rows.curves, rows.shifts, rows.dy, rows.sum_dy)
    launches.keys(*inputs, sums, dk, dv)
    del rows, inputs  # dq finds room where dy was
    dq, dt = p.new(*p.q.shape), p.numbers(f.batch_heads, launches.queries.grid[0])
    launches.queries(sums, p.q, p.temperature, dq, dt)
    return dq, dk, dv, temperature_gradient(p, dt)


def _run_backward_anywhere(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients by the kernels that every device and every call has.

    Queries and keys have a kernel each: seven products for each pair of blocks, where five would do
    if keys' programs added to the gradients of queries as they come. In Triton, which waits for
    every product, those additions cost more than the two products save at D >= 64, and their order,
    with it the last bits, changes every time.
    """
    f = p.form
    rows = weighted_gradients(p, grad, out, total)
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    tables, queries = coefficient_tables(p), _queries_launch(f)
    dt = p.numbers(f.batch_heads, queries.grid[0])
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature)
    _keys_launch(f)(*inputs, rows.curves, rows.shifts, rows.dy, rows.sum_dy, dk, dv, *tables)
    queries(*inputs, *tables, rows.dy, rows.dz, dq, dt)
    return dq, dk, dv, temperature_gradient(p, dt)
