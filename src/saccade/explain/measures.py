"""Numbers for a map: how spread out it is, and where its mass lies."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["describe_map", "entropy", "relative_to_uniform"]


def entropy(weights: Tensor) -> Tensor:
    """Entropy in nats over the last dimension of weights, which are brought to sum one."""
    shares: Tensor = torch.special.entr(_normalised(weights.double()))
    return shares.sum(dim=-1)


def relative_to_uniform(weights: Tensor, patches: Tensor) -> Tensor:
    """Patches of a map as multiples of what each of its tokens would get in equal parts."""
    return patches * (weights.shape[-1] / float(weights.sum().clamp(min=torch.finfo().tiny)))


def describe_map(weights: Tensor, grid: tuple[int, int]) -> dict[str, Any]:
    """The measures of one map over N tokens, as JSON values.

    Returns:
        entropy: In nats, over all tokens.
        relative_entropy: Its share of ln N, the entropy of equal weights.
        class_token: Share of the mass on the tokens before the patches.
        centre: Centre of the mass of the patches, (y, x) as fractions of the image.
        peak: Row and column of the heaviest patch.
        half_mass: The smallest share of the patches that holds half of their mass.
    """
    rows, columns = grid
    shares = _normalised(weights.double().cpu())
    patches = shares[len(shares) - rows * columns :]
    mass = _normalised(patches).view(grid)
    down = (torch.arange(rows) + 0.5) / rows
    right = (torch.arange(columns) + 0.5) / columns
    heaviest = patches.sort(descending=True).values.cumsum(0)
    needed = int((heaviest < heaviest[-1] / 2).sum()) + 1
    peak = int(patches.argmax())
    return {
        "entropy": float(entropy(shares)),
        "relative_entropy": float(entropy(shares)) / math.log(max(2, len(shares))),
        "class_token": float(1 - patches.sum()) if len(shares) > len(patches) else 0.0,
        "centre": [float(mass.sum(1) @ down.double()), float(mass.sum(0) @ right.double())],
        "peak": [peak // columns, peak % columns],
        "half_mass": needed / len(patches),
    }


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1)
