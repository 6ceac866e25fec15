"""Attention pooling: one learned query attends to all tokens (arXiv:1810.00825, as in SigLIP).

q = W_q latent, k, v = W_kv x; y = proj(softmax(q k^T / sqrt(D)) v); out = y + mlp(norm(y)).
Parameter names are timm's (`latent`, `q`, `kv`, `proj`, `norm`, `mlp`). Cost linear in N.
Layout (B, N, C) to (B, C).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saccade.layers.choices import Activation
from saccade.layers.mlp import Mlp
from saccade.ops.softmax import softmax_weights

__all__ = ["AttentionPool"]


class AttentionPool(nn.Module):
    """Pool tokens with softmax attention from one learned query.

    Args:
        dim: Width C.
        num_heads: Number of heads H; must divide `dim`.
        mlp_hidden_dim: Hidden features of the MLP after the attention.
        act: GELU variant.
        norm_eps: Epsilon of the layer norm.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_hidden_dim: int,
        act: Activation = "gelu",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, dim))
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp = Mlp(dim, mlp_hidden_dim, act)
        nn.init.trunc_normal_(self.latent, std=dim**-0.5)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Pool (B, N, C) to (B, C) over the tokens whose `key_mask` (B, N) is True."""
        q, k, v = self._heads(x)
        mask = None if key_mask is None else key_mask[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, 1, D)
        y = self.proj(y.transpose(1, 2).flatten(2))
        out: Tensor = (y + self.mlp(self.norm(y)))[:, 0]
        return out

    def attention_weights(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Attention weights of the query over tokens (B, N, C): (B, H, N); rows sum to one."""
        q, k, _ = self._heads(x)
        return softmax_weights(q, k, key_mask=key_mask)[:, :, 0]

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The query (B, H, 1, D), keys and values (B, H, N, D)."""
        batch, _, dim = x.shape
        heads = (self.num_heads, dim // self.num_heads)
        q = self.q(self.latent).expand(batch, -1, -1).unflatten(-1, heads).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, *heads)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def flops(self, num_tokens: int) -> int:
        """Forward FLOPs for one sample; a multiply-add counts as 2."""
        dim = self.q.in_features
        projections = 2 * dim * dim * (2 + 2 * num_tokens)
        return projections + 4 * num_tokens * dim + self.mlp.flops(1)
