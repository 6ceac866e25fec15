"""Softmax attention where all tokens of a head fit one program.

    w_ij = exp(s_ij) / sum_j exp(s_ij),   s_ij = scale q_i.k_j,   o_i = sum_j w_ij v_j
    ds_ij = w_ij (dw_ij - sum_j w_ij dw_ij),   dw_ij = g_i.v_j

q, k and v are read where one product left them, (B, N, 3, H, D), and their gradients are written
the same way. One program reads a head once and writes it once; weights are formed again for the
gradients, so that nothing is kept but what the product needs anyway.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.packed import (
    exist,
    load,
    load_heads,
    packed_launch,
    places,
    store,
)

__all__ = ["packed_attention_launch", "packed_backward", "packed_forward"]

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _weights(q, k, tokens, scale, EVEN: tl.constexpr, PRECISION: tl.constexpr):
    """exp(s - max s), and the sum of each row; keys that do not exist weigh nothing."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
    if not EVEN:
        s = tl.where((tl.arange(0, k.shape[0]) < tokens)[None, :], s, float("-inf"))
    w = tl.exp2(s - tl.max(s, axis=1)[:, None])
    return w, tl.sum(w, axis=1)


@triton.jit
def packed_forward(
    p_qkv,
    p_out,
    heads,
    tokens,
    D,
    scale,
    ROWS: tl.constexpr,
    DP: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The output (B, N, H, D) of a head."""
    m_there = exist(tokens, D, ROWS, DP)
    q, k, v = load_heads(p_qkv, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    w, total = _weights(q, k, tokens, scale, EVEN, PRECISION)
    out = tl.dot(w.to(DTYPE), v, input_precision=PRECISION) / total[:, None]
    store(p_out + places(heads, tokens, D, 1, ROWS, DP), out, m_there, EVEN)


@triton.jit
def packed_backward(
    p_qkv,
    p_grad,
    p_dqkv,
    heads,
    tokens,
    D,
    scale,
    ROWS: tl.constexpr,
    DP: tl.constexpr,
    EVEN: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients of q, k and v of a head."""
    m_there, part = exist(tokens, D, ROWS, DP), heads * D
    into = p_dqkv + places(heads, tokens, D, 3, ROWS, DP)
    q, k, v = load_heads(p_qkv, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    g = load(p_grad + places(heads, tokens, D, 1, ROWS, DP), m_there, EVEN, DTYPE)
    w, total = _weights(q, k, tokens, scale, EVEN, PRECISION)
    w /= total[:, None]
    dv = tl.dot(tl.trans(w.to(DTYPE)), g, input_precision=PRECISION)
    store(into + 2 * part, dv, m_there, EVEN)
    dw = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    ds = (w * (dw - tl.sum(w * dw, axis=1)[:, None])).to(DTYPE)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION) * scale
    store(into + part, dk, m_there, EVEN)
    dq = tl.dot(ds, k, input_precision=PRECISION) * scale
    store(into, dq, m_there, EVEN)


_KEPT_SHAPES = 512


@functools.lru_cache(maxsize=_KEPT_SHAPES)
def packed_attention_launch(
    kernel: object, shape: tuple[int, ...], dtype: torch.dtype, scale: float
) -> Launch:
    """The launch of one of the kernels above for (B, N, 3, H, D)."""
    return packed_launch(kernel, shape, dtype, scale)
