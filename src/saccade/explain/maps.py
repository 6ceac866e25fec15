"""Attention maps of an image model per layer and head, and attention rollout.

The map of a head is the attention row of the class token. In a model that pools its tokens, it is
the mean of the rows of all tokens, with the weights of the pooling. Rollout (arXiv:2005.00928)
multiplies the attention of all layers, r <- r (I + mean_h A) / 2 from the last to the first. With
gradients it is r <- r + r mean_h relu(dy/dA * A) (arXiv:2103.15679), minus the initial r.

Weights below zero and rows that do not sum to one (`Attention.rows`) enter as they are, and the
rollout is divided by its sum. It then has entries below zero too.

r is a row and never a matrix. Rows of A are computed for a few queries at a time and summed. For
every attention, a layer takes O(H N^2) time and holds `CHUNK_BYTES` of rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.explain.hooks import LayerInput, Observation, check_model, observe

__all__ = [
    "METHODS",
    "AttentionMaps",
    "Method",
    "attention_maps",
    "check_method",
    "choose",
    "describe_map",
    "entropy",
    "relative_to_uniform",
    "rollout",
    "weighted_rows",
]

Method = Literal["attention", "rollout", "gradient"]
METHODS: tuple[Method, ...] = get_args(Method)

CHUNK_BYTES = 32 << 20
"""Size of the rows of a map held at once; intermediate results take a few times as much."""


@dataclass(frozen=True)
class AttentionMaps:
    """Attention maps of a model for B images.

    Attributes:
        logits: (B, K).
        weights: (B, L, H, N), the map of each chosen layer and head over all tokens. Each sums to
            one, except for `gradient`, which multiplies it by its gradient, and for attentions
            whose rows need not (`Attention.rows`).
        summary: (B, N), one map that sums to one: the mean over the chosen layers and heads for
            `attention`, otherwise the rollout.
        layers: Indices of the chosen layers.
        heads: Indices of the chosen heads.
        grid: Rows and columns of the patch tokens.
        method: The method that made the maps.
    """

    logits: Tensor
    weights: Tensor
    summary: Tensor
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    grid: tuple[int, int]
    method: Method

    def on_grid(self, tokens: Tensor) -> Tensor:
        """Arrange the weights of the patches as an image: (..., N) -> (..., rows, columns)."""
        rows, columns = self.grid
        patches = tokens[..., tokens.shape[-1] - rows * columns :]
        return patches.reshape(*patches.shape[:-1], rows, columns)


def attention_maps(
    model: nn.Module,
    images: Tensor,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    method: Method = "rollout",
    target: Tensor | None = None,
) -> AttentionMaps:
    """Compute the attention maps of a model for images.

    Args:
        model: A `VisionTransformer` with any attention; it is not changed.
        images: (B, in_chans, height, width), normalized as in training, on the model's device.
        layers: Indices of blocks, -1 for the last; all by default.
        heads: Indices of heads; all by default.
        method: The method of `summary`; `gradient` also multiplies the maps by their gradient.
        target: (B,), the classes whose logits are differentiated; the predicted ones by default.
    """
    model = check_model(model)
    check_method(method)
    depth = len(model.blocks)
    chosen = choose("layers", layers, depth)
    kept_heads = choose("heads", heads, model.config.num_heads)
    watched = chosen if method == "attention" else tuple(range(depth))
    seen = observe(model, images, watched, gradient=method == "gradient", target=target)
    shown = [layer for index, layer in zip(watched, seen.layers, strict=True) if index in chosen]
    rows = torch.stack([weighted_rows(layer, seen.readout) for layer in shown], dim=1)
    weights = rows[:, :, list(kept_heads)]  # (B, L, H, N)
    summary = weights.mean(dim=(1, 2)) if method == "attention" else _roll_out(seen)
    grid = model.patch_embed.grid_size
    return AttentionMaps(seen.logits, weights, summary, chosen, kept_heads, grid, method)


def rollout(
    model: nn.Module,
    images: Tensor,
    *,
    layers: Sequence[int] | None = None,
    gradient: bool = False,
    target: Tensor | None = None,
) -> Tensor:
    """Compute the attention rollout through the layers, (B, N) over the tokens; it sums to one.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        layers: Layers to include; the others count as the identity.
        gradient: True multiplies every map by its gradient first.
        target: As in `attention_maps`.
    """
    model = check_model(model)
    chosen = choose("layers", layers, len(model.blocks))
    return _roll_out(observe(model, images, chosen, gradient=gradient, target=target))


def weighted_rows(layer: LayerInput, shares: Tensor) -> Tensor:
    """sum_i shares_i A_i for each head, (B, N) -> (B, H, N), in bounded memory."""
    batch, tokens = shares.shape
    bytes_a_query = batch * layer.attn.num_heads * tokens * shares.element_size()
    total = shares.new_zeros(batch, layer.attn.num_heads, tokens)
    wanted = (shares != 0).any(dim=0).nonzero()[:, 0]
    for queries in torch.split(wanted, max(1, CHUNK_BYTES // bytes_a_query)):
        rows = layer.rows(queries).to(shares.dtype)
        total += (shares[:, None, None, queries] @ rows)[:, :, 0]
    return total


def _roll_out(seen: Observation) -> Tensor:
    shares = seen.readout
    for layer in reversed(seen.layers):
        moved = weighted_rows(layer, shares).mean(dim=1)
        shares = (shares + moved) / 2 if layer.gradient is None else shares + moved
    if any(layer.gradient is not None for layer in seen.layers):
        shares = shares - seen.readout
    total = shares.sum(dim=1, keepdim=True)
    return shares / total.masked_fill(total == 0, 1)


def check_method(method: str) -> Method:
    """Return the method; raise if its name is unknown."""
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    return method


def choose(name: str, asked: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Indices in ascending order; negative ones count from the end, and None selects all."""
    if asked is None:
        return tuple(range(count))
    if not asked or not all(-count <= index < count for index in asked):
        raise ConfigError(
            f"{name} must be one or more of the model's {name} 0 to {count - 1} (negative numbers "
            f"count from the end), got {list(asked)}"
        )
    return tuple(sorted({index % count for index in asked}))


