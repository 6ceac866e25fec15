"""Direct Taylor attention where all tokens of a head fit one program, q, k and v lying together.

    r_ij = q_i.k_j / (|q_i| |k_j|),   s = t r        (normalised; else s = scale q.k)
    w_ij = c + b s + a s^2,   z_i = sum_j w_ij,   o_i = f sum_j w_ij v_j / z_i
    p_ij = f g_i.v_j,   ds_ij = (b + 2 a s) (p_ij - sum_j w_ij p_ij / z_i) / z_i
    e_ij = ds_ij / (|q_i| |k_j|),   x_i = sum_j e_ij k_j,   y_j = sum_i e_ij q_i
    dq_i = t (x_i - (x_i.q_i) q_i / |q_i|^2),   dk_j = t (y_j - (y_j.k_j) k_j / |k_j|^2)
    dt = sum_i x_i.q_i

Rows enter products as they were read, and lengths multiply scores in float32: nothing is rounded
before. c is added through sums of v and of g, since in bfloat16 it would drown small scores. Keys
and queries that do not exist are zeros, and so is all that they contribute. One program reads a
head once and writes it once; weights are formed again for the gradients.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.packed_rows import exist, load, places, store
from saccade.ops.taylor.triton.blocks import NORM_EPS

__all__ = ["packed_taylor_backward", "packed_taylor_forward"]


@triton.jit
def _inverse_lengths(x):
    x = x.to(tl.float32)
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), NORM_EPS)


@triton.jit
def _factor(temperature_ptr, heads, scale, NORMALIZE: tl.constexpr):
    """What q.k, of unit rows where they are normalised, is multiplied by."""
    if NORMALIZE:
        return scale * tl.load(temperature_ptr + tl.program_id(0) % heads)
    return scale


@triton.jit
def _sum_of_weights(inner, tokens, c, floor):
    """z, the weights being c + inner; 1 where there is nothing to divide by."""
    z = tl.maximum(tl.sum(inner, axis=1) + c * tokens, floor * tokens)
    return tl.where(z > 0, z, 1.0)


@triton.jit
def _across(grad, x, inverse_length):
    """What of a gradient turns the rows of x, and how far it would lengthen each, times |x|."""
    x = x.to(tl.float32)
    along = tl.sum(grad * x, axis=1)
    return grad - (along * inverse_length * inverse_length)[:, None] * x, along


@triton.jit
def packed_taylor_forward(
    qkv_ptr, temperature_ptr, out_ptr, heads, tokens, D, scale, a, b, c, floor, lift,
    ROWS: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr, NORMALIZE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The output (B, N, H, D) of a head."""
    there, part = exist(tokens, D, ROWS, DP), heads * D
    at = qkv_ptr + places(heads, tokens, D, 3, ROWS, DP)
    q, k = load(at, there, EVEN, DTYPE), load(at + part, there, EVEN, DTYPE)
    v = load(at + 2 * part, there, EVEN, DTYPE)
    factor = _factor(temperature_ptr, heads, scale, NORMALIZE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if NORMALIZE:
        s *= (_inverse_lengths(q) * factor)[:, None] * _inverse_lengths(k)[None, :]
    else:
        s *= factor
    inner = s * (b + a * s)
    z = _sum_of_weights(inner, tokens, c, floor)
    y = tl.dot(inner.to(DTYPE), v, input_precision=PRECISION)
    y += c * tl.sum(v.to(tl.float32), axis=0)[None, :]
    out = y * (lift / z)[:, None]
    store(out_ptr + places(heads, tokens, D, 1, ROWS, DP), out, there, EVEN)


@triton.jit
def packed_taylor_backward(
    qkv_ptr, temperature_ptr, grad_ptr, dqkv_ptr, dt_ptr,
    heads, tokens, D, scale, a, b, c, floor, lift,
    ROWS: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr, NORMALIZE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradients of q, k and v of a head, and its share of the temperature's."""
    there, part = exist(tokens, D, ROWS, DP), heads * D
    offsets = places(heads, tokens, D, 3, ROWS, DP)
    at, into = qkv_ptr + offsets, dqkv_ptr + offsets
    q, k = load(at, there, EVEN, DTYPE), load(at + part, there, EVEN, DTYPE)
    v = load(at + 2 * part, there, EVEN, DTYPE)
    g = load(grad_ptr + places(heads, tokens, D, 1, ROWS, DP), there, EVEN, DTYPE)
    factor = _factor(temperature_ptr, heads, scale, NORMALIZE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if NORMALIZE:
        per_query, per_key = _inverse_lengths(q), _inverse_lengths(k)
        s *= (per_query * factor)[:, None] * per_key[None, :]
    else:
        s *= factor
    inner = s * (b + a * s)
    share = lift / _sum_of_weights(inner, tokens, c, floor)
    dv = tl.dot(tl.trans((inner * share[:, None]).to(DTYPE)), g, input_precision=PRECISION)
    dv += c * tl.sum(g.to(tl.float32) * share[:, None], axis=0)[None, :]
    store(into + 2 * part, dv, there, EVEN)
    p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    mean = tl.sum((inner + c) * p, axis=1) * (share / lift)
    e = (p - mean[:, None]) * (b + 2 * a * s)
    if NORMALIZE:
        e *= (share * per_query)[:, None] * per_key[None, :]
    else:
        e *= share[:, None]
    e = e.to(DTYPE)
    dk = tl.dot(tl.trans(e), q, input_precision=PRECISION)
    if NORMALIZE:
        dk, _ = _across(dk, k, per_key)
    store(into + part, dk * factor, there, EVEN)
    dq = tl.dot(e, k, input_precision=PRECISION)
    if NORMALIZE:
        dq, along = _across(dq, q, per_query)
        tl.store(dt_ptr + tl.program_id(0), tl.sum(along, axis=0) * scale)
    store(into, dq * factor, there, EVEN)
