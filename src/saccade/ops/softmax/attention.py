"""Softmax attention by torch's fused `scaled_dot_product_attention`; short heads by our kernel.

    o_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij),   s_ij = scale q_i.k_j

Cost: 4 N^2 D FLOPs per head; memory linear in N if torch has a fused kernel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.ops.arguments import (
    check_key_mask,
    check_qk,
    check_qkv,
    compute_dtype,
    in_full_precision,
    resolve_scale,
    select_queries,
)
from saccade.ops.backends import fused_obstacle, is_differentiated_forward

__all__ = ["packed_softmax_attention", "softmax_attention", "softmax_weights"]

SHORT = ((64, 64), (128, 32))
"""Maximum number of tokens of a head that one program computes, by maximum number of columns."""


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """Attend with softmax weights.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        scale: Factor of the scores; 1/sqrt(D) by default.
        key_mask: (B, S), True = attend. A sample that masks every key gets 0.

    Returns:
        (B, H, N, E) in the dtype of q.
    """
    check_qkv(q, k, v)
    check_key_mask(key_mask, k)
    scale = resolve_scale(scale, q.shape[-1])
    if is_differentiated_forward():  # torch's fused kernels have no forward mode
        weights = softmax_weights(q, k, scale=scale, key_mask=key_mask)
        return weights @ (v if key_mask is None else v.masked_fill(~key_mask[:, None, :, None], 0))
    if key_mask is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    hidden = ~key_mask[:, None, :, None]
    k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    # A sample without keys attends to all of its keys instead, whose values are now zero.
    usable = key_mask | ~key_mask.any(dim=-1, keepdim=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=usable[:, None, None, :], scale=scale)


def packed_softmax_attention(qkv: Tensor) -> Tensor | None:
    """Attend to q, k and v in one tensor, as the projection returns them, if a kernel supports it.

    The kernel is for bfloat16 on a GPU and heads that are short enough for one program each.
    torch's kernels, made for long sequences, take four times as long with 64 tokens and 1.3 times
    with 128.

    Args:
        qkv: (B, N, 3, H, D), checked by the caller.

    Returns:
        (B, N, H, D) in the dtype of qkv; None if no kernel supports the call.
    """
    tokens, dim = qkv.shape[1], qkv.shape[4]
    if not qkv.is_cuda or qkv.dtype != torch.bfloat16 or fused_obstacle(qkv) is not None:
        return None
    if not any(tokens <= most and dim <= widest for most, widest in SHORT):
        return None
    from saccade.ops.softmax import triton

    return triton.fused(qkv, scale=resolve_scale(None, dim))


@in_full_precision
def softmax_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """The weights of chosen queries, (B, H, Q, S), rows summing to one."""
    check_qk(q, k)
    check_key_mask(key_mask, k)
    dtype = compute_dtype(q.dtype)
    chosen = select_queries(q, queries).to(dtype) * resolve_scale(scale, q.shape[-1])
    if key_mask is None:
        return torch.softmax(chosen @ k.to(dtype).mT, dim=-1).to(q.dtype)
    hidden = ~key_mask[:, None, None, :]
    scores = chosen @ k.to(dtype).mT.masked_fill(hidden, 0)
    scores = scores.masked_fill(hidden, torch.finfo(dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0).to(q.dtype)
