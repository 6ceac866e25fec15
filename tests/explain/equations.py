"""Maps as their equations say, whole N x N matrices, from which the answers are computed again."""

import torch
from torch import Tensor, nn

from saccade.bench.equations import EQUATIONS
from saccade.layers import MultiHeadAttention
from saccade.models import VisionTransformer, create_model


def small_model(attention: str, **overrides) -> VisionTransformer:
    """A model of two blocks that has something to look at: weights far from their start."""
    torch.manual_seed(0)
    options = {"depth": 2, "num_classes": 5, "feature_seed": 0} | overrides
    model = create_model("vit_micro_patch4_32", attention=attention, **options)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(12)
    return model.eval()


def pictures(count: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def scaled_map(attn: MultiHeadAttention, tokens: Tensor) -> Tensor:
    """What the heads multiply their values with, (B, H, N, N): the equation at v = identity."""
    q, k, _ = attn.heads(tokens)
    values = torch.eye(tokens.shape[1], dtype=tokens.dtype).expand(*q.shape[:3], -1)
    parameters = dict(attn.core.named_parameters()) | dict(attn.core.named_buffers())
    return EQUATIONS[attn.attention](q, k, values, parameters)


def whole_map(attn: MultiHeadAttention, tokens: Tensor) -> Tensor:
    """The row-stochastic map (B, H, N, N)."""
    weights = scaled_map(attn, tokens)
    return weights / weights.sum(dim=-1, keepdim=True)


class ExplicitAttention(nn.Module):
    """An attention layer that forms its map and keeps it, so that it can be differentiated by."""

    def __init__(self, attn: MultiHeadAttention) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: Tensor, *, key_mask: None, grid: tuple[int, int]) -> Tensor:
        _, _, v = self.attn.heads(x)
        weights = scaled_map(self.attn, x)
        factor = weights.sum(dim=-1, keepdim=True).detach()
        self.map = weights / factor
        self.map.retain_grad()
        return self.attn.proj((factor * self.map @ v).transpose(1, 2).flatten(2))


def explicit(model: VisionTransformer) -> VisionTransformer:
    """The same model with its attention by the equation."""
    for block in model.blocks:
        block.attn = ExplicitAttention(block.attn)
    return model
