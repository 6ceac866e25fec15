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
    load_key_fraction,
    load_rows,
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
from saccade.ops.taylor.triton.shapes import (
    KEPT_CALLS,
    CallShape,
    Grads,
    Problem,
    Strides,
    alignment_of,
)

__all__ = ["is_single_block", "run_single_block", "run_single_block_backward"]


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
def single_block_forward(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_key_fraction,
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
    SCALE_OUTPUT: tl.constexpr,
):
    """o and, where they are to be kept, z of a head."""
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    scale, inv_keys, a, b, c, min_weight, output_scale = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn), FLAGS.ALIGNMENT
    )
    i_bh, rows = tl.program_id(0), tl.arange(0, ROWS)
    o_d, o_e = tl.arange(0, FLAGS.DP), tl.arange(0, FLAGS.EP)
    m_rows = rows < queries
    m_block = kept_rows(0, keys, p_mask + (i_bh // heads).to(tl.int64) * keys, BLOCK, FLAGS.MASKED)
    q = load_rows(p_q + head_offset(i_bh, heads, qb, qh), m_rows, o_d, D, qn, qd, False)
    k = load_rows(p_k + head_offset(i_bh, heads, kb, kh), m_block, o_d, D, kn, kd, False)
    v = load_rows(p_v + head_offset(i_bh, heads, vb, vh), m_block, o_e, E, vn, vd, False)
    factor = _head_factor(p_temperature, i_bh, heads, scale, FLAGS.NORMALIZE)
    x, unit = (
        _scaled(q, factor, FLAGS.NORMALIZE, FLAGS.DTYPE),
        _scaled(k, 1.0, FLAGS.NORMALIZE, FLAGS.DTYPE),
    )
    s = rounded(product(x, tl.trans(unit), None, FLAGS.PRECISION), FLAGS.DTYPE)
    w = multiply(s, scale_add(s, a, b))
    sums = tl.sum(add_row_sums(tl.zeros([ROWS, 8], tl.float32), w), axis=1)
    y = (
        product(w, v.to(FLAGS.DTYPE), None, FLAGS.PRECISION)
        + c * tl.sum(v.to(tl.float32), axis=0)[None, :]
    )
    key_fraction = load_key_fraction(p_key_fraction, i_bh // heads, FLAGS.MASKED)
    z = tl.maximum(sums * inv_keys + c * key_fraction, min_weight * key_fraction)
    z = tl.where(z > 0, z, 1.0)
    row = i_bh.to(tl.int64) * queries
    out = y * (output_factor(key_fraction, output_scale, SCALE_OUTPUT) * inv_keys / z)[:, None]
    store_rows(p_out + row * E, m_rows, o_e, E, E, out)
    if p_total is not None:
        tl.store(p_total + row + rows, z, mask=m_rows)


@triton.jit
def single_block_backward(
    p_q,
    p_k,
    p_v,
    p_mask,
    p_temperature,
    p_key_fraction,
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
    SCALE_OUTPUT: tl.constexpr,
):
    """The gradients of a head, and its part of the temperature's."""
    heads, queries, keys, D, E = sizes
    qb, qh, qn, qd = q_strides
    kb, kh, kn, kd = k_strides
    vb, vh, vn, vd = v_strides
    grad_b, grad_h, grad_n, grad_d = grad_strides
    scale, inv_keys, a, b, c, output_scale = coefficients
    D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn, grad_b, grad_h, grad_n = multiples(
        (D, E, qb, qh, qn, kb, kh, kn, vb, vh, vn, grad_b, grad_h, grad_n), FLAGS.ALIGNMENT
    )
    i_bh, rows = tl.program_id(0), tl.arange(0, ROWS)
    o_d, o_e = tl.arange(0, FLAGS.DP), tl.arange(0, FLAGS.EP)
    m_rows, m_exists = rows < queries, tl.arange(0, BLOCK) < keys
    m_block = kept_rows(0, keys, p_mask + (i_bh // heads).to(tl.int64) * keys, BLOCK, FLAGS.MASKED)
    q = load_rows(p_q + head_offset(i_bh, heads, qb, qh), m_rows, o_d, D, qn, qd, False)
    k = load_rows(p_k + head_offset(i_bh, heads, kb, kh), m_block, o_d, D, kn, kd, False)
    v = load_rows(p_v + head_offset(i_bh, heads, vb, vh), m_block, o_e, E, vn, vd, False)
    dy, dz = quotient(
        p_grad, p_out, p_total, p_key_fraction, tl.zeros([], tl.int32), i_bh, m_rows, queries,
        heads, grad_b, grad_h, grad_n, grad_d, E, output_scale, FLAGS.EP, FLAGS.MASKED,
        SCALE_OUTPUT,
    )  # fmt: skip
    sum_dy = c * tl.sum(dy, axis=0)
    dy = dy.to(FLAGS.DTYPE)
    factor = _head_factor(p_temperature, i_bh, heads, scale, FLAGS.NORMALIZE)
    x, unit = (
        _scaled(q, factor, FLAGS.NORMALIZE, FLAGS.DTYPE),
        _scaled(k, 1.0, FLAGS.NORMALIZE, FLAGS.DTYPE),
    )
    s = rounded(product(x, tl.trans(unit), None, FLAGS.PRECISION), FLAGS.DTYPE)
    ds = rounded_sum(
        product(dy, tl.trans(v.to(FLAGS.DTYPE)), None, FLAGS.PRECISION), dz[:, None], FLAGS.DTYPE
    )
    w, ds = multiply(s, scale_add(s, a, b)), multiply(ds, scale_add(s, 2 * a, b))
    row, row_out = i_bh.to(tl.int64) * queries, i_bh.to(tl.int64) * keys
    dv = (product(tl.trans(w), dy, None, FLAGS.PRECISION) + sum_dy[None, :]) * inv_keys
    store_rows(p_dv + row_out * E, m_exists, o_e, E, E, tl.where(m_block[:, None], dv, 0.0))
    dk = product(tl.trans(ds), x, None, FLAGS.PRECISION) * inv_keys
    dk, _ = pull_back(dk, k, 1.0, FLAGS.NORMALIZE)
    store_rows(p_dk + row_out * D, m_exists, o_d, D, D, tl.where(m_block[:, None], dk, 0.0))
    dq, along = pull_back(
        product(ds, unit, None, FLAGS.PRECISION) * inv_keys, q, factor, FLAGS.NORMALIZE
    )
    store_rows(p_dq + row * D, m_rows, o_d, D, D, dq)
    if FLAGS.NORMALIZE:
        tl.store(p_dt + i_bh, tl.sum(along, axis=0) * scale)


MAX_TOKENS = 64
MAX_UNIT_TOKENS = 128
"""Normalized, without a mask: the others take too many registers, or gain nothing."""
WIDEST = 32
REGISTERS = 128
"""Most registers a thread has on Hopper for 64 tokens, so that two programs fit."""


def is_single_block(call: CallShape) -> bool:
    """Whether the products of a head fit the registers of a program."""
    most = MAX_UNIT_TOKENS if call.normalized and not call.masked else MAX_TOKENS
    return (
        call.operands == torch.bfloat16
        and max(call.queries, call.keys) <= most
        and max(call.dim, call.width) <= WIDEST
    )


def _launch(call: CallShape, kernel: object, *numbers: float, grad_stride: Strides = ()) -> Launch:
    rows, block = power_of_two(call.queries), power_of_two(call.keys)
    is_long = max(rows, block) > MAX_TOKENS
    strides = (call.q_stride, call.k_stride, call.v_stride)
    alignment = alignment_of(call.dim, call.width, *strides, grad_stride)
    constants: dict[str, Any] = {
        "ROWS": rows,
        "BLOCK": block,
        "SCALE_OUTPUT": call.normalize_output,
        "FLAGS": call.flags(masked=True)._replace(ALIGNMENT=alignment),
        "num_warps": 8 if is_long else 4,
    }
    if call.capability == (9, 0) and not is_long:
        constants["maxnreg"] = REGISTERS
    sizes = (call.heads, call.queries, call.keys, call.dim, call.width)
    coefficients = (call.scale, 1 / call.keys, call.a, call.b, call.c, *numbers)
    others = (grad_stride,) if grad_stride else ()
    return Launch(kernel, (call.batch_heads,), (sizes, *strides, *others, coefficients), constants)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _forward_launch(call: CallShape) -> Launch:
    return _launch(call, single_block_forward, call.min_weight, call.output_scale)


@functools.lru_cache(maxsize=KEPT_CALLS)
def _backward_launch(call: CallShape, grad_stride: Strides) -> Launch:
    return _launch(call, single_block_backward, call.output_scale, grad_stride=grad_stride)


def run_single_block(p: Problem, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, N, E) and, where a backward pass is to follow, row sums over N (B H, N)."""
    call = p.call
    out = p.new(call.batch, call.heads, call.queries, call.width)
    total = p.numbers(call.batch_heads, call.queries) if keep else None
    _forward_launch(call)(p.q, p.k, p.v, p.key_mask, p.temperature, p.key_fractions(), out, total)
    return out, total


def run_single_block_backward(p: Problem, grad: Tensor, out: Tensor, total: Tensor) -> Grads:
    """Gradients of q, k, v and the temperature."""
    call = p.call
    dq, dk, dv = (p.new(*x.shape) for x in (p.q, p.k, p.v))
    dt = p.numbers(call.batch_heads, 1)
    inputs = (p.q, p.k, p.v, p.key_mask, p.temperature, p.key_fractions(), grad, out, total)
    _backward_launch(call, grad.stride())(*inputs, dq, dk, dv, dt)
    return dq, dk, dv, temperature_gradient(p, dt)
