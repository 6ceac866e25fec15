"""Positive feature maps phi: (B, H, N, D) -> (B, H, N, M).

With z = W x', x' = sqrt(scale) x:

    favor_softmax  exp(z - |x'|^2/2)             estimates exp(scale q.k)      (arXiv:2009.14794)
    relu           max(z, 0)
    exp            exp(z), the exponent clamped
    gelu           gelu(z) + 0.17                gelu is never below -0.16998
    elu            elu(z) + 1                                                  (arXiv:2006.16236)
    ftheta_mlp     softplus(W2 relu(W1 x' + b1) + b2)                          learned
    ftheta_mix     mu exp(z/t) + (1 - mu) max(z/t, 0)                          learned mu, t

each plus a small eps, so that no feature is zero, and divided by sqrt(M). Features are computed and
returned in float32 (float64 for float64), because those of half-precision inputs can exceed the
range of half precision.

# DEVIATION: GELU and ELU features as first published for Performers on CIFAR-10 go negative, and
# their denominators cross zero. The shifts above keep every weight positive. docs/published.md
# lists all differences from that study.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.errors import ConfigError
from saccade.ops.arguments import check_key_mask, compute_dtype, in_full_precision, resolve_scale

__all__ = ["elu", "exp", "favor_softmax", "ftheta_mix", "ftheta_mlp", "gelu", "project", "relu"]

GELU_SHIFT = 0.17
EXPONENT_CLAMP = 10.0


@in_full_precision
def favor_softmax(
    x: Tensor,
    projection: Tensor,
    *,
    is_query: bool,
    scale: float | None = None,
    eps: float = 1e-6,
    key_mask: Tensor | None = None,
) -> Tensor:
    """FAVOR+ features, with the largest exponent subtracted.

    A number for each query, and one for all keys of a head, is subtracted; both cancel when rows
    are normalized.

    Args:
        x: Queries or keys (B, H, N, D).
        projection: W (M, D), see `orthogonal_projection`.
        is_query: True if x are queries.
        scale: Factor of the scores; 1/sqrt(D) by default.
        eps: Added to every feature.
        key_mask: (B, N) for keys: the maximum is taken over the keys attended to.
    """
    z, x = project(x, projection, scale)
    exponent = z - x.square().sum(dim=-1, keepdim=True) / 2
    if is_query:
        if key_mask is not None:
            raise ConfigError("key_mask must be None with is_query=True, got a mask")
        top = exponent.detach().amax(dim=-1, keepdim=True)
    else:
        check_key_mask(key_mask, x)
        if key_mask is not None:
            low = torch.finfo(exponent.dtype).min
            exponent = exponent.masked_fill(~key_mask[:, None, :, None], low)
        top = exponent.detach().amax(dim=-1, keepdim=True)
        top = top.amax(dim=-2, keepdim=True) if top.shape[2] else top  # of no keys there is none
    return (torch.exp(exponent - top) + eps) / math.sqrt(projection.shape[0])


@in_full_precision
def relu(x: Tensor, projection: Tensor, *, scale: float | None = None, eps: float = 1e-3) -> Tensor:
    """max(z, 0) + eps."""
    z, _ = project(x, projection, scale)
    return (F.relu(z) + eps) / math.sqrt(projection.shape[0])


@in_full_precision
def exp(
    x: Tensor,
    projection: Tensor,
    *,
    scale: float | None = None,
    eps: float = 1e-6,
    clamp: float = EXPONENT_CLAMP,
) -> Tensor:
    """exp(z) + eps with |z| limited to `clamp`."""
    z, _ = project(x, projection, scale)
    return (torch.exp(z.clamp(-clamp, clamp)) + eps) / math.sqrt(projection.shape[0])


@in_full_precision
def gelu(x: Tensor, projection: Tensor, *, scale: float | None = None, eps: float = 1e-3) -> Tensor:
    """gelu(z) + 0.17 + eps."""
    z, _ = project(x, projection, scale)
    return (F.gelu(z) + (GELU_SHIFT + eps)) / math.sqrt(projection.shape[0])


@in_full_precision
def elu(x: Tensor, projection: Tensor, *, scale: float | None = None, eps: float = 1e-6) -> Tensor:
    """elu(z) + 1 + eps."""
    z, _ = project(x, projection, scale)
    return (F.elu(z) + (1 + eps)) / math.sqrt(projection.shape[0])


@in_full_precision
def ftheta_mlp(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    scale: float | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """softplus(W2 relu(W1 x' + b1) + b2) + eps; W1 is (K, D), W2 is (M, K)."""
    z, _ = project(x, w1, scale)
    hidden = F.relu(z + b1.to(z.dtype))
    return (F.softplus(hidden @ w2.to(z.dtype).T + b2.to(z.dtype)) + eps) / math.sqrt(w2.shape[0])


@in_full_precision
def ftheta_mix(
    x: Tensor,
    projection: Tensor,
    mu: Tensor,
    temperature: Tensor,
    *,
    scale: float | None = None,
    eps: float = 1e-6,
    clamp: float = EXPONENT_CLAMP,
) -> Tensor:
    """mu exp(z/t) + (1 - mu) max(z/t, 0) + eps; mu in (0, 1) and t > 0 broadcast over z."""
    z, _ = project(x, projection, scale)
    z = z / temperature.to(z.dtype)
    mu = mu.to(z.dtype)
    mixed = mu * torch.exp(z.clamp(-clamp, clamp)) + (1 - mu) * F.relu(z)
    return (mixed + eps) / math.sqrt(projection.shape[0])


def project(x: Tensor, projection: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """z = W x' and x' = sqrt(scale) x, in the compute dtype."""
    if x.dim() != 4 or projection.dim() != 2 or projection.shape[1] != x.shape[-1]:
        raise ConfigError(
            "x and projection must have shapes (B, H, N, D) and (M, D), got "
            f"{tuple(x.shape)} and {tuple(projection.shape)}"
        )
    scale = resolve_scale(scale, x.shape[-1])
    if scale < 0:
        raise ConfigError(f"scale must be at least 0 for feature maps, got {scale!r}")
    x = x.to(compute_dtype(x.dtype)) * math.sqrt(scale)
    return x @ projection.to(x.dtype).T, x
