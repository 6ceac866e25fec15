"""Linear-time cores with a positive feature map: Performer (FAVOR+) and its variants.

    o_i = sum_j (phi(q_i).phi(k_j)) v_j / sum_j phi(q_i).phi(k_j)

phi is random and fixed (`RandomFeatureCore`) or learned (`LearnedFeatureCore`); see
`saccade.ops.linear.feature_maps`. Cost: 4 N M (D + E) FLOPs per head for M random features.
"""

import math
from abc import abstractmethod
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.layers.cores import AttentionCore
from saccade.ops import linear
from saccade.ops.arguments import Backend
from saccade.ops.centering import centered_keys
from saccade.ops.linear import (
    FeatureMap,
    linear_attention,
    linear_weights,
    orthogonal_projection,
    performer_attention,
    random_features,
)
from saccade.ops.softmax import softmax_attention

__all__ = ["FeatureCore", "LearnedFeatureCore", "RandomFeatureCore", "draw_seed"]

LearnedKind = Literal["mlp", "mix"]

# torch's CPU generator uses only the low 32 bits of a seed, so seeds are below 2**31.
_SEEDS = 1 << 31
_REDRAW_STRIDE = 1_000_003


def default_num_features(head_dim: int) -> int:
    """D ln D, as in the theory of the Performer paper, rounded up to a multiple of 8."""
    return max(8, 8 * math.ceil(head_dim * math.log(head_dim) / 8)) if head_dim > 1 else 8


class FeatureCore(AttentionCore):
    """Linear attention with the feature map of a subclass."""

    can_drop_weights = False

    weight_eps: ClassVar[float] = 0.0
    """Added to every weight before rows are normalized.

    Positive features need none. FAVOR+ weights can be far below 1e-6 once the largest exponents are
    subtracted, and an eps of that size would be larger than they are. Features that can be zero
    need one, and the equation of the entry adds the same.
    """

    backend: Backend = "auto"
    """As in `linear_attention`."""

    def __init__(
        self, num_heads: int, head_dim: int, *, attn_drop: float, num_features: int | None
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop)
        if num_features is not None and num_features < 1:
            raise ConfigError(f"num_features must be at least 1, got {num_features}")
        self.num_features = num_features or default_num_features(head_dim)

    @abstractmethod
    def features(self, x: Tensor, *, is_query: bool, key_mask: Tensor | None = None) -> Tensor:
        """phi(x) of all tokens in their order: (B, H, N, D) -> (B, H, N, M)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Linear attention over the features of q and k."""
        phi_q = self.features(q, is_query=True)
        phi_k = self.features(k, is_query=False, key_mask=key_mask)
        return linear_attention(
            phi_q, phi_k, v, eps=self.weight_eps, key_mask=key_mask, backend=self.backend
        )

    def attention_weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        queries: Tensor | slice | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """Rows of phi(q).phi(k), divided by their sums."""
        phi_q = self.features(q, is_query=True)
        phi_k = self.features(k, is_query=False, key_mask=key_mask)
        weights = linear_weights(
            phi_q, phi_k, eps=self.weight_eps, key_mask=key_mask, queries=queries
        )
        return weights.to(q.dtype)

    def flops(self, num_tokens: int) -> int:
        """FLOPs of the features, of the sums over keys, and of their products with the queries."""
        attention = num_tokens * self.num_features * (4 * self.head_dim + 2)
        return self.num_heads * (attention + self.feature_flops(2 * num_tokens))

    @abstractmethod
    def feature_flops(self, num_tokens: int) -> int:
        """FLOPs of phi for one head; queries and keys count as `num_tokens` together."""


