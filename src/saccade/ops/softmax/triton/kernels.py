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

__all__ = ["packed_backward", "packed_forward"]

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _places(heads, tokens, D, PARTS: tl.constexpr, ROWS: tl.constexpr, DP: tl.constexpr):
    """Where the rows of a head are in (B, N, PARTS, H, D), from its first part on."""
    bh, rows, cols = tl.program_id(0), tl.arange(0, ROWS), tl.arange(0, DP)
    pitch = PARTS * heads * D
    first = (bh // heads).to(tl.int64) * tokens * pitch + (bh % heads) * D
    return first + (rows[:, None] * pitch + cols[None, :])


@triton.jit
def _exist(tokens, D, ROWS: tl.constexpr, DP: tl.constexpr):
    """Which numbers of a head there are."""
    return (tl.arange(0, ROWS) < tokens)[:, None] & (tl.arange(0, DP) < D)[None, :]


@triton.jit
def _load(pointers, exist, EVEN: tl.constexpr, DTYPE: tl.constexpr):
    """Numbers of a head, zero where there are none; EVEN where there are all."""
    if EVEN:
        return tl.load(pointers).to(DTYPE)
    return tl.load(pointers, mask=exist, other=0.0).to(DTYPE)


@triton.jit
def _store(pointers, value, exist, EVEN: tl.constexpr):
    value = value.to(pointers.dtype.element_ty)
    if EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=exist)


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
    exist, part = _exist(tokens, D, ROWS, DP), heads * D
    at = qkv_ptr + _places(heads, tokens, D, 3, ROWS, DP)
    q, k = _load(at, exist, EVEN, DTYPE), _load(at + part, exist, EVEN, DTYPE)
    v = _load(at + 2 * part, exist, EVEN, DTYPE)
    w, total = _weights(q, k, tokens, scale, EVEN, PRECISION)
    out = tl.dot(w.to(DTYPE), v, input_precision=PRECISION) / total[:, None]
    _store(out_ptr + _places(heads, tokens, D, 1, ROWS, DP), out, exist, EVEN)


@triton.jit
def packed_backward(
    qkv_ptr, grad_ptr, dqkv_ptr, heads, tokens, D, scale,
    ROWS: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of q, k and v of a head."""
    exist, part = _exist(tokens, D, ROWS, DP), heads * D
    places = _places(heads, tokens, D, 3, ROWS, DP)
    at, into = qkv_ptr + places, dqkv_ptr + places
    q, k = _load(at, exist, EVEN, DTYPE), _load(at + part, exist, EVEN, DTYPE)
    v = _load(at + 2 * part, exist, EVEN, DTYPE)
    g = _load(grad_ptr + _places(heads, tokens, D, 1, ROWS, DP), exist, EVEN, DTYPE)
    w, total = _weights(q, k, tokens, scale, EVEN, PRECISION)
    w /= total[:, None]
    dv = tl.dot(tl.trans(w.to(DTYPE)), g, input_precision=PRECISION)
    _store(into + 2 * part, dv, exist, EVEN)
    dw = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    ds = (w * (dw - tl.sum(w * dw, axis=1)[:, None])).to(DTYPE)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION) * scale
    _store(into + part, dk, exist, EVEN)
    dq = tl.dot(ds, k, input_precision=PRECISION) * scale
    _store(into, dq, exist, EVEN)
