"""The view Look: one picture through several attentions on the same weights.

For each attention: the prediction, the prediction after every layer (logit lens), the attention
weights of one layer and head, the rollout, and the total variation to the first attention by layer
and head. A layer's weights are computed from the tokens that this attention itself feeds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saccade.errors import ConfigError
from saccade.explain.hooks import LayerInput, observe
from saccade.explain.maps import rollout, weighted_rows
from saccade.models import VisionTransformer
from saccade.serve.swaps import Swap

__all__ = ["MAX_WHOLE_MAP", "Focus", "Panel", "look", "rounded"]

MAX_WHOLE_MAP = 600
"""Most tokens of which all rows of a map are sent; with more, only the row that is asked for."""
MAX_COMPARED = 256
"""Most rows of which the total variation is averaged, evenly spaced."""
DIGITS = 7
"""Decimals of the numbers that are sent."""


@dataclass(frozen=True)
class Focus:
    """Which map is looked at.

    Attributes:
        layer: Index of the block.
        head: Index of the head; None for the mean of the heads.
        query: The token whose row is sent if there are too many for a whole map.
    """

    layer: int
    head: int | None
    query: int | None = None


@dataclass(frozen=True)
class Panel:
    """What one attention makes of the picture.

    Attributes:
        lens: (L + 1, K), the probabilities if the model ended after each layer; the first row is
            before the first block.
        queries: The tokens whose rows are in `weights`.
        reading: (N,), the weights of the pooled features: the row of the class token, or the mean
            row of the pooled tokens.
        rollout: (N,), the attention of all layers, multiplied.
        negative: Fraction of the weights of the layer and head that are below zero.
        variation: (L, H), total variation to the first attention; None for the first itself.
    """

    swap: Swap
    probabilities: Tensor
    lens: Tensor
    queries: list[int]
    weights: Tensor
    reading: Tensor
    rollout: Tensor
    negative: float
    variation: Tensor | None

    def as_json(self, class_names: Sequence[str]) -> dict[str, Any]:
        """The numbers as JSON values, classes by probability."""
        probability, order = self.probabilities.sort(descending=True)
        return {
            "attention": self.swap.attention,
            "order": self.swap.order,
            "temperature": self.swap.temperature,
            "classes": [
                {"name": class_names[index], "probability": value}
                for index, value in zip(order.tolist(), rounded(probability), strict=True)
            ],
            "lens": rounded(self.lens),
            "queries": self.queries,
            "weights": rounded(self.weights),
            "reading": rounded(self.reading),
            "rollout": rounded(self.rollout),
            "negative": self.negative,
            "variation": None if self.variation is None else rounded(self.variation),
        }


def rounded(values: Tensor) -> Any:
    """A tensor as nested lists, rounded to `DIGITS` decimals."""
    numbers: Any = np.round(values.detach().double().cpu().numpy(), DIGITS).tolist()
    return numbers


@torch.no_grad()
def look(
    models: Sequence[tuple[Swap, VisionTransformer]], images: Tensor, focus: Focus
) -> list[Panel]:
    """Look at one picture, (1, C, H, W), with several attentions; the first is the reference."""
    model = models[0][1]
    check_focus(focus, model)
    seen = [observe(model, images, range(len(model.blocks))) for _, model in models]
    count = seen[0].readout.shape[1]
    queries = _queries(count, focus)
    compared = torch.linspace(0, count - 1, min(count, MAX_COMPARED), device=images.device).long()
    variation = _variations([one.layers for one in seen], compared)
    panels = []
    for place, ((swap, model), one) in enumerate(zip(models, seen, strict=True)):
        layer = one.layers[focus.layer]
        weights = _head(layer.rows(torch.tensor(queries, device=images.device))[0], focus.head)
        reading = _head(weighted_rows(layer, one.readout)[0][:, None], focus.head)[0]
        panels.append(
            Panel(
                swap,
                one.logits[0].float().softmax(0),
                _lens(model, images),
                queries,
                weights,
                reading,
                rollout(model, images)[0],
                float((weights < 0).double().mean()),
                None if place == 0 else variation[place],
            )
        )
    return panels


def check_focus(focus: Focus, model: VisionTransformer) -> None:
    """Raise if the layer, head or token does not exist."""
    tokens = model.num_prefix_tokens + model.patch_embed.num_patches
    for name, value, count in (
        ("layer", focus.layer, len(model.blocks)),
        ("head", focus.head, model.config.num_heads),
        ("query", focus.query, tokens),
    ):
        if value is not None and not 0 <= value < count:
            raise ConfigError(f"{name} must be from 0 to {count - 1}, got {value}")


def _queries(count: int, focus: Focus) -> list[int]:
    if count <= MAX_WHOLE_MAP:
        return list(range(count))
    return [0 if focus.query is None else focus.query]


def _head(rows: Tensor, head: int | None) -> Tensor:
    """(H, Q, N) to (Q, N): one head, or the mean of the heads."""
    return rows.mean(dim=0) if head is None else rows[head]


def _variations(seen: Sequence[Sequence[LayerInput]], queries: Tensor) -> list[Tensor]:
    """(L, H) for each attention: mean over queries of half the sum of |A - A of the first|."""
    found: list[list[Tensor]] = [[] for _ in seen]
    for layers in zip(*seen, strict=True):
        first, *others = (layer.rows(queries)[0] for layer in layers)
        found[0].append(first.new_zeros(len(first)))
        for kept, rows in zip(found[1:], others, strict=True):
            kept.append((rows - first).abs().sum(dim=-1).mean(dim=-1) / 2)
    return [torch.stack(kept) for kept in found]


def _lens(model: VisionTransformer, images: Tensor) -> Tensor:
    """(L + 1, K): norm, pooling and head applied to the tokens before and after each block."""
    tokens = model.embed(images)
    grid = model.patch_embed.grid_size
    stages = [tokens]
    for block in model.blocks:
        stages.append(model.run_block(block, stages[-1], grid=grid))
    logits = [model.forward_head(model.norm(stage))[0] for stage in stages]
    return torch.stack(logits).float().softmax(-1)
