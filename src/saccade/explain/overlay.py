"""Overlay of an attention map on its image: the image in gray, the map in color."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from saccade.errors import ConfigError

__all__ = ["COLORMAP", "overlay", "pixels"]

COLORMAP = "inferno"
LUMA = (0.299, 0.587, 0.114)
DARKEST, LIGHTEST = 0.22, 0.9
"""Gray levels of black and white under a map, so that colors are readable on both."""


def pixels(image: Tensor, size: int) -> NDArray[np.float32]:
    """Resize an image (C, H, W) in 0..1 to RGB (height, width, 3) with nearest neighbors."""
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise ConfigError(
            f"image must be a tensor of shape (1 or 3, height, width), got {tuple(image.shape)}"
        )
    values = image.detach().float().cpu().clamp(0, 1).expand(3, -1, -1)
    shown = F.interpolate(values[None], _scaled(image.shape[-2:], size), mode="nearest-exact")[0]
    return np.ascontiguousarray(shown.permute(1, 2, 0).numpy())


def overlay(
    image: Tensor,
    weights: Tensor,
    *,
    size: int = 256,
    opacity: float = 0.5,
    limits: tuple[float, float] | None = None,
) -> NDArray[np.uint8]:
    """Color an image by the weights of its patches.

    Args:
        image: (1 or 3, height, width), in 0..1.
        weights: (rows, columns), one per patch.
        size: Pixels of the longer side of the result.
        opacity: 0 shows the image alone, 1 the map alone.
        limits: Weights of the first and last color; by default the range of the map.

    Returns:
        RGB, uint8 (height, width, 3).
    """
    import matplotlib

    if weights.dim() != 2:
        raise ConfigError(
            f"weights must be a tensor of shape (rows, columns), got {tuple(weights.shape)}"
        )
    if not 0 <= opacity <= 1:
        raise ConfigError(f"opacity must be a number in [0, 1], got {opacity!r}")
    ground = pixels(image, size)
    gray = (ground @ np.array(LUMA, dtype=np.float32))[..., None]
    ground = (1 - opacity) * ground + opacity * (DARKEST + (LIGHTEST - DARKEST) * gray)
    values = weights.detach().double().cpu()
    low, high = (float(values.min()), float(values.max())) if limits is None else limits
    level = ((values - low) / max(high - low, torch.finfo(torch.float64).tiny)).clamp(0, 1)
    smooth = F.interpolate(
        level[None, None], ground.shape[:2], mode="bilinear", align_corners=False
    )[0, 0]
    color = matplotlib.colormaps[COLORMAP](smooth.numpy())[..., :3]
    # A larger weight covers more of the image.
    cover = (opacity ** (1 - 0.6 * smooth.numpy()))[..., None]
    mixed: NDArray[np.float64] = (1 - cover) * ground + cover * color
    return (255 * mixed).round().clip(0, 255).astype(np.uint8)


def _scaled(sides: Sequence[int], size: int) -> tuple[int, int]:
    """Height and width scaled so that the longer side is `size`."""
    height, width = sides
    return (round(height * size / max(sides)), round(width * size / max(sides)))
