"""The equation of Taylor-softmax attention, quadratic, in the dtype of the inputs.

    w_ij = (c + b s_ij + a s_ij^2) / sum_j (c + b s_ij + a s_ij^2),   s_ij = scale q_i.k_j
    o_i  = sum_j w_ij v_j

With (a, b, c) = (1/2, 1, 1) the numerator is the Taylor polynomial of exp at 0, of order 2
(TaylorShift, arXiv:2403.02920). `center_keys` replaces k_j by k_j - mean_j k_j, the mean over the
keys that are attended to. A row without keys to attend to has output 0.
"""

import torch
from torch import Tensor

__all__ = ["taylor_attention_reference", "taylor_weights_reference"]

Coefficients = tuple[float, float, float]


def taylor_weights_reference(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    coefficients: Coefficients = (0.5, 1.0, 1.0),
    key_mask: Tensor | None = None,
    center_keys: bool = False,
) -> Tensor:
    """The row-stochastic map (B, H, N, N)."""
    a, b, c = coefficients
    if center_keys:
        kept = torch.ones_like(k[:, 0, :, 0]) if key_mask is None else key_mask.to(k.dtype)
        total = torch.einsum("bj,bhjd->bhd", kept, k)
        k = k - (total / kept.sum(dim=-1).clamp(min=1)[:, None, None]).unsqueeze(2)
    s = scale * torch.einsum("bhid,bhjd->bhij", q, k)
    w = c + b * s + a * s**2
    if key_mask is not None:
        w = w.masked_fill(~key_mask[:, None, None, :], 0)
    total = w.sum(dim=-1, keepdim=True)
    return w / torch.where(total > 0, total, torch.ones_like(total))


def taylor_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    coefficients: Coefficients = (0.5, 1.0, 1.0),
    key_mask: Tensor | None = None,
    center_keys: bool = False,
) -> Tensor:
    """The output (B, H, N, E)."""
    w = taylor_weights_reference(
        q, k, scale=scale, coefficients=coefficients, key_mask=key_mask, center_keys=center_keys
    )
    return torch.einsum("bhij,bhje->bhie", w, v)
