"""Passes over single rows that both algorithms take: lengths, and the gradient of a quotient."""

import functools

from torch import Tensor

from saccade.ops.launches import Launch
from saccade.ops.taylor.triton.blocks import lengths, row_gradients
from saccade.ops.taylor.triton.problem import KEPT_FORMS, Form, Problem, Strides, ceil_div

__all__ = ["quotient_gradients", "row_lengths", "temperature_gradient"]

_ROWS = 128


@functools.lru_cache(maxsize=KEPT_FORMS)
def _quotient_launch(f: Form, grad_stride: Strides) -> Launch:
    return Launch(
        row_gradients,
        (ceil_div(f.queries, _ROWS), f.batch_heads),
        (f.queries, f.heads, *grad_stride, f.width, f.lift),
        {"EP": f.padded_width, "ROWS": _ROWS, "MASKED": f.masked, "LIFT": f.normalise_output},
    )


def quotient_gradients(
    p: Problem, grad: Tensor, out: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of numerators (B, H, N, E) and denominators (B H, N)."""
    f = p.form
    dy = p.new(f.batch, f.heads, f.queries, f.width, dtype=f.operands)
    dz = p.numbers(f.batch_heads, f.queries)
    _quotient_launch(f, grad.stride())(grad, out, total, p.shares(), dy, dz)
    return dy, dz


@functools.lru_cache(maxsize=KEPT_FORMS)
def _lengths_launch(f: Form, *, of_queries: bool) -> Launch:
    tokens, stride = (f.queries, f.q_stride) if of_queries else (f.keys, f.k_stride)
    return Launch(
        lengths,
        (ceil_div(tokens, _ROWS), f.batch_heads),
        (f.heads, tokens, f.dim, *stride, f.scale if of_queries else 1.0),
        {"DP": f.padded_dim, "ROWS": _ROWS, "TEMPERED": of_queries},
    )


def row_lengths(p: Problem, *, of_queries: bool) -> Tensor:
    """alpha of every query or key, (B H, tokens); any tensor where rows are not normalised."""
    x = p.q if of_queries else p.k
    if not p.form.normalised:
        return x
    out = p.numbers(p.form.batch_heads, x.shape[2])
    _lengths_launch(p.form, of_queries=of_queries)(x, p.temperature, out)
    return out


def temperature_gradient(p: Problem, dt: Tensor) -> Tensor | None:
    """(H,) from every query's share."""
    f = p.form
    return dt.view(f.batch, f.heads, f.queries).sum(dim=(0, 2)) if f.normalised else None
