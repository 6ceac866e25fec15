"""The equations of linear attention and its feature maps, in the dtype of the inputs.

    w_ij = (phi_q_i.phi_k_j + eps) / sum_j (phi_q_i.phi_k_j + eps),   o_i = sum_j w_ij v_j

Each feature map phi takes x (B, H, N, D) and W (M, D) and gives (B, H, N, M); z = W x. No maximum
is
subtracted: the maxima that the fast paths subtract for stability cancel in the quotient.
"""

import math

import torch
from torch import Tensor

__all__ = [
    "elu_reference",
    "exp_reference",
    "favor_softmax_reference",
    "ftheta_mix_reference",
    "ftheta_mlp_reference",
    "gelu_reference",
    "linear_attention_reference",
    "linear_weights_reference",
    "project",
    "relu_reference",
]


def linear_weights_reference(
    phi_q: Tensor, phi_k: Tensor, *, eps: float = 1e-6, key_mask: Tensor | None = None
) -> Tensor:
    """The row-stochastic map (B, H, N, N)."""
    w = torch.einsum("bhim,bhjm->bhij", phi_q, phi_k) + eps
    if key_mask is not None:
        w = w.masked_fill(~key_mask[:, None, None, :], 0)
    total = w.sum(dim=-1, keepdim=True)
    return w / torch.where(total > 0, total, torch.ones_like(total))


def linear_attention_reference(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    *,
    eps: float = 1e-6,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The output (B, H, N, E)."""
    w = linear_weights_reference(phi_q, phi_k, eps=eps, key_mask=key_mask)
    return torch.einsum("bhij,bhje->bhie", w, v)


def project(x: Tensor, projection: Tensor, scale: float) -> Tensor:
    """z = W x', x' = sqrt(scale) x."""
    return math.sqrt(scale) * torch.einsum("bhnd,md->bhnm", x, projection)


def favor_softmax_reference(x: Tensor, projection: Tensor, *, scale: float) -> Tensor:
    """exp(z - |x'|^2/2) / sqrt(M), x' = sqrt(scale) x; E[phi(q).phi(k)] = exp(scale q.k)."""
    z = project(x, projection, scale)
    square = scale * (x**2).sum(dim=-1, keepdim=True)
    return torch.exp(z - square / 2) / math.sqrt(projection.shape[0])


def relu_reference(x: Tensor, projection: Tensor, *, scale: float, eps: float) -> Tensor:
    """(max(z, 0) + eps) / sqrt(M)."""
    return (project(x, projection, scale).clamp(min=0) + eps) / math.sqrt(projection.shape[0])


def exp_reference(
    x: Tensor, projection: Tensor, *, scale: float, eps: float, clamp: float
) -> Tensor:
    """(exp(min(max(z, -clamp), clamp)) + eps) / sqrt(M)."""
    z = project(x, projection, scale).clamp(-clamp, clamp)
    return (torch.exp(z) + eps) / math.sqrt(projection.shape[0])


def gelu_reference(x: Tensor, projection: Tensor, *, scale: float, eps: float) -> Tensor:
    """(z Phi(z) + 0.17 + eps) / sqrt(M); z Phi(z) >= -0.16998."""
    z = project(x, projection, scale)
    normal = (1 + torch.erf(z / math.sqrt(2))) / 2
    return (z * normal + 0.17 + eps) / math.sqrt(projection.shape[0])


def elu_reference(x: Tensor, projection: Tensor, *, scale: float, eps: float) -> Tensor:
    """(z + 1 + eps) / sqrt(M) where z > 0, (exp(z) + eps) / sqrt(M) elsewhere."""
    z = project(x, projection, scale)
    return (torch.where(z > 0, z + 1, torch.exp(z.clamp(max=0))) + eps) / math.sqrt(
        projection.shape[0]
    )


def ftheta_mlp_reference(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, *, scale: float, eps: float
) -> Tensor:
    """(log(1 + exp(W2 max(W1 x' + b1, 0) + b2)) + eps) / sqrt(M), x' = sqrt(scale) x."""
    hidden = (project(x, w1, scale) + b1).clamp(min=0)
    z = torch.einsum("bhnk,mk->bhnm", hidden, w2) + b2
    return (torch.log1p(torch.exp(z)) + eps) / math.sqrt(w2.shape[0])


def ftheta_mix_reference(
    x: Tensor,
    projection: Tensor,
    mu: Tensor,
    temperature: Tensor,
    *,
    scale: float,
    eps: float,
    clamp: float,
) -> Tensor:
    """(mu exp(z/t) + (1 - mu) max(z/t, 0) + eps) / sqrt(M), the exponent clamped."""
    z = project(x, projection, scale) / temperature
    mixed = mu * torch.exp(z.clamp(-clamp, clamp)) + (1 - mu) * z.clamp(min=0)
    return (mixed + eps) / math.sqrt(projection.shape[0])
