"""The direct algorithm where all queries and all keys of a head fit one program.

x, w', z, dy, dz and ds are as in `direct`. One program reads a head once and writes it
once: rows are normalized as they are loaded, keys too, sums of values and all five products of the
backward pass come from what is in registers already. A pass each over values, queries, keys and
gradients takes three times as long at 64 tokens.

Gain over the four passes of the other kernels (docs/log.md), forward and backward of 4,096 heads
of 32 columns, TaylorShift: 65 % at 64 tokens, 21 % at 65 and 22 % at 128. Up to 64 tokens, q, k and
v of one projection go to `direct_packed` instead.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch
from saccade.ops._triton.library import head_offset
from saccade.ops._triton.tiles import power_of_two
from saccade.ops.taylor.triton.library import (
    add_row_sums,
    kept_rows,
    load_rows,
    load_share,
    multiples,
    multiply,
    output_factor,
    product,
    pull_back,
    rounded,
    rounded_sum,
    row_factors,
    scale_add,
    store_rows,
)
from saccade.ops.taylor.triton.rows import quotient, temperature_gradient
from saccade.ops.taylor.triton.shapes import KEPT_FORMS, Form, Grads, Problem, Strides, grain_of

__all__ = ["is_whole", "run_whole", "run_whole_backward"]


@triton.jit
def _scaled(raw, factor, NORMALIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Rows as they enter products."""
    raw = raw.to(tl.float32)
    return (raw * row_factors(raw, factor, NORMALIZE)[:, None]).to(DTYPE)


@triton.jit
def _head_factor(p_temperature, i_bh, heads, scale, NORMALIZE: tl.constexpr):
    """What queries are multiplied by."""
    if NORMALIZE:
        return scale * tl.load(p_temperature + i_bh % heads)
    return scale


