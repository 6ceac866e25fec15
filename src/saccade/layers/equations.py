"""The equation of every attention, literal and quadratic, as the reference for its fast path.

Each takes queries (B, H, Q, D), all keys and values (B, H, N, D), the parameters of its core by
name, and a mask (B, N) of the keys. In float64 it is the exact result. In the dtype of a run, its
error sets the tolerance for the fast path. Entries of `layers/attentions.py` refer to it by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from saccade.ops.linear import reference
from saccade.ops.softmax.reference import softmax_attention_reference
from saccade.ops.taylor.reference import taylor_attention_reference

__all__ = [
    "Equation",
    "Parameters",
    "elu",
    "exp",
    "favor",
    "ftheta",
    "gelu",
    "relu",
    "softmax",
    "taylor",
    "taylorshift",
]

Parameters = Mapping[str, Any]
"""Parameters and buffers of a core, and its `equation_options`, by name."""

Equation = Callable[..., Tensor]
"""(q, k, v, parameters, key_mask=None) -> (B, H, Q, E)."""

_CLAMP = 10.0


def softmax(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights softmax(q.k / sqrt(D))."""
    del parameters
    return softmax_attention_reference(q, k, v, scale=q.shape[-1] ** -0.5, key_mask=key_mask)


def taylor(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights 1 + s + s^2/2 of s = q.k / sqrt(D)."""
    del parameters
    return taylor_attention_reference(q, k, v, scale=q.shape[-1] ** -0.5, key_mask=key_mask)


def taylorshift(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights 1 + s + s^2/2 of s = tau q.k / (|q| |k|); output times sqrt(N / D)."""
    q, k = (x / (x**2).sum(dim=-1, keepdim=True).sqrt() for x in (q, k))
    out = taylor_attention_reference(
        q * parameters["temperature"], k, v, scale=1.0, key_mask=key_mask
    )
    if key_mask is None:
        return out * math.sqrt(k.shape[2] / k.shape[3])
    counts = key_mask.to(k.dtype).sum(dim=-1)[:, None, None, None]
    return out * (counts / k.shape[3]).sqrt()


def favor(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """FAVOR+ features: the largest exponent is subtracted, and eps is added to the exponentials."""
    projection = parameters["projection"]
    exponents = []
    for x in (q, k):
        x = x * x.shape[-1] ** -0.25
        z = torch.einsum("bhnd,md->bhnm", x, projection)
        exponents.append(z - (x**2).sum(dim=-1, keepdim=True) / 2)
    query, key = exponents
    if key_mask is not None:
        key = key.masked_fill(~key_mask[:, None, :, None], torch.finfo(key.dtype).min)
    phi_q = torch.exp(query - query.detach().amax(dim=-1, keepdim=True)) + 1e-6
    phi_k = torch.exp(key - key.detach().amax(dim=(-2, -1), keepdim=True)) + 1e-6
    scale = projection.shape[0] ** -0.5
    return reference.linear_attention_reference(
        phi_q * scale, phi_k * scale, v, eps=0.0, key_mask=key_mask
    )


def _random_features(feature_map: Callable[..., Tensor], **options: float) -> Equation:
    def equation(
        q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
    ) -> Tensor:
        scale = q.shape[-1] ** -0.5
        phi_q, phi_k = (
            feature_map(x, parameters["projection"], scale=scale, **options) for x in (q, k)
        )
        return reference.linear_attention_reference(phi_q, phi_k, v, eps=0.0, key_mask=key_mask)

    return equation


relu = _random_features(reference.relu_reference, eps=1e-3)
exp = _random_features(reference.exp_reference, eps=1e-6, clamp=_CLAMP)
gelu = _random_features(reference.gelu_reference, eps=1e-3)
elu = _random_features(reference.elu_reference, eps=1e-6)


def ftheta(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Features softplus(W2 relu(W1 x' + b1) + b2)."""
    weights = [parameters[name] for name in ("w1", "b1", "w2", "b2")]
    scale = q.shape[-1] ** -0.5
    phi_q, phi_k = (
        reference.ftheta_mlp_reference(x, *weights, scale=scale, eps=1e-6) for x in (q, k)
    )
    return reference.linear_attention_reference(phi_q, phi_k, v, eps=0.0, key_mask=key_mask)
