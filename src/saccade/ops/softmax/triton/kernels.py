"""Softmax attention where all tokens of a head fit one program.

    w_ij = exp(s_ij) / sum_j exp(s_ij),   s_ij = scale q_i.k_j,   o_i = sum_j w_ij v_j
    ds_ij = w_ij (dw_ij - sum_j w_ij dw_ij),   dw_ij = g_i.v_j

q, k and v are read where one product left them, (B, N, 3, H, D), and their gradients are written
the same way. One program reads a head once and writes it once; weights are formed again for the
gradients, so that nothing is kept but what the product needs anyway.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.packed_rows import exist, load, load_heads, places, store

__all__ = ["packed_backward", "packed_forward"]

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
    qkv_ptr, out_ptr, heads, tokens, D, scale,
    ROWS: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The output (B, N, H, D) of a head."""
    there = exist(tokens, D, ROWS, DP)
    q, k, v = load_heads(qkv_ptr, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    w, total = _weights(q, k, tokens, scale, EVEN, PRECISION)
    out = tl.dot(w.to(DTYPE), v, input_precision=PRECISION) / total[:, None]
    store(out_ptr + places(heads, tokens, D, 1, ROWS, DP), out, there, EVEN)


@triton.jit
def packed_backward(
    qkv_ptr, grad_ptr, dqkv_ptr, heads, tokens, D, scale,
    ROWS: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of q, k and v of a head."""
    there, part = exist(tokens, D, ROWS, DP), heads * D
    into = dqkv_ptr + places(heads, tokens, D, 3, ROWS, DP)
    q, k, v = load_heads(qkv_ptr, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    g = load(grad_ptr + places(heads, tokens, D, 1, ROWS, DP), there, EVEN, DTYPE)
    w, total = _weights(q, k, tokens, scale, EVEN, PRECISION)
    w /= total[:, None]
    dv = tl.dot(tl.trans(w.to(DTYPE)), g, input_precision=PRECISION)
    store(into + 2 * part, dv, there, EVEN)
    dw = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    ds = (w * (dw - tl.sum(w * dw, axis=1)[:, None])).to(DTYPE)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION) * scale
    store(into + part, dk, there, EVEN)
    dq = tl.dot(ds, k, input_precision=PRECISION) * scale
    store(into, dq, there, EVEN)