@triton.jit
def whole_forward(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_share,
    p_out,
    p_total,
    sizes,
    q_strides,
    k_strides,
    v_strides,
    coefficients,
    FLAGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LIFT: tl.constexpr,
):
    """o and, where they are to be kept, z of a head."""
    DP: tl.constexpr = FLAGS.DP
    EP: tl.constexpr = FLAGS.EP
    NORMALIZE: tl.constexpr = FLAGS.NORMALIZE
    MASKED: tl.constexpr = FLAGS.MASKED
    GRAIN: tl.constexpr = FLAGS.GRAIN
    DTYPE: tl.constexpr = FLAGS.DTYPE
    PRECISION: tl.constexpr = FLAGS.PRECISION
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    scale, inv_keys, a, b, c, min_weight, lift = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), GRAIN
    )
    i_bh, rows = tl.program_id(0), tl.arange(0, ROWS)
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    m_rows = rows < queries
    m_block = kept_rows(0, keys, p_mask + (i_bh // heads).to(tl.int64) * keys, BLOCK, MASKED)
    q = load_rows(p_q + head_offset(i_bh, heads, qb, qh), m_rows, o_d, D, qn, qd, False)
    k = load_rows(p_k + head_offset(i_bh, heads, kb, kh), m_block, o_d, D, kn, kd, False)
    v = load_rows(p_v + head_offset(i_bh, heads, vb, vh), m_block, o_e, E, vn, vd, False)
    factor = _head_factor(p_temperature, i_bh, heads, scale, NORMALIZE)
    x, unit = _scaled(q, factor, NORMALIZE, DTYPE), _scaled(k, 1.0, NORMALIZE, DTYPE)
    s = rounded(product(x, tl.trans(unit), None, PRECISION), DTYPE)
    w = multiply(s, scale_add(s, a, b))
    sums = tl.sum(add_row_sums(tl.zeros([ROWS, 8], tl.float32), w), axis=1)
    y = product(w, v.to(DTYPE), None, PRECISION) + c * tl.sum(v.to(tl.float32), axis=0)[None, :]
    share = load_share(p_share, i_bh // heads, MASKED)
    z = tl.maximum(sums * inv_keys + c * share, min_weight * share)
    z = tl.where(z > 0, z, 1.0)
    row = i_bh.to(tl.int64) * queries
    out = y * (output_factor(share, lift, LIFT) * inv_keys / z)[:, None]
    store_rows(p_out + row * E, m_rows, o_e, E, E, out)
    if p_total is not None:
        tl.store(p_total + row + rows, z, mask=m_rows)


@triton.jit
def whole_backward(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_share,
    p_grad,
    p_out,
    p_total,
    p_dq,
    p_dk,
    p_dv,
    p_dt,
    sizes,
    q_strides,
    k_strides,
    v_strides,
    grad_strides,
    coefficients,
    FLAGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    LIFT: tl.constexpr,
):
    """The gradients of a head, and its share of the temperature's."""
    DP: tl.constexpr = FLAGS.DP
    EP: tl.constexpr = FLAGS.EP
    NORMALIZE: tl.constexpr = FLAGS.NORMALIZE
    MASKED: tl.constexpr = FLAGS.MASKED
    GRAIN: tl.constexpr = FLAGS.GRAIN
    DTYPE: tl.constexpr = FLAGS.DTYPE
    PRECISION: tl.constexpr = FLAGS.PRECISION
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    grad_b, grad_h, grad_n, grad_d = grad_strides
    scale, inv_keys, a, b, c, lift = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn, grad_b, grad_h, grad_n = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn, grad_b, grad_h, grad_n), GRAIN
    )
    i_bh, rows = tl.program_id(0), tl.arange(0, ROWS)
    o_d, o_e = tl.arange(0, DP), tl.arange(0, EP)
    m_rows, m_exists = rows < queries, tl.arange(0, BLOCK) < keys
    m_block = kept_rows(0, keys, p_mask + (i_bh // heads).to(tl.int64) * keys, BLOCK, MASKED)
    q = load_rows(p_q + head_offset(i_bh, heads, qb, qh), m_rows, o_d, D, qn, qd, False)
    k = load_rows(p_k + head_offset(i_bh, heads, kb, kh), m_block, o_d, D, kn, kd, False)
    v = load_rows(p_v + head_offset(i_bh, heads, vb, vh), m_block, o_e, E, vn, vd, False)
    dy, dz = quotient(
        p_grad, p_out, p_total, p_share, tl.zeros([], tl.int32), i_bh, m_rows, queries, heads,
        grad_b, grad_h, grad_n, grad_d, E, lift, EP, MASKED, LIFT,
    )  # fmt: skip
    sum_dy = c * tl.sum(dy, axis=0)
    dy = dy.to(DTYPE)
    factor = _head_factor(p_temperature, i_bh, heads, scale, NORMALIZE)
    x, unit = _scaled(q, factor, NORMALIZE, DTYPE), _scaled(k, 1.0, NORMALIZE, DTYPE)
    s = rounded(product(x, tl.trans(unit), None, PRECISION), DTYPE)
    ds = rounded_sum(product(dy, tl.trans(v.to(DTYPE)), None, PRECISION), dz[:, None], DTYPE)
    w, ds = multiply(s, scale_add(s, a, b)), multiply(ds, scale_add(s, 2 * a, b))
    row, row_out = i_bh.to(tl.int64) * queries, i_bh.to(tl.int64) * keys
    dv = (product(tl.trans(w), dy, None, PRECISION) + sum_dy[None, :]) * inv_keys
    store_rows(p_dv + row_out * E, m_exists, o_e, E, E, tl.where(m_block[:, None], dv, 0.0))
    dk = product(tl.trans(ds), x, None, PRECISION) * inv_keys
    dk, _ = pull_back(dk, k, 1.0, NORMALIZE)
    store_rows(p_dk + row_out * D, m_exists, o_d, D, D, tl.where(m_block[:, None], dk, 0.0))
    dq, along = pull_back(product(ds, unit, None, PRECISION) * inv_keys, q, factor, NORMALIZE)
    store_rows(p_dq + row * D, m_rows, o_d, D, D, dq)
    if NORMALIZE:
        tl.store(p_dt + i_bh, tl.sum(along, axis=0) * scale)


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
    strides = (f.q_stride, f.k_stride, f.v_stride)
    grain = grain_of(f.dim, f.width, *strides, grad_stride)
    constants: dict[str, Any] = {
        "ROWS": rows,
        "BLOCK": block,
        "LIFT": f.normalize_output,
        "FLAGS": f.flags(masked=True)._replace(GRAIN=grain),
        "num_warps": 8 if is_long else 4,
    }
    if f.capability == (9, 0) and not is_long:
        constants["maxnreg"] = REGISTERS
    sizes = (f.heads, f.queries, f.keys, f.dim, f.width)
    coefficients = (f.scale, 1 / f.keys, f.a, f.b, f.c, *numbers)
    others = (grad_stride,) if grad_stride else ()
    return Launch(kernel, (f.batch_heads,), (sizes, *strides, *others, coefficients), constants)


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
