"""Taylor attention with torch's own operators, for `torch.func`, forward mode and export.

`torch.func` (`grad`, `vjp`, `vmap`, `jacrev`), forward-mode differentiation and any order of
derivatives go through these functions. The operators of `direct.py` and `efficient.py` have their
own backward pass, which saves memory but does not support such transforms.

    direct       o_i = sum_j w_ij v_j / sum_j w_ij              memory N^2 for a derivative
    efficient    (y_i, z_i) = phi(q_i)^T W sum_j phi(k_j) u_j^T   memory N F for a derivative

with the symbols of those modules.
"""

import torch
from torch import Tensor

from saccade.ops.arguments import compute_dtype, in_full_precision
from saccade.ops.backends import is_plain
from saccade.ops.taylor.denominators import denominator_floor, safe_denominator
from saccade.ops.taylor.features import feature_weights

__all__ = ["direct_composed", "efficient_composed"]


@in_full_precision
def direct_composed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    key_mask: Tensor | None,
) -> Tensor:
    """As `direct`: the output (B, H, N, E)."""
    a, b, c = coefficients
    queries, keys, values = _prepare(q, k, v, scale, key_mask)
    s = queries @ keys.mT  # (B, H, N, S)
    w = c + s * (b + a * s)
    if key_mask is not None:
        w = w.masked_fill(~key_mask[:, None, None, :], 0)
    floor = denominator_floor(key_mask, _count(k), a, b, c)
    z = safe_denominator(w.sum(dim=-1), floor)
    return ((w @ values) / z.unsqueeze(-1)).to(q.dtype)


@in_full_precision
def efficient_composed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    coefficients: tuple[float, float, float],
    key_mask: Tensor | None,
) -> Tensor:
    """As `efficient`: the output (B, H, N, E)."""
    queries, keys, values = _prepare(q, k, v, scale, key_mask)
    ones = torch.ones_like(values[..., :1])
    if key_mask is not None:
        ones = ones.masked_fill(~key_mask[:, None, :, None], 0)
    weights = feature_weights(q.shape[-1], *coefficients, keys)
    state = weights * (_features(keys) @ torch.cat([values, ones], dim=-1))  # (B, H, F, E+1)
    y = _features(queries).mT @ state  # (B, H, N, E+1)
    floor = denominator_floor(key_mask, _count(k), *coefficients)
    z = safe_denominator(y[..., -1], floor)
    return (y[..., :-1] / z.unsqueeze(-1)).to(q.dtype)


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, scale: float, key_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled queries, keys and values in the dtype of sums, masked keys and values set to zero."""
    dtype = compute_dtype(q.dtype)
    keys, values = k.to(dtype), v.to(dtype)
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        keys, values = keys.masked_fill(hidden, 0), values.masked_fill(hidden, 0)
    return q.to(dtype) * scale, keys, values


def _count(k: Tensor) -> int | Tensor:
    """The number of keys: as a tensor in a graph for export, where a number would be a constant."""
    return k.new_ones(k.shape[2], dtype=compute_dtype(k.dtype)).sum() if is_plain() else k.shape[2]


def _features(x: Tensor) -> Tensor:
    """phi of all tokens, feature-major as in `features.py`: (B, H, N, D) -> (B, H, F, N)."""
    rows = x.mT
    first, second = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    pairs = rows.index_select(-2, first) * rows.index_select(-2, second)
    return torch.cat([pairs, rows, torch.ones_like(rows[..., :1, :])], dim=-2)
