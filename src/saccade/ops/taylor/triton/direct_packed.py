"""Direct Taylor attention where all tokens of a head fit one program, q, k and v lying together.

    s_ij = t x_i.y_j,   x = q / |q|, y = k / |k|        (normalized; else s = scale q.k)
    w_ij = c + b s + a s^2,   z_i = sum_j w_ij,   o_i = f sum_j w_ij v_j / z_i
    p_ij = f g_i.v_j,   ds_ij = (b + 2 a s) (p_ij - sum_j w_ij p_ij / z_i) / z_i
    dx_i = sum_j ds_ij y_j,   dq_i = t (dx_i - (dx_i.x_i) x_i) / |q_i|,   dt = sum_i dx_i.x_i
    dy_j = sum_i ds_ij x_i,   dk_j = t (dy_j - (dy_j.y_j) y_j) / |k_j|

c is added through sums of v and of g, since in bfloat16 it would drown small scores. Keys and
queries that do not exist are zeros, and so is all that they contribute. One program reads a head
once and writes it once; weights are formed again for the gradients.

Gradients are written the way q, k and v lie: else a pass puts them together that takes as long as
a third of the attention. Gain over the other kernels and that pass (docs/log.md), forward and
backward of 64 tokens: 29 % at D = 32 (TaylorShift), 57 to 59 % at D = 64; 2 % of a training step of
`cifar10-taylor`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch, on_device
from saccade.ops._triton.packed import (
    exist,
    load,
    load_heads,
    output_shape,
    packed_launch,
    places,
    register_packed_flops,
    store,
)
from saccade.ops.registration import operator
from saccade.ops.taylor.triton.library import NORM_EPS
from saccade.ops.taylor.triton.shapes import KEPT_CALLS

__all__ = ["fused_packed", "is_short"]


@triton.jit
def _unit(x, NORMALIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Rows as they enter products, and 1 / |x| of each; as they were where not normalized."""
    if NORMALIZE:
        x_f32 = x.to(tl.float32)
        inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(x_f32 * x_f32, axis=1)), NORM_EPS)
        return (x_f32 * inverse[:, None]).to(DTYPE), inverse
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
def _factor(p_temperature, heads, scale, NORMALIZE: tl.constexpr):
    """What q.k, of unit rows where they are normalized, is multiplied by."""
    if NORMALIZE:
        return scale * tl.load(p_temperature + tl.program_id(0) % heads)
    return scale


@triton.jit
def _sum_of_weights(inner, tokens, c, min_weight):
    """z, the weights being c + inner; 1 where there is nothing to divide by."""
    z = tl.maximum(tl.sum(inner, axis=1) + c * tokens, min_weight * tokens)
    return tl.where(z > 0, z, 1.0)


