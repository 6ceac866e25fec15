"""Trigonometric features of a Gaussian kernel (random feature attention, RFA, arXiv:2103.02143).

    phi(x) = (sin(W x'), cos(W x')) / sqrt(M),   x' = x / (|x| sigma)

With M Gaussian rows of W, phi(q).phi(k) estimates exp(-|q' - k'|^2 / 2). For unit q and k this is
exp(q.k / sigma^2) up to a factor that cancels in the quotient. The estimate can be negative.

# DEVIATION: the rows of W are orthogonal in blocks (`orthogonal_projection`), which lowers the
# variance. sigma is an option and not learned.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.ops.arguments import compute_dtype, in_full_precision

__all__ = ["rfa_features", "rfa_features_reference"]


def rfa_features_reference(x: Tensor, projection: Tensor, *, sigma: float) -> Tensor:
    """(sin(z), cos(z)) / sqrt(M), z = W x / (|x| sigma)."""
    unit = x / (x**2).sum(dim=-1, keepdim=True).sqrt()
    z = torch.einsum("bhnd,md->bhnm", unit, projection) / sigma
    return torch.cat([torch.sin(z), torch.cos(z)], dim=-1) / math.sqrt(projection.shape[0])


@in_full_precision
def rfa_features(x: Tensor, projection: Tensor, *, sigma: float = 1.0) -> Tensor:
    """Sines and cosines side by side: (B, H, N, D) -> (B, H, N, 2 M), in float32 or float64."""
    dtype = compute_dtype(x.dtype)
    unit = F.normalize(x.to(dtype), dim=-1, eps=1e-12)
    z = unit @ (projection.to(dtype) / sigma).T
    return torch.cat([z.sin(), z.cos()], dim=-1) / math.sqrt(projection.shape[0])
