"""Small models whose outputs depend on every parameter; the forms of every attention."""

from collections.abc import Callable
from typing import Any

import torch

from saccade.layers import ATTENTIONS, MultiHeadAttention, list_attentions
from saccade.models import SequenceTransformer, VisionTransformer, create_model


def forms() -> list[tuple[str, str]]:
    """Every attention with every algorithm that it has."""
    return [
        (name, algorithm)
        for name in list_attentions()
        for algorithm in (
            ("direct", "efficient") if "algorithm" in ATTENTIONS[name].options else ("auto",)
        )
    ]


def disturbed(model: Any) -> Any:
    """The model with parameters far from their initial values, some of which are zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def image_model(attention: str = "softmax", **overrides: Any) -> VisionTransformer:
    """A ViT over 4 x 4 patches."""
    small = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_hidden_dim": 32, "num_classes": 5}
    options = {**small, "img_size": 16, **overrides}
    return disturbed(create_model("vit_micro_patch4_32", attention, **options))


def sequence_model(attention: str = "softmax", **overrides: Any) -> SequenceTransformer:
    """A transformer over 12 symbols."""
    options = {"embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3, **overrides}
    return disturbed(SequenceTransformer(12, 7, embedding="token", attention=attention, **options))


def with_every_attention(make: Callable[..., Any]) -> Any:
    """A model with one block for each form of every attention."""
    model = make(depth=len(forms()))
    for block, (attention, algorithm) in zip(model.blocks, forms(), strict=True):
        options = {} if algorithm == "auto" else {"algorithm": algorithm}
        block.attn = disturbed(
            MultiHeadAttention(
                model.embed_dim, model.config.num_heads, attention, attention_options=options
            )
        )
    return model
