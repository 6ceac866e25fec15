"""Kernels, launches and operator of centered keys.

    y_j = x_j - w_j sum_i u_i x_i / n,   n = the number of attended keys

    forward   u = the mask, w = 1
    backward  u = 1, w = the mask          (the transpose; without a mask it is the forward pass)

Where batch and heads alone fill the GPU, one program centers the keys of a head. Elsewhere the
tokens of a head are split into spans: one kernel writes the sum of each span, the next one adds the
sums of all spans, always in the same order, and subtracts the mean from its own span.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from saccade.ops._triton.launch import Launch, on_device
from saccade.ops.registration import operator

__all__ = ["fused"]

TOKENS = 64
"""Tokens of a step."""

MIN_SPAN = 8 * TOKENS
PROGRAMS = 4 * 132
"""Programs that fill the largest GPUs."""

MAX_SPANS = 128
_KEPT_SHAPES = 512


@triton.jit
def _sum_of_span(
    p_x,
    p_mask,
    first,
    last,
    stride,
    i_d,
    m_d,
    MASKED: tl.constexpr,
    TOKENS: tl.constexpr,
    DP: tl.constexpr,
):
    """The sum of the tokens from `first` to `last` that the mask keeps, (DP,) in float32."""
    total = tl.zeros((TOKENS, DP), tl.float32)
    for start in range(first, last, TOKENS):
        i_n = start + tl.arange(0, TOKENS)
        m_n = i_n < last
        if MASKED:
            m_n &= tl.load(p_mask + i_n, mask=m_n, other=0) != 0
        p_tile = p_x + i_n[:, None].to(tl.int64) * stride + i_d[None, :]  # (TOKENS, DP)
        total += tl.load(p_tile, mask=m_n[:, None] & m_d[None, :], other=0.0).to(tl.float32)
    return tl.sum(total, axis=0)


@triton.jit
def sum_spans(
    p_x,
    p_mask,
    p_sums,
    heads,
    tokens,
    span,
    stride_b,
    stride_h,
    stride_n,
    D: tl.constexpr,
    DP: tl.constexpr,
    TOKENS: tl.constexpr,
    MASKED_SUM: tl.constexpr,
):
    """The sum of a span of the tokens of a head, into (B H, spans, D)."""
    i_span, i_bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_b, i_h, i_d = i_bh // heads, i_bh % heads, tl.arange(0, DP)
    first = i_span * span
    p_head = p_x + i_b * stride_b + i_h * stride_h
    total = _sum_of_span(
        p_head, p_mask + i_b * tokens if MASKED_SUM else p_mask, first,
        min(first + span, tokens), stride_n, i_d, i_d < D, MASKED_SUM, TOKENS, DP,
    )  # fmt: skip
    tl.store(p_sums + (i_bh * tl.num_programs(0) + i_span) * D + i_d, total, mask=i_d < D)


@triton.jit
def subtract_mean(
    p_x,
    p_mask,
    p_count,
    p_sums,
    p_y,
    heads,
    tokens,
    span,
    spans,
    stride_b,
    stride_h,
    stride_n,
    D: tl.constexpr,
    DP: tl.constexpr,
    TOKENS: tl.constexpr,
    SPANS: tl.constexpr,
    MASKED_SUM: tl.constexpr,
    MASKED_OUT: tl.constexpr,
):
    """Subtract the mean of a head from a span of its tokens; SPANS = 1 adds the tokens up first."""
    i_span, i_bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_b, i_h, i_d = i_bh // heads, i_bh % heads, tl.arange(0, DP)
    m_d = i_d < D
    first = i_span * span
    last = min(first + span, tokens)
    p_head = p_x + i_b * stride_b + i_h * stride_h
    if SPANS == 1:
        total = _sum_of_span(
            p_head, p_mask + i_b * tokens if MASKED_SUM else p_mask, first, last, stride_n,
            i_d, m_d, MASKED_SUM, TOKENS, DP,
        )  # fmt: skip
    else:
        i_s = tl.arange(0, SPANS)
        p_tile = p_sums + (i_bh * spans + i_s[:, None]) * D + i_d[None, :]  # (SPANS, DP)
        sums = tl.load(p_tile, mask=(i_s < spans)[:, None] & m_d[None, :], other=0.0)
        total = tl.sum(sums, axis=0)
    count = tokens if p_count is None else tl.load(p_count + i_b)
    mean = total / count
    for start in range(first, last, TOKENS):
        i_n = start + tl.arange(0, TOKENS)
        m_n = i_n < last
        m_tile = m_n[:, None] & m_d[None, :]
        x = tl.load(
            p_head + i_n[:, None].to(tl.int64) * stride_n + i_d[None, :], mask=m_tile, other=0.0
        ).to(tl.float32)  # (TOKENS, DP)
        shift = mean[None, :]
        if MASKED_OUT:
            kept = tl.load(p_mask + i_b * tokens + i_n, mask=m_n, other=0) != 0
            shift = tl.where(kept[:, None], shift, 0.0)
        o_tile = (i_bh * tokens + i_n[:, None]) * D + i_d[None, :]
        tl.store(p_y + o_tile, (x - shift).to(p_y.dtype.element_ty), mask=m_tile)


def _spans(batch_heads: int, tokens: int) -> tuple[int, int]:
    """The number of spans of a head, and the tokens of each."""
    wanted = min(MAX_SPANS, triton.cdiv(PROGRAMS, batch_heads), triton.cdiv(tokens, MIN_SPAN))
    steps = triton.cdiv(triton.cdiv(tokens, wanted), TOKENS)
    return triton.cdiv(tokens, steps * TOKENS), steps * TOKENS


@functools.lru_cache(maxsize=_KEPT_SHAPES)
def _launches(
    shape: tuple[int, ...], strides: tuple[int, ...], masked_sum: bool, masked_out: bool
) -> tuple[Launch | None, Launch, tuple[int, ...]]:
    """The launches of both kernels (the first if heads are split), and the shape of the sums."""
    batch, heads, tokens, width = shape
    spans, span = _spans(batch * heads, tokens)
    tile = {"D": width, "DP": max(16, 1 << (width - 1).bit_length()), "TOKENS": TOKENS}
    sizes, tile = (heads, tokens, span), {**tile, "MASKED_SUM": masked_sum, "num_warps": 4}
    grid = (spans, batch * heads)
    first = Launch(sum_spans, grid, (*sizes, *strides), tile) if spans > 1 else None
    padded = {**tile, "SPANS": 1 << (spans - 1).bit_length(), "MASKED_OUT": masked_out}
    second = Launch(subtract_mean, grid, (*sizes, spans, *strides), padded)
    return first, second, (batch * heads, spans, width)


@operator("center_keys")
def _center(x: Tensor, key_mask: Tensor | None, transposed: bool) -> Tensor:
    """Centered keys, or their gradient if `transposed`."""
    y = _new(x, key_mask, transposed)
    if not y.numel():
        return y
    x = x if x.stride(-1) == 1 else x.contiguous()
    mask = None if key_mask is None else key_mask.contiguous().view(torch.uint8)
    count = None if mask is None else mask.sum(dim=1, dtype=torch.float32).clamp_(min=1)
    masked = mask is not None
    key = (tuple(x.shape), x.stride()[:3], masked and not transposed, masked and transposed)
    first, second, shape = _launches(*key)
    with on_device(x):
        sums = None
        if first is not None:
            sums = x.new_empty(shape, dtype=torch.float32)
            first(x, mask, sums)
        second(x, mask, count, sums, y)
    return y


@_center.register_fake
def _new(x: Tensor, _key_mask: Tensor | None, _transposed: bool) -> Tensor:
    return x.new_empty(x.shape)


def _setup_context(ctx, inputs, _outputs):
    ctx.save_for_backward(inputs[1])
    ctx.transposed = inputs[2]


def _pull_back(ctx, dy):
    (key_mask,) = ctx.saved_tensors
    return _center.within_backward((dy, key_mask, not ctx.transposed)), None, None


_center.register_autograd(_pull_back, setup_context=_setup_context)


def fused(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Keys (B, H, S, D) minus the mean of those that the mask (B, S) keeps."""
    out: Tensor = _center(k, key_mask, False)
    return out
