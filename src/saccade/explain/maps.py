"""Attention maps of an image model, layer by layer and head by head, and rolled out.

The map of a head is the row of the class token; a model that pools its tokens has the mean of the
rows of all tokens, weighted as the pooling weighs them. Rollout (arXiv:2005.00928) follows the
attention down through all layers, r <- r (I + mean_h A) / 2 from the last to the first. With
gradients it is r <- r + r mean_h relu(dy/dA * A) (arXiv:2103.15679), less the r it began with.

r is one row and never a matrix: rows of A are formed for a few queries at a time and summed, so a
layer costs O(H N^2) time and no more memory than `CHUNK_BYTES`, whatever the mechanism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from saccade.errors import ConfigError, UnknownNameError
from saccade.explain.observation import LayerInput, Observation, check_model, observe

__all__ = [
    "METHODS",
    "AttentionMaps",
    "Method",
    "attention_maps",
    "check_method",
    "choose",
    "rollout",
    "weighted_rows",
]

Method = Literal["attention", "rollout", "gradient"]
METHODS: tuple[Method, ...] = get_args(Method)

CHUNK_BYTES = 32 << 20
"""Rows of a map that are held at once; what is computed on the way takes a few times as much."""


@dataclass(frozen=True)
class AttentionMaps:
    """What a model looked at in each of B images.

    Attributes:
        logits: (B, K).
        weights: (B, L, H, N), the map of each chosen layer and head over all tokens. Plain
            attention sums to one; times its gradient it is as large as it comes.
        summary: (B, N), all of it in one map, which sums to one: the mean over the chosen layers
            and heads for `attention`, else the rollout.
        layers: Which layers of the model.
        heads: Which heads.
        grid: Rows and columns of the patch tokens.
        method: How the maps were made.
    """

    logits: Tensor
    weights: Tensor
    summary: Tensor
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    grid: tuple[int, int]
    method: Method

    def on_grid(self, tokens: Tensor) -> Tensor:
        """The weights of the patches as a picture: (..., N) -> (..., rows, columns)."""
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
    """What a model looks at in some images.

    Args:
        model: A `VisionTransformer` with any attention; left as it was found.
        images: (B, in_chans, height, width), normalised as in training, on the model's device.
        layers: Indices of blocks, -1 for the last; all by default.
        heads: Indices of heads; all by default.
        method: What `summary` is, and whether the maps are multiplied with their gradient.
        target: (B,), the classes that gradients are taken of; the predicted ones by default.
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
    """Attention followed down through the layers, (B, N) over the tokens, summing to one.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        layers: Only these layers; the others count as if they mixed nothing.
        gradient: Whether every map is multiplied with its gradient first.
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
    """Refuse the name of a method that there is not."""
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    return method


def choose(name: str, asked: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Indices in ascending order, negative ones counted from the end; all of them for None."""
    if asked is None:
        return tuple(range(count))
    if not asked or not all(-count <= index < count for index in asked):
        raise ConfigError(f"{name}={list(asked)}: the model has {name} 0 to {count - 1}")
    return tuple(sorted({index % count for index in asked}))