def entropy(weights: Tensor) -> Tensor:
    """Entropy in nats over the last dimension, of the weights divided by their sum."""
    shares: Tensor = torch.special.entr(_normalized(weights.double()))
    return shares.sum(dim=-1)


def relative_to_uniform(weights: Tensor, patches: Tensor) -> Tensor:
    """Weights of the patches as multiples of the weight of a token in a uniform map."""
    return patches * (weights.shape[-1] / float(weights.sum().clamp(min=torch.finfo().tiny)))


def describe_map(weights: Tensor, grid: tuple[int, int]) -> dict[str, Any]:
    """Statistics of one map over N tokens, as JSON values.

    Returns:
        entropy: In nats, over all tokens.
        relative_entropy: Entropy divided by ln N, the entropy of a uniform map.
        class_token: Share of the mass on the tokens in front of the patches.
        center: Center of the mass of the patches, (y, x) as fractions of the image.
        peak: Row and column of the patch with the largest weight.
        half_mass: Smallest share of the patches that holds half of their mass.
    """
    rows, columns = grid
    shares = _normalized(weights.double().cpu())
    patches = shares[len(shares) - rows * columns :]
    mass = _normalized(patches).view(grid)
    down = (torch.arange(rows) + 0.5) / rows
    right = (torch.arange(columns) + 0.5) / columns
    heaviest = patches.sort(descending=True).values.cumsum(0)
    needed = int((heaviest < heaviest[-1] / 2).sum()) + 1
    peak = int(patches.argmax())
    return {
        "entropy": float(entropy(shares)),
        "relative_entropy": float(entropy(shares)) / math.log(max(2, len(shares))),
        "class_token": float(1 - patches.sum()) if len(shares) > len(patches) else 0.0,
        "center": [float(mass.sum(1) @ down.double()), float(mass.sum(0) @ right.double())],
        "peak": [peak // columns, peak % columns],
        "half_mass": needed / len(patches),
    }


def _normalized(weights: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1)
