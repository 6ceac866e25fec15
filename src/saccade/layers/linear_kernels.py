"""Cores with a linear kernel and nothing else: `relu_linear`, `inline`, `mala` and `rfa`.

`ops/linear/` has papers, derivations and differences from them.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.layers.cores import AttentionCore
from saccade.layers.equations import Parameters
from saccade.layers.performers import FeatureCore, draw_seed
from saccade.ops.arguments import Backend, compute_dtype
from saccade.ops.linear import orthogonal_projection
from saccade.ops.linear.reference import linear_attention_reference
from saccade.ops.linear.signed import (
    inline_attention,
    inline_reference,
    inline_weights,
    mala_attention,
    mala_reference,
    mala_weights,
)
from saccade.ops.linear.trigonometric import rfa_features, rfa_features_reference

__all__ = [
    "InLineCore",
    "MalaCore",
    "ReluLinearCore",
    "RfaCore",
    "inline",
    "mala",
    "relu_linear",
    "rfa",
]

_RELU_EPS = 1e-6


class ReluLinearCore(FeatureCore):
    """ReLU linear attention (EfficientViT, arXiv:2205.14756), without its convolutions.

    # DEVIATION: EfficientViT adds eps to the denominator alone. Here it is added to every weight: a
    # query whose products with all keys are zero attends to all keys equally.

    Args:
        num_heads: H.
        head_dim: D, also the number of features.
        attn_drop: Must be 0.
        backend: As in `linear_attention`.
    """

    weight_eps = _RELU_EPS

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop, num_features=head_dim)
        self.backend = backend

    def features(self, x: Tensor, *, is_query: bool, key_mask: Tensor | None = None) -> Tensor:
        """max(x, 0), in float32 for half precision."""
        del is_query, key_mask
        return x.to(compute_dtype(x.dtype)).relu()

    def feature_flops(self, num_tokens: int) -> int:
        """No products."""
        del num_tokens
        return 0


def relu_linear(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights max(q, 0).max(k, 0) + eps."""
    del parameters
    phi_q, phi_k = q.clamp(min=0), k.clamp(min=0)
    return linear_attention_reference(phi_q, phi_k, v, eps=_RELU_EPS, key_mask=key_mask)


class RfaCore(FeatureCore):
    """Random feature attention (RFA, arXiv:2103.02143).

    The projection and its seed are buffers, so both are saved with the model. Weights estimate
    exp(cos(q, k) / sigma^2) and can be negative. A denominator near zero makes them large.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
        num_features: Total number of sines and cosines, an even number; 128, from 64 random
            vectors, in the paper.
        feature_seed: Seed of the projection; drawn from torch's generator by default.
        sigma: Width of the Gaussian kernel of unit queries and keys.
    """

    equation_options = ("sigma",)

    projection: Tensor
    feature_seed: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        num_features: int = 128,
        feature_seed: int | None = None,
        sigma: float = 1.0,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop, num_features=num_features)
        if num_features % 2:
            raise ConfigError(
                f"num_features must be an even number with attention='rfa', got {num_features}: "
                "every random vector gives a sine and a cosine"
            )
        if not 0 < sigma < float("inf"):
            raise ConfigError(f"sigma must be a positive number, got {sigma}")
        self.sigma = sigma
        seed = draw_seed() if feature_seed is None else feature_seed
        drawn = orthogonal_projection(num_features // 2, head_dim, seed=seed)
        self.register_buffer("projection", torch.empty(num_features // 2, head_dim))
        self.register_buffer("feature_seed", torch.zeros((), dtype=torch.int64))
        self.projection.copy_(drawn)
        self.feature_seed.fill_(seed)

    def features(self, x: Tensor, *, is_query: bool, key_mask: Tensor | None = None) -> Tensor:
        """Sines and cosines of the projected unit vectors."""
        del is_query, key_mask
        return rfa_features(x, self.projection, sigma=self.sigma)

    def feature_flops(self, num_tokens: int) -> int:
        """FLOPs of the product with the projection."""
        return num_tokens * self.head_dim * self.num_features

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"num_features={self.num_features}, sigma={self.sigma}"


def rfa(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights phi(q).phi(k) of trigonometric features, over their sum."""
    projection, sigma = parameters["projection"], parameters["sigma"]
    phi_q, phi_k = (rfa_features_reference(x, projection, sigma=sigma) for x in (q, k))
    w = torch.einsum("bhim,bhjm->bhij", phi_q, phi_k)
    if key_mask is not None:
        w = w.masked_fill(~key_mask[:, None, None, :], 0)
    total = w.sum(dim=-1, keepdim=True)
    w = w / torch.where(total == 0, torch.ones_like(total), total)
    return torch.einsum("bhij,bhje->bhie", w, v)


class _SignedCore(AttentionCore):
    """Linear attention whose weights may be negative."""

    can_drop_weights = False

    @abstractmethod
    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Attention weights of chosen queries; rows sum to one and may be negative."""

    def flops(self, num_tokens: int) -> int:
        """4 N D (E + 1/2) per head."""
        return self.num_heads * num_tokens * self.head_dim * (4 * self.head_dim + 2)


class InLineCore(_SignedCore):
    """InLine attention (arXiv:2412.06590): weights q.k / n + (1 - q.mean(k)) / n.

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """InLine attention in linear time."""
        return inline_attention(q, k, v, key_mask=key_mask)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the weights; they sum to one and may be negative."""
        return inline_weights(q, k, key_mask=key_mask, queries=queries)


def inline(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights (s + 1 - mean(s)) / n of s = q.k / sqrt(D)."""
    del parameters
    return inline_reference(q, k, v, scale=q.shape[-1] ** -0.5, key_mask=key_mask)


class MalaCore(_SignedCore):
    """Magnitude-aware linear attention (MALA, arXiv:2507.00698).

    Args:
        num_heads: H.
        head_dim: D.
        attn_drop: Must be 0.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """MALA in linear time."""
        return mala_attention(q, k, v, key_mask=key_mask)

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of the weights; they sum to one and may be negative."""
        return mala_weights(q, k, key_mask=key_mask, queries=queries)


def mala(
    q: Tensor, k: Tensor, v: Tensor, parameters: Parameters, key_mask: Tensor | None = None
) -> Tensor:
    """Weights ((1 + 1/mean(s)) s - mean(s)) / n of s = phi(q).phi(k) / sqrt(D), phi = elu + 1."""
    del parameters
    return mala_reference(q, k, v, scale=q.shape[-1] ** -0.5, key_mask=key_mask)