class RandomFeatureCore(FeatureCore):
    """Linear attention with the features of a fixed random projection with orthogonal rows.

    The projection and its seed are buffers, so both are saved with the model.

    Args:
        num_heads: Number of heads H.
        head_dim: Width D of a head.
        attn_drop: Must be 0.
        feature_map: The name of a function in `saccade.ops.linear`.
        num_features: Number of features M; D ln D by default.
        feature_seed: Seed of the projection; drawn from torch's generator by default.
        center_keys: Subtract the mean of the attended keys from the keys. This does not change the
            softmax that FAVOR+ estimates, and reduces the variance of the estimate.
    """

    projection: Tensor
    feature_seed: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        feature_map: FeatureMap = "favor_softmax",
        num_features: int | None = None,
        feature_seed: int | None = None,
        center_keys: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop, num_features=num_features)
        self.center_keys = center_keys
        if feature_map not in get_args(FeatureMap):
            raise UnknownNameError("feature map", feature_map, get_args(FeatureMap))
        self.feature_map = feature_map
        self.register_buffer("projection", torch.empty(self.num_features, head_dim))
        self.register_buffer("feature_seed", torch.zeros((), dtype=torch.int64))
        self.redraw(draw_seed() if feature_seed is None else feature_seed)

    @torch.no_grad()
    def redraw(self, seed: int | None = None) -> None:
        """Draw a new projection from `seed`, by default one computed from the current seed."""
        if seed is None:
            seed = (int(self.feature_seed) + _REDRAW_STRIDE) % _SEEDS
        drawn = orthogonal_projection(self.num_features, self.head_dim, seed=seed)
        self.projection.copy_(drawn)
        self.feature_seed.fill_(seed)

    def features(self, x: Tensor, *, is_query: bool, key_mask: Tensor | None = None) -> Tensor:
        """Apply the feature map to x."""
        x = centered_keys(x, key_mask) if self.center_keys and not is_query else x
        return random_features(
            x, self.projection, self.feature_map, is_query=is_query, key_mask=key_mask
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> Tensor:
        """Compute features and linear attention in one call."""
        k = centered_keys(k, key_mask) if self.center_keys else k
        return performer_attention(
            q,
            k,
            v,
            self.projection,
            feature_map=self.feature_map,
            eps=self.weight_eps,
            key_mask=key_mask,
        )

    def softmax_counterpart(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None
    ) -> Tensor | None:
        """Softmax attention for FAVOR+; None for the others, which do not approximate it."""
        if self.feature_map != "favor_softmax":
            return None
        return softmax_attention(q, k, v, key_mask=key_mask)

    def feature_flops(self, num_tokens: int) -> int:
        """FLOPs of the product with the projection."""
        return 2 * num_tokens * self.head_dim * self.num_features

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        options = f"feature_map={self.feature_map!r}, num_features={self.num_features}"
        return f"{options}, center_keys=True" if self.center_keys else options


class LearnedFeatureCore(FeatureCore):
    """f-theta: linear attention with a learned feature map that all heads share.

    Args:
        num_heads: Number of heads H.
        head_dim: Width D of a head.
        attn_drop: Must be 0.
        kind: `mlp`, D -> hidden -> ReLU -> M -> softplus; or `mix`, mu exp(z/t) + (1 - mu)
            relu(z/t) over a learned projection z, with mu and t learned for each head.
        num_features: Number of features M; D ln D by default.
        hidden: Width of the MLP.
        feature_seed: Seed of the initial weights; drawn from torch's generator by default.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        attn_drop: float = 0.0,
        kind: LearnedKind = "mlp",
        num_features: int | None = None,
        hidden: int = 128,
        feature_seed: int | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, attn_drop=attn_drop, num_features=num_features)
        if kind not in get_args(LearnedKind):
            raise UnknownNameError("kind of f-theta", kind, get_args(LearnedKind))
        self.kind = kind
        self.hidden = hidden
        if kind == "mlp":
            self.w1 = nn.Parameter(torch.empty(hidden, head_dim))
            self.b1 = nn.Parameter(torch.zeros(hidden))
            self.w2 = nn.Parameter(torch.empty(self.num_features, hidden))
            self.b2 = nn.Parameter(torch.zeros(self.num_features))
        else:
            self.projection = nn.Parameter(torch.empty(self.num_features, head_dim))
            self.mu_logit = nn.Parameter(torch.zeros(num_heads, 1, 1))
            self.log_temperature = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self._initialize(draw_seed() if feature_seed is None else feature_seed)

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        if self.kind == "mix":
            drawn = orthogonal_projection(self.num_features, self.head_dim, seed=seed)
            self.projection.copy_(drawn)
            return
        self.w1.copy_(orthogonal_projection(self.hidden, self.head_dim, seed=seed))
        second = orthogonal_projection(self.num_features, self.hidden, seed=seed + 1)
        self.w2.copy_(second / math.sqrt(self.hidden))

    def features(self, x: Tensor, *, is_query: bool, key_mask: Tensor | None = None) -> Tensor:
        """Apply the learned feature map, which is the same for queries and keys."""
        del is_query, key_mask
        if self.kind == "mlp":
            return linear.ftheta_mlp(x, self.w1, self.b1, self.w2, self.b2)
        mu, temperature = torch.sigmoid(self.mu_logit), torch.exp(self.log_temperature)
        return linear.ftheta_mix(x, self.projection, mu, temperature)

    def feature_flops(self, num_tokens: int) -> int:
        """FLOPs of the MLP, or of the product with the projection."""
        if self.kind == "mix":
            return 2 * num_tokens * self.head_dim * self.num_features
        return 2 * num_tokens * self.hidden * (self.head_dim + self.num_features)

    def extra_repr(self) -> str:
        """The options, for `print(model)`."""
        return f"kind={self.kind!r}, num_features={self.num_features}, hidden={self.hidden}"


def draw_seed() -> int:
    """A seed from torch's generator."""
    return int(torch.randint(_SEEDS, (), device="cpu"))
