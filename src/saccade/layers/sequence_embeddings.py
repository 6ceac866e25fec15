"""Embeddings of a sequence as tokens of the model's width C.

| name | input | layers |
|---|---|---|
| `linear` | (B, N, input_dim) numbers | one linear map |
| `conv` | (B, N, input_dim) numbers | (Conv1d of 3, GroupNorm, GELU) three times, each C wide |
| `conv_pyramid` | (B, N, input_dim) numbers | the same, C/4, C/2, C wide, no bias: TaylorShift |
| `token` | (B, N) integers below input_dim | an embedding table |

Padding does not change the values of the real tokens: it is zeroed before every convolution and
left out of the group statistics.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError
from saccade.layers.choices import SequenceEmbedding

__all__ = [
    "ConvEmbedding",
    "LinearEmbedding",
    "TokenEmbedding",
    "build_sequence_embedding",
]


def _check_features(x: Tensor, input_dim: int) -> None:
    if x.dim() != 3 or x.shape[2] != input_dim:
        raise ConfigError(
            f"x must be a tensor of shape (batch, tokens, input_dim={input_dim}), got "
            f"{tuple(x.shape)}"
        )


class LinearEmbedding(nn.Module):
    """One linear layer for each token.

    Args:
        input_dim: Number of input features.
        dim: Width C.
    """

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(input_dim, dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """(B, N, input_dim) to (B, N, C)."""
        _check_features(x, self.proj.in_features)
        out: Tensor = self.proj(x)
        return out

    def flops(self, num_tokens: int) -> int:
        """Forward FLOPs for one sample; a multiply-add counts as 2."""
        return 2 * num_tokens * self.proj.weight.numel()


class TokenEmbedding(nn.Module):
    """A learned vector for each of `input_dim` symbols.

    Args:
        input_dim: Number of symbols.
        dim: Width C.
    """

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Embedding(input_dim, dim)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """(B, N) integers to (B, N, C)."""
        if x.dim() != 2 or x.is_floating_point():
            raise ConfigError(
                f"x must be integers below input_dim={self.proj.num_embeddings} of shape "
                f"(batch, tokens), got {x.dtype} of shape {tuple(x.shape)}"
            )
        out: Tensor = self.proj(x)
        return out

    def flops(self, num_tokens: int) -> int:
        """0: a table look-up needs no arithmetic."""
        return 0


class ConvEmbedding(nn.Module):
    """Three convolutions of kernel size 3 along the sequence, each with GroupNorm and GELU.

    Args:
        input_dim: Number of input features.
        dim: Width C.
        num_groups: Number of groups of the norms; must divide the widths.
        pyramid: True for convolutions C/4, C/2 and C wide without bias; False for three C wide
            with bias.
    """

    def __init__(
        self, input_dim: int, dim: int, num_groups: int = 1, *, pyramid: bool = False
    ) -> None:
        super().__init__()
        if pyramid and dim < 4:
            raise ConfigError(
                f"embed_dim must be at least 4 with embedding='conv_pyramid', got {dim}"
            )
        widths = [dim // 4, dim // 2, dim] if pyramid else [dim, dim, dim]
        self.convs = nn.ModuleList(
            nn.Conv1d(before, after, 3, padding=1, bias=not pyramid)
            for before, after in pairwise([input_dim, *widths])
        )
        self.norms = nn.ModuleList(nn.GroupNorm(num_groups, width) for width in widths)
        self.act = nn.GELU()
        self.input_dim = input_dim

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """(B, N, input_dim) to (B, N, C); `key_mask` (B, N) is False on padding."""
        _check_features(x, self.input_dim)
        x = x.transpose(1, 2)  # (B, input_dim, N)
        keep = None if key_mask is None else key_mask[:, None].to(x.dtype)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x if keep is None else x * keep)
            x = self.act(norm(x) if keep is None else _masked_group_norm(x, keep, norm))
        return x.transpose(1, 2)

    def flops(self, num_tokens: int) -> int:
        """Forward FLOPs for one sample; a multiply-add counts as 2."""
        return 2 * num_tokens * sum(p.numel() for p in self.convs.parameters() if p.dim() == 3)


def _masked_group_norm(x: Tensor, keep: Tensor, norm: nn.Module) -> Tensor:
    """GroupNorm of (B, C, N) with statistics over the tokens whose `keep` (B, 1, N) is 1."""
    assert isinstance(norm, nn.GroupNorm)
    batch, _, tokens = x.shape
    grouped = x.reshape(batch, norm.num_groups, -1, tokens)  # (B, G, C / G, N)
    keep = keep[:, None]
    count = (keep.sum(dim=(2, 3), keepdim=True) * grouped.shape[2]).clamp(min=1)
    mean = (grouped * keep).sum(dim=(2, 3), keepdim=True) / count
    centered = grouped - mean
    variance = (centered.square() * keep).sum(dim=(2, 3), keepdim=True) / count
    normal = (centered * torch.rsqrt(variance + norm.eps)).flatten(1, 2)
    return normal * norm.weight[:, None] + norm.bias[:, None]


def build_sequence_embedding(
    name: SequenceEmbedding, input_dim: int, dim: int
) -> LinearEmbedding | ConvEmbedding | TokenEmbedding:
    """Build an embedding by name, as in the table above."""
    if name == "conv_pyramid":
        return ConvEmbedding(input_dim, dim, pyramid=True)
    table = {"linear": LinearEmbedding, "conv": ConvEmbedding, "token": TokenEmbedding}
    embedding: LinearEmbedding | ConvEmbedding | TokenEmbedding = table[name](input_dim, dim)
    return embedding
