"""Statistics of an attention map: its entropy and the location of its mass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["describe_map", "entropy", "relative_to_uniform"]


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
