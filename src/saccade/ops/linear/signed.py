"""Linear attention whose weights sum to one without a division, and may be negative.

With s_ij = scale phi(q_i).phi(k_j), z_i the mean of s_ij over the n keys, and o_i = sum_j w_ij v_j:

    InLine  w_ij = (s_ij + 1 - z_i) / n                    (arXiv:2412.06590), phi = identity
    MALA    w_ij = ((1 + 1 / z_i) s_ij - z_i) / n          (arXiv:2507.00698), phi = elu + 1

Rows sum to one, because the mean of s_ij over the keys is z_i. The length of q has an effect,
unlike in the usual quotient. Cost: 4 N D (E + 1/2) FLOPs per head. Layout (B, H, N, D); sums are
float32, or float64 for float64.

# DEVIATION: InLine's paper adds a 3x3 convolution with predicted weights, and MALA's published code
# a depthwise convolution and rotary positions after z, with which rows do not sum to one. Here is
# only the equation. `local_conv` adds a depthwise convolution to any attention.
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

__all__ = [
    "inline_attention",
    "inline_reference",
    "inline_weights",
    "mala_attention",
    "mala_reference",
    "mala_weights",
]


def inline_reference(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, key_mask: Tensor | None = None
) -> Tensor:
    """w_ij = s_ij / n + (1 - mean_j s_ij) / n, as a matrix."""
    s = scale * torch.einsum("bhid,bhjd->bhij", q, k)
    kept = _kept(s, key_mask)
    n = kept.sum(dim=-1, keepdim=True).clamp(min=1)
    z = (s * kept).sum(dim=-1, keepdim=True) / n
    return torch.einsum("bhij,bhje->bhie", kept * (s / n + (1 - z) / n), v)


def mala_reference(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, key_mask: Tensor | None = None
) -> Tensor:
    """w_ij = beta s_ij - gamma, beta = 1 + 1 / sum_j s_ij, gamma = sum_j s_ij / n, as a matrix."""
    phi_q, phi_k = (torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0))) for x in (q, k))
    s = scale * torch.einsum("bhid,bhjd->bhij", phi_q, phi_k)
    kept = _kept(s, key_mask)
    n = kept.sum(dim=-1, keepdim=True).clamp(min=1)
    s = kept * s / n
    total = s.sum(dim=-1, keepdim=True)
    beta = 1 + 1 / torch.where(total > 0, total, torch.ones_like(total))
    return torch.einsum("bhij,bhje->bhie", beta * s - kept * total / n, v)


def _kept(s: Tensor, key_mask: Tensor | None) -> Tensor:
    return torch.ones_like(s) if key_mask is None else key_mask[:, None, None, :].expand_as(s).to(s)


@in_full_precision
def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """InLine attention in linear time.

    Args:
        q: Queries (B, H, N, D).
        k: Keys (B, H, S, D).
        v: Values (B, H, S, E).
        scale: Factor of the products; 1/sqrt(D) by default.
        key_mask: (B, S), True = attend. A sample that masks every key gets 0.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    query, state, key_mean, value_mean = _sums(q, k, v, scale, key_mask)
    return (query @ state + (1 - query @ key_mean.mT) * value_mean).to(v.dtype)


@in_full_precision
def mala_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Magnitude-aware linear attention; arguments as for `inline_attention`."""
    query, state, key_mean, value_mean = _sums(q, k, v, scale, key_mask, elu=True)
    z = query @ key_mean.mT
    beta = 1 + 1 / z.masked_fill(z == 0, 1)
    return (beta * (query @ state) - z * value_mean).to(v.dtype)


def _sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    key_mask: Tensor | None,
    *,
    elu: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scaled features of q; the mean over the keys of k' v, (B, H, D, E), and of k' and of v."""
    check_qkv(q, k, v)
    check_key_mask(key_mask, k)
    query, key, value, counts = _prepared(q, k, scale, key_mask, elu, v)
    state = key.mT @ (value / counts)
    key_mean, value_mean = ((x / counts).sum(dim=2, keepdim=True) for x in (key, value))
    return query, state, key_mean, value_mean


def _prepared(
    q: Tensor,
    k: Tensor,
    scale: float | None,
    key_mask: Tensor | None,
    elu: bool,
    v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | int]:
    """Scaled features of q; features of k and values, 0 for masked keys; the numbers of keys."""
    dtype = compute_dtype(k.dtype)
    query, key = q.to(dtype), k.to(dtype)
    value = key if v is None else v.to(dtype)
    if elu:
        query, key = F.elu(query) + 1, F.elu(key) + 1
    query = query * resolve_scale(scale, q.shape[-1])
    if key_mask is None:
        return query, key, value, max(k.shape[2], 1)
    hidden = ~key_mask[:, None, :, None]
    counts = key_mask.sum(dim=-1).clamp(min=1).to(dtype)[:, None, None, None]
    return query, key.masked_fill(hidden, 0), value.masked_fill(hidden, 0), counts


@in_full_precision
def inline_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """The weights of chosen queries, (B, H, Q, S); rows sum to one and may be negative."""
    s, z, counts = _scores(q, k, scale, key_mask, queries, elu=False)
    return _masked((s + 1 - z) / counts, key_mask).to(q.dtype)


@in_full_precision
def mala_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """As `inline_weights`, for MALA."""
    s, z, counts = _scores(q, k, scale, key_mask, queries, elu=True)
    beta = 1 + 1 / z.masked_fill(z == 0, 1)
    return _masked((beta * s - z) / counts, key_mask).to(q.dtype)


def _scores(
    q: Tensor,
    k: Tensor,
    scale: float | None,
    key_mask: Tensor | None,
    queries: Tensor | slice | None,
    *,
    elu: bool,
) -> tuple[Tensor, Tensor, Tensor | int]:
    """s_ij, their mean z_i over the keys, and the number of keys."""
    check_qk(q, k)
    check_key_mask(key_mask, k)
    query, key, _, counts = _prepared(select_queries(q, queries), k, scale, key_mask, elu)
    s = query @ key.mT
    return s, s.sum(dim=-1, keepdim=True) / counts, counts


def _masked(weights: Tensor, key_mask: Tensor | None) -> Tensor:
    return weights if key_mask is None else weights.masked_fill(~key_mask[:, None, None, :], 0)
