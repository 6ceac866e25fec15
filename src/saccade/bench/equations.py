"""The equation of every family, literal and quadratic: what a mechanism is held to.

Each takes Q queries (B, H, Q, D), all keys and values (B, H, N, D), and the parameters of the
mechanism by name. In float64 it is the truth; in the dtype of a run it is the plain formula, whose
error sets the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from saccade.ops.linear import reference
from saccade.ops.softmax.reference import softmax_attention_reference
from saccade.ops.taylor.reference import taylor_attention_reference

__all__ = ["EQUATIONS", "Equation"]

Parameters = Mapping[str, Tensor]
Equation = Callable[[Tensor, Tensor, Tensor, Parameters], Tensor]

_CLAMP = 10.0


def _softmax(q: Tensor, k: Tensor, v: Tensor, parameters: Parameters) -> Tensor:
    del parameters
    return softmax_attention_reference(q, k, v, scale=q.shape[-1] ** -0.5)


def _taylor(q: Tensor, k: Tensor, v: Tensor, parameters: Parameters) -> Tensor:
    del parameters
    return taylor_attention_reference(q, k, v, scale=q.shape[-1] ** -0.5)


def _taylorshift(q: Tensor, k: Tensor, v: Tensor, parameters: Parameters) -> Tensor:
    q, k = (x / (x**2).sum(dim=-1, keepdim=True).sqrt() for x in (q, k))
    out = taylor_attention_reference(q * parameters["temperature"], k, v, scale=1.0)
    return out * math.sqrt(k.shape[2] / k.shape[3])


def _favor(q: Tensor, k: Tensor, v: Tensor, parameters: Parameters) -> Tensor:
    """FAVOR+ with its largest exponent taken out, and eps added to what remains."""
    projection = parameters["projection"]
    exponents = []
    for x in (q, k):
        x = x * x.shape[-1] ** -0.25
        z = torch.einsum("bhnd,md->bhnm", x, projection)
        exponents.append(z - (x**2).sum(dim=-1, keepdim=True) / 2)
    query, key = exponents
    phi_q = torch.exp(query - query.detach().amax(dim=-1, keepdim=True)) + 1e-6
    phi_k = torch.exp(key - key.detach().amax(dim=(-2, -1), keepdim=True)) + 1e-6
    scale = projection.shape[0] ** -0.5
    return reference.linear_attention_reference(phi_q * scale, phi_k * scale, v, eps=0.0)


def _random_features(feature_map: Callable[..., Tensor], **options: float) -> Equation:
    def equation(q: Tensor, k: Tensor, v: Tensor, parameters: Parameters) -> Tensor:
        scale = q.shape[-1] ** -0.5
        phi_q, phi_k = (
            feature_map(x, parameters["projection"], scale=scale, **options) for x in (q, k)
        )
        return reference.linear_attention_reference(phi_q, phi_k, v, eps=0.0)

    return equation


def _ftheta(q: Tensor, k: Tensor, v: Tensor, parameters: Parameters) -> Tensor:
    weights = [parameters[name] for name in ("w1", "b1", "w2", "b2")]
    scale = q.shape[-1] ** -0.5
    phi_q, phi_k = (
        reference.ftheta_mlp_reference(x, *weights, scale=scale, eps=1e-6) for x in (q, k)
    )
    return reference.linear_attention_reference(phi_q, phi_k, v, eps=0.0)


EQUATIONS: dict[str, Equation] = {
    "softmax": _softmax,
    "taylor": _taylor,
    "taylorshift": _taylorshift,
    "performer": _favor,
    "performer_relu": _random_features(reference.relu_reference, eps=1e-3),
    "performer_exp": _random_features(reference.exp_reference, eps=1e-6, clamp=_CLAMP),
    "performer_gelu": _random_features(reference.gelu_reference, eps=1e-3),
    "performer_elu": _random_features(reference.elu_reference, eps=1e-6),
    "performer_ftheta": _ftheta,
}
"""Family -> equation. A family is named as the attention of `list_attentions()` it belongs to."""
