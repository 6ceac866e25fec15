"""The equation of softmax attention, quadratic, in the dtype of the inputs.

    w_ij = exp(s_ij) / sum_j exp(s_ij),   s_ij = scale q_i.k_j,   o_i = sum_j w_ij v_j

A row without keys to attend to has weights 0 and output 0.
"""

import torch
from torch import Tensor

__all__ = ["softmax_attention_reference", "softmax_weights_reference"]


def softmax_weights_reference(
    q: Tensor, k: Tensor, *, scale: float, key_mask: Tensor | None = None
) -> Tensor:
    """The row-stochastic map (B, H, N, N)."""
    s = scale * torch.einsum("bhid,bhjd->bhij", q, k)
    w = torch.exp(s - s.amax(dim=-1, keepdim=True))
    if key_mask is not None:
        s = s.masked_fill(~key_mask[:, None, None, :], float("-inf"))
        top = s.amax(dim=-1, keepdim=True)
        w = torch.exp(s - torch.where(top.isfinite(), top, torch.zeros_like(top)))
    total = w.sum(dim=-1, keepdim=True)
    return w / torch.where(total > 0, total, torch.ones_like(total))


def softmax_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, key_mask: Tensor | None = None
) -> Tensor:
    """The output (B, H, N, E)."""
    return torch.einsum(
        "bhij,bhje->bhie", softmax_weights_reference(q, k, scale=scale, key_mask=key_mask), v
    )
