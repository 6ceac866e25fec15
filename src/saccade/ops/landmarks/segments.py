"""Means of runs of tokens, which serve as landmarks or agents.

The n attended tokens of a sample, in their order, are cut into m runs as adaptive average pooling
cuts them: run r holds the tokens from floor(r n / m) to ceil((r + 1) n / m) - 1. If m divides n,
the runs are segments of equal length. With fewer tokens than runs, neighboring runs share a token.
Masked tokens belong to no run, so a padded sequence has the runs of the unpadded one.

Layout (B, H, N, D) -> (B, H, m, D). Cost: 2 N m D FLOPs per head.
"""

import torch
from torch import Tensor

from saccade.ops.arguments import compute_dtype, in_full_precision

__all__ = ["run_members", "segment_means"]


@in_full_precision
def segment_means(x: Tensor, count: int, key_mask: Tensor | None = None) -> Tensor:
    """Means of the runs, (B, H, m, D), in float32 (float64 for float64); 0 without tokens.

    Args:
        x: Tokens (B, H, N, D).
        count: Number of runs m.
        key_mask: (B, N), True for tokens that count.
    """
    tokens = x.to(compute_dtype(x.dtype))
    if key_mask is not None:
        tokens = tokens.masked_fill(~key_mask[:, None, :, None], 0)
    member = run_members(tokens, count, key_mask).to(tokens.dtype)
    return member / member.sum(dim=-1, keepdim=True).clamp(min=1) @ tokens


def run_members(x: Tensor, count: int, key_mask: Tensor | None = None) -> Tensor:
    """True for the tokens of each run, (1 or B, 1, m, N); arguments as for `segment_means`."""
    run = torch.arange(count, device=x.device)[:, None]
    if key_mask is None:
        total: Tensor | int = x.shape[2]
        rank = torch.arange(x.shape[2], device=x.device)[None, None]
    else:
        total = key_mask.long().sum(dim=-1)[:, None, None]
        rank = key_mask.long().cumsum(dim=-1)[:, None] - 1
    first = torch.div(run * total, count, rounding_mode="floor")
    last = torch.div((run + 1) * total + count - 1, count, rounding_mode="floor")
    member = (rank >= first) & (rank < last)
    if key_mask is not None:
        member = member & key_mask[:, None]
    return member[:, None]