@triton.jit
def packed_taylor_forward(
    p_qkv,
    p_temperature,
    p_out,
    heads,
    tokens,
    D,
    scale,
    a,
    b,
    c,
    min_weight,
    output_scale,
    ROWS: tl.constexpr,
    DP: tl.constexpr,
    EVEN: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The output (B, N, H, D) of a head."""
    m_there = exist(tokens, D, ROWS, DP)
    q, k, v = load_heads(p_qkv, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    q, _ = _unit(q, NORMALIZE, DTYPE)
    k, _ = _unit(k, NORMALIZE, DTYPE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    s *= _factor(p_temperature, heads, scale, NORMALIZE)
    inner = s * (b + a * s)
    z = _sum_of_weights(inner, tokens, c, min_weight)
    y = tl.dot(inner.to(DTYPE), v, input_precision=PRECISION)
    y += c * tl.sum(v.to(tl.float32), axis=0)[None, :]
    out = y * (output_scale / z)[:, None]
    store(p_out + places(heads, tokens, D, 1, ROWS, DP), out, m_there, EVEN)


@triton.jit
def packed_taylor_backward(
    p_qkv,
    p_temperature,
    p_grad,
    p_dqkv,
    p_dt,
    heads,
    tokens,
    D,
    scale,
    a,
    b,
    c,
    min_weight,
    output_scale,
    ROWS: tl.constexpr,
    DP: tl.constexpr,
    EVEN: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DTYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients of q, k and v of a head, and its part of the temperature's."""
    m_there, part = exist(tokens, D, ROWS, DP), heads * D
    into = p_dqkv + places(heads, tokens, D, 3, ROWS, DP)
    q, k, v = load_heads(p_qkv, heads, tokens, D, ROWS, DP, EVEN, DTYPE)
    g = load(p_grad + places(heads, tokens, D, 1, ROWS, DP), m_there, EVEN, DTYPE)
    factor = _factor(p_temperature, heads, scale, NORMALIZE)
    q, per_query = _unit(q, NORMALIZE, DTYPE)
    k, per_key = _unit(k, NORMALIZE, DTYPE)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * factor
    inner = s * (b + a * s)
    row_weight = output_scale / _sum_of_weights(inner, tokens, c, min_weight)
    dv = tl.dot(tl.trans((inner * row_weight[:, None]).to(DTYPE)), g, input_precision=PRECISION)
    dv += c * tl.sum(g.to(tl.float32) * row_weight[:, None], axis=0)[None, :]
    store(into + 2 * part, dv, m_there, EVEN)
    p = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    mean = tl.sum((inner + c) * p, axis=1) * (row_weight / output_scale)
    ds = ((p - mean[:, None]) * row_weight[:, None] * (b + 2 * a * s)).to(DTYPE)
    dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
    dk, _ = _across(dk, k, per_key, factor, NORMALIZE)
    store(into + part, dk, m_there, EVEN)
    dq = tl.dot(ds, k, input_precision=PRECISION)
    dq, along = _across(dq, q, per_query, factor, NORMALIZE)
    store(into, dq, m_there, EVEN)
    if NORMALIZE:
        tl.store(p_dt + tl.program_id(0), tl.sum(along, axis=0) * scale)


MAX_TOKENS = 64
WIDEST = 64
"""Largest heads that one program computes; with more tokens q, k and v are faster apart."""


def is_short(tokens: int, dim: int) -> bool:
    """Whether heads of so many tokens and columns are taken so, in bfloat16."""
    return tokens <= MAX_TOKENS and dim <= WIDEST


@functools.lru_cache(maxsize=KEPT_CALLS)
def _launch(
    kernel: object,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    numbers: tuple[float, float, float, float],
    normalized: bool,
    normalize_output: bool,
) -> Launch:
    _, tokens, _, _, dim = shape
    _, a, b, c = numbers
    min_weight = max(0.0, c - b * b / (4 * a))  # the smallest weight there is
    output_scale = (tokens / dim) ** 0.5 if normalize_output else 1.0
    return packed_launch(
        kernel, shape, dtype, *numbers, min_weight, output_scale, NORMALIZE=normalized
    )


@operator("taylor_packed")
def _forward(
    qkv: Tensor,
    temperature: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalize_output: bool,
) -> Tensor:
    qkv = qkv.contiguous()
    out = qkv.new_empty(output_shape(qkv))
    if out.numel():
        kind = (scale, a, b, c), temperature is not None, normalize_output
        with on_device(qkv):
            launch = _launch(packed_taylor_forward, tuple(qkv.shape), qkv.dtype, *kind)
            launch(qkv, temperature, out)
    return out


@_forward.register_fake
def _(qkv, *_rest):
    return qkv.new_empty(output_shape(qkv))


@operator("taylor_packed_backward")
def _backward(
    grad: Tensor,
    qkv: Tensor,
    temperature: Tensor | None,
    scale: float,
    a: float,
    b: float,
    c: float,
    normalize_output: bool,
) -> tuple[Tensor, Tensor]:
    grad, qkv = grad.contiguous(), qkv.contiguous()
    dqkv, normalized = torch.empty_like(qkv), temperature is not None
    batch, heads = qkv.shape[0], qkv.shape[3] if normalized else 0
    dt = (torch.empty if qkv.numel() else torch.zeros)(batch, heads, device=qkv.device)
    if dqkv.numel():
        kind = (scale, a, b, c), normalized, normalize_output
        with on_device(qkv):
            launch = _launch(packed_taylor_backward, tuple(qkv.shape), qkv.dtype, *kind)
            launch(qkv, temperature, grad, dqkv, dt if normalized else None)
    return dqkv, dt.sum(dim=0)


@_backward.register_fake
def _(_grad, qkv, temperature, *_rest):
    dqkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    heads = 0 if temperature is None else qkv.shape[3]
    return dqkv, qkv.new_empty(heads, dtype=torch.float32)


def _setup_context(ctx, inputs, _output):
    qkv, temperature, *ctx.numbers = inputs
    ctx.save_for_backward(qkv, temperature)


def _autograd(ctx, grad):
    dqkv, dt = _backward.within_backward((grad, *ctx.saved_tensors, *ctx.numbers))
    return dqkv, None if dt.numel() == 0 else dt, *[None] * 5


_forward.register_autograd(_autograd, setup_context=_setup_context)


register_packed_flops(torch.ops.saccade.taylor_packed, torch.ops.saccade.taylor_packed_backward)


def fused_packed(
    qkv: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    temperature: Tensor | None,
    normalize_output: bool,
) -> Tensor:
    """Taylor attention (B, N, H, D); with a temperature (H,) q and k are normalized."""
    if temperature is not None:
        temperature = temperature.float()
    out: Tensor = _forward(qkv, temperature, scale, *coefficients, normalize_output)
    return out
