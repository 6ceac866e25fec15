"""Attention with a positive feature map, in linear time.

    o_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = phi_q_i.phi_k_j + eps
        = (phi_q_i^T S + eps sum_j v_j) / (phi_q_i^T sum_j phi_k_j + eps N)

with the state S = sum_j phi_k_j v_j^T.

(Transformers are RNNs, arXiv:2006.16236; Performer, arXiv:2009.14794.)
Cost: 4 N M (E+1) FLOPs per head; memory N (M + E). Sums are float32, or float64 for float64. With
`backend="triton"` the operands of products are rounded to the dtype of v.

# DEVIATION: the usual form adds eps to the denominator only, so rows do not sum to one if their
# weights are small. Here eps is added to every weight: a query that matches nothing attends to all
# keys equally, and rows are convex.
"""

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.ops.arguments import (
    Backend,
    check_key_mask,
    check_qk,
    check_values,
    compute_dtype,
    in_full_precision,
    select_queries,
)
from saccade.ops.backends import fused_obstacle, takes_fused

__all__ = ["check_eps", "linear_attention", "linear_weights"]

_NAMES = ("phi_q", "phi_k")


@in_full_precision
def linear_attention(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    *,
    eps: float = 1e-6,
    key_mask: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Attend with weights phi_q.phi_k.

    Args:
        phi_q: Features of the queries (B, H, N, M), none negative.
        phi_k: Features of the keys (B, H, S, M), none negative.
        v: Values (B, H, S, E), in any dtype; the features may have a wider one.
        eps: Added to every weight before rows are normalized.
        key_mask: (B, S), True = attend. A sample that masks every key gets 0.
        backend: `torch`, which `auto` uses, or `triton` (fused; not yet timed with features from
            outside).

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    check_qk(phi_q, phi_k, names=_NAMES)
    check_values(v, phi_k, keys_name="phi_k")
    check_key_mask(key_mask, phi_k)
    check_eps(eps)
    if takes_fused(backend, fused_obstacle(v), preferred=False):
        return _fused(phi_q, phi_k, v, eps, key_mask)
    dtype = compute_dtype(torch.promote_types(phi_q.dtype, v.dtype))
    query, key, value = phi_q.to(dtype), phi_k.to(dtype), v.to(dtype)
    count: Tensor | int = phi_k.shape[2]
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        key, value = key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)
        count = key_mask.sum(dim=-1).to(dtype)[:, None, None, None]
    state = key.mT @ value  # (B, H, M, E)
    key_sum = key.sum(dim=2).unsqueeze(-1)  # (B, H, M, 1)
    total = query @ key_sum + eps * count  # (B, H, N, 1)
    mixed = query @ state + eps * value.sum(dim=2, keepdim=True)
    return (mixed / total.masked_fill(total == 0, 1)).to(v.dtype)


def _fused(phi_q: Tensor, phi_k: Tensor, v: Tensor, eps: float, key_mask: Tensor | None) -> Tensor:
    from saccade.ops.linear.triton import fused

    return fused(
        phi_q,
        phi_k,
        v,
        None,
        feature_map="identity",
        scale=1.0,
        constant=0.0,
        eps=eps,
        key_mask=key_mask,
        precision="ieee",
    )


@in_full_precision
def linear_weights(
    phi_q: Tensor,
    phi_k: Tensor,
    *,
    eps: float = 1e-6,
    key_mask: Tensor | None = None,
    queries: Tensor | slice | None = None,
) -> Tensor:
    """The weights of chosen queries, (B, H, Q, S), rows summing to one."""
    check_qk(phi_q, phi_k, names=_NAMES)
    check_key_mask(key_mask, phi_k)
    check_eps(eps)
    dtype = compute_dtype(phi_q.dtype)
    weights = select_queries(phi_q, queries).to(dtype) @ phi_k.to(dtype).mT + eps
    if key_mask is not None:
        weights = weights.masked_fill(~key_mask[:, None, None, :], 0)
    total = weights.sum(dim=-1, keepdim=True)
    return (weights / total.masked_fill(total == 0, 1)).to(phi_q.dtype)


def check_eps(eps: float) -> None:
    """Raise if eps is negative or not finite."""
    if not 0 <= eps < torch.inf:
        raise ConfigError(f"eps must be a finite number of at least 0, got {eps!r}")
