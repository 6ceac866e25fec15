"""Every named model made small: the same parts, a width of 16 and one block."""

from typing import Any

import torch
from torch import Tensor

from saccade.models import (
    MODELS,
    SequenceConfig,
    SequenceTransformer,
    VisionTransformer,
    ViTConfig,
    create_model,
)

Model = VisionTransformer | SequenceTransformer


def tiny_overrides(name: str) -> dict[str, Any]:
    """Overrides that shrink a named model and keep its kind of stem, positions and head."""
    config = MODELS[name].config
    small: dict[str, Any] = {"embed_dim": 16, "num_heads": 2, "depth": 1, "num_classes": 3}
    small["mlp_ratio"] = 2.0
    for field in ("mlp_hidden_dim", "head_hidden_dim"):
        if getattr(config, field) is not None:
            small[field] = 24
    if isinstance(config, ViTConfig):
        small["img_size"] = (2 * config.patch_size, 3 * config.patch_size)
    else:
        small |= {"max_seq_len": 9, "input_dim": 7}
    return small


def tiny_model(name: str, attention: str | None = None, **overrides: Any) -> Model:
    return create_model(name, attention, **(tiny_overrides(name) | overrides))


def example(model: Model, batch_size: int = 2) -> Tensor:
    """Random input that fits a model."""
    config = model.config
    if isinstance(config, SequenceConfig):
        if config.embedding == "token":
            return torch.randint(config.input_dim, (batch_size, config.max_seq_len))
        return torch.randn(batch_size, config.max_seq_len, config.input_dim)
    return torch.randn(batch_size, config.in_chans, *config.img_size)
