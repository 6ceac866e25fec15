"""Reference maps: whole N x N matrices computed by the equation of each attention."""

import copy

import torch
from torch import Tensor, nn

from saccade.explain import attention_maps
from saccade.explain.hooks import observe
from saccade.layers import ATTENTIONS, MultiHeadAttention
from saccade.models import VisionTransformer, create_model


def small_model(attention: str, **overrides) -> VisionTransformer:
    """A model of two blocks with large q, k and v weights, so that its maps are not uniform."""
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
    """The matrix that multiplies the values, (B, H, N, N): the equation at v = identity."""
    q, k, _ = attn.heads(tokens)
    values = torch.eye(tokens.shape[1], dtype=tokens.dtype).expand(*q.shape[:3], -1)
    parameters = attn.core.equation_parameters()
    return ATTENTIONS[attn.attention].equation_function(q, k, values, parameters)


def whole_map(attn: MultiHeadAttention, tokens: Tensor) -> Tensor:
    """The map (B, H, N, N), divided by the scale of the output where its rows sum to one."""
    weights = scaled_map(attn, tokens)
    if ATTENTIONS[attn.attention].rows == "free":
        return weights
    return weights / weights.sum(dim=-1, keepdim=True)


def relative_error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).square().sum().sqrt() / truth.square().sum().sqrt())


def errors_of_maps(
    model: VisionTransformer, images: Tensor, shift: float = 0.0
) -> tuple[float, float]:
    """Errors of a model's float32 maps, and of the plain equation in float32, against float64.

    A `shift` adds an error to the tokens of the equation, which the comparison must detect.
    """
    seen = observe(model, images, range(len(model.blocks)))
    exact_model = copy.deepcopy(model).double()
    pairs = [
        (layer.tokens + shift, block.attn, exact.attn)
        for layer, block, exact in zip(seen.layers, model.blocks, exact_model.blocks, strict=True)
    ]
    with torch.no_grad():
        plain = torch.stack([whole_map(attn, tokens)[:, :, 0] for tokens, attn, _ in pairs], 1)
        truth = torch.stack(
            [whole_map(exact, tokens.double())[:, :, 0] for tokens, _, exact in pairs], 1
        )
    found = attention_maps(model, images, method="attention").weights
    return relative_error(found, truth), relative_error(plain, truth)


class ExplicitAttention(nn.Module):
    """An attention layer that forms and keeps its map, so that autograd gives its gradient."""

    def __init__(self, attn: MultiHeadAttention) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: Tensor, *, key_mask: None, grid: tuple[int, int]) -> Tensor:
        _, _, v = self.attn.heads(x)
        weights = scaled_map(self.attn, x)
        factor = weights.sum(dim=-1, keepdim=True).detach()
        if ATTENTIONS[self.attn.attention].rows == "free":
            factor = torch.ones_like(factor)
        self.map = weights / factor
        self.map.retain_grad()
        return self.attn.proj((factor * self.map @ v).transpose(1, 2).flatten(2))


def explicit(model: VisionTransformer) -> VisionTransformer:
    """Replace the attention of a model by the equation."""
    for block in model.blocks:
        block.attn = ExplicitAttention(block.attn)
    return model
