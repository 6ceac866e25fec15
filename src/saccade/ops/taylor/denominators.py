"""The division by the row sums in both algorithms: its lower bound and its gradient.

The weight c + b s + a s^2 is at least c - b^2/(4a) >= 0 for every s, so a row over m keys sums to
at least m (c - b^2/(4a)). Rounding can push a computed sum below that bound when large terms
cancel; the bound is then the better value, and it keeps the quotient finite.
"""

import torch
from torch import Tensor

__all__ = ["denominator_floor", "numerator_gradient", "safe_denominator"]


def denominator_floor(
    key_mask: Tensor | None, keys: int | Tensor, a: float, b: float, c: float
) -> float | Tensor:
    """The smallest possible row sum: a number, or (B, 1, 1) with a mask."""
    smallest_weight = max(0.0, c - b * b / (4 * a))
    if key_mask is None:
        return smallest_weight * keys
    return (smallest_weight * key_mask.sum(dim=-1))[:, None, None]


def safe_denominator(total: Tensor, floor: float | Tensor) -> Tensor:
    """Row sums (B, H, n), at least the lower bound; 1 for rows without keys."""
    if isinstance(floor, float) and floor > 0:
        return total.clamp(min=floor)
    total = torch.maximum(total, torch.as_tensor(floor, dtype=total.dtype, device=total.device))
    return torch.where(total > 0, total, torch.ones_like(total))


def numerator_gradient(grad: Tensor, out: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of y and z in o = y / z: g / z, (B, H, n, E), and -(g.o) / z, (B, H, n, 1)."""
    total = total.unsqueeze(-1)
    return grad / total, -(grad * out).sum(dim=-1, keepdim=True) / total
