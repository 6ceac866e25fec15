"""Subtract the mean of the attended keys from every key.

    k_j - mean_j k_j   changes all scores of a row by the same amount

Softmax weights do not change. Approximations of exp around 0 become more accurate, because the
scores become smaller. Layout (B, H, N, D); cost linear in N. On a GPU one operator reads the keys
twice and writes them once.
"""

from __future__ import annotations

from torch import Tensor

from saccade.ops.arguments import Backend, compute_dtype, in_full_precision
from saccade.ops.backends import fused_obstacle, takes_fused

__all__ = ["centered_keys"]


@in_full_precision
def centered_keys(
    k: Tensor, key_mask: Tensor | None = None, *, backend: Backend = "auto"
) -> Tensor:
    """Keys minus the mean of the attended keys; sums are float32 (float64 for float64).

    Args:
        k: Keys (B, H, S, D).
        key_mask: (B, S), True = attend. Masked keys are not part of the mean.
        backend: `torch`, `triton` (fused), or `auto`: fused on a GPU.

    Returns:
        (B, H, S, D) in the dtype of k.
    """
    obstacle = fused_obstacle(k, k.shape[-1])
    if takes_fused(backend, obstacle, preferred=k.is_cuda):
        from saccade.ops.centering import triton

        return triton.fused(k, key_mask)
    keys = k.to(compute_dtype(k.dtype))
    if key_mask is None:
        return (keys - keys.mean(dim=2, keepdim=True)).to(k.dtype)
    kept = keys.masked_fill(~key_mask[:, None, :, None], 0)
    count = key_mask.sum(dim=-1).clamp(min=1)[:, None, None, None]
    return (keys - kept.sum(dim=2, keepdim=True) / count).to(k.dtype)
