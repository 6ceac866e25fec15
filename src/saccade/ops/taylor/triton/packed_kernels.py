"""Direct Taylor attention where all tokens of a head fit one program, q, k and v lying together.

    s_ij = t x_i.y_j,   x = q / |q|, y = k / |k|        (normalized; else s = scale q.k)
    w_ij = c + b s + a s^2,   z_i = sum_j w_ij,   o_i = f sum_j w_ij v_j / z_i
    p_ij = f g_i.v_j,   ds_ij = (b + 2 a s) (p_ij - sum_j w_ij p_ij / z_i) / z_i
    dx_i = sum_j ds_ij y_j,   dq_i = t (dx_i - (dx_i.x_i) x_i) / |q_i|,   dt = sum_i dx_i.x_i
    dy_j = sum_i ds_ij x_i,   dk_j = t (dy_j - (dy_j.y_j) y_j) / |k_j|

c is added through sums of v and of g, since in bfloat16 it would drown small scores. Keys and
queries that do not exist are zeros, and so is all that they contribute. One program reads a head
once and writes it once; weights are formed again for the gradients.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import triton
import triton.language as tl

from saccade.ops.packed_rows import exist, load, load_heads, places, store
from saccade.ops.taylor.triton.blocks import NORM_EPS

__all__ = ["packed_taylor_backward", "packed_taylor_forward"]


@triton.jit
def _unit(x, NORMALIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Rows as they enter products, and 1 / |x| of each; as they were where not normalized."""
    if NORMALIZE:
        wide = x.to(tl.float32)
        inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(wide * wide, axis=1)), NORM_EPS)
        return (wide * inverse[:, None]).to(DTYPE), inverse
    return x, tl.zeros([x.shape[0]], tl.float32)


@triton.jit
def _across(grad, unit, inverse, factor, NORMALIZE: tl.constexpr):
    """The gradient of rows from that of their unit rows, and how far it would lengthen each."""
    if NORMALIZE:
        unit = unit.to(tl.float32)
        along = tl.sum(grad * unit, axis=1)
        return (grad - along[:, None] * unit) * (inverse * factor)[:, None], along
    return grad * factor, tl.zeros([grad.shape[0]], tl.float32)


@triton.jit
def _factor(temperature_ptr, heads, scale, NORMALIZE: tl.constexpr):
    """What q.k, of unit rows where they are normalized, is multiplied by."""
    if NORMALIZE:
        return scale * tl.load(temperature_ptr + tl.program_id(0) % heads)
    return scale


@triton.jit
def _sum_of_weights(inner, tokens, c, floor):
    """z, the weights being c + inner; 1 where there is nothing to divide by."""
    z = tl.maximum(tl.sum(inner, axis=1) + c * tokens, floor * tokens)
    return tl.where(z > 0, z, 1.0)


@triton.jit
def packed_taylor_forward(
    qkv_ptr, temperature_ptr, out_ptr, heads, tokens, D, scale, a, b, c, floor, lift,
    ROWS: tl.constexpr, DP: tl.constexpr, EVEN: tl.constexpr, NORMALIZE: tl.constexpr,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The output (B, N, H, D) of a head."""
    there = exist(tokens, D, ROWS, DP)
    q, k, v = load_heads(qkv_ptr, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    q, _ = _unit(q, NORMALIZE, DTYPE)
    k, _ = _unit(k, NORMALIZE, DTYPE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    s *= _factor(temperature_ptr, heads, scale, NORMALIZE)
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
    into = dqkv_ptr + places(heads, tokens, D, 3, ROWS, DP)
    q, k, v = load_heads(qkv_ptr, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    g = load(grad_ptr + places(heads, tokens, D, 1, ROWS, DP), there, EVEN, DTYPE)
    factor = _factor(temperature_ptr, heads, scale, NORMALIZE)
    q, per_query = _unit(q, NORMALIZE, DTYPE)
    k, per_key = _unit(k, NORMALIZE, DTYPE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor
    inner = s * (b + a * s)
    share = lift / _sum_of_weights(inner, tokens, c, floor)
    dv = tl.dot(tl.trans((inner * share[:, None]).to(DTYPE)), g, input_precision=PRECISION)
    dv += c * tl.sum(g.to(tl.float32) * share[:, None], axis=0)[None, :]
    store(into + 2 * part, dv, there, EVEN)
    p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    mean = tl.sum((inner + c) * p, axis=1) * (share / lift)
    ds = ((p - mean[:, None]) * share[:, None] * (b + 2 * a * s)).to(DTYPE)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
    dk, _ = _across(dk, k, per_key, factor, NORMALIZE)
    store(into + part, dk, there, EVEN)
    dq = tl.dot(ds, k, input_precision=PRECISION)
    dq, along = _across(dq, q, per_query, factor, NORMALIZE)
    store(into, dq, there, EVEN)
    if NORMALIZE:
        tl.store(dt_ptr + tl.program_id(0), tl.sum(along, axis=0) * scale)
